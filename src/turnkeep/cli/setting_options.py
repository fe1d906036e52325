"""Command line options made from the table of settings, so that each setting is declared once."""

import inspect
from collections.abc import Callable, Iterable
from typing import Annotated, Any

import typer

from turnkeep.config.variables import Variable

ConfigOption = Annotated[
    str | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="A file with settings (TURNKEEP_CONFIG); by default turnkeep.toml here, if any.",
    ),
]


def with_flags(
    command: Callable[..., None], variables: Iterable[Variable], **more: tuple[Any, Any]
) -> Callable[..., None]:
    """The command with an option for each variable; then `more`, each with its default and its annotation."""
    parameters = [
        *(_option(variable.field, None, _annotation(variable)) for variable in variables),
        *(_option(name, default, annotation) for name, (default, annotation) in more.items()),
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _option(name: str, default: Any, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _annotation(variable: Variable) -> Any:
    meaning = f"{variable.meaning} [default: {variable.shown_default}]"
    option = typer.Option(variable.flag, help=meaning, metavar="TEXT", rich_help_panel="Settings", show_default=False)
    return Annotated[str | None, option]
