"""How a command reaches a server: which one, with which key, and for whom. The options are the same for all of them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from turnkeep.client.finding import DEFAULT, find_server
from turnkeep.client.patience import OnTrouble
from turnkeep.client.sync import Turnkeep
from turnkeep.client.transport import PATIENCE_SECONDS
from turnkeep.errors import Unauthorized, Unavailable

PANEL = "Which server"

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


@contextmanager
def connected(
    url: str | None,
    key: str | None,
    *,
    user: str | None = None,
    workspace: str | None = None,
    data_dir: str | None = None,
    patience_seconds: float = PATIENCE_SECONDS,
    on_trouble: OnTrouble | None = None,
) -> Iterator[Turnkeep]:
    """A client of the server that these options name. Raises Unauthorized where no key is known."""
    place = find_server(url, key, data_dir=data_dir)
    if place.key is None and place.found_in == DEFAULT:
        raise Unavailable(
            "No server of yours runs here. Start one with `turnkeep serve`, or set TURNKEEP_URL and TURNKEEP_KEY."
        )
    if place.key is None:
        raise Unauthorized(
            f"There is no key for {place.url}. Set TURNKEEP_KEY, or run this where `turnkeep serve` keeps its data "
            "(--data-dir)."
        )
    with Turnkeep(
        place.url,
        place.key,
        user=user,
        workspace_id=workspace,
        patience_seconds=patience_seconds,
        on_trouble=on_trouble,
    ) as turnkeep:
        yield turnkeep
