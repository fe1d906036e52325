"""Discovery: the address of the server and the key for it, from the environment and the data directory. No network.

In this order: the arguments of the caller; `TURNKEEP_URL` and `TURNKEEP_KEY`; what `turnkeep serve` keeps in its data
directory (`TURNKEEP_DATA_DIR`, by default `.turnkeep`): its address while it runs, and the local service key. The
local key is sent to that server alone, never to an address that came from elsewhere.

Anybody may have written the files of a folder. So a key that the caller did not give is sent to an address from a file
only if the address is on this machine, or its host is the one that `TURNKEEP_HOST` names.
"""

import ipaddress
import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from turnkeep_client.wire.errors import InvalidRequest

SERVER_FILE = "server.json"
KEY_FILE = "local.key"
DATA_DIR = ".turnkeep"
LOCAL_USER = "local"
"""The host id of the operator, as whom the sign-in link of `turnkeep serve` signs a browser in."""
DEFAULT_URL = "http://127.0.0.1:8787"
DEFAULT = "the default address"
"""What `found_in` says where neither the caller nor the environment named a server."""


class RunningServer(Struct, frozen=True, kw_only=True):
    """The server of a data directory, as recorded there."""

    url: str
    pid: int


class ServerAddress(Struct, frozen=True, kw_only=True):
    """A server and a key for it. `key` is None if none was found: then only public routes answer."""

    url: str
    key: str | None
    found_in: str
    has_local_key: bool = False
    """Whether the key is that of the data directory: the caller is the operator of the server."""

    @property
    def is_loopback(self) -> bool:
        return _is_loopback(urlsplit(self.url).hostname or "")

    def __repr__(self) -> str:
        return f"ServerAddress(url={self.url!r}, key={'***' if self.key else None}, found_in={self.found_in!r})"


def find_server(
    url: str | None = None,
    key: str | None = None,
    *,
    data_dir: str | Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> ServerAddress:
    """The server to call. Raises InvalidRequest for a malformed address, and for one from a file that must not get the
    key."""
    environ = os.environ if environ is None else environ
    folder = Path(data_dir or environ.get("TURNKEEP_DATA_DIR") or DATA_DIR)
    running = running_server(folder)
    local = running.url if running else _default_url(environ)
    if url:
        chosen, found_in = url, "the caller"
    elif environ.get("TURNKEEP_URL") and data_dir is None:
        chosen, found_in = environ["TURNKEEP_URL"], "TURNKEEP_URL"
    else:
        chosen, found_in = local, f"{folder / SERVER_FILE}" if running else DEFAULT
    chosen = _checked(chosen)
    is_given = bool(key)
    key = key or (environ.get("TURNKEEP_KEY") if data_dir is None else None)
    local_key = None if key or chosen != _checked(local) else _local_key(folder)
    if not key and chosen == _checked(local):
        key = local_key or environ.get("TURNKEEP_BOOTSTRAP_KEY")
    if key and not is_given and running and found_in == f"{folder / SERVER_FILE}":
        check_may_get_keys(running, folder, environ)
    return ServerAddress(url=chosen, key=key or None, found_in=found_in, has_local_key=local_key is not None)


def check_may_get_keys(server: RunningServer, data_dir: Path, environ: Mapping[str, str]) -> None:
    """Raises InvalidRequest unless the address, which was read in this directory, is that of a server here."""
    host = urlsplit(server.url).hostname or ""
    if not _is_loopback(host) and host != environ.get("TURNKEEP_HOST", "").strip().lower():
        raise InvalidRequest(
            f"{data_dir / SERVER_FILE} names {server.url}, which may be another machine. No key is sent there. If it "
            f"is your server, set TURNKEEP_HOST={host}."
        )


def running_server(data_dir: Path) -> RunningServer | None:
    """The server that is recorded in this directory, if its process is alive."""
    try:
        server = msgspec.json.decode((data_dir / SERVER_FILE).read_bytes(), type=RunningServer)
        os.kill(server.pid, 0)
    except PermissionError:
        # The process lives and belongs to another user, or the file cannot be read; the file decides.
        return _unchecked(data_dir)
    except (OSError, msgspec.MsgspecError):
        return None
    return server


def _unchecked(data_dir: Path) -> RunningServer | None:
    try:
        return msgspec.json.decode((data_dir / SERVER_FILE).read_bytes(), type=RunningServer)
    except (OSError, msgspec.MsgspecError):
        return None


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _default_url(environ: Mapping[str, str]) -> str:
    host, port = environ.get("TURNKEEP_HOST") or "127.0.0.1", environ.get("TURNKEEP_PORT") or "8787"
    if "://" in port:  # Kubernetes sets it for a service that is called `turnkeep`
        port = "8787"
    # A server that listens on every address is reached over loopback.
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _local_key(data_dir: Path) -> str | None:
    try:
        return (data_dir / KEY_FILE).read_text(encoding="utf-8").strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def _checked(url: str) -> str:
    refusal = InvalidRequest(f"{url!r} is no address of a server. One looks like {DEFAULT_URL}.")
    try:
        parts = urlsplit(url.strip())
        is_usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError as exc:
        raise refusal from exc
    if not is_usable:
        raise refusal
    if parts.username or parts.query or parts.fragment:
        raise InvalidRequest("The address of the server holds neither a password nor a query. Give the key apart.")
    return url.strip().rstrip("/")
