"""The settings of a server and of a sandbox runner: each is declared here once, with default, parser and meaning.

Those of a server are one frozen value, read once from flags, environment and file: a flag overrides the environment,
the environment overrides `turnkeep.toml`, and the file overrides the default. `EngineSettings` is the section that the
engine reads; `Settings` extends it by everything else.

Those of a runner are `RunnerSection`. Their environment variables begin with `TURNKEEP_SANDBOX_`; the flags of
`turnkeep sandbox` do not repeat that.
"""

import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar, get_args
from urllib.parse import unquote, urlsplit

import msgspec
from msgspec import Struct, structs

from turnkeep.config.variables import (
    MASK,
    PICTURE_BYTES,
    PICTURE_TYPES,
    SECRET_CHARS,
    ConfigFile,
    SandboxImage,
    Setting,
    colors,
    count,
    header_secret,
    http_url,
    http_url_or_off,
    image_list,
    issuer,
    mask_url,
    one_of,
    origins,
    origins_or_self,
    picture,
    read_config_file,
    read_variables,
    refuse_unknown,
    seconds,
    secret_words,
    short_text,
    url,
    variables_of,
    visible,
    words,
    yes_or_no,
)
from turnkeep.errors import InvalidRequest
from turnkeep.http_server.sockets import http_address, is_loopback
from turnkeep.model.agents import AgentLimits

LogLevel = Literal["debug", "info", "warning", "error"]
MetricsAccess = Literal["public", "key", "off"]
OpenAIApi = Literal["auto", "responses", "chat"]
ReasoningEffort = Literal["auto", "off", "low", "medium", "high"]
DriverName = Literal["bubblewrap", "docker"]
MemoryGuard = Literal["auto", "cgroup", "watchdog"]

SCIENCE = SandboxImage("science", ("matplotlib", "numpy", "openpyxl", "pandas", "pillow", "scipy"))
"""The image that agents may choose where the operator has said nothing."""

_BIG = 1_000_000_000
_FEW_DAYS = 180
_SWITCH: dict[str, Any] = {"parse": yes_or_no, "allowed": "1 or 0"}


