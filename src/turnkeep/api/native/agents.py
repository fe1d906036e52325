"""Agents: save, read, change, delete. A save is refused for what is wrong, and warns of what does not work now."""

from typing import Any

from starlette.types import ASGIApp

from turnkeep.api import wire
from turnkeep.api.agent_saving import given_fields, spec_of
from turnkeep.api.agent_wire import Agent, AgentPatch, NewAgent, agent_for, agent_of
from turnkeep.api.http.endpoints import Call, Endpoints, Nothing, Policy, Reply
from turnkeep.api.http.responses import json_response, no_content
from turnkeep.api.native.agent_checks import check_shapes, find_warnings
from turnkeep.api.native.queries import PageQuery
from turnkeep.ids import AgentId
from turnkeep.model.agents import AgentSpec

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
    """What is to be stored, with its secrets sealed, and what does not work in it just now."""
    runtime, org_id = call.runtime, call.principal.org_id
    given = given_fields(call.body)
    check_shapes(given, runtime)
    spec = spec_of(
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
