"""Agents: create, read, change, delete, run.

A save is refused for what is wrong, and warns of what does not work now. A secret that comes masked keeps its stored
value, but only if it goes to the same place as before. Otherwise a caller could have a secret sent to an address of
their own, and read there what the API never shows.

A run is one turn of an agent in a sandbox, without a conversation. The response is what the sandbox writes.
"""

import asyncio
import base64
import binascii
import re
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec import UNSET
from starlette.types import ASGIApp, Receive, Scope, Send

from turnkeep.api.http.disconnects import ClientDisconnected, while_connected
from turnkeep.api.http.endpoints import ApiCall, Endpoints, Nothing, Policy, ResponseSpec, known_id
from turnkeep.api.http.responses import json_response, no_content
from turnkeep.api.native.query_parameters import ListQuery, PageQuery, page_of
from turnkeep.api.native.skills import check_skill, check_skill_names
from turnkeep.api.native.turns import TURN_HEADER, accepted, check_attachments
from turnkeep.api.views import agent_for, agent_of
from turnkeep.config import MASK, SandboxImage
from turnkeep.engine import Draining, Options, Question
from turnkeep.errors import Forbidden, InvalidRequest, NotFound, WorldError
from turnkeep.fair_queue import owner_of
from turnkeep.ids import AgentId, ConversationId, OrgId, TurnId
from turnkeep.model.agents import AgentSpec, SecretPlace, with_secrets
from turnkeep.model.principals import Principal
from turnkeep.providers.ports import Providers
from turnkeep.runtime import Runtime
from turnkeep.store.commands import NewConversation
from turnkeep.tools.call_identity import (
    HEADER_PREFIX,
    PLACEHOLDER,
    check_placeholders,
    check_url_placeholders,
    texts_in,
)
from turnkeep.tools.ports import Tools
from turnkeep.tools.schemas import check_all_declared
from turnkeep.tools.vault import SecretUnreadable, Vault
from turnkeep.tools.waits import is_of_type
from turnkeep_client import wire
from turnkeep_client.wire.agents import (
    Agent,
    AgentPatch,
    BoxTool,
    ClientTool,
    Environment,
    HttpTool,
    Limits,
    McpServer,
    NamedTool,
    NewAgent,
)
from turnkeep_client.wire.blocks import JsonObject, JsonValue, Text
from turnkeep_client.wire.events import Failure, Result
from turnkeep_client.wire.sandbox import Ending, ErrorLine, Line, ResultLine, encode_line

endpoints = Endpoints("agents")

AGENT = ResponseSpec(status=200, meaning="The agent", type=Agent)
ONE = "/v1/agents/{agent_id}"
UNSENT_BYTES = 16 * 1024 * 1024
"""A client that has this much unread data is disconnected."""
MODEL_SECONDS = 5.0

EMOJI_CHARS = 32
"""An emoji may be a sequence: of a family, of a flag, with a colour of the skin."""

_EMOJI = re.compile(r"[^\s\x00-\x7f][^\s\x00-\x22\x24-\x29\x2b-\x2f\x3a-\x7f]*|[0-9#*]\ufe0f?\u20e3")
_PICTURE = re.compile(r"data:image/(png|jpeg|gif|webp);base64,", re.IGNORECASE)
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


@endpoints.add(
    "GET",
    "/v1/agents",
    policy=Policy.MEMBER,
    query=PageQuery,
    responses=(ResponseSpec(status=200, meaning="Agents, newest first", type=wire.Page[Agent]),),
)
async def list_agents(call: ApiCall[Nothing, PageQuery]) -> ASGIApp:
    """The agents of the workspace. Members see id, name, avatar, description, starters and model of each."""
    page = await call.runtime.store.agents(call.principal, limit=call.query.limit, cursor=call.query.cursor or None)
    data = [agent_for(call.principal, agent) for agent in page.data]
    return json_response(wire.Page(data=data, next_cursor=page.next_cursor))