class EngineSettings(Struct, frozen=True, kw_only=True):
    """The section of the engine: how turns are run. Times are in seconds."""

    model: Annotated[
        str, Setting(parse=visible, allowed="demo or provider/model", meaning="The model where nothing names one.")
    ] = "demo"
    title_model: Annotated[
        str | None,
        Setting(
            parse=visible,
            allowed="demo or provider/model",
            meaning="The model that writes titles of conversations after their first answer. A small one is enough. "
            "Its tokens count for the user.",
            default="none: the title is the beginning of the question",
        ),
    ] = None
    replay_turns: Annotated[
        int,
        Setting(
            **count(1, 1_000),
            meaning="Maximum number of earlier turns that a sandbox is given. Chats are limited by characters alone.",
        ),
    ] = 20
    context_chars: Annotated[
        int,
        Setting(
            **count(1_000, _BIG),
            meaning="Maximum number of characters that the model is shown of a conversation. If there are more, whole "
            "turns are dropped down to three quarters of it.",
        ),
    ] = 400_000
    tool_rounds: Annotated[
        int,
        Setting(
            **count(0, 100),
            meaning="Maximum number of tool rounds in one turn. After the last one the model is asked once more, "
            "without tools.",
        ),
    ] = 5
    tool_calls: Annotated[
        int,
        Setting(
            **count(1, 1_000),
            meaning="Maximum number of tool calls in one round. Further ones are not run, and the model is told.",
        ),
    ] = 64
    tool_result_chars: Annotated[
        int,
        Setting(
            **count(100, _BIG),
            meaning="Maximum number of characters of a tool's result that the model is sent. The trace keeps the "
            "whole result.",
        ),
    ] = 4_000
    lease_seconds: Annotated[
        float,
        Setting(
            **seconds(0.5, 3_600),
            meaning="How long a running turn belongs to its worker without a renewal. Then another worker may take "
            "it over.",
        ),
    ] = 10.0
    disconnect_grace_seconds: Annotated[
        float,
        Setting(
            **seconds(0, 86_400),
            meaning="A turn whose last reader has gone is stopped after this time; 0 stops it within a few seconds.",
        ),
    ] = 30.0
    provider_timeout_seconds: Annotated[
        float,
        Setting(
            **seconds(0.1, 86_400),
            meaning="How long to wait for a model's next token; then the turn fails with `model_timeout`.",
        ),
    ] = 60.0
    tool_timeout_seconds: Annotated[
        float, Setting(**seconds(0.1, 86_400), meaning="How long one tool call may take.")
    ] = 30.0
    turn_timeout_seconds: Annotated[float, Setting(**seconds(1, 604_800), meaning="How long one turn may take.")] = (
        28_800.0
    )
    approval_seconds: Annotated[
        float,
        Setting(
            **seconds(1, 31_536_000),
            meaning="How long a turn waits for a person to decide about a call, or for the result of a client tool. "
            "Then the call counts as denied.",
        ),
    ] = 604_800.0
    sandbox_approval_seconds: Annotated[
        float,
        Setting(
            **seconds(0, 86_400),
            meaning="How long in all the box of one turn is kept while the turn waits for decisions and for results of "
            "client tools. It keeps its place in the runner meanwhile. Then the calls count as denied.",
        ),
    ] = 900.0
    setup_token_seconds: Annotated[
        float,
        Setting(
            **seconds(1, 86_400),
            meaning="How long after its start a sandbox may fetch the configuration of its turn.",
        ),
    ] = 600.0
    upload_token_seconds: Annotated[
        float,
        Setting(**seconds(1, 604_800), meaning="How long after its start the sandbox of a turn may send files back."),
    ] = 3_600.0
    retention_days: Annotated[
        float,
        Setting(
            **seconds(0, 36_500, "days"),
            meaning="How long deleted conversations and files can be restored. Then they are erased.",
        ),
    ] = 30.0
    idle_conversation_days: Annotated[
        float,
        Setting(
            **seconds(0, 36_500, "days"),
            meaning="Conversations that have not changed for this long are deleted, as if their users had deleted "
            "them; 0 keeps them for ever.",
        ),
    ] = 0.0

    unlisted_conversation_days: Annotated[
        float,
        Setting(
            **seconds(0, 36_500, "days"),
            meaning="Conversations that no list shows (those of callers that send the whole history with each "
            "question) are deleted when they have not changed for this long; 0 keeps them for ever.",
        ),
    ] = 30.0

    queue_limit: int = 20
    """Maximum number of turns that wait in one conversation."""
    max_running: int = 2_000
    """Maximum number of turns that one worker runs at once. It adopts no more of them, so that other workers can."""
    max_failures: int = 3
    """After this number of lost workers the turn fails."""
    sweep_seconds: float = 1.0

    def within(self, limits: AgentLimits) -> Self:
        """These settings for a turn of an agent: its limits where they are tighter."""
        return structs.replace(
            self,
            tool_rounds=_tighter(self.tool_rounds, limits.tool_rounds),
            tool_timeout_seconds=_tighter(self.tool_timeout_seconds, limits.tool_timeout_seconds),
            turn_timeout_seconds=_tighter(self.turn_timeout_seconds, limits.turn_timeout_seconds),
        )

    @property
    def months_of_messages(self) -> int:
        """How many months of messages are stored and dropped together on PostgreSQL. A read looks at every part, so
        what is kept for long has large parts."""
        if not self.idle_conversation_days:
            return 12
        return 1 if self.idle_conversation_days <= _FEW_DAYS else 3

    @property
    def renew_seconds(self) -> float:
        """How often leases are renewed."""
        return min(1.0, self.lease_seconds / 3)

    @property
    def command_seconds(self) -> float:
        """How long the database may take for one statement. It is well below a lease, so that a silent connection is
        replaced before the lease ends."""
        return min(30.0, max(2.0, self.lease_seconds * 0.4))

    @property
    def watch_seconds(self) -> float:
        """How often attached readers are reported."""
        return min(5.0, max(0.25, self.disconnect_grace_seconds / 3))


