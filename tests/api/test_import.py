"""What an import brings along: the agent of an export, the instructions of a foreign history, branches of ChatGPT."""

import asyncio
import base64
import io
import threading
import zipfile
from collections.abc import AsyncIterator, Callable

import msgspec
import pytest

from tests.api.conftest import both
from tests.api.harness import ApiServer, Client, Json, code_of, data_of, fake_id, names, read_events
from tests.api.test_files import a_conversation, upload
from tests.files.samples import PNG
from turnkeep.api.native.conversations import _read_histories
from turnkeep.compiler.judge import judge_anthropic, judge_openai_chat, judge_openai_responses
from turnkeep.model.messages import Message
from turnkeep.store.exports import blocks_of
from turnkeep_client.wire.blocks import Block

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


def chatgpt(*, title: str = "Weather") -> Json:
    """A conversation of ChatGPT's export in which the question was asked twice, and the first was answered twice."""

    def node(parent: str | None, role: str, text: str, *children: str) -> Json:
        content = {"content_type": "text", "parts": [text]}
        message = {"author": {"role": role}, "content": content, "create_time": 1_700_000_000.0}
        return {"parent": parent, "children": list(children), "message": message}

    return {
        "title": title,
        "create_time": 1_700_000_000.0,
        "current_node": "a2",
        "mapping": {
            "root": {"parent": None, "children": ["q1", "q2"], "message": None},
            "q1": node("root", "user", "Rain?", "a1", "b1"),
            "a1": node("q1", "assistant", "No."),
            "b1": node("q1", "assistant", "Perhaps."),
            "q2": node("root", "user", "Weather?", "a2"),
            "a2": node("q2", "assistant", "Sunny."),
        },
    }


def zipped(**files: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name.replace("__", "."), data)
    return buffer.getvalue()


async def shown(service: Client, conversation_id: str) -> list[tuple[str, str]]:
    messages = (await service.read(f"/v1/conversations/{conversation_id}/messages"))["data"]
    return [(one["role"], "".join(part.get("text", "") for part in one["content"])) for one in messages]


class TestAFileThatTheExportDoesNotHold:
    @both
    @pytest.mark.parametrize("is_held", [False, True], ids=["only named", "also listed"])
    async def test_of_another_tenant_is_not_read(self, server: ApiServer, service: Client, is_held: bool) -> None:
        secret = await upload(service, await a_conversation(service), "secret.txt", b"The canary sings.")
        other = await server.tenant("another")
        own = await upload(other, conversation := await a_conversation(other), "own.txt", b"Mine.")
        await other.ask("Look.", conversation_id=conversation, attachment_ids=[own["id"]])
        export = (await other.get(f"/v1/conversations/{conversation}/export")).text.replace(own["id"], secret["id"])
        document = msgspec.json.decode(export)
        if not is_held:
            document["exported"]["files"] = []
        made = await imported(other, msgspec.json.encode(document))
        path = f"/v1/conversations/{made['id']}"
        replay = await other.get(f"{path}/replay")
        assert "no longer available" in replay.text
        await other.ask("Read it.", conversation_id=made["id"])
        sent = str(server.scripts.requests[-1].messages)
        trace, messages = await other.get(f"{path}/trace"), await other.get(f"{path}/messages")
        for told in (replay.text, sent, trace.text, messages.text):
            assert "canary" not in told
            assert secret["id"] not in told


