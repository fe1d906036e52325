"""Settings: one frozen value, read once from flags and environment. Ignores files, databases and the network.

`VARIABLES` is the table that everything else follows: reading, the flags of `turnkeep serve`, and the reference
page. A flag wins over the environment, the environment over the default.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urlsplit, urlunsplit

import msgspec
from msgspec import Struct

from turnkeep.errors import InvalidRequest

MASK = "***"

LogLevel = Literal["debug", "info", "warning", "error"]
LOG_LEVELS: tuple[LogLevel, ...] = ("debug", "info", "warning", "error")

OpenAIApi = Literal["auto", "responses", "chat"]
OPENAI_APIS: tuple[OpenAIApi, ...] = ("auto", "responses", "chat")
ReasoningEffort = Literal["auto", "off", "low", "medium", "high"]
REASONING_EFFORTS: tuple[ReasoningEffort, ...] = ("auto", "off", "low", "medium", "high")

LOOPBACK_HOSTS = frozenset({"127.0.0.1", "::1", "localhost"})


class Settings(Struct, frozen=True, kw_only=True):
    """What an operator may set. Secrets are masked in `repr`, also those inside addresses."""

    host: str = "127.0.0.1"
    port: int = 8787
    data_dir: Path = Path(".turnkeep")
    database_url: str = ""
    database_client_url: str | None = None
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
    retention_days: float = 30.0
    allowed_origins: tuple[str, ...] = ()
    max_body_bytes: int = 1_048_576
    allow_private_addresses: bool = False
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
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"http://{f'[{host}]' if ':' in host else host}:{port or self.port}"


class Variable(Struct, frozen=True, kw_only=True):
    """One row of the table: where a setting is read from, what it may be, what it means."""

    field: str
    parse: Callable[[str], Any]
    allowed: str
    meaning: str
    default: str | None = None
    """How the reference page shows the default; None: as it is."""
    is_secret: bool = False

    @property
    def name(self) -> str:
        return f"TURNKEEP_{self.field.upper()}"

    @property
    def flag(self) -> str:
        return f"--{self.field.replace('_', '-')}"

    def read(self, text: str, *, origin: str) -> Any:
        """The value, or InvalidRequest with the name, what is allowed, and (unless it is secret) what was given."""
        try:
            return self.parse(text.strip())
        except ValueError as exc:
            given = "what it is" if self.is_secret else repr(mask_url(text))
            raise InvalidRequest(f"{origin} must be {self.allowed}, not {given}.") from exc


def read_settings(environ: Mapping[str, str], flags: Mapping[str, str | None] | None = None) -> Settings:
    """Settings from `flags` (by field; None where absent) over `environ`. An empty variable counts as absent."""
    flags = flags or {}
    values: dict[str, Any] = {}
    for variable in VARIABLES:
        flag = flags.get(variable.field)
        if flag is not None:
            values[variable.field] = variable.read(flag, origin=variable.flag)
        elif text := environ.get(variable.name, "").strip():
            values[variable.field] = variable.read(text, origin=variable.name)
    return Settings(**values)


def mask_url(text: str) -> str:
    """An address without the password inside it. Other texts stay as they are."""
    try:
        parts = urlsplit(text)
        password = parts.password
    except ValueError:
        return text
    if not parts.scheme or not password:
        return text
    user, _, host = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{user.partition(':')[0]}:{MASK}@{host}"))


def _shown(field: str, value: Any) -> Any:
    if field in SECRETS:
        return MASK if value else value
    return mask_url(value) if isinstance(value, str) else value


def _whole(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text)
        if not low <= value <= high:
            raise ValueError(text)
        return value

    return parse


def _number(low: float, high: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        value = float(text)
        if not low <= value <= high:  # false for NaN too
            raise ValueError(text)
        return value

    return parse


def _address(*schemes: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        parts = urlsplit(text)
        if parts.scheme not in schemes or not (parts.netloc or parts.path.strip("/")):
            raise ValueError(text)
        return text

    return parse


def _origin(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.path.strip("/") or parts.query:
        raise ValueError(text)
    return f"{parts.scheme}://{parts.netloc}".lower()


def _origins(text: str) -> tuple[str, ...]:
    return tuple(_origin(item.strip()) for item in text.split(",") if item.strip())


def _public_url(text: str) -> str:
    return _address("http", "https")(text).rstrip("/")


def _runner_url(text: str) -> str:
    return text.lower() if text.lower() == "off" else _public_url(text)


def _visible(text: str) -> str:
    """A word that can stand in a header."""
    if not re.fullmatch(r"[\x21-\x7e]+", text):
        raise ValueError(text)
    return text


def _words(text: str) -> tuple[str, ...]:
    words = tuple(word.strip() for word in text.split(",") if word.strip())
    if not words:
        raise ValueError(text)
    return words


def _yes_or_no(text: str) -> bool:
    known = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    if text.lower() not in known:
        raise ValueError(text)
    return known[text.lower()]


def _one_of(*choices: str) -> dict[str, Any]:
    def parse(text: str) -> str:
        if text.lower() not in choices:
            raise ValueError(text)
        return text.lower()

    return {"parse": parse, "allowed": f"one of {', '.join(choices)}"}


_BIG = 1_000_000_000


def _count(low: int, high: int) -> dict[str, Any]:
    return {"parse": _whole(low, high), "allowed": f"a whole number from {low} to {high}"}


def _seconds(low: float, high: float, unit: str = "seconds") -> dict[str, Any]:
    return {"parse": _number(low, high), "allowed": f"a number of {unit} from {low:g} to {high:g}"}


VARIABLES: tuple[Variable, ...] = (
    Variable(
        field="host",
        parse=_visible,
        allowed="an address or name to listen on",
        meaning="The address to listen on. On a loopback address only known Host headers are answered.",
    ),
    Variable(field="port", **_count(0, 65_535), meaning="The port to listen on; 0 takes a free one."),
    Variable(
        field="data_dir",
        parse=Path,
        allowed="a folder",
        meaning="Where the database, the files, the local service key and the secret keys are kept.",
    ),
    Variable(
        field="database_url",
        parse=_address("sqlite", "postgresql", "postgres"),
        allowed="sqlite:///path or postgresql://…",
        meaning="The database. With SQLite one server owns the file; several workers need PostgreSQL.",
        default="sqlite:///{data_dir}/turnkeep.db",
    ),
    Variable(
        field="database_client_url",
        parse=_address("postgresql", "postgres"),
        allowed="postgresql://…",
        meaning="PostgreSQL only: the login through which users' reads go, where you make it yourself.",
        default="a login made beside the one of the database",
    ),
    Variable(
        field="files_url",
        parse=_address("file", "s3"),
        allowed="file:///path or s3://bucket/prefix",
        meaning="Where the bytes of files are kept. Credentials of a bucket come from the usual `AWS_*` variables.",
        default="file:///{data_dir}/files",
    ),
    Variable(
        field="redis_url",
        parse=_address("redis", "rediss", "unix"),
        allowed="redis://…, rediss://… or unix://…",
        meaning="Carries previews and wake-ups between workers. Without it they follow each other by polling.",
        default="none: the hub is inside the process",
    ),
    Variable(
        field="bootstrap_key",
        parse=_visible,
        allowed="a text of visible ASCII characters",
        meaning="When set, this text is a valid service key of the first org.",
        default="none",
        is_secret=True,
    ),
    Variable(
        field="secret_keys",
        parse=_words,
        allowed="one or more secrets, separated by commas",
        meaning="Sign user tokens, cookies and addresses, and encrypt the credentials of agents: the first signs and "
        "encrypts, all verify and decrypt. Servers that share a database must share them; use at least 32 random "
        "characters each.",
        default="made once into the data directory",
        is_secret=True,
    ),
    Variable(
        field="public_url",
        parse=_public_url,
        allowed="http://… or https://…",
        meaning="The address under which browsers and sandboxes reach the server.",
        default="from host and port",
    ),
    Variable(
        field="sandbox_url",
        parse=_runner_url,
        allowed="http://…, https://… or off",
        meaning="The sandbox runner. `off`: none, also where one could be started beside the server.",
        default="the bundled runner",
    ),
    Variable(field="replay_turns", **_count(1, 1_000), meaning="So many recent turns the model is shown again."),
    Variable(
        field="context_chars", **_count(1_000, _BIG), meaning="So many characters of them at most; whole turns only."
    ),
    Variable(
        field="tool_rounds",
        **_count(0, 100),
        meaning="So often one turn may call tools; then the model is asked once more, without tools.",
    ),
    Variable(
        field="tool_result_chars",
        **_count(100, _BIG),
        meaning="So much of a tool's result the model is told. The trace keeps the whole.",
    ),
    Variable(field="max_file_bytes", **_count(1, 1 << 40), meaning="The largest file."),
    Variable(field="max_files_per_message", **_count(0, 1_000), meaning="So many files one message may carry."),
    Variable(
        field="lease_seconds",
        **_seconds(0.5, 3_600),
        meaning="A running turn belongs to its worker for so long; then another may take it over.",
    ),
    Variable(
        field="disconnect_grace_seconds",
        **_seconds(0, 86_400),
        meaning="A turn whose last reader has gone is stopped after this time; 0 stops it at once.",
    ),
    Variable(
        field="bag_url_ttl_seconds", **_count(1, 86_400), meaning="How long a sandbox may fetch the files of its turn."
    ),
    Variable(
        field="setup_token_seconds",
        **_seconds(1, 86_400),
        meaning="How long a sandbox may wait before it fetches what its turn is about.",
    ),
    Variable(
        field="upload_token_seconds",
        **_seconds(1, 604_800),
        meaning="How long after its start a turn's sandbox may hand files back.",
    ),
    Variable(
        field="model", parse=_visible, allowed="demo or provider/model", meaning="The model where nothing names one."
    ),
    Variable(
        field="reasoning_effort",
        **_one_of(*REASONING_EFFORTS),
        meaning="How much models that can reason do so before they answer; `auto` leaves it to each model.",
    ),
    Variable(
        field="openai_api",
        **_one_of(*OPENAI_APIS),
        meaning="How `openai/…` is asked: through Responses, through Chat Completions, or (`auto`) the first at OpenAI "
        "itself and the second at any other `OPENAI_BASE_URL`.",
    ),
    Variable(
        field="provider_timeout_seconds",
        **_seconds(0.1, 86_400),
        meaning="How long to wait for a model's next token; then the turn fails with `model_timeout`.",
    ),
    Variable(field="tool_timeout_seconds", **_seconds(0.1, 86_400), meaning="How long one tool call may take."),
    Variable(field="turn_timeout_seconds", **_seconds(1, 604_800), meaning="How long one turn may take."),
    Variable(
        field="retention_days",
        **_seconds(0, 36_500, "days"),
        meaning="Deleted conversations and files can be restored for so long; then they are erased.",
    ),
    Variable(
        field="allowed_origins",
        parse=_origins,
        allowed="origins such as https://app.example.com, separated by commas",
        meaning="Pages of other origins that may call the API from a browser (CORS).",
        default="none",
    ),
    Variable(field="max_body_bytes", **_count(1_024, 1 << 30), meaning="The largest request body, files aside."),
    Variable(
        field="allow_private_addresses",
        parse=_yes_or_no,
        allowed="1 or 0",
        meaning="Lets HTTP tools and MCP servers of agents have private and loopback addresses.",
        default="0",
    ),
    Variable(
        field="drain_seconds",
        **_seconds(0, 600),
        meaning="On SIGTERM running turns are handed over and open answers ended within this time.",
    ),
    Variable(
        field="log_level",
        **_one_of(*LOG_LEVELS),
        meaning="What the log (JSON lines on standard error) leaves out.",
    ),
)

SECRETS = frozenset(variable.field for variable in VARIABLES if variable.is_secret)