class SigninSettings(EngineSettings, frozen=True, kw_only=True):
    """The section of sign-in to the page: how long a session lasts, and the identity provider (OpenID Connect)."""

    session_seconds: Annotated[
        float,
        Setting(**seconds(1, 31_536_000), meaning="How long a browser stays signed in to the page."),
    ] = 604_800.0
    share_link_days: Annotated[
        float,
        Setting(
            **seconds(0, 365, "days"),
            meaning="The longest time that a share link may last, in days. 0 switches share links off, also those that "
            "were made before.",
        ),
    ] = 90.0
    oidc_issuer: Annotated[
        str | None,
        Setting(
            parse=issuer,
            allowed="https://…, or http://… on this machine",
            meaning="The identity provider at which people sign in to the page, by its issuer. Its discovery document "
            "is at `/.well-known/openid-configuration` below it.",
            default="none",
        ),
    ] = None
    oidc_client_id: Annotated[
        str | None,
        Setting(
            parse=visible,
            allowed="a text of visible ASCII characters",
            meaning="The client that is registered for this server at the identity provider.",
            default="none",
        ),
    ] = None
    oidc_client_secret: Annotated[
        str | None,
        Setting(
            parse=visible,
            allowed="a text of visible ASCII characters",
            meaning="The secret of that client; none for a public client.",
            default="none",
            is_secret=True,
        ),
    ] = None
    oidc_scopes: Annotated[
        tuple[str, ...],
        Setting(
            parse=words,
            allowed="names, separated by commas",
            meaning="What the identity provider is asked for, beside `openid`. Add the one that brings groups, if your "
            "provider has one.",
            default="profile,email",
        ),
    ] = ("profile", "email")
    oidc_name: Annotated[
        str | None,
        Setting(
            parse=str,
            allowed="a text",
            meaning="How the page calls the identity provider: “Sign in with …”.",
            default="the host of the issuer",
        ),
    ] = None
    oidc_groups_claim: Annotated[
        str,
        Setting(
            parse=visible,
            allowed="a name, or a path such as realm_access.roles",
            meaning="The claim that lists the groups of a person.",
        ),
    ] = "groups"
    oidc_allowed_groups: Annotated[
        tuple[str, ...],
        Setting(
            parse=words,
            allowed="names, separated by commas",
            meaning="The groups whose people may sign in.",
            default="none: everybody whom the provider lets in",
        ),
    ] = ()
    oidc_admin_groups: Annotated[
        tuple[str, ...],
        Setting(
            parse=words,
            allowed="names, separated by commas",
            meaning="The groups whose people are admins; others are members. It is decided anew at each sign-in.",
            default="none: new people are members, and an admin is made by hand",
        ),
    ] = ()