class TestAnExportOfChatGPT:
    @both
    @pytest.mark.parametrize("as_zip", [False, True])
    async def test_becomes_conversations_with_all_their_branches(self, service: Client, as_zip: bool) -> None:
        document = msgspec.json.encode([chatgpt(), chatgpt(title="Other")])
        if as_zip:
            document = zipped(conversations__json=document, chat__html=b"<html>", user__json=b"{}")
        response = await service.post("/v1/import", content=document)
        assert response.status_code == 201, response.text
        made = response.json()["conversations"]
        assert [one["title"] for one in made] == ["Weather", "Other"]
        assert response.json()["conversation"] == made[0]
        path = f"/v1/conversations/{made[0]['id']}"
        assert await shown(service, made[0]["id"]) == [("user", "Weather?"), ("assistant", "Sunny.")]
        messages = (await service.read(f"{path}/messages"))["data"]
        siblings = messages[0]["siblings"]
        assert len(siblings) == 3
        assert (await service.patch(path, json={"head_turn_id": siblings[1]})).status_code == 200
        assert await shown(service, made[0]["id"]) == [("user", "Rain?"), ("assistant", "Perhaps.")]
        await service.ask("Really?", conversation_id=made[0]["id"])
        assert (await service.read(path))["message_count"] == 4

    async def test_is_found_by_the_search(self, service: Client) -> None:
        await service.post("/v1/import", content=msgspec.json.encode([chatgpt()]))
        found = (await service.read("/v1/conversations", params={"q": "sunny"}))["data"]
        assert [one["title"] for one in found] == ["Weather"]

    async def test_with_one_broken_conversation_is_refused_whole(self, service: Client) -> None:
        broken = chatgpt()
        broken["mapping"]["a2"]["message"]["author"]["role"] = "robot"
        response = await service.post("/v1/import", content=msgspec.json.encode([chatgpt(), broken]))
        assert code_of(response) == (422, "invalid_request")
        assert "Conversation 1 ('Weather'), message 'a2'" in response.json()["detail"]
        assert (await service.read("/v1/conversations"))["data"] == []

    async def test_of_several_conversations_takes_no_title(self, service: Client) -> None:
        document = msgspec.json.encode([chatgpt(), chatgpt()])
        response = await service.post("/v1/import", content=document, params={"title": "Mine"})
        assert code_of(response) == (422, "invalid_request")


