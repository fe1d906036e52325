"""OpenAI's models: what a client may name as `model`. That is a model of a provider, or an agent of the workspace.

An agent is named by its id (`agent_…`) or as `agent/<name>`. Clients such as Open WebUI offer what the list has.
"""

from typing import Any

from msgspec import Struct
from starlette.types import ASGIApp

from turnkeep.api.http.endpoints import ApiCall, Endpoints, Nothing, Policy, ResponseSpec
from turnkeep.api.http.problem_details import InvalidField
from turnkeep.api.http.responses import json_response
from turnkeep.errors import InvalidRequest, NotFound
from turnkeep.ids import AgentId, check_id
from turnkeep.model.agents import Agent
from turnkeep_client.wire.blocks import JsonObject

endpoints = Endpoints("openai")

BASE = "/openai/v1"
AGENT_NAME = "agent/"
AGENTS_AT_ONCE = 100
OK = ResponseSpec(status=200, meaning="OpenAI's object")
ROUTE: dict[str, Any] = {"policy": Policy.MEMBER, "is_described": False}
PAGE_NAMES = ("limit", "order", "after")
INCLUDE = "include[]"
"""OpenAI's clients may send it. What it can name is always there, or never."""


class ModelNotFound(NotFound):
    """No model or agent of this name."""

    code = "model_not_found"


class ChosenModel(Struct, frozen=True, kw_only=True):
    """What the `model` of a request names. Exactly one of both is set."""

    model: str | None = None
    agent_id: AgentId | None = None


@endpoints.add("GET", f"{BASE}/models", responses=(OK,), **ROUTE)
async def list_openai_models(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """The models that this server can reach now, and the agents that the caller reaches."""
    names = [name for name in await call.runtime.providers.models() if call.principal.may_choose(name)]
    data = [_model(name, owned_by=name.partition("/")[0]) for name in names]
    data += [_agent(agent) for agent in await _agents(call)]
    return json_response({"object": "list", "data": data})


@endpoints.add("GET", f"{BASE}/models/{{model:path}}", responses=(OK,), errors=(404,), **ROUTE)
async def read_openai_model(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """One model or agent."""
    name = call.path("model")
    chosen = await chosen_model(call, name)
    if chosen.agent_id is not None:
        agent = await call.runtime.store.agent(call.principal, chosen.agent_id)
        return json_response({**_agent(agent), "id": name})
    return json_response(_model(name, owned_by=name.partition("/")[0]))


async def chosen_model(call: ApiCall[Any, Any], name: str | None) -> ChosenModel:
    """The model or the agent of this name. Raises ModelNotFound, or OutOfScope."""
    if not name:
        raise InvalidField("`model` is missing. GET /openai/v1/models lists what there is.", field="model")
    if name.startswith(AGENT_NAME):
        wanted = name.removeprefix(AGENT_NAME)
        for agent in await _agents(call):
            if agent.spec.name == wanted:
                return ChosenModel(agent_id=agent.id)
        raise _no_model(name)
    if name.startswith("agent_"):
        try:
            agent_id = AgentId(check_id(name, "agent"))
            call.principal.check_agent(agent_id)
            agent = await call.runtime.store.agent(call.principal, agent_id)
        except (InvalidRequest, NotFound) as exc:
            raise _no_model(name) from exc
        return ChosenModel(agent_id=agent.id)
    call.principal.check_model(name)
    try:
        call.runtime.providers.named(name)
    except InvalidRequest as exc:
        raise _no_model(name) from exc
    return ChosenModel(model=name)


async def _agents(call: ApiCall[Any, Any]) -> list[Agent]:
    found: list[Agent] = []
    cursor: str | None = None
    while True:
        page = await call.runtime.store.agents(call.principal, limit=AGENTS_AT_ONCE, cursor=cursor)
        found += page.data
        cursor = page.next_cursor
        if cursor is None:
            return found


def _no_model(name: str) -> ModelNotFound:
    return ModelNotFound(
        f"There is no model or agent {name[:200]!r}. GET /openai/v1/models lists what there is; an agent is named "
        "by its id, or as agent/ and its name."
    )


def _model(name: str, *, owned_by: str) -> JsonObject:
    return {"id": name, "object": "model", "created": 0, "owned_by": owned_by}


def _agent(agent: Agent) -> JsonObject:
    return {
        "id": f"{AGENT_NAME}{agent.spec.name}",
        "object": "model",
        "created": agent.created_at // 1000,
        "owned_by": "turnkeep",
        "agent_id": agent.id,
        "description": agent.spec.description,
    }