class Settings(SigninSettings, frozen=True, kw_only=True):
    """Everything that an operator may set about a server. Secrets are masked in `repr`, also those inside addresses."""

    host: Annotated[
        str,
        Setting(
            parse=visible,
            allowed="an address or name to listen on",
            meaning="The address to listen on. On a loopback address only known Host headers are answered.",
        ),
    ] = "127.0.0.1"
    port: Annotated[int, Setting(**count(0, 65_535), meaning="The port to listen on; 0 takes a free one.")] = 8787
    data_dir: Annotated[
        Path,
        Setting(
            parse=Path,
            allowed="a folder",
            meaning="Where the database, the files, the local service key and the secret keys are kept.",
        ),
    ] = Path(".turnkeep")
    database_url: Annotated[
        str,
        Setting(
            parse=url("sqlite", "postgresql", "postgres"),
            allowed="sqlite:///path or postgresql://…",
            meaning="The database. With SQLite one server owns the file; several workers need PostgreSQL. An address "
            "with several hosts finds the one that takes writes.",
            default="sqlite:///{data_dir}/turnkeep.db",
        ),
    ] = ""
    database_client_url: Annotated[
        str | None,
        Setting(
            parse=url("postgresql", "postgres"),
            allowed="postgresql://…",
            meaning="PostgreSQL only: the login through which users' reads go, where you make it yourself.",
            default="a login made beside the one of the database",
        ),
    ] = None
    auto_migrate: Annotated[
        bool,
        Setting(
            **_SWITCH,
            meaning="Whether the server migrates the database when it starts. With 0 it refuses to start until "
            "`turnkeep migrate` was run.",
            default="1",
        ),
    ] = True
    database_prepared_statements: Annotated[
        bool,
        Setting(
            **_SWITCH,
            meaning="PostgreSQL only: 0 where a pooler gives each transaction another connection and does not support "
            "prepared statements, as PgBouncer before 1.21.",
            default="1",
        ),
    ] = True
    database_connections: Annotated[
        int,
        Setting(
            **count(1, 1_000),
            meaning="PostgreSQL only: maximum number of connections of one worker for running turns and for writing. "
            "Connections that are not used for a minute are closed.",
        ),
    ] = 10
    database_client_connections: Annotated[
        int, Setting(**count(1, 1_000), meaning="The same for the connections through which users' reads go.")
    ] = 10
    files_url: Annotated[
        str,
        Setting(
            parse=url("file", "s3"),
            allowed="file:///path or s3://bucket/prefix",
            meaning="Where the bytes of files are kept. Credentials of a bucket come from the usual `AWS_*` variables.",
            default="file:///{data_dir}/files",
        ),
    ] = ""
    redis_url: Annotated[
        str | None,
        Setting(
            parse=url(
                *("redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster")
            ),
            allowed="redis://…, rediss://…, unix://…, redis+sentinel://… or redis+cluster://…",
            meaning="Carries previews and wake-ups between workers. Without it they follow each other by polling.",
            default="none: the hub is inside the process",
        ),
    ] = None
    bootstrap_key: Annotated[
        str | None,
        Setting(
            parse=visible,
            allowed="a text of visible ASCII characters",
            meaning="When set, this text is a valid service key of the first org. Use at least "
            f"{SECRET_CHARS} random characters.",
            default="none",
            is_secret=True,
        ),
    ] = None
    secret_keys: Annotated[
        tuple[str, ...],
        Setting(
            parse=secret_words,
            allowed=f"one or more secrets of at least {SECRET_CHARS} characters, separated by commas",
            meaning="Sign user tokens, cookies and addresses, and encrypt the credentials of agents: the first signs "
            "and encrypts, all verify and decrypt. Servers that share a database must share them; use at least "
            f"{SECRET_CHARS} random characters each. A shorter one after the first only decrypts.",
            default="made once into the data directory",
            is_secret=True,
        ),
    ] = ()
    public_url: Annotated[
        str | None,
        Setting(
            parse=http_url,
            allowed="http://… or https://…",
            meaning="The address under which browsers and sandboxes reach the server.",
            default="from host and port",
        ),
    ] = None
    sandbox_url: Annotated[
        str | None,
        Setting(
            parse=http_url_or_off,
            allowed="http://…, https://… or off",
            meaning="The sandbox runner. `off` means none, also where one could be started beside the server.",
            default="the bundled runner",
        ),
    ] = None
    sandbox_secret: Annotated[
        str | None,
        Setting(
            parse=header_secret,
            allowed=f"a text of at least {SECRET_CHARS} visible ASCII characters",
            meaning="The secret that the server shows to the runner of `TURNKEEP_SANDBOX_URL`, which has the same.",
            default="none; the bundled runner gets one of its own",
            is_secret=True,
        ),
    ] = None
    sandbox_images: Annotated[
        tuple[SandboxImage, ...],
        Setting(
            parse=image_list,
            allowed="images with their Python packages, as in `science: numpy pandas; text: nltk`; or none",
            meaning="The images that agents may choose (`environment.image`, `environment.packages`). `turnkeep images "
            "prepare` makes them where the runner is.",
            default=f"{SCIENCE.name}: {' '.join(SCIENCE.packages)}",
        ),
    ] = (SCIENCE,)
    max_file_bytes: Annotated[int, Setting(**count(1, 1 << 40), meaning="Maximum size of one file, in bytes.")] = (
        52_428_800
    )
    max_files_per_message: Annotated[
        int, Setting(**count(0, 1_000), meaning="Maximum number of files in one message.")
    ] = 10
    max_user_bytes: Annotated[
        int,
        Setting(
            **count(0, 1 << 60),
            meaning="Maximum size of all files of one user in a workspace, in bytes; 0 means any. Deleted files count "
            "until they are erased. Further files are refused (507 `storage_full`).",
        ),
    ] = 10_737_418_240
    max_workspace_bytes: Annotated[
        int, Setting(**count(0, 1 << 60), meaning="The same for all files of one workspace.")
    ] = 0
    bag_url_ttl_seconds: Annotated[
        int, Setting(**count(1, 86_400), meaning="How long a sandbox may fetch the files of its turn.")
    ] = 300
    reasoning_effort: Annotated[
        ReasoningEffort,
        Setting(
            **one_of(*get_args(ReasoningEffort)),
            meaning="How much models that can reason do so before they answer; `auto` leaves it to each model.",
        ),
    ] = "auto"
    openai_api: Annotated[
        OpenAIApi,
        Setting(
            **one_of(*get_args(OpenAIApi)),
            meaning="Which API is used for `openai/…`: Responses, Chat Completions, or (`auto`) the first at OpenAI "
            "itself and the second at any other `OPENAI_BASE_URL`.",
        ),
    ] = "auto"
    tools: Annotated[
        tuple[str, ...],
        Setting(
            parse=words,
            allowed="files such as tools.py or names of modules, separated by commas",
            meaning="Python code whose `@tool` functions agents of this server may name.",
            default="none",
        ),
    ] = ()
    prices: Annotated[
        Path | None,
        Setting(
            parse=Path,
            allowed="a JSON file",
            meaning="Prices per million tokens, by model: "
            '`{"openai/gpt-5": {"input": 1.25, "output": 10, "cache_read": 0.125}}`. '
            "They are needed for limits of cost.",
            default="none: no model has a price",
        ),
    ] = None
    allowed_origins: Annotated[
        tuple[str, ...],
        Setting(
            parse=origins,
            allowed="origins such as https://app.example.com, separated by commas",
            meaning="Pages of other origins that may call the API from a browser (CORS).",
            default="none",
        ),
    ] = ()
    frame_ancestors: Annotated[
        tuple[str, ...],
        Setting(
            parse=origins_or_self,
            allowed="origins such as https://app.example.com, or 'self' for the server's own, separated by commas",
            meaning="The origins whose pages may show `/embed` in a frame. No origin may frame the page itself.",
            default="none",
        ),
    ] = ()
    brand_name: Annotated[
        str | None,
        Setting(
            parse=short_text(60),
            allowed="a text of at most 60 characters",
            meaning="The name that the page and `/embed` show, in place of Turnkeep.",
            default="Turnkeep",
        ),
    ] = None
    brand_logo: Annotated[
        Path | None,
        Setting(
            parse=picture,
            allowed=f"a file ({', '.join(PICTURE_TYPES)}) of at most {PICTURE_BYTES:,} bytes that can be read",
            meaning="The picture that they show beside the name, and that browsers show in the tab. A square one looks "
            "best.",
            default="the mark of Turnkeep; with a name of your own, its first letter",
        ),
    ] = None
    brand_colors: Annotated[
        tuple[str, ...],
        Setting(
            parse=colors,
            allowed="one or two colours such as #7a1fa2, separated by a comma",
            meaning="The colour of buttons, links and marks; a second one is for the dark appearance. Both are made "
            "darker or lighter where words in them could not be read.",
            default="the green of Turnkeep",
        ),
    ] = ()
    max_body_bytes: Annotated[
        int,
        Setting(**count(1_024, 1 << 30), meaning="Maximum size of a request body in bytes; uploads of files aside."),
    ] = 1_048_576
    max_connections: Annotated[
        int,
        Setting(
            **count(16, 1_000_000),
            meaning="Maximum number of open connections of one worker, and in any case 256 fewer than the files that "
            "the process may open. Further ones are refused (503).",
        ),
    ] = 10_000
    max_connections_per_address: Annotated[
        int,
        Setting(
            **count(0, 1_000_000),
            meaning="Maximum number of these from one address; 0 means half of all. Behind a proxy all connections "
            "come from its address: let the proxy limit those of its clients.",
        ),
    ] = 0
    allow_private_addresses: Annotated[
        bool,
        Setting(
            **_SWITCH,
            meaning="Lets HTTP tools and MCP servers of agents, webhooks, and pictures in messages have private and "
            "loopback addresses.",
            default="0",
        ),
    ] = False
    allow_mcp_commands: Annotated[
        bool,
        Setting(
            **_SWITCH,
            meaning="Lets every service key of a whole org save MCP servers that are commands, which this server "
            "starts as its own user. Otherwise only the operator's own key may.",
            default="0",
        ),
    ] = False
    drain_seconds: Annotated[
        float,
        Setting(
            **seconds(0, 600),
            meaning="How long calls of models and tools that are under way may take to end after SIGTERM. Then their "
            "turns are handed over.",
        ),
    ] = 10.0
    metrics: Annotated[
        MetricsAccess,
        Setting(
            **one_of(*get_args(MetricsAccess)),
            meaning="Who may read `/metrics`: everybody who reaches the server (`public`), the operator's own key "
            "(`key`), or no caller (`off`).",
        ),
    ] = "public"
    admin_port: Annotated[
        int | None,
        Setting(
            **count(0, 65_535),
            meaning="A port for the operator alone: `/metrics` of all workers of this server together, and `/healthz`. "
            "It asks for no key. 0 takes a free one.",
            default="none",
        ),
    ] = None
    admin_host: Annotated[
        str,
        Setting(
            parse=str,
            allowed="an address or name to listen on",
            meaning="The address on which `TURNKEEP_ADMIN_PORT` listens. Let only your Prometheus reach it.",
        ),
    ] = "127.0.0.1"
    trace_content: Annotated[
        bool,
        Setting(
            **_SWITCH,
            meaning="Puts what people, models and tools say into spans (OpenTelemetry). Their backend then holds it, "
            "also after it was erased here.",
            default="0",
        ),
    ] = False
    log_level: Annotated[
        LogLevel,
        Setting(
            **one_of(*get_args(LogLevel)),
            meaning="The lowest level that is written to the log (JSON lines on standard error).",
        ),
    ] = "info"

    def __post_init__(self) -> None:
        if not self.database_url:
            msgspec.structs.force_setattr(self, "database_url", f"sqlite:///{self.data_dir / 'turnkeep.db'}")
        if not self.files_url:
            msgspec.structs.force_setattr(self, "files_url", f"file:///{self.data_dir / 'files'}")

    def __repr__(self) -> str:
        return _masked_repr(self, SECRETS)

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
        return is_loopback(self.host)

    @property
    def runner_url(self) -> str | None:
        """The runner that the operator named, if one is named."""
        return None if self.sandbox_url == "off" else self.sandbox_url

    def address(self, port: int | None = None) -> str:
        """Where people reach the server: the public address, or host and port (the port that was really bound)."""
        if self.public_url:
            return self.public_url
        return http_address(self.host, port or self.port)


