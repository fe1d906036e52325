"""What an export may bring along: a conversation that names an agent of somebody else comes without it."""

import msgspec

from tests.api.conftest import both
from tests.api.harness import ApiServer, Client, Json, code_of, fake_id


async def with_an_agent(service: Client) -> tuple[str, bytes]:
    """The id of an agent, and the export of a conversation with it."""
    agent = (await service.post("/v1/agents", json={"name": "Clerk", "instructions": "Be brief."})).json()["id"]
    answer = await service.ask(agent_id=agent)
    exported = await service.get(f"/v1/conversations/{answer['conversation_id']}/export")
    assert exported.status_code == 200, exported.text
    return agent, exported.content


async def imported(service: Client, document: bytes) -> Json:
    headers = {"content-type": "application/json"}
    response = await service.post("/v1/conversations/import", content=document, headers=headers)
    assert response.status_code == 201, response.text
    return response.json()["conversation"]


class TestAnAgentOfAnImport:
    @both
    async def test_of_ones_own_stays(self, service: Client) -> None:
        agent, document = await with_an_agent(service)
        made = await imported(service, document)
        assert made["agent_id"] == agent

    @both
    async def test_of_somebody_else_is_left_behind(self, server: ApiServer, service: Client) -> None:
        """Otherwise its instructions and tools would answer in another tenant's conversation."""
        agent, document = await with_an_agent(service)
        other = await server.tenant("another")
        made = await imported(other, document)
        assert made["agent_id"] is None
        await other.ask("Who are you?", conversation_id=made["id"])
        assert "Be brief." not in str(server.scripts.requests[-1].system)
        assert code_of(await other.get(f"/v1/agents/{agent}")) == (404, "not_found")

    async def test_of_another_workspace_or_that_is_gone_is_left_behind(
        self, server: ApiServer, service: Client
    ) -> None:
        agent, document = await with_an_agent(service)
        workspace = (await service.post("/v1/workspaces", json={"name": "Other"})).json()["id"]
        elsewhere = await server.client(service.key, Turnkeep_Workspace=workspace)
        assert (await imported(elsewhere, document))["agent_id"] is None
        await service.delete(f"/v1/agents/{agent}")
        assert (await imported(service, document))["agent_id"] is None

    async def test_that_cannot_exist_is_left_behind_or_refused(self, service: Client) -> None:
        _, document = await with_an_agent(service)
        export = msgspec.json.decode(document)
        conversation = export["exported"]["conversation"]
        conversation["agent_id"] = fake_id("agent")
        assert (await imported(service, msgspec.json.encode(export)))["agent_id"] is None
        conversation["agent_id"] = "agent_'; DROP TABLE agents"
        headers = {"content-type": "application/json"}
        response = await service.post("/v1/conversations/import", content=msgspec.json.encode(export), headers=headers)
        assert code_of(response) == (422, "invalid_request")
