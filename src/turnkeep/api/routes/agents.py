"""Agents: save, read, change, delete. What their tools are worth is looked at when a turn uses them."""

from typing import Any

from litestar.types import ASGIApp

from turnkeep.api import wire
from turnkeep.api.agent_wire import Agent, AgentPatch, NewAgent, agent_of, spec_of
from turnkeep.api.answers import json_answer, no_content
from turnkeep.api.queries import PageQuery
from turnkeep.api.routing import Call, Endpoints, Nothing, Policy, Reply
from turnkeep.ids import AgentId
from turnkeep.model.agents import Agent as StoredAgent
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
    """The agents of the workspace."""
    page = await call.runtime.store.agents(call.principal, limit=call.query.limit, cursor=call.query.cursor or None)
    return json_answer(wire.Page(data=[_shown(call, agent) for agent in page.data], next_cursor=page.next_cursor))


@endpoints.add(
    "POST",
    "/v1/agents",
    policy=Policy.ADMIN,
    body=NewAgent,
    replies=(Reply(status=201, meaning="The new agent", type=Agent),),
    errors=(507,),
)
async def create_agent(call: Call[NewAgent, Nothing]) -> ASGIApp:
    """Save an agent."""
    spec = spec_of(call.body, may_run_commands=call.identity.may_run_commands)
    made = await call.runtime.store.create_agent(call.principal, _checked(call, spec))
    return json_answer(_shown(call, made), status=201)


@endpoints.add("GET", ONE, policy=Policy.MEMBER, replies=(AGENT,), errors=(404,))
async def read_agent(call: Call[Nothing, Nothing]) -> ASGIApp:
    """One agent."""
    return json_answer(_shown(call, await call.runtime.store.agent(call.principal, _id(call))))


@endpoints.add("PATCH", ONE, policy=Policy.ADMIN, body=AgentPatch, replies=(AGENT,), errors=(404, 507))
async def change_agent(call: Call[AgentPatch, Nothing]) -> ASGIApp:
    """Change some fields of an agent. A turn that runs keeps the agent it was claimed with."""
    before = await call.runtime.store.agent(call.principal, _id(call))
    spec = spec_of(call.body, before=before.spec, may_run_commands=call.identity.may_run_commands)
    changed = await call.runtime.store.change_agent(call.principal, before.id, _checked(call, spec))
    return json_answer(_shown(call, changed))


@endpoints.add("PUT", ONE, policy=Policy.ADMIN, body=NewAgent, replies=(AGENT,), errors=(404, 507))
async def replace_agent(call: Call[NewAgent, Nothing]) -> ASGIApp:
    """Give an agent other fields, all of them."""
    spec = spec_of(call.body, may_run_commands=call.identity.may_run_commands)
    changed = await call.runtime.store.change_agent(call.principal, _id(call), _checked(call, spec))
    return json_answer(_shown(call, changed))


@endpoints.add("DELETE", ONE, policy=Policy.ADMIN, replies=(Reply(status=204, meaning="Deleted"),), errors=(404, 507))
async def delete_agent(call: Call[Nothing, Nothing]) -> ASGIApp:
    """Delete an agent. Its conversations stay."""
    await call.runtime.store.delete_agent(call.principal, _id(call))
    return no_content()


def _checked(call: Call[Any, Any], spec: AgentSpec) -> AgentSpec:
    if spec.model is not None:
        call.runtime.providers.named(spec.model)
    return spec


def _shown(call: Call[Any, Any], agent: StoredAgent) -> Agent:
    return agent_of(agent, shows_secrets=call.principal.role != "member")


def _id(call: Call[Any, Any]) -> AgentId:
    return AgentId(call.id("agent_id", "agent"))
