"""Options that name a server (address, key, user, workspace), and the client that a command gets by them."""

import gc
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from importlib import import_module
from typing import Annotated, Concatenate, ParamSpec, get_type_hints

import typer
from msgspec import Struct

from turnkeep.errors import Unauthorized, Unavailable
from turnkeep_client.discovery import DEFAULT, LOCAL_USER, find_server
from turnkeep_client.retry import OnTrouble
from turnkeep_client.sync import Turnkeep
from turnkeep_client.transport import PATIENCE_SECONDS

PANEL = "Which server"
DATA_DIR_VARIABLE = "TURNKEEP_DATA_DIR"

Given = ParamSpec("Given")

Url = Annotated[
    str | None,
    typer.Option("--url", help="The server (TURNKEEP_URL); by default the one on this machine.", rich_help_panel=PANEL),
]
Key = Annotated[
    str | None,
    typer.Option("--key", help="A service key or a user token (TURNKEEP_KEY).", rich_help_panel=PANEL),
]
User = Annotated[
    str | None, typer.Option("--user", help="Act for this user, with a service key.", rich_help_panel=PANEL)
]
Workspace = Annotated[
    str | None, typer.Option("--workspace", help="ws_…, where it is not the default one.", rich_help_panel=PANEL)
]
ServerDir = Annotated[
    str | None,
    typer.Option(
        "--data-dir", help="The data directory of a server on this machine (TURNKEEP_DATA_DIR).", rich_help_panel=PANEL
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Answer as JSON on standard output, for scripts.")]


class ServerOptions(Struct, frozen=True, kw_only=True):
    """The server that a command talks to, as its options name it."""

    url: Url = None
    key: Key = None
    user: User = None
    workspace: Workspace = None
    data_dir: ServerDir = None

    @contextmanager
    def connected(
        self,
        *,
        patience_seconds: float = PATIENCE_SECONDS,
        on_trouble: OnTrouble | None = None,
        as_operator: bool = False,
    ) -> Iterator[Turnkeep]:
        """A client of that server. With `as_operator` and the local key it acts for the operator: the same user as in
        the browser that the sign-in link signs in, so what it makes is visible there.

        Raises Unavailable if no server is known, and Unauthorized if no key is known.
        """
        place = find_server(self.url, self.key, data_dir=self.data_dir, environ=local_environment())
        if place.key is None and place.found_in == DEFAULT:
            raise Unavailable(
                "No server of yours runs here. Start one with `turnkeep serve`, or set TURNKEEP_URL and TURNKEEP_KEY."
            )
        if place.key is None:
            raise Unauthorized(
                f"There is no key for {place.url}. Set TURNKEEP_KEY, or run this where `turnkeep serve` keeps its data "
                "(--data-dir)."
            )
        is_operator = as_operator and place.has_local_key and self.workspace is None
        gc.disable()  # while libraries are loaded, as in `main`
        _import_httpx()
        turnkeep = Turnkeep(
            place.url,
            place.key,
            user=self.user or (LOCAL_USER if is_operator else None),
            workspace_id=self.workspace,
            patience_seconds=patience_seconds,
            on_trouble=on_trouble,
        )
        gc.freeze()
        gc.enable()
        with turnkeep:
            yield turnkeep


def local_environment() -> Mapping[str, str]:
    """The environment, with the data directory of the file that the server here is started with. Nothing else of the
    file counts: it may lie in a folder of another person, and must not say where a key is sent."""
    if os.environ.get(DATA_DIR_VARIABLE):
        return os.environ
    if not os.environ.get("TURNKEEP_CONFIG") and not os.path.exists("turnkeep.toml"):
        return os.environ  # the settings, which take a while to load, are not needed
    from turnkeep.config import find_config_file

    file = find_config_file(os.environ)
    data_dir = file.values.get(DATA_DIR_VARIABLE, "") if file else ""
    return {**os.environ, DATA_DIR_VARIABLE: data_dir}


def _import_httpx() -> None:
    """Without the command line of httpx, which imports Rich: a sixth of the time that a command takes to start."""
    if "httpx" not in sys.modules:
        sys.modules["httpx._main"] = None  # type: ignore[assignment]
        import_module("httpx")
        del sys.modules["httpx._main"]


def asks_a_server(command: Callable[Concatenate[ServerOptions, Given], None]) -> Callable[Given, None]:
    """Replace the first argument of the command (`server`) by the options that name a server."""
    own = inspect.signature(command, eval_str=True)
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, annotation in get_type_hints(ServerOptions, include_extras=True).items()
    ]

    @wraps(command)
    def call(*args: Given.args, **kwargs: Given.kwargs) -> None:
        chosen = {option.name: kwargs.pop(option.name) for option in options}
        command(ServerOptions(**chosen), *args, **kwargs)  # type: ignore[arg-type]

    signature = own.replace(parameters=[*list(own.parameters.values())[1:], *options])
    call.__signature__ = signature  # type: ignore[attr-defined]
    return call
