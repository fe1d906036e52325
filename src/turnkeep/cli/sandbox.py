"""`turnkeep sandbox`: a runner, which runs agent loops for a server and their tools in sandboxes."""

import asyncio
import os
import socket
import sys
from typing import Annotated, Any

import typer

from turnkeep.cli.output import say
from turnkeep.cli.setting_options import ConfigOption, with_flags
from turnkeep.config import find_config_file
from turnkeep.http_server.sockets import http_address
from turnkeep.sandbox.settings import RUNNER_VARIABLES, RunnerSettings, read_runner_settings

_IN_SCOPE = "TURNKEEP_IN_SCOPE"
"""Set for the process that systemd started, so that it is done once."""


def _sandbox(**options: Any) -> None:
    """Run a sandbox runner. Every setting can also be an environment variable (TURNKEEP_SANDBOX_…), or a line under
    [sandbox] in turnkeep.toml.

    A flag wins over the environment, the environment over the file, and the file over the default.

    **Examples**

    - `turnkeep sandbox --server http://127.0.0.1:8787`

    - `turnkeep sandbox --server https://chat.example.com --port 8790 --turns 8`
    """
    until_eof: bool = options.pop("until_eof")
    settings = read_runner_settings(os.environ, options, find_config_file(os.environ, options.pop("config")))
    settings.check()
    _enter_scope(settings)
    from turnkeep.api.telemetry.logs import configure_logging
    from turnkeep.sandbox.server import bind, serve_runner

    configure_logging("info")
    with bind(settings) as listener:
        asyncio.run(
            serve_runner(settings, listener, on_ready=lambda: _announce(settings, listener), until_eof=until_eof)
        )


def _enter_scope(settings: RunnerSettings) -> None:
    """Where this process cannot make memory cgroups but systemd can, become a process in a delegated scope of it."""
    if settings.driver != "bubblewrap" or _IN_SCOPE in os.environ:
        return
    from turnkeep.sandbox.boxes.limits import Cgroups, scope_command

    if Cgroups.find() is not None:
        return
    scope = scope_command(os.environ)
    if scope is not None:
        os.environ[_IN_SCOPE] = "1"
        program = (sys.executable, "-c", "from turnkeep.cli.main import main; main()")
        os.execv(scope[0], [*scope, *program, *sys.argv[1:]])


def _announce(settings: RunnerSettings, listener: socket.socket) -> None:
    address = http_address(*listener.getsockname()[:2])
    say(f"Turnkeep sandbox runner at {address}")
    say(f"  boxes      {settings.driver}, {settings.turns} at once")
    say(f"  to use it  TURNKEEP_SANDBOX_URL={address} turnkeep serve")
    say("Stop it with Ctrl-C.", flush=True)


UntilEof = Annotated[
    bool, typer.Option("--until-eof", help="Stop when standard input ends, as it does when a parent process dies.")
]

sandbox = with_flags(_sandbox, RUNNER_VARIABLES, until_eof=(False, UntilEof), config=(None, ConfigOption))
