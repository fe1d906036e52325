"""What an import brings along: the agent of an export, the instructions of a foreign history."""

import msgspec
import pytest

from tests.api.conftest import both
from tests.api.harness import ApiServer, Client, Json, code_of, data_of, fake_id, names, read_events
from turnkeep.compiler.judge import judge_anthropic, judge_openai_chat, judge_openai_responses

ASK = {"role": "user", "content": "Weather?"}
DONE = {"role": "assistant", "content": "Sunny."}
INSTRUCTED = [
    {"role": "system", "content": "Answer in French."},
    {"role": "developer", "content": "Be brief."},
    ASK,
    DONE,
]


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
    async def test_of_another_org_is_left_out(self, server: ApiServer, service: Client) -> None:
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


class TestInstructionsThatLeadAHistory:
    @both
    async def test_are_kept_as_system_messages_and_not_as_turns(self, service: Client) -> None:
        made = await imported(service, msgspec.json.encode(INSTRUCTED))
        assert (made["title"], made["message_count"]) == ("Weather?", 4)
        messages = (await service.read(f"/v1/conversations/{made['id']}/messages"))["data"]
        assert [(one["role"], one["content"][0]["text"]) for one in messages] == [
            ("system", "Answer in French."),
            ("system", "Be brief."),
            ("user", "Weather?"),
            ("assistant", "Sunny."),
        ]

    @both
    async def test_come_out_again_in_the_trace_and_in_the_export(self, service: Client) -> None:
        made = await imported(service, msgspec.json.encode(INSTRUCTED))
        roles = ["system", "system", "user", "assistant"]
        rows = (await service.read(f"/v1/conversations/{made['id']}/trace"))["data"]
        assert [row["role"] for row in rows] == roles
        exported = (await service.get(f"/v1/conversations/{made['id']}/export")).content
        again = await imported(service, exported)
        rows = (await service.read(f"/v1/conversations/{again['id']}/trace"))["data"]
        assert [row["role"] for row in rows] == roles

    async def test_are_sent_to_every_provider_before_the_first_question(self, service: Client) -> None:
        made = await imported(service, msgspec.json.encode([*INSTRUCTED, ASK]))
        path = f"/v1/conversations/{made['id']}/replay"
        for provider in ("anthropic", "openai_chat", "openai_responses"):
            replay = await service.read(path, params={"provider": provider})
            sent = [*replay["messages"], ASK]
            told = str(sent[0]["content"])
            assert [told.count(words) for words in ("Answer in French.", "Be brief.", "Weather?")] == [1, 1, 1]
            assert told.index("Answer in French.") < told.index("Be brief.") < told.index("Weather?")
            match provider:
                case "anthropic":
                    assert judge_anthropic({"messages": sent}) == []
                case "openai_chat":
                    assert judge_openai_chat({"messages": sent}) == []
                case _:
                    assert judge_openai_responses({"input": sent, "store": False}) == []

    async def test_stay_where_the_first_question_is_asked_again(self, server: ApiServer, service: Client) -> None:
        made = await imported(service, msgspec.json.encode(INSTRUCTED))
        path = f"/v1/conversations/{made['id']}"
        question = (await service.read(f"{path}/messages"))["data"][2]
        answer = await service.post(f"{path}/turns/{question['turn_id']}/regenerate")
        assert answer.status_code == 200, answer.text
        assert "Answer in French." in str(server.scripts.requests[-1].messages)
        messages = (await service.read(f"{path}/messages"))["data"]
        assert [one["role"] for one in messages] == ["system", "system", "user", "assistant"]
        assert messages[2]["content"] == question["content"]

    async def test_are_no_question_that_can_be_asked_again(self, service: Client) -> None:
        made = await imported(service, msgspec.json.encode(INSTRUCTED))
        path = f"/v1/conversations/{made['id']}"
        instructed = (await service.read(f"{path}/messages"))["data"][0]["turn_id"]
        again = await service.post(f"{path}/turns/{instructed}/regenerate")
        assert code_of(again) == (422, "invalid_request")
        edited = await service.post(f"{path}/turns/{instructed}/edit", json={"message": "Now I instruct."})
        assert code_of(edited) == (422, "invalid_request")

    async def test_have_a_stream_that_ends_without_an_answer(self, service: Client) -> None:
        made = await imported(service, msgspec.json.encode(INSTRUCTED))
        instructed = (await service.read(f"/v1/conversations/{made['id']}/messages"))["data"][0]["turn_id"]
        async with service.stream("GET", f"/v1/turns/{instructed}/events") as response:
            events = await read_events(response)
        assert names(events) == ["turn", "result"]
        assert data_of(events[-1])["message"] == ""

    async def test_in_the_middle_stay_where_they_stood_and_the_question_is_what_is_asked_again(
        self, server: ApiServer, service: Client
    ) -> None:
        made = await imported(
            service, msgspec.json.encode([ASK, DONE, {"role": "developer", "content": "Be brief."}, ASK, DONE])
        )
        path = f"/v1/conversations/{made['id']}"
        messages = (await service.read(f"{path}/messages"))["data"]
        assert [one["role"] for one in messages] == ["user", "assistant", "system", "user", "assistant"]
        answer = await service.post(f"{path}/turns/{messages[3]['turn_id']}/regenerate")
        assert answer.status_code == 200, answer.text
        assert server.scripts.requests[-1].messages[-1]["content"] == "Weather?"


class TestAMessageWithoutContent:
    @pytest.mark.parametrize("content", ["", "  \n", None, []])
    async def test_is_refused_with_its_place_and_nothing_is_imported(self, service: Client, content: Json) -> None:
        document = msgspec.json.encode([ASK, DONE, {"role": "assistant", "content": content}])
        headers = {"content-type": "application/json"}
        response = await service.post("/v1/conversations/import", content=document, headers=headers)
        assert code_of(response) == (422, "invalid_request")
        assert response.json()["detail"].startswith("Item 2: the message of the assistant has no content. Remove it")
        assert (await service.read("/v1/conversations"))["data"] == []