class TestHostileFiles:
    @pytest.mark.parametrize(
        "make",
        [
            lambda: zipped(other__json=b"[]"),
            lambda: b"PK\x03\x04 and nothing more",
            lambda: zipped(conversations__json=b"[" + b" " * 120_000_000 + b"]"),
            lambda: zipped(conversations__json=b"["),
            lambda: b"[" * 100_000,
        ],
        ids=["no conversations", "no zip", "a bomb", "no JSON", "deep"],
    )
    async def test_are_refused(self, service: Client, make: Callable[[], bytes]) -> None:
        response = await service.post("/v1/import", content=make())
        assert code_of(response) == (422, "invalid_request")

    async def test_of_very_many_small_values_are_refused_before_they_are_read(self, service: Client) -> None:
        response = await service.post("/v1/import", content=b"[" + b"{}," * 1_600_000 + b"{}]")
        assert code_of(response) == (413, "body_too_large")

    async def test_zips_are_counted_over_all_of_their_files(self, service: Client) -> None:
        values = b"[" + b"{}," * 900_000 + b"{}]"
        both_of_them = {"conversations-000__json": values, "conversations-001__json": values}
        response = await service.post("/v1/import", content=zipped(**both_of_them))
        assert code_of(response) == (413, "body_too_large")
        assert "3,000,000 values" in response.json()["detail"]

    @pytest.mark.parametrize("files", [1, 40], ids=["one file", "many files"])
    async def test_of_branches_that_repeat_very_much_are_refused(self, service: Client, files: int) -> None:
        document = chatgpt()
        nodes = document["mapping"]
        nodes["q1"]["message"]["content"]["parts"] = ["x" * 300_000]
        for number in range(2_000 // files):
            nodes[f"c{number}"] = nodes["a1"]
            nodes["q1"]["children"].append(f"c{number}")
        data = msgspec.json.encode([document])
        named = {f"conversations-{number:03}__json": data for number in range(files)}
        response = await service.post("/v1/import", content=zipped(**named))
        assert code_of(response) == (422, "invalid_request")
        assert "too many branches" in response.json()["detail"]
        assert (await service.read("/v1/conversations"))["data"] == []

    async def test_zips_of_very_many_files_are_refused(self, service: Client) -> None:
        many = zipped(conversations__json=b"[]") + b"PK\x01\x02" * 60_000
        response = await service.post("/v1/import", content=many)
        assert code_of(response) == (413, "body_too_large")


class TestImportsAtTheSameTime:
    async def test_are_read_two_at_once_and_one_of_an_org(
        self, server: ApiServer, service: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        reading, most = 0, 0
        others = [await server.tenant(f"org {number}") for number in range(3)]
        begun, goes_on = threading.Semaphore(0), threading.Event()

        def read_slowly(raw: bytes, *args: object) -> object:
            nonlocal reading, most
            reading += 1
            most = max(most, reading)
            begun.release()
            assert goes_on.wait(60)
            reading -= 1
            return _read_histories(raw, *args)  # type: ignore[arg-type]

        monkeypatch.setattr("turnkeep.api.native.conversations._read_histories", read_slowly)
        imports = [
            asyncio.create_task(each.post("/v1/import", json=[ASK, DONE]))
            for each in (service, service, service, *others)
        ]
        for _ in range(2):
            assert await asyncio.to_thread(begun.acquire, timeout=60)
        assert (await service.get("/healthz")).status_code == 200
        goes_on.set()
        assert [response.status_code for response in await asyncio.gather(*imports)] == [201] * 6
        assert most == 2

    async def test_a_body_over_the_limit_is_refused_whether_or_not_it_says_so(self, server: ApiServer) -> None:
        async def pieces() -> AsyncIterator[bytes]:
            for _ in range(60):
                yield b" " * 1_000_000

        service = await server.tenant("large")
        for content in (pieces(), b" " * 60_000_000):
            response = await service.post("/v1/import", content=content)
            assert code_of(response) == (413, "body_too_large")


class TestALongTitle:
    @both
    async def test_is_cut_and_a_remark_says_the_whole(self, service: Client) -> None:
        title = "long " * 100
        made = (await service.post("/v1/import", content=msgspec.json.encode([chatgpt() | {"title": title}]))).json()
        assert made["conversation"]["title"] == title[:200]
        assert [remark for remark in made["remarks"] if title in remark]


class TestARoleOrATypeThatIsNoText:
    @pytest.mark.parametrize("field", ["role", "type"])
    @pytest.mark.parametrize("form", ["anthropic", "openai_chat", "openai_responses", "ai_sdk", "rows", "plain", ""])
    async def test_is_refused_with_its_place(self, service: Client, form: str, field: str) -> None:
        query = f"?form={form}" if form else ""
        message = {"role": "user", "content": "Hello", field: ["user"]}
        response = await service.post(f"/v1/import{query}", json=[ASK, message])
        assert code_of(response) == (422, "invalid_request")
        assert f"Item 1: `{field}`" in response.json()["detail"]

    async def test_leaves_out_a_part_of_a_message(self, service: Client) -> None:
        message = {"role": "user", "content": [{"type": "text", "text": "Hello"}, {"type": ["text"]}]}
        response = await service.post("/v1/import", json=[message])
        assert response.status_code == 201
        assert "Item 0: a piece of type ['text']" in response.json()["remarks"][0]


class TestPictures:
    @both
    async def test_that_no_model_can_read_are_left_out_with_a_remark(self, service: Client) -> None:
        """A provider would refuse every later request of the conversation."""
        pictures = [
            {"type": "base64", "media_type": "image/png", "data": base64.b64encode(b"no picture").decode()},
            {"type": "base64", "media_type": "image/png", "data": "no base64!"},
            {"type": "url", "url": "http://127.0.0.1/picture.png"},
        ]
        asked = [{"type": "text", "text": "What is this?"}, *({"type": "image", "source": each} for each in pictures)]
        response = await service.post("/v1/import", json={"messages": [ASK, DONE, {"role": "user", "content": asked}]})
        made = response.json()
        assert len(made["remarks"]) == 3
        assert all("messages[2]" in remark for remark in made["remarks"])
        replay = await service.read(f"/v1/conversations/{made['conversation']['id']}/replay?provider=anthropic")
        assert str(replay["messages"]).count("[image: left out]") == 3
        assert "'type': 'image'" not in str(replay["messages"])

    @both
    async def test_of_legacy_rows_are_looked_at_too(self, service: Client) -> None:
        made = await imported(service, msgspec.json.encode([ASK, DONE]))
        export = msgspec.json.decode((await service.get(f"/v1/conversations/{made['id']}/export")).content)
        pictures = [
            {"media_type": "image/png", "data": base64.b64encode(b"no picture").decode()},
            {"media_type": "image/png", "url": "http://169.254.169.254/latest/meta-data"},
            {"media_type": "image/png", "data": base64.b64encode(PNG).decode()},
        ]
        content = [{"type": "text", "text": "Old."}, *({"type": "image", "source": each} for each in pictures)]
        export["exported"]["turns"][0]["rows"][0] |= {"blocks": [], "display": None, "legacy": {"content": content}}
        response = await service.post("/v1/import", content=msgspec.json.encode(export))
        assert ["messages[0]" in remark for remark in response.json()["remarks"]] == [True, True]
        path = f"/v1/conversations/{response.json()['conversation']['id']}"
        replay = str((await service.read(f"{path}/replay?provider=anthropic"))["messages"])
        assert replay.count("[image: left out]") == 2
        assert replay.count("'type': 'image'") == 1
        assert "169.254" not in replay
        assert (await shown(service, response.json()["conversation"]["id"]))[0][1].startswith("Old.")

    async def test_are_looked_for_beside_the_event_loop(self, service: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        begun, goes_on = threading.Event(), threading.Event()

        def blocks_slowly(row: Message) -> tuple[Block, ...]:
            begun.set()
            assert goes_on.wait(30), "The event loop waits for the import."
            return blocks_of(row)

        monkeypatch.setattr("turnkeep.api.native.conversations.blocks_of", blocks_slowly)
        importing = asyncio.create_task(service.post("/v1/import", json=[ASK, DONE]))
        while not begun.is_set():  # noqa: ASYNC110 - a thread sets it
            await asyncio.sleep(0.01)
        assert (await service.get("/healthz")).status_code == 200
        goes_on.set()
        assert (await importing).status_code == 201

    async def test_that_models_read_are_kept_whatever_they_are_called(self, service: Client) -> None:
        data = base64.b64encode(PNG).decode()
        parts = [{"type": "file", "mediaType": "image/jpg", "url": f"data:image/jpg;base64,{data}"}]
        made = (await service.post("/v1/import", json=[{"role": "user", "parts": parts}])).json()
        assert made["remarks"] == []
        replay = await service.read(f"/v1/conversations/{made['conversation']['id']}/replay?provider=anthropic")
        assert data in str(replay["messages"])
        assert "image/png" in str(replay["messages"])


class TestTheModelOfAnImport:
    @both
    async def test_is_shown_where_the_history_names_one(self, service: Client) -> None:
        body = {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}, DONE]}
        for model, shown in (("claude-sonnet-4-5", "anthropic/claude-sonnet-4-5"), (None, None)):
            given = {**body, "model": model} if model else body
            made = (await service.post("/v1/import?form=anthropic", json=given)).json()["conversation"]
            messages = await service.read(f"/v1/conversations/{made['id']}/messages")
            assert [message["model"] for message in messages["data"]] == [shown, shown]


class TestOtherForms:
    @both
    async def test_messages_of_the_ai_sdk_show_their_steps(self, service: Client) -> None:
        call = {"type": "tool-weather", "toolCallId": "c1", "state": "output-available", "input": {}, "output": "clear"}
        answer = {"role": "assistant", "parts": [call, {"type": "text", "text": "Sunny."}, {"type": "data-x"}]}
        question = {"role": "user", "parts": [{"type": "text", "text": "Weather?"}]}
        response = await service.post("/v1/import", content=msgspec.json.encode({"messages": [question, answer]}))
        assert response.status_code == 201, response.text
        assert ["data-x" in remark for remark in response.json()["remarks"]] == [True]
        path = f"/v1/conversations/{response.json()['conversation']['id']}"
        parts = (await service.read(f"{path}/messages"))["data"][1]["content"]
        assert [part["type"] for part in parts] == ["step", "text", "text"]
        replay = await service.read(f"{path}/replay", params={"provider": "anthropic"})
        assert judge_anthropic({"messages": [*replay["messages"], ASK], "tools": [{"name": "weather"}]}) == []

    @both
    async def test_rows_of_a_database_and_those_of_earlier_times_are_shown(self, service: Client) -> None:
        rows = [
            {"role": "user", "content": "Hello", "content_blocks": None},
            {"role": "assistant", "content": "Hi.", "content_blocks": None},
            {"role": "user", "content": "Weather?", "content_blocks": None, "turn_id": "t1"},
            {"role": "assistant", "content_blocks": [{"type": "text", "text": "Sunny."}], "turn_id": "t1"},
        ]
        response = await service.post("/v1/import", content=msgspec.json.encode(rows))
        assert response.status_code == 201, response.text
        assert await shown(service, response.json()["conversation"]["id"]) == [
            ("user", "Hello"),
            ("assistant", "Hi."),
            ("user", "Weather?"),
            ("assistant", "Sunny."),
        ]

    @both
    async def test_legacy_rows_of_an_export_are_shown_and_found(self, service: Client) -> None:
        made = await imported(service, msgspec.json.encode([ASK, DONE]))
        export = msgspec.json.decode((await service.get(f"/v1/conversations/{made['id']}/export")).content)
        for turn in export["exported"]["turns"]:
            for row in turn["rows"]:
                text = row["blocks"][0]["text"]
                row |= {"blocks": [], "display": None, "legacy": {"content": f"Old: {text}"}}
        again = await imported(service, msgspec.json.encode(export))
        assert await shown(service, again["id"]) == [("user", "Old: Weather?"), ("assistant", "Old: Sunny.")]
        found = (await service.read("/v1/conversations", params={"q": "old sunny"}))["data"]
        assert [one["id"] for one in found] == [again["id"]]
