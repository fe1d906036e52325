"""Agents: create, read, change, delete. A save is refused for what is wrong, and warns of what does not work now.

A secret that comes masked keeps its stored value, but only if it goes to the same place as before. Otherwise a caller
could have a secret sent to an address of their own, and read there what the API never shows.
"""

from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec import UNSET
from starlette.types import ASGIApp

from turnkeep.api.http.endpoints import Call, Endpoints, Nothing, Policy, Reply
from turnkeep.api.http.responses import json_response, no_content
from turnkeep.api.native.agent_checks import check_shapes, find_warnings
from turnkeep.api.native.queries import PageQuery
from turnkeep.api.views import agent_for, agent_of
from turnkeep.config import MASK
from turnkeep.errors import Forbidden, InvalidRequest
from turnkeep.ids import AgentId, OrgId
from turnkeep.model.agents import AgentSpec, SecretPlace, with_secrets
from turnkeep.tools.vault import SecretUnreadable, Vault
from turnkeep_client import wire
from turnkeep_client.wire.agents import Agent, AgentPatch, McpServer, NewAgent

endpoints = Endpoints("agents")

AGENT = Reply(status=200, meaning="The agent", type=Agent)
ONE = "/v1/agents/{agent_id}"


@endpoints.add(
    "GET",
    "/v1/agents",
    policy=Policy.MEMBER,
    query=PageQuery,
    replies=(Reply(status=200, meaning="Agents, newest first", type=wire.Page[Agent]),),
)
async def list_agents(call: Call[Nothing, PageQuery]) -> ASGIApp:
    """The agents of the workspace. Members see id, name and model of each."""
    page = await call.runtime.store.agents(call.principal, limit=call.query.limit, cursor=call.query.cursor or None)
    data = [agent_for(call.principal, agent) for agent in page.data]
    return json_response(wire.Page(data=data, next_cursor=page.next_cursor))


@endpoints.add(
    "POST",
    "/v1/agents",
    policy=Policy.ADMIN,
    body=NewAgent,
    replies=(Reply(status=201, meaning="The new agent", type=Agent),),
    errors=(507,),
)
async def create_agent(call: Call[NewAgent, Nothing]) -> ASGIApp:
    """Save an agent. `warnings` say what does not work just now."""
    spec, warnings = await _checked(call, None)
    made = await call.runtime.store.create_agent(call.principal, spec)
    return json_response(agent_of(made, warnings=warnings), status=201)


@endpoints.add("GET", ONE, policy=Policy.MEMBER, replies=(AGENT,), errors=(404,))
async def read_agent(call: Call[Nothing, Nothing]) -> ASGIApp:
    """One agent. Members see its id, name and model."""
    return json_response(agent_for(call.principal, await call.runtime.store.agent(call.principal, _id(call))))


@endpoints.add("PATCH", ONE, policy=Policy.ADMIN, body=AgentPatch, replies=(AGENT,), errors=(404, 507))
async def change_agent(call: Call[AgentPatch, Nothing]) -> ASGIApp:
    """Change some fields of an agent. A turn that runs keeps the agent it was claimed with."""
    return await _save_again(call)


@endpoints.add("PUT", ONE, policy=Policy.ADMIN, body=NewAgent, replies=(AGENT,), errors=(404, 507))
async def replace_agent(call: Call[NewAgent, Nothing]) -> ASGIApp:
    """Give an agent other fields, all of them. Secrets that come masked stay as they are."""
    return await _save_again(call)


@endpoints.add("DELETE", ONE, policy=Policy.ADMIN, replies=(Reply(status=204, meaning="Deleted"),), errors=(404, 507))
async def delete_agent(call: Call[Nothing, Nothing]) -> ASGIApp:
    """Delete an agent. Its conversations stay."""
    await call.runtime.store.delete_agent(call.principal, _id(call))
    return no_content()


async def _save_again(call: Call[Any, Nothing]) -> ASGIApp:
    before = await call.runtime.store.agent(call.principal, _id(call))
    spec, warnings = await _checked(call, before.spec)
    changed = await call.runtime.store.change_agent(call.principal, before.id, spec)
    return json_response(agent_of(changed, warnings=warnings))


async def _checked(call: Call[Any, Nothing], before: AgentSpec | None) -> tuple[AgentSpec, list[str]]:
    """The agent to be stored, with its secrets encrypted, and warnings about what does not work just now."""
    runtime, org_id = call.runtime, call.principal.org_id
    given = _given_fields(call.body)
    check_shapes(given, runtime)
    spec = _spec_of(
        call.body,
        before=before,
        vault=runtime.vault,
        org_id=org_id,
        may_run_commands=call.identity.is_operator
        or (runtime.settings.allow_mcp_commands and call.principal.is_org_wide),
    )
    return spec, await find_warnings(given, spec, runtime, org_id)


def _id(call: Call[Any, Any]) -> AgentId:
    return AgentId(call.id("agent_id", "agent"))


def _given_fields(asked: NewAgent | AgentPatch) -> dict[str, Any]:
    return {name: value for name in asked.__struct_fields__ if (value := getattr(asked, name)) is not UNSET}


def _spec_of(
    asked: NewAgent | AgentPatch, *, before: AgentSpec | None, vault: Vault, org_id: OrgId, may_run_commands: bool
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
    if before is None or isinstance(asked, NewAgent):
        return sealed
    return msgspec.structs.replace(before, **{name: getattr(sealed, name) for name in given})


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
        try:
            return vault.renew(org_id, kept)
        except SecretUnreadable:
            return kept  # its key may come back

    return with_secrets(spec, seal)


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
