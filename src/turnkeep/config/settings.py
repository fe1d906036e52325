"""Settings: one frozen value, read once from flags and environment. Ignores files, databases and the network.

A flag wins over the environment, the environment over the default.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec
from msgspec import Struct

from turnkeep.config.parsing import MASK, mask_url
from turnkeep.config.variables import SECRETS, VARIABLES, LogLevel, OpenAIApi, ReasoningEffort, read_variables
from turnkeep.http_server.sockets import http_address

LOOPBACK_HOSTS = frozenset({"127.0.0.1", "::1", "localhost"})


class Settings(Struct, frozen=True, kw_only=True):
    """What an operator may set. Secrets are masked in `repr`, also those inside addresses."""

    host: str = "127.0.0.1"
    port: int = 8787
    data_dir: Path = Path(".turnkeep")
    database_url: str = ""
    database_client_url: str | None = None
    database_prepared_statements: bool = True
    files_url: str = ""
    redis_url: str | None = None
    bootstrap_key: str | None = None
    secret_keys: tuple[str, ...] = ()
    public_url: str | None = None
    sandbox_url: str | None = None
    replay_turns: int = 20
    context_chars: int = 400_000
    tool_rounds: int = 5
    tool_result_chars: int = 4_000
    max_file_bytes: int = 52_428_800
    max_files_per_message: int = 10
    lease_seconds: float = 10.0
    disconnect_grace_seconds: float = 30.0
    bag_url_ttl_seconds: int = 300
    setup_token_seconds: float = 600.0
    upload_token_seconds: float = 3_600.0
    model: str = "demo"
    reasoning_effort: ReasoningEffort = "auto"
    openai_api: OpenAIApi = "auto"
    provider_timeout_seconds: float = 60.0
    tool_timeout_seconds: float = 30.0
    turn_timeout_seconds: float = 28_800.0
    tools: tuple[str, ...] = ()
    retention_days: float = 30.0
    allowed_origins: tuple[str, ...] = ()
    max_body_bytes: int = 1_048_576
    allow_private_addresses: bool = False
    allow_mcp_commands: bool = False
    drain_seconds: float = 10.0
    log_level: LogLevel = "info"

    def __post_init__(self) -> None:
        if not self.database_url:
            msgspec.structs.force_setattr(self, "database_url", f"sqlite:///{self.data_dir / 'turnkeep.db'}")
        if not self.files_url:
            msgspec.structs.force_setattr(self, "files_url", f"file:///{self.data_dir / 'files'}")

    def __repr__(self) -> str:
        shown = (f"{field}={_shown(field, getattr(self, field))!r}" for field in self.__struct_fields__)
        return f"Settings({', '.join(shown)})"

    @property
    def is_sqlite(self) -> bool:
        return self.database_url.startswith("sqlite:")

    @property
    def sqlite_path(self) -> Path:
        """Where the database file is: `sqlite:///relative.db`, or `sqlite:////absolute.db`."""
        return Path(self.database_url.removeprefix("sqlite:///"))

    @property
    def files_path(self) -> Path:
        """The folder of a `file:` address: `file:///absolute`, or the one below the data directory."""
        default = self.data_dir / "files"
        if self.files_url == f"file:///{default}":
            return default
        return Path("/", unquote(urlsplit(self.files_url).path).lstrip("/"))

    @property
    def is_local(self) -> bool:
        """Only programs of this machine can connect, so the names under which they may do it are known."""
        return self.host in LOOPBACK_HOSTS

    @property
    def runner_url(self) -> str | None:
        """The runner that the operator named, if one is named."""
        return None if self.sandbox_url == "off" else self.sandbox_url

    def address(self, port: int | None = None) -> str:
        """Where people reach the server: the public address, or host and port (the port that was really bound)."""
        if self.public_url:
            return self.public_url
        return http_address(self.host, port or self.port)


def read_settings(environ: Mapping[str, str], flags: Mapping[str, str | None] | None = None) -> Settings:
    """Settings from `flags` over `environ`. Raises InvalidRequest with the name, what is allowed and what was given."""
    return Settings(**read_variables(VARIABLES, environ, flags))


def _shown(field: str, value: Any) -> Any:
    if field in SECRETS:
        return MASK if value else value
    return mask_url(value) if isinstance(value, str) else value