class RunnerSection(Struct, frozen=True, kw_only=True):
    """Everything that an operator may set about a runner. Times are in seconds; sizes are in the unit of their name."""

    host: Annotated[
        str,
        Setting(
            parse=str,
            allowed="an address or name to listen on",
            meaning="The address to listen on. Every client that reaches it and has the secret can run code in boxes: "
            "keep it private.",
        ),
    ] = "127.0.0.1"
    port: Annotated[int, Setting(**count(0, 65_535), meaning="The port to listen on; 0 takes a free one.")] = 8788
    driver: Annotated[
        DriverName,
        Setting(
            **one_of(*get_args(DriverName)),
            meaning="What boxes are made of. There is no way to run without one.",
        ),
    ] = "bubblewrap"
    docker_image: Annotated[
        str,
        Setting(
            parse=str,
            allowed="the name of an image",
            meaning="docker only: the image of boxes. It needs bash and Python 3, and must have been pulled.",
        ),
    ] = "python:3.13-slim"
    docker_runtime: Annotated[
        str,
        Setting(
            parse=str,
            allowed="the name of a runtime",
            meaning="docker only: another runtime than the default, such as `runsc` (gVisor).",
            default="the default runtime",
        ),
    ] = ""
    images_dir: Annotated[
        Path | None,
        Setting(
            parse=Path,
            allowed="a folder",
            meaning="bubblewrap only: where `turnkeep images prepare` puts images, and where boxes get them from.",
            default="/var/lib/turnkeep/images for root, else ~/.local/share/turnkeep/images",
        ),
    ] = None
    server: Annotated[
        str,
        Setting(
            parse=http_url,
            allowed="http://… or https://…",
            meaning="The address of the server whose turns are run: the beginning of their `agent_url`. Required.",
            default="none",
        ),
    ] = ""
    secret: Annotated[
        str,
        Setting(
            parse=header_secret,
            allowed=f"a text of at least {SECRET_CHARS} visible ASCII characters",
            meaning="What a client must show as a bearer token; the server has the same variable. Required on an "
            "address that other machines reach.",
            default="none",
            is_secret=True,
        ),
    ] = ""
    memory_guard: Annotated[
        MemoryGuard,
        Setting(
            **one_of(*get_args(MemoryGuard)),
            meaning="bubblewrap only: `cgroup` starts no runner if no memory cgroup can be made; `watchdog` does, and "
            "then only checks the memory of boxes; `auto` is `watchdog` for a server (or a runner of its own) that "
            "only this machine reaches, and else `cgroup`.",
        ),
    ] = "auto"
    turns: Annotated[int, Setting(**count(1, 1_000), meaning="Maximum number of turns that run at once.")] = 20
    queue: Annotated[
        int,
        Setting(**count(0, 10_000), meaning="Maximum number of turns that wait; further turns are refused (503)."),
    ] = 100
    turns_per_org: Annotated[
        int,
        Setting(
            **count(0, 1_000),
            meaning="Maximum number of turns of one org that run at once; 0 means three quarters of all.",
        ),
    ] = 0
    turns_per_user: Annotated[
        int,
        Setting(
            **count(0, 1_000),
            meaning="Maximum number of turns of one user that run at once; 0 means half of all.",
        ),
    ] = 0
    queue_seconds: Annotated[
        float, Setting(**seconds(0, 86_400), meaning="How long a turn may wait for its place.")
    ] = 300.0
    turn_seconds: Annotated[float, Setting(**seconds(1, 604_800), meaning="How long one turn may take.")] = 3_600.0
    step_seconds: Annotated[float, Setting(**seconds(0.1, 86_400), meaning="How long one step may take.")] = 300.0
    tool_rounds: Annotated[
        int,
        Setting(
            **count(0, 1_000), meaning="Maximum number of tool rounds in one turn, unless the server sends its own."
        ),
    ] = 50
    memory_mib: Annotated[int, Setting(**count(32, 1 << 20), meaning="Memory of one box.")] = 1_024
    disk_mib: Annotated[
        int,
        Setting(
            **count(1, 1 << 20),
            meaning="The workspace and /tmp of one box together. With bubblewrap they lie in memory.",
        ),
    ] = 512
    files: Annotated[
        int, Setting(**count(100, 10_000_000), meaning="Maximum number of files and folders in one box.")
    ] = 10_000
    processes: Annotated[
        int, Setting(**count(16, 32_768), meaning="Maximum number of processes and threads of one box.")
    ] = 256
    output_kib: Annotated[
        int,
        Setting(**count(1, 65_536), meaning="Maximum output of one step; a step that prints more is stopped."),
    ] = 1_024
    assets: Annotated[
        int, Setting(**count(0, 10_000), meaning="Maximum number of files that are sent back after one turn.")
    ] = 100

    def __repr__(self) -> str:
        return _masked_repr(self, RUNNER_SECRETS)