@endpoints.add(
    "POST",
    "/v1/agents",
    policy=Policy.ADMIN,
    body=NewAgent,
    responses=(ResponseSpec(status=201, meaning="The new agent", type=Agent),),
    errors=(409, 507),
)
async def create_agent(call: ApiCall[NewAgent, Nothing]) -> ASGIApp:
    """Save an agent. `warnings` say what does not work just now. `tool_secret` is shown only here. A name can be given
    once in a workspace."""
    make, warnings = await _checked(call, None)
    secret, sealed = _new_tool_secret(call)
    spec = msgspec.structs.replace(make(None), tool_secret=sealed)
    made = await call.runtime.store.create_agent(call.principal, spec)
    return json_response(agent_of(made, warnings=warnings, tool_secret=secret), status=201)


@endpoints.add("GET", ONE, policy=Policy.MEMBER, responses=(AGENT,), errors=(404,))
async def read_agent(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """One agent. Members see its id, name, avatar, description, starters and model."""
    return json_response(agent_for(call.principal, await call.runtime.store.agent(call.principal, _id(call))))


@endpoints.add("PATCH", ONE, policy=Policy.ADMIN, body=AgentPatch, responses=(AGENT,), errors=(404, 409, 507))
async def change_agent(call: ApiCall[AgentPatch, Nothing]) -> ASGIApp:
    """Change some fields of an agent. A turn that runs keeps the agent it was claimed with."""
    return await _save_again(call)


@endpoints.add("PUT", ONE, policy=Policy.ADMIN, body=NewAgent, responses=(AGENT,), errors=(404, 409, 507))
async def replace_agent(call: ApiCall[NewAgent, Nothing]) -> ASGIApp:
    """Give an agent other fields, all of them. Secrets that come masked stay as they are."""
    return await _save_again(call)


@endpoints.add(
    "DELETE", ONE, policy=Policy.ADMIN, responses=(ResponseSpec(status=204, meaning="Deleted"),), errors=(404, 507)
)
async def delete_agent(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """Delete an agent. Its conversations stay."""
    await call.runtime.store.delete_agent(call.principal, _id(call))
    return no_content()


@endpoints.add(
    "POST",
    f"{ONE}/tool_secret",
    policy=Policy.ADMIN,
    responses=(ResponseSpec(status=200, meaning="The new secret; it is shown only once", type=wire.ToolSecret),),
    errors=(404, 507),
)
async def rotate_tool_secret(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """Give an agent a new secret for the signatures of its tool calls. Turns that run keep the old one."""
    secret, sealed = _new_tool_secret(call)
    await call.runtime.store.change_agent(
        call.principal, _id(call), lambda before: msgspec.structs.replace(before, tool_secret=sealed)
    )
    return json_response(wire.ToolSecret(tool_secret=secret))


@endpoints.add(
    "GET",
    "/v1/tools",
    policy=Policy.ADMIN,
    query=ListQuery,
    responses=(ResponseSpec(status=200, meaning="Tools that agents can name", type=wire.Page[wire.NativeTool]),),
)
async def list_tools(call: ApiCall[Nothing, ListQuery]) -> ASGIApp:
    """The native tools of this server, and those of its operator."""
    tools = [
        wire.NativeTool(
            name=spec.name,
            description=spec.description,
            input_schema=spec.input_schema,
            idempotent=spec.is_idempotent,
        )
        for spec in call.runtime.tools.native
    ]
    return json_response(page_of(tools, call.query, name=lambda tool: tool.name))


@endpoints.add(
    "GET",
    "/v1/sandbox-images",
    policy=Policy.MEMBER,
    query=ListQuery,
    responses=(ResponseSpec(status=200, meaning="Images that agents can name", type=wire.Page[wire.AllowedImage]),),
)
async def list_sandbox_images(call: ApiCall[Nothing, ListQuery]) -> ASGIApp:
    """The images that the operator lets agents choose for their sandboxes, with their Python packages."""
    allowed = call.runtime.settings.sandbox_images
    images = [wire.AllowedImage(name=image.name, packages=image.packages) for image in allowed]
    return json_response(page_of(images, call.query, name=lambda image: image.name))


@endpoints.add(
    "POST",
    "/v1/agents/{agent_id}/runs",
    policy=Policy.MEMBER,
    body=wire.NewRun,
    responses=(
        ResponseSpec(status=200, meaning="The lines of the sandbox", type=str, media_type="application/x-ndjson"),
    ),
    errors=(404, 429, 503, 507),
    feature="runs",
)
async def run_agent(call: ApiCall[wire.NewRun, Nothing]) -> ASGIApp:
    """Run an agent once. Its lines come as they are written, `log` included. Closing the connection stops the run.

    `Turnkeep-Turn` names the turn, whose `response` and `files` are the result of the run.
    """
    body = call.body
    question = Question(
        principal=call.principal,
        message=(Text(text=body.prompt),) if body.prompt.strip() else (),
        new=NewConversation(kind="run", agent_id=AgentId(call.id("agent_id", "agent"))),
        attachment_ids=check_attachments(body.attachment_ids, call.runtime.settings),
        options=Options(background=True, source=call.identity.source),
    )
    pipe = LinePipe()
    claimed = await call.runtime.engine.ask(question, take_lines=pipe.take)
    call.notes["turn_id"] = claimed.turn.id
    return RunResponse(call.runtime, call.principal, claimed.turn.id, pipe)


@endpoints.add(
    "POST",
    "/v1/agents/try",
    policy=Policy.ADMIN,
    body=wire.AgentTrial,
    responses=(ResponseSpec(status=202, meaning="The turn runs; follow its events", type=wire.Accepted),),
    errors=(404, 409, 429, 503, 507),
)
async def try_agent(call: ApiCall[wire.AgentTrial, Nothing]) -> ASGIApp:
    """Ask an agent that is not saved, as the body describes it. Its conversation is in no list, and is deleted when it
    was not used for a while. Each question may come with other settings."""
    body, principal, runtime = call.body, call.principal, call.runtime
    before = None if body.agent_id is None else await _saved_agent(call, body.agent_id)
    make, _ = await _checked(call, before, asked=body.agent)
    spec = make(before)
    conversation_id = None
    if body.conversation_id is not None:
        conversation_id = ConversationId(known_id(body.conversation_id, "conv"))
        if (await runtime.store.conversation(principal, conversation_id)).is_listed:
            raise InvalidRequest("This conversation was not begun by a trial. Leave `conversation_id` out.")
    question = Question(
        principal=principal,
        message=(Text(text=body.message),),
        conversation_id=conversation_id,
        new=NewConversation(is_listed=False),
        agent=spec,
        options=Options(background=True, source=call.identity.source),
        workspace=call.identity.workspace,
    )
    claimed = await runtime.engine.ask(question)
    call.notes["turn_id"] = claimed.turn.id
    return accepted(claimed.turn)


async def _saved_agent(call: ApiCall[Any, Any], agent_id: str) -> AgentSpec:
    return (await call.runtime.store.agent(call.principal, AgentId(known_id(agent_id, "agent")))).spec


async def sealed_server(call: ApiCall[Any, Any], server: McpServer, agent_id: str | None) -> JsonObject:
    """An MCP server as an agent would store it. Masked secrets are those of the saved agent. Raises what saving raises
    for a server that may not be called."""
    before = None if agent_id is None else await _saved_agent(call, agent_id)
    _check_server(server)
    spec = _spec_of(
        AgentPatch(mcp_servers=[server]),
        before or AgentSpec(name="-"),
        vault=call.runtime.vault,
        org_id=call.principal.org_id,
        may_run_commands=_may_run_commands(call),
    )
    if server.url is not None:
        await _trouble_with_address(f"MCP server {server.name}", server.url, call.runtime.tools)
    return spec.mcp_servers[0]


def _may_run_commands(call: ApiCall[Any, Any]) -> bool:
    return call.identity.is_operator or (call.runtime.settings.allow_mcp_commands and call.principal.is_org_wide)


async def _save_again(call: ApiCall[Any, Nothing]) -> ASGIApp:
    before = await call.runtime.store.agent(call.principal, _id(call))
    change, warnings = await _checked(call, before.spec)
    changed = await call.runtime.store.change_agent(call.principal, before.id, change)
    return json_response(agent_of(changed, warnings=warnings))


async def _checked(
    call: ApiCall[Any, Nothing], before: AgentSpec | None, *, asked: NewAgent | AgentPatch | None = None
) -> tuple[Callable[[AgentSpec | None], AgentSpec], list[str]]:
    """What makes the agent to be stored, with its secrets encrypted, from the stored one; and warnings about what does
    not work just now. The checks take a while, so the agent may have been changed by then."""
    runtime, org_id = call.runtime, call.principal.org_id
    body = _with_image(call.body if asked is None else asked, runtime.settings.sandbox_images)
    body = await _with_small_avatar(body, before, call)
    given = _given_fields(body)
    await asyncio.to_thread(_check_shapes, given, runtime)  # large schemas take a while
    make = partial(
        _spec_of,
        body,
        vault=runtime.vault,
        org_id=org_id,
        may_run_commands=_may_run_commands(call),
    )
    return make, await _find_warnings(given, make(before), runtime, call.principal)


async def _with_small_avatar(body: Any, before: AgentSpec | None, call: ApiCall[Any, Any]) -> Any:
    """The body with the picture of its avatar made small. Raises InvalidRequest for what is no emoji and no picture."""
    avatar = body.avatar
    if not isinstance(avatar, str) or not avatar or (before is not None and avatar == before.avatar):
        return body
    if not avatar.startswith("data:"):
        if len(avatar) > EMOJI_CHARS or not _EMOJI.fullmatch(avatar):
            raise InvalidRequest("`avatar` must be one emoji, or a picture as a `data:` address.")
        return body
    found = _PICTURE.match(avatar)
    try:
        data = base64.b64decode(avatar[found.end() :], validate=True) if found else b""
    except (binascii.Error, ValueError):
        data = b""
    picture = await call.runtime.pictures.avatar(data, owner_of(call.principal)) if data else None
    if picture is None:
        raise InvalidRequest("The picture in `avatar` cannot be read. Send a PNG, JPEG, GIF or WebP as base64.")
    small = f"data:{picture.media_type};base64,{base64.b64encode(picture.data).decode()}"
    return msgspec.structs.replace(body, avatar=small)


def _new_tool_secret(call: ApiCall[Any, Any]) -> tuple[str, str]:
    """A new secret, and how it is stored."""
    secret = "tksec_" + secrets.token_urlsafe(32)
    return secret, call.runtime.vault.seal(call.principal.org_id, secret)


def _with_image(body: Any, allowed: Sequence[SandboxImage]) -> Any:
    """The body with the image that its boxes will have: the named one, or the first that has all `packages`.

    Raises InvalidRequest if the operator does not allow it.
    """
    environment = body.environment
    if not isinstance(environment, Environment) or (environment.image is None and not environment.packages):
        return body
    wanted = {_package(name) for name in environment.packages}
    named = [image for image in allowed if environment.image in {None, image.name}]
    fitting = [image for image in named if wanted <= {_package(name) for name in image.packages}]
    if not fitting:
        offered = "; ".join(f"{image.name} ({', '.join(image.packages) or 'no packages'})" for image in allowed)
        asked = (
            f"`environment.image` cannot be {environment.image!r}"
            if not named
            else (f"No image has all of {', '.join(sorted(wanted))}")
        )
        raise InvalidRequest(
            f"{asked}. Agents may choose: {offered or 'none'}. The operator changes that with TURNKEEP_SANDBOX_IMAGES."
        )
    return msgspec.structs.replace(body, environment=msgspec.structs.replace(environment, image=fitting[0].name))


def _package(name: str) -> str:
    """Its name as package indexes compare names, without a version."""
    return re.sub(r"[-_.]+", "-", name.partition("==")[0]).lower()


def _id(call: ApiCall[Any, Any]) -> AgentId:
    return AgentId(call.id("agent_id", "agent"))


def _given_fields(asked: NewAgent | AgentPatch) -> dict[str, Any]:
    return {name: value for name in asked.__struct_fields__ if (value := getattr(asked, name)) is not UNSET}


def _spec_of(
    asked: NewAgent | AgentPatch, before: AgentSpec | None, *, vault: Vault, org_id: OrgId, may_run_commands: bool
) -> AgentSpec:
    """The agent to be stored. With a patch, fields that are left out stay as they were `before`.

    Raises Forbidden for a command that the caller may not save, InvalidRequest for a masked secret without a stored
    value.
    """
    given = _given_fields(asked)
    _check_commands(given.get("mcp_servers", ()), before, may_run_commands=may_run_commands)
    plain = {name: _plain(value) for name, value in given.items()}
    fresh = msgspec.convert({"name": "", **plain}, AgentSpec)
    sealed = _sealed(fresh, before, vault, org_id)
    if before is None:
        return sealed
    tool_secret = None if before.tool_secret is None else _renewed(vault, org_id, before.tool_secret)
    if isinstance(asked, NewAgent):
        return msgspec.structs.replace(sealed, tool_secret=tool_secret)
    changed = {name: getattr(sealed, name) for name in given}
    return msgspec.structs.replace(before, **changed, tool_secret=tool_secret)


def _sealed(spec: AgentSpec, before: AgentSpec | None, vault: Vault, org_id: OrgId) -> AgentSpec:
    stored = {} if before is None else _stored_secrets(before)
    to = _destinations(spec)

    def seal(place: SecretPlace, text: str) -> str:
        if text != MASK:
            return vault.seal(org_id, text)
        kept = stored.get((place, to.get((place.group, place.owner))))
        if kept is None:
            raise InvalidRequest(
                f"`{place}` is masked ({MASK}), and there is no stored value for it that goes to the same place. "
                "Send the value itself."
            )
        return _renewed(vault, org_id, kept)

    return with_secrets(spec, seal)


def _renewed(vault: Vault, org_id: OrgId, kept: str) -> str:
    try:
        return vault.renew(org_id, kept)
    except SecretUnreadable:
        return kept  # its key may come back


def _stored_secrets(spec: AgentSpec) -> dict[tuple[SecretPlace, Any], str]:
    to = _destinations(spec)
    found: dict[tuple[SecretPlace, Any], str] = {}

    def note(place: SecretPlace, text: str) -> str:
        found[place, to.get((place.group, place.owner))] = text
        return text

    with_secrets(spec, note)
    return found


def _destinations(spec: AgentSpec) -> dict[tuple[str, str], tuple[str, ...]]:
    """Where the secrets of each tool and MCP server are sent: an origin, or a program with its arguments."""
    items = [("tools", tool) for tool in spec.tools] + [("mcp_servers", server) for server in spec.mcp_servers]
    return {(group, str(item["name"])): _destination(item) for group, item in items if isinstance(item, dict)}


def _destination(item: dict[str, Any]) -> tuple[str, ...]:
    if item.get("command") is not None:
        return (str(item["command"]), *map(str, item.get("args", ())))
    parts = urlsplit(str(item.get("url", "")))
    return (parts.scheme.lower(), parts.netloc.lower())


def _check_commands(servers: list[McpServer], before: AgentSpec | None, *, may_run_commands: bool) -> None:
    if may_run_commands:
        return
    stored = () if before is None else before.mcp_servers
    known = {
        (server["name"], _destination(server)): dict.fromkeys(server.get("env", {}), MASK)
        for server in stored
        if server.get("command") is not None
    }
    for server in servers:
        if server.command is None:
            continue
        if known.get((server.name, (server.command, *server.args))) != server.env:
            raise Forbidden(
                "Only the operator's own key may save an MCP server that is a command, since this server starts it. "
                "Use a `url`, or ask the operator to set TURNKEEP_ALLOW_MCP_COMMANDS=1 (for keys of a whole org)."
            )


def _plain(value: Any) -> Any:
    plain = msgspec.to_builtins(value)
    return tuple(plain) if isinstance(plain, list) else plain


def _check_shapes(given: dict[str, Any], runtime: Runtime) -> None:
    """Raises InvalidRequest for errors that can be found without any call. No message repeats a secret."""
    _check_tools(given.get("tools", ()), [spec.name for spec in runtime.tools.native])
    for server in given.get("mcp_servers", ()):
        _check_server(server)
    for skill in given.get("skills", ()):
        check_skill(skill)
    for group in ("tools", "mcp_servers", "skills"):
        names = [item if isinstance(item, str) else item.name for item in given.get(group, ())]
        if twice := sorted(name for name, count in Counter(names).items() if count > 1):
            raise InvalidRequest(f"Two of the `{group}` have the same name: {', '.join(twice)}.")
    check_skill_names([skill.name for skill in given.get("skills", ())])
    environment: Environment = given.get("environment", Environment())
    _check_variables("environment.variables", environment.variables)
    _check_limits(given.get("limits", Limits()), runtime)


async def _find_warnings(given: Iterable[str], spec: AgentSpec, runtime: Runtime, principal: Principal) -> list[str]:
    """Warnings about the given fields: what does not work just now. Raises InvalidRequest for an address that tools may
    not call, and for a model that no provider serves."""
    fields = set(given)
    if "model" in fields and spec.model is not None:
        runtime.providers.named(spec.model)
    http = [tool for tool in spec.tools if is_of_type(tool, "http")] if "tools" in fields else []
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
    asked = [runtime.tools.mcp_server_problem(server, principal) for server in servers]
    if "model" in fields and spec.model is not None:
        asked.append(_trouble_with_model(spec.model, runtime.providers))
    return [trouble for trouble in (*troubles, *await asyncio.gather(*asked)) if trouble]


def _check_tools(tools: Sequence[str | NamedTool | HttpTool | ClientTool | BoxTool], known: Sequence[str]) -> None:
    check_all_declared([tool for tool in tools if isinstance(tool, HttpTool | ClientTool)])
    for tool in tools:
        if isinstance(tool, str | NamedTool):
            name = tool if isinstance(tool, str) else tool.name
            if name not in known:
                there_are = f"There are: {', '.join(known)}." if known else "This server has none."
                raise InvalidRequest(f"There is no native tool called {name!r}. {there_are}")
            continue
        if isinstance(tool, HttpTool):
            _check_headers(f"tools.{tool.name}", tool.headers)
            _check_placeholders(f"tools.{tool.name}", tool)


def _check_server(server: McpServer) -> None:
    if (server.url is None) == (server.command is None):
        raise InvalidRequest(f"The MCP server `{server.name}` needs either a `url` or a `command`.")
    if "__" in server.name:
        raise InvalidRequest(f"The MCP server `{server.name}` must not have `__` in its name.")
    if server.url is None and server.headers:
        raise InvalidRequest(f"The MCP server `{server.name}` is a command, so it has no `headers`. Use `env`.")
    if server.command is None and (server.env or server.args):
        raise InvalidRequest(f"The MCP server `{server.name}` is an address, so it has no `args` and `env`.")
    if server.auth is not None and server.url is None:
        raise InvalidRequest(f"The MCP server `{server.name}` is a command, so it has no `auth`.")
    if server.auth is not None and PLACEHOLDER.search(server.url or ""):
        raise InvalidRequest(f"The MCP server `{server.name}` has `auth`, so its `url` must be the same for all users.")
    if server.auth is not None and any(name.lower() == "authorization" for name in server.headers):
        raise InvalidRequest(f"The MCP server `{server.name}` has `auth`, which sends the header Authorization itself.")
    if "\0" in "".join([server.command or "", *server.args]):
        raise InvalidRequest(f"The command of the MCP server `{server.name}` holds a NUL character.")
    _check_headers(f"mcp_servers.{server.name}", server.headers)
    _check_placeholders(f"mcp_servers.{server.name}", server)
    _check_variables(f"mcp_servers.{server.name}.env", server.env)


def _check_placeholders(owner: str, declared: HttpTool | McpServer) -> None:
    check_url_placeholders(owner, declared.url or "")
    check_placeholders(owner, [*declared.headers.values(), *texts_in(declared.arguments)])


def _check_headers(owner: str, headers: dict[str, str]) -> None:
    for name, value in headers.items():
        if not _HEADER.fullmatch(name):
            raise InvalidRequest(f"`{owner}` has a header with an impossible name: {name[:60]!r}.")
        if name.lower() in _OURS or name.lower().startswith(HEADER_PREFIX):
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


class LinePipe:
    """Lines from the worker, which never waits, to one client."""

    def __init__(self) -> None:
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0
        self.came = asyncio.Event()
        self.is_flooded = False
        self.ending: Ending | None = None
        """The last line of the sandbox. It is not forwarded: the settled turn decides how the run ended."""

    def take(self, lines: Sequence[Line]) -> None:
        match lines:
            case [(ResultLine() | ErrorLine()) as ending]:
                self.ending = ending
                return
        encoded = b"".join(map(encode_line, lines))
        self._unsent_bytes += len(encoded)
        self.is_flooded = self._unsent_bytes > UNSENT_BYTES
        if not self.is_flooded:
            self._unsent.append(encoded)
        self.came.set()

    def empty(self) -> bytes:
        """All lines that wait to be sent, which are then forgotten."""
        self.came.clear()
        body = b"".join(self._unsent)
        self._unsent, self._unsent_bytes = [], 0
        return body


class RunResponse:
    """The response to one run, as an ASGI app. The run is stopped when the client disconnects."""

    def __init__(self, runtime: Runtime, principal: Principal, turn_id: TurnId, pipe: LinePipe) -> None:
        self._runtime = runtime
        self._principal = principal
        self._turn_id = turn_id
        self._pipe = pipe

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [
            (b"content-type", b"application/x-ndjson"),
            (b"cache-control", b"no-store, no-transform"),
            (b"x-accel-buffering", b"no"),
            (TURN_HEADER.encode(), self._turn_id.encode()),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        is_complete = False
        try:
            with suppress(ClientDisconnected):
                is_complete = await while_connected(receive, self._forward(send))
        finally:
            if not is_complete:
                with suppress(NotFound):  # deleted meanwhile, which stopped it
                    await self._runtime.engine.cancel(self._principal, self._turn_id)

    async def _forward(self, send: Send) -> bool:
        """Forward every line as it comes, then the last one. False for a client that does not keep up."""
        settling = asyncio.create_task(self._ending())
        try:
            while not settling.done():
                coming = asyncio.create_task(self._pipe.came.wait())
                await asyncio.wait({settling, coming}, return_when=asyncio.FIRST_COMPLETED)
                coming.cancel()
                if self._pipe.is_flooded:
                    return False
                if body := self._pipe.empty():
                    await send({"type": "http.response.body", "body": body, "more_body": True})
            body = self._pipe.empty() + encode_line(settling.result())
            await send({"type": "http.response.body", "body": body, "more_body": False})
            return True
        finally:
            settling.cancel()

    async def _ending(self) -> Ending:
        """The last line: how the turn ended, whether the sandbox, the server or a user ended it."""
        store = self._runtime.store
        try:
            turn = await self._runtime.engine.wait(self._turn_id, or_waiting=False)
        except Draining as exc:
            return ErrorLine(code=exc.code, message=exc.detail)
        *_, last = await store.events(turn.id, after=turn.last_seq - 1)
        said = self._pipe.ending
        match last.event:
            case Result():
                ts = said.ts if isinstance(said, ResultLine) else None
                return ResultLine(message=last.event.message, ts=ts)
            case Failure():
                ts = said.ts if isinstance(said, ErrorLine) and said.code == last.event.code else None
                return ErrorLine(code=last.event.code, message=last.event.message, ts=ts)
            case other:
                raise AssertionError(f"a settled turn does not end with {type(other).__name__}")
