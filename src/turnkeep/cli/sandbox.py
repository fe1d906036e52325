"""`turnkeep sandbox`: run agent loops for a server, and their tools in boxes."""

import asyncio
import inspect
import os
import socket
from collections.abc import Callable
from typing import Annotated, Any

import typer

from turnkeep.runner.settings import RUNNER_VARIABLES, RunnerSettings, read_runner_settings


def _sandbox(**options: Any) -> None:
    """Run a sandbox runner. Every option can also be an environment variable (TURNKEEP_SANDBOX_…); a flag wins.

    **Examples**

    - `turnkeep sandbox`

    - `turnkeep sandbox --port 8790 --turns 8`
    """
    until_eof: bool = options.pop("until_eof")
    settings = read_runner_settings(os.environ, options)
    from turnkeep.api.logs import configure_logging
    from turnkeep.runner.server import bind, serve_runner

    configure_logging("info")
    with bind(settings) as listener:
        asyncio.run(
            serve_runner(settings, listener, on_ready=lambda: _announce(settings, listener), until_eof=until_eof)
        )


def _announce(settings: RunnerSettings, listener: socket.socket) -> None:
    host, port = listener.getsockname()[:2]
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    print(f"Turnkeep sandbox runner at {address}")
    print(f"  boxes      {settings.driver}, {settings.turns} at once")
    print(f"  to use it  TURNKEEP_SANDBOX_URL={address} turnkeep serve")
    print("Stop it with Ctrl-C.", flush=True)


def _with_flags(function: Callable[..., None]) -> Callable[..., None]:
    """One option for each setting, so that the table in `runner.settings` is the only list of them."""
    parameters = [
        inspect.Parameter(
            variable.field,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[
                str | None,
                typer.Option(
                    variable.flag, help=variable.meaning, metavar="TEXT", rich_help_panel="Settings", show_default=False
                ),
            ],
        )
        for variable in RUNNER_VARIABLES
    ]
    until_eof = Annotated[
        bool, typer.Option("--until-eof", help="Stop when standard input ends, as it does when a parent process dies.")
    ]
    parameters.append(
        inspect.Parameter("until_eof", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=until_eof)
    )
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    function.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return function


sandbox = _with_flags(_sandbox)