VARIABLES = variables_of(Settings)
RUNNER_VARIABLES = variables_of(RunnerSection, prefix="TURNKEEP_SANDBOX_")
SECRETS = frozenset(variable.field for variable in VARIABLES if variable.is_secret)
RUNNER_SECRETS = frozenset(variable.field for variable in RUNNER_VARIABLES if variable.is_secret)


CONFIG_FILE = "turnkeep.toml"
CONFIG_VARIABLE = "TURNKEEP_CONFIG"
OTHER_NAMES = (CONFIG_VARIABLE, "TURNKEEP_URL", "TURNKEEP_KEY", "TURNKEEP_IN_SCOPE")
"""Variables that are no settings: those of the clients, and one that a runner sets for itself."""
KNOWN_NAMES = frozenset({*OTHER_NAMES, *(variable.name for variable in (*VARIABLES, *RUNNER_VARIABLES))})


def read_settings(
    environ: Mapping[str, str], flags: Mapping[str, str | None] | None = None, file: ConfigFile | None = None
) -> Settings:
    """Settings from `flags` over `environ` over `file`.

    Raises InvalidRequest with the name, what is allowed and what was given, and for a `TURNKEEP_` name that is unknown.
    """
    refuse_unknown(environ, KNOWN_NAMES)
    return _checked(Settings(**read_variables(VARIABLES, environ, flags, file)))


