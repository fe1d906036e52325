"""Checks of an agent before it is saved. A lasting error refuses the agent; a passing one becomes a warning."""

import asyncio
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from turnkeep.errors import InvalidRequest, WorldError
from turnkeep.files.zip_files import ZipRefused, refuse_collisions, safe_path
from turnkeep.ids import OrgId
from turnkeep.model.agents import AgentSpec
from turnkeep.providers.ports import Providers
from turnkeep.runtime import Runtime
from turnkeep.tools.ports import Tools
from turnkeep_client.wire.agents import Environment, HttpTool, Limits, McpServer, Skill
from turnkeep_client.wire.blocks import JsonValue

MODEL_SECONDS = 5.0
MAX_SCHEMA_BYTES = 65_536
MAX_SKILLS = 50
MAX_SKILL_FILES = 200
MAX_SKILL_BYTES = 512 * 1024
MAX_PATH_CHARS = 200

_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}")
_OURS = frozenset(
    {
        "accept-encoding",
        "connection",
        "content-length",
        "expect",
        "host",
        "idempotency-key",
        "keep-alive",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""Headers that the HTTP client of tools sets itself, or that belong to one connection."""


def check_shapes(given: dict[str, Any], runtime: Runtime) -> None:
    """Raises InvalidRequest for errors that can be found without any call. No message repeats a secret."""
    _check_tools(given.get("tools", ()), runtime.tools.names)
    for server in given.get("mcp_servers", ()):
        _check_server(server)
    for skill in given.get("skills", ()):
        check_skill(skill)
    for group in ("tools", "mcp_servers", "skills"):
        names = [item if isinstance(item, str) else item.name for item in given.get(group, ())]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise InvalidRequest(f"Two of the `{group}` have the same name: {', '.join(twice)}.")
    check_skill_names([skill.name for skill in given.get("skills", ())])
    environment: Environment = given.get("environment", Environment())
    _check_variables("environment.variables", environment.variables)
    _check_limits(given.get("limits", Limits()), runtime)


async def find_warnings(given: Iterable[str], spec: AgentSpec, runtime: Runtime, org_id: OrgId) -> list[str]:
    """Warnings about the given fields: what does not work just now. Raises InvalidRequest for an address that tools may
    not call, and for a model that no provider serves."""
    fields = set(given)
    if "model" in fields and spec.model is not None:
        runtime.providers.named(spec.model)
    http = [tool for tool in spec.tools if isinstance(tool, dict)] if "tools" in fields else []
    servers = spec.mcp_servers if "mcp_servers" in fields else ()
    # Checks that may refuse the agent come first: nothing is started or called for an agent that is not saved.
    await asyncio.gather(
        *(
            _trouble_with_address(f"MCP server {server['name']}", server["url"], runtime.tools)
            for server in servers
            if server.get("url") is not None
        )
    )
    troubles = await asyncio.gather(
        *(_trouble_with_address(f"tool {tool['name']}", tool["url"], runtime.tools) for tool in http)
    )
    asked = [runtime.tools.mcp_server_problem(server, org_id) for server in servers]
    if "model" in fields and spec.model is not None:
        asked.append(_trouble_with_model(spec.model, runtime.providers))
    return [trouble for trouble in (*troubles, *await asyncio.gather(*asked)) if trouble]


def _check_tools(tools: Sequence[str | HttpTool], known: Sequence[str]) -> None:
    for tool in tools:
        if isinstance(tool, str):
            if tool not in known:
                there_are = f"There are: {', '.join(known)}." if known else "This server has none."
                raise InvalidRequest(f"There is no native tool called {tool!r}. {there_are}")
            continue
        if "__" in tool.name:
            raise InvalidRequest(
                f"The tool `{tool.name}` must not have `__` in its name: that marks tools of MCP servers."
            )
        _check_headers(f"tools.{tool.name}", tool.headers)
        _check_schema(tool)


def _check_server(server: McpServer) -> None:
    if (server.url is None) == (server.command is None):
        raise InvalidRequest(f"The MCP server `{server.name}` needs either a `url` or a `command`.")
    if "__" in server.name:
        raise InvalidRequest(f"The MCP server `{server.name}` must not have `__` in its name.")
    if server.url is None and server.headers:
        raise InvalidRequest(f"The MCP server `{server.name}` is a command, so it has no `headers`. Use `env`.")
    if server.command is None and (server.env or server.args):
        raise InvalidRequest(f"The MCP server `{server.name}` is an address, so it has no `args` and `env`.")
    if "\0" in "".join([server.command or "", *server.args]):
        raise InvalidRequest(f"The command of the MCP server `{server.name}` holds a NUL character.")
    _check_headers(f"mcp_servers.{server.name}", server.headers)
    _check_variables(f"mcp_servers.{server.name}.env", server.env)


def _check_headers(owner: str, headers: dict[str, str]) -> None:
    for name, value in headers.items():
        if not _HEADER.fullmatch(name):
            raise InvalidRequest(f"`{owner}` has a header with an impossible name: {name[:60]!r}.")
        if name.lower() in _OURS:
            raise InvalidRequest(f"`{owner}` must not set the header {name}: it is set by the server.")
        if not _HEADER_VALUE.fullmatch(value):
            raise InvalidRequest(f"The header {name} of `{owner}` must be plain ASCII without line breaks.")
    if len({name.lower() for name in headers}) != len(headers):
        raise InvalidRequest(f"`{owner}` names a header twice.")


def _check_variables(owner: str, variables: dict[str, str]) -> None:
    for name, value in variables.items():
        if not _VARIABLE.fullmatch(name):
            raise InvalidRequest(f"`{owner}` has a variable with an impossible name: {name[:60]!r}.")
        if "\0" in value:
            raise InvalidRequest(f"The variable {name} of `{owner}` holds a NUL character.")


def _check_schema(tool: HttpTool) -> None:
    schema, name = tool.input_schema, tool.name
    if len(msgspec.json.encode(schema)) > MAX_SCHEMA_BYTES:
        raise InvalidRequest(f"The `input_schema` of `{name}` has more than {MAX_SCHEMA_BYTES:,} bytes.")
    if schema.get("type", "object") != "object":
        raise InvalidRequest(f"The `input_schema` of `{name}` must be of type object: arguments have names.")
    for ref in _refs(schema):
        if not isinstance(ref, str) or not ref.startswith("#"):
            raise InvalidRequest(f"The `input_schema` of `{name}` refers to another document, which is not fetched.")
    from jsonschema import Draft202012Validator, SchemaError  # type: ignore[import-untyped]

    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as exc:
        where = "/".join(map(str, exc.absolute_path))
        place = f" at {where}" if where else ""
        raise InvalidRequest(f"The `input_schema` of `{name}` is no JSON schema{place}: {exc.message[:300]}") from exc
    except RecursionError as exc:
        raise InvalidRequest(f"The `input_schema` of `{name}` is nested too deeply.") from exc


def _refs(schema: JsonValue) -> Iterator[JsonValue]:
    waiting: list[JsonValue] = [schema]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            yield from (item[key] for key in ("$ref", "$dynamicRef") if key in item)
            waiting += item.values()
        elif isinstance(item, list):
            waiting += item


def check_skill(skill: Skill) -> None:
    """Raises InvalidRequest for a skill that cannot be written into a sandbox."""
    if "SKILL.md" not in skill.files:
        raise InvalidRequest(f"The skill `{skill.name}` has no SKILL.md.")
    if len(skill.files) > MAX_SKILL_FILES:
        raise InvalidRequest(f"The skill `{skill.name}` has more than {MAX_SKILL_FILES} files.")
    try:
        for path in skill.files:
            if len(safe_path(path)) > MAX_PATH_CHARS:
                raise ZipRefused(f"{path[:60]!r}… is longer than {MAX_PATH_CHARS} characters.")
        refuse_collisions([path.casefold() for path in skill.files])
    except ZipRefused as exc:
        raise InvalidRequest(f"The skill `{skill.name}` has a file with an impossible name. {exc.detail}") from exc
    if sum(len(text.encode("utf-8", "replace")) for text in skill.files.values()) > MAX_SKILL_BYTES:
        raise InvalidRequest(f"The skill `{skill.name}` has more than {MAX_SKILL_BYTES:,} bytes.")


def check_skill_names(names: Iterable[str]) -> None:
    """Raises InvalidRequest for two names that are the same folder on a file system that ignores case."""
    folded: dict[str, str] = {}
    for name in names:
        other = folded.setdefault(name.casefold(), name)
        if other != name:
            raise InvalidRequest(f"The skills `{other}` and `{name}` differ in case alone. Rename one of them.")


def _check_limits(limits: Limits, runtime: Runtime) -> None:
    for field in limits.__struct_fields__:
        asked, most = getattr(limits, field), getattr(runtime.settings, field)
        if asked is not None and asked > most:
            raise InvalidRequest(f"`limits.{field}` may be at most {most:g} on this server, not {asked:g}.")


async def _trouble_with_model(model: str, providers: Providers) -> str | None:
    provider = providers.named(model)
    try:
        async with asyncio.timeout(MODEL_SECONDS):
            known = await provider.models()
    except (WorldError, TimeoutError):
        return (
            f"The provider of the model {model!r} cannot be reached now, so it is not known whether it has the model."
        )
    if model not in known:
        return f"The provider does not list the model {model!r}. Turns of this agent may fail."
    return None


async def _trouble_with_address(owner: str, url: JsonValue, tools: Tools) -> str | None:
    try:
        trouble = await tools.check_address(str(url))
    except InvalidRequest as exc:
        raise InvalidRequest(f"The `url` of the {owner}: {exc.detail}") from exc
    return None if trouble is None else f"The {owner} cannot be called now: {trouble}"
