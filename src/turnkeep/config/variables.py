"""The table of settings. Everything else follows it: reading, the flags of `turnkeep serve`, and the reference page."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from msgspec import Struct

from turnkeep.config.parsing import (
    SECRET_CHARS,
    address,
    count,
    mask_url,
    one_of,
    origins,
    public_url,
    runner_url,
    seconds,
    secret_words,
    visible,
    words,
    yes_or_no,
)
from turnkeep.errors import InvalidRequest

LogLevel = Literal["debug", "info", "warning", "error"]
OpenAIApi = Literal["auto", "responses", "chat"]
ReasoningEffort = Literal["auto", "off", "low", "medium", "high"]

_BIG = 1_000_000_000


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


def read_variables(
    table: Sequence[Variable], environ: Mapping[str, str], flags: Mapping[str, str | None] | None = None
) -> dict[str, Any]:
    """What is set, by field: `flags` (None where absent) over `environ`, where an empty text counts as absent."""
    values: dict[str, Any] = {}
    for variable in table:
        flag = (flags or {}).get(variable.field)
        if flag is not None:
            values[variable.field] = variable.read(flag, origin=variable.flag)
        elif text := environ.get(variable.name, "").strip():
            values[variable.field] = variable.read(text, origin=variable.name)
    return values


VARIABLES: tuple[Variable, ...] = (
    Variable(
        field="host",
        parse=visible,
        allowed="an address or name to listen on",
        meaning="The address to listen on. On a loopback address only known Host headers are answered.",
    ),
    Variable(field="port", **count(0, 65_535), meaning="The port to listen on; 0 takes a free one."),
    Variable(
        field="data_dir",
        parse=Path,
        allowed="a folder",
        meaning="Where the database, the files, the local service key and the secret keys are kept.",
    ),
    Variable(
        field="database_url",
        parse=address("sqlite", "postgresql", "postgres"),
        allowed="sqlite:///path or postgresql://…",
        meaning="The database. With SQLite one server owns the file; several workers need PostgreSQL.",
        default="sqlite:///{data_dir}/turnkeep.db",
    ),
    Variable(
        field="database_client_url",
        parse=address("postgresql", "postgres"),
        allowed="postgresql://…",
        meaning="PostgreSQL only: the login through which users' reads go, where you make it yourself.",
        default="a login made beside the one of the database",
    ),
    Variable(
        field="database_prepared_statements",
        parse=yes_or_no,
        allowed="1 or 0",
        meaning="PostgreSQL only: 0 where a pooler hands each transaction another connection and does not know "
        "prepared statements, as PgBouncer before 1.21.",
        default="1",
    ),
    Variable(
        field="files_url",
        parse=address("file", "s3"),
        allowed="file:///path or s3://bucket/prefix",
        meaning="Where the bytes of files are kept. Credentials of a bucket come from the usual `AWS_*` variables.",
        default="file:///{data_dir}/files",
    ),
    Variable(
        field="redis_url",
        parse=address("redis", "rediss", "unix"),
        allowed="redis://…, rediss://… or unix://…",
        meaning="Carries previews and wake-ups between workers. Without it they follow each other by polling.",
        default="none: the hub is inside the process",
    ),
    Variable(
        field="bootstrap_key",
        parse=visible,
        allowed="a text of visible ASCII characters",
        meaning="When set, this text is a valid service key of the first org.",
        default="none",
        is_secret=True,
    ),
    Variable(
        field="secret_keys",
        parse=secret_words,
        allowed=f"one or more secrets of at least {SECRET_CHARS} characters, separated by commas",
        meaning="Sign user tokens, cookies and addresses, and encrypt the credentials of agents: the first signs and "
        "encrypts, all verify and decrypt. Servers that share a database must share them; use at least "
        f"{SECRET_CHARS} random characters each. A shorter one after the first only decrypts.",
        default="made once into the data directory",
        is_secret=True,
    ),
    Variable(
        field="public_url",
        parse=public_url,
        allowed="http://… or https://…",
        meaning="The address under which browsers and sandboxes reach the server.",
        default="from host and port",
    ),
    Variable(
        field="sandbox_url",
        parse=runner_url,
        allowed="http://…, https://… or off",
        meaning="The sandbox runner. `off`: none, also where one could be started beside the server.",
        default="the bundled runner",
    ),
    Variable(field="replay_turns", **count(1, 1_000), meaning="So many recent turns the model is shown again."),
    Variable(
        field="context_chars", **count(1_000, _BIG), meaning="So many characters of them at most; whole turns only."
    ),
    Variable(
        field="tool_rounds",
        **count(0, 100),
        meaning="So often one turn may call tools; then the model is asked once more, without tools.",
    ),
    Variable(
        field="tool_result_chars",
        **count(100, _BIG),
        meaning="So much of a tool's result the model is told. The trace keeps the whole.",
    ),
    Variable(field="max_file_bytes", **count(1, 1 << 40), meaning="The largest file."),
    Variable(field="max_files_per_message", **count(0, 1_000), meaning="So many files one message may carry."),
    Variable(
        field="lease_seconds",
        **seconds(0.5, 3_600),
        meaning="A running turn belongs to its worker for so long; then another may take it over.",
    ),
    Variable(
        field="disconnect_grace_seconds",
        **seconds(0, 86_400),
        meaning="A turn whose last reader has gone is stopped after this time; 0 stops it within a few seconds.",
    ),
    Variable(
        field="bag_url_ttl_seconds", **count(1, 86_400), meaning="How long a sandbox may fetch the files of its turn."
    ),
    Variable(
        field="setup_token_seconds",
        **seconds(1, 86_400),
        meaning="How long a sandbox may wait before it fetches what its turn is about.",
    ),
    Variable(
        field="upload_token_seconds",
        **seconds(1, 604_800),
        meaning="How long after its start a turn's sandbox may hand files back.",
    ),
    Variable(
        field="model", parse=visible, allowed="demo or provider/model", meaning="The model where nothing names one."
    ),
    Variable(
        field="reasoning_effort",
        **one_of(*get_args(ReasoningEffort)),
        meaning="How much models that can reason do so before they answer; `auto` leaves it to each model.",
    ),
    Variable(
        field="openai_api",
        **one_of(*get_args(OpenAIApi)),
        meaning="How `openai/…` is asked: through Responses, through Chat Completions, or (`auto`) the first at OpenAI "
        "itself and the second at any other `OPENAI_BASE_URL`.",
    ),
    Variable(
        field="provider_timeout_seconds",
        **seconds(0.1, 86_400),
        meaning="How long to wait for a model's next token; then the turn fails with `model_timeout`.",
    ),
    Variable(
        field="tools",
        parse=words,
        allowed="files such as tools.py or names of modules, separated by commas",
        meaning="Python code whose `@tool` functions agents of this server may name.",
        default="none",
    ),
    Variable(field="tool_timeout_seconds", **seconds(0.1, 86_400), meaning="How long one tool call may take."),
    Variable(field="turn_timeout_seconds", **seconds(1, 604_800), meaning="How long one turn may take."),
    Variable(
        field="retention_days",
        **seconds(0, 36_500, "days"),
        meaning="Deleted conversations and files can be restored for so long; then they are erased.",
    ),
    Variable(
        field="allowed_origins",
        parse=origins,
        allowed="origins such as https://app.example.com, separated by commas",
        meaning="Pages of other origins that may call the API from a browser (CORS).",
        default="none",
    ),
    Variable(field="max_body_bytes", **count(1_024, 1 << 30), meaning="The largest request body, files aside."),
    Variable(
        field="allow_private_addresses",
        parse=yes_or_no,
        allowed="1 or 0",
        meaning="Lets HTTP tools and MCP servers of agents, and pictures in messages, have private and loopback "
        "addresses.",
        default="0",
    ),
    Variable(
        field="allow_mcp_commands",
        parse=yes_or_no,
        allowed="1 or 0",
        meaning="Lets every service key of a whole org save MCP servers that are commands, which this server starts "
        "as its own user. Otherwise only the operator's own key may.",
        default="0",
    ),
    Variable(
        field="drain_seconds",
        **seconds(0, 600),
        meaning="On SIGTERM running turns are handed over and open answers ended within this time.",
    ),
    Variable(
        field="log_level",
        **one_of(*get_args(LogLevel)),
        meaning="What the log (JSON lines on standard error) leaves out.",
    ),
)

SECRETS = frozenset(variable.field for variable in VARIABLES if variable.is_secret)