def _checked(settings: Settings) -> Settings:
    """Raises InvalidRequest for settings that do not go together."""
    if settings.oidc_issuer is not None:
        if settings.oidc_client_id is None:
            raise InvalidRequest("TURNKEEP_OIDC_ISSUER is set: set TURNKEEP_OIDC_CLIENT_ID too.")
        if settings.public_url is None and not settings.is_local:
            raise InvalidRequest(
                "TURNKEEP_OIDC_ISSUER is set: set TURNKEEP_PUBLIC_URL too, the address to which people come back."
            )
    elif settings.oidc_allowed_groups or settings.oidc_admin_groups:
        raise InvalidRequest("TURNKEEP_OIDC_ALLOWED_GROUPS and _ADMIN_GROUPS need TURNKEEP_OIDC_ISSUER.")
    return settings


def find_config_file(environ: Mapping[str, str], named: str | None = None) -> ConfigFile | None:
    """The file that the caller or `TURNKEEP_CONFIG` names, or `turnkeep.toml` here; None if there is none of these."""
    chosen = named or environ.get(CONFIG_VARIABLE, "").strip()
    path = Path(chosen or CONFIG_FILE)
    if not chosen and not path.exists():
        return None
    return read_config_file(path, {None: VARIABLES, "sandbox": RUNNER_VARIABLES})


def exposed_secrets(file: ConfigFile) -> list[str]:
    """The names of secrets in the file, and of addresses with a password, if other users of the machine can read it."""
    if not stat.S_IMODE(file.path.stat().st_mode) & (stat.S_IRGRP | stat.S_IROTH):
        return []
    known = {variable.name: variable for variable in (*RUNNER_VARIABLES, *VARIABLES)}
    return [known[name].field for name, text in file.values.items() if known[name].is_secret or mask_url(text) != text]


def _masked_repr(section: Struct, secrets: frozenset[str]) -> str:
    def shown(field: str, value: Any) -> Any:
        if field in secrets:
            return MASK if value else value
        return mask_url(value) if isinstance(value, str) else value

    fields = (f"{field}={shown(field, getattr(section, field))!r}" for field in section.__struct_fields__)
    return f"{type(section).__name__}({', '.join(fields)})"


_Amount = TypeVar("_Amount", int, float)


def _tighter(server: _Amount, agent: _Amount | None) -> _Amount:
    return server if agent is None else min(server, agent)
