"""Skills of an agent, one by one: brought as zips, taken away by name."""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import structs
from starlette.types import ASGIApp

from turnkeep.api.agent_wire import Agent, agent_of
from turnkeep.api.http.endpoints import Call, Endpoints, Nothing, Policy, Reply
from turnkeep.api.http.requests import body_chunks
from turnkeep.api.http.responses import json_response
from turnkeep.api.native.agent_checks import MAX_SKILLS, check_skill_names
from turnkeep.api.skill_zips import read_zip
from turnkeep.errors import InvalidRequest, NotFound, UnsupportedMediaType
from turnkeep.filebag.forms import file_parts
from turnkeep.ids import AgentId
from turnkeep.model.agents import Agent as StoredAgent
from turnkeep.model.blocks import JsonObject

FORM = "multipart/form-data"

endpoints = Endpoints("agents")

AGENT = Reply(status=200, meaning="The agent", type=Agent)


@endpoints.add(
    "POST",
    "/v1/agents/{agent_id}/skills",
    policy=Policy.ADMIN,
    raw_body=FORM,
    replies=(AGENT,),
    errors=(404, 413, 415, 422, 503, 507),
)
async def add_skills(call: Call[Nothing, Nothing]) -> ASGIApp:
    """Give an agent skills: a form with zips as the field `file`, all or none. One of the same name is replaced."""
    await _agent(call)
    content_type = call.headers.get("content-type", "")
    if not content_type.lower().startswith(FORM):
        raise UnsupportedMediaType(f"Send the zip of a skill as the field `file` of a form ({FORM}).")
    most = call.runtime.settings.max_files_per_message
    parts = file_parts(content_type, body_chunks(call.receive), max_files=most)
    added = [await read_zip(part) async for part in parts]
    new = {skill.name: msgspec.to_builtins(skill) for skill in added}
    if len(new) < len(added):
        raise InvalidRequest("Two of the zips hold skills of the same name.")
    agent = await _agent(call)
    skills = [new.pop(str(skill["name"]), skill) for skill in agent.spec.skills]
    skills += new.values()
    check_skill_names(str(skill["name"]) for skill in skills)
    return await _saved(call, agent, skills)


@endpoints.add(
    "DELETE", "/v1/agents/{agent_id}/skills/{skill}", policy=Policy.ADMIN, replies=(AGENT,), errors=(404, 507)
)
async def remove_skill(call: Call[Nothing, Nothing]) -> ASGIApp:
    """Take a skill away from an agent."""
    agent, name = await _agent(call), call.path("skill")
    left = [skill for skill in agent.spec.skills if skill["name"] != name]
    if len(left) == len(agent.spec.skills):
        raise NotFound(f"The agent has no skill called {name[:100]!r}.")
    return await _saved(call, agent, left)


async def _agent(call: Call[Any, Any]) -> StoredAgent:
    return await call.runtime.store.agent(call.principal, AgentId(call.id("agent_id", "agent")))


async def _saved(call: Call[Any, Any], agent: StoredAgent, skills: Sequence[JsonObject]) -> ASGIApp:
    if len(skills) > MAX_SKILLS:
        raise InvalidRequest(f"An agent may have {MAX_SKILLS} skills, and this would be {len(skills)}.")
    spec = structs.replace(agent.spec, skills=tuple(skills))
    return json_response(agent_of(await call.runtime.store.change_agent(call.principal, agent.id, spec)))
