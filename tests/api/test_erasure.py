"""A user or a conversation is erased: no word and no byte is left in the data directory, the bucket or the database."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.store import S3Store

from tests import buckets
from tests.api.harness import ApiServer, Client, read_events, settings_for
from tests.servers import dump_of
from turnkeep.config import Settings
from turnkeep.files.orphans import BagSweeper
from turnkeep.providers.ports import ProviderFailed
from turnkeep.providers.scripted import Call, Fail, Until
from turnkeep.tools.functions import tool
from turnkeep.tools.registry import ToolRegistry

DONE_SECONDS = 60.0

Json = Any


@tool
async def look(what: str) -> str:
    """Look something up."""
    return f"found {what}"


class Place:
    """Where one server keeps what it keeps."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.canary = f"canary{secrets.token_hex(8)}"
        """One word, for the search index, that nobody else writes."""

    async def findings(self) -> list[str]:
        """Every place in which the canary is left."""
        found = [
            str(path) for path in self.settings.data_dir.rglob("*") if path.is_file() and self._has(path.read_bytes())
        ]
        if not self.settings.is_sqlite and self._has(dump_of(self.settings.database_url)):
            found.append("the dump of the database")
        if self.settings.files_url.startswith("s3:"):
            found += [key async for key, data in bucket_objects(self.settings.files_url) if self._has(data)]
        return found

    def _has(self, data: bytes) -> bool:
        return self.canary.encode() in data or self.canary.encode("utf-16-le") in data


async def bucket_objects(url: str) -> AsyncIterator[tuple[str, bytes]]:
    store = S3Store(buckets.BUCKET, prefix=url.rpartition("/")[2], client_options={"allow_http": True})
    async for page in obstore.list(store):
        for meta in page:
            found = await obstore.get_async(store, meta["path"])
            yield meta["path"], bytes(await found.bytes_async())


@pytest.fixture(params=["sqlite, local files", "postgres, bucket"])
def settings(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    if request.param == "sqlite, local files":
        return settings_for(tmp_path)
    for name, value in buckets.shared_environ().items():
        monkeypatch.setenv(name, value)
    return settings_for(
        tmp_path,
        database_url=request.getfixturevalue("api_database"),
        files_url=f"s3://{buckets.BUCKET}/{secrets.token_hex(8)}",
    )


@pytest.fixture
def place(settings: Settings) -> Place:
    return Place(settings)


@pytest.fixture
async def server(settings: Settings) -> AsyncIterator[ApiServer]:
    registry = ToolRegistry([look], offered_to_all=["look"])
    async with ApiServer.start(settings, tools=registry) as running:
        yield running


async def done(service: Client, erasure_id: str) -> Json:
    """The erasure once it is done."""
    async with asyncio.timeout(DONE_SECONDS):
        while True:
            erasure = await service.read(f"/v1/erasures/{erasure_id}")
            if erasure["status"] == "done":
                return erasure
            await asyncio.sleep(0.05)


async def leave_words(server: ApiServer, service: Client, place: Place, name: str) -> tuple[Client, str]:
    """A user of this name, and a conversation; the canary is in everything that they left."""
    user = await server.user(service, name, role="admin")
    assert (await service.patch(f"/v1/users/{name}", json={"name": f"{place.canary} Smith"})).status_code == 200
    server.scripts.say(f"Thinking of {place.canary}.", Call("look", {"what": place.canary}))
    server.scripts.say(f"It is {place.canary}.")
    once = {"idempotency-key": place.canary}
    answer = await user.ask(f"Where is {place.canary}?", metadata={"note": place.canary}, headers=once)
    conversation_id = answer["conversation_id"]
    titled = await user.patch(f"/v1/conversations/{conversation_id}", json={"title": f"{place.canary} title"})
    assert titled.status_code == 200, titled.text
    files = f"/v1/conversations/{conversation_id}/files"
    sent = await user.post(files, files={"file": (f"{place.canary}.txt", f"{place.canary} in a file".encode() * 10)})
    assert sent.status_code == 201, sent.text
    file_id = sent.json()["data"][0]["id"]
    server.scripts.say(Fail(ProviderFailed(f"no {place.canary}")))
    await user.ask("And this?", conversation_id=conversation_id, attachment_ids=[file_id])
    await user.ask("Again?", conversation_id=conversation_id)
    assert (await user.post(f"/v1/files/{file_id}/save")).status_code == 201
    promised = await user.post("/v1/files", json={"name": f"{place.canary}.md", "size": 4})
    assert promised.status_code in {200, 201}, promised.text
    page = await user.post("/v1/pages", json={"title": place.canary, "content": f"about {place.canary}"})
    assert page.status_code == 201, page.text
    table = await user.post("/v1/tables", json={"name": place.canary, "columns": [{"name": place.canary}]})
    added = await user.post(f"/v1/tables/{table.json()['id']}/rows", json={"rows": [{place.canary: place.canary}]})
    assert added.status_code in {200, 201}, added.text
    acting = await server.client(service.key, Turnkeep_User=name)
    history = [{"role": "user", "content": f"{place.canary} elsewhere"}, {"role": "assistant", "content": place.canary}]
    imported = await acting.post("/v1/conversations/import", json=history)
    assert imported.status_code == 201, imported.text
    deleted = await user.ask(f"{place.canary} to be deleted")
    await user.delete(f"/v1/conversations/{deleted['conversation_id']}")
    assert (await user.read("/v1/conversations", params={"q": place.canary}))["data"]
    return user, conversation_id


async def leave_words_of_other_clients(
    server: ApiServer, service: Client, user: Client, canary: str, *, trace_id: str
) -> None:
    """The canary in everything that clients of the AI SDK, of AG-UI and of OpenAI can leave."""
    traced = {"traceparent": f"00-{trace_id}-{trace_id[:16]}-01", "tracestate": f"x={canary}"}
    tools = [{"type": "native", "name": "look", "approval": "always"}]
    made = await service.post("/v1/agents", json={"name": "Looker", "tools": tools})
    assert made.status_code == 201, made.text
    locate = {"name": "locate", "description": canary, "inputSchema": {"type": "object", "description": canary}}
    asked = {"id": f"{canary}-m1", "role": "user", "parts": [{"type": "text", "text": canary}]}
    chat = {"id": f"{canary}-chat", "messages": [asked], "tools": [locate]}
    server.scripts.say(Call("look", {"what": canary}), Call("locate", {"where": canary}))
    sent = await user.post("/ai-sdk/chat?agent=Looker", json=chat, headers=traced)
    assert sent.status_code == 200, sent.text
    turn_id = sent.headers["turnkeep-turn"]
    [look_up] = (await user.read(f"/v1/turns/{turn_id}"))["waiting_for"]["calls"]
    decision = {"call_id": look_up["id"], "decision": "deny", "reason": f"no {canary}"}
    denied = await user.post(f"/v1/turns/{turn_id}/approvals", json={"decisions": [decision]})
    assert denied.status_code == 200, denied.text
    [located] = denied.json()["waiting_for"]["calls"]
    result = {"call_id": located["id"], "result": {"place": canary}}
    assert (await user.post(f"/v1/turns/{turn_id}/results", json={"results": [result]})).status_code == 200
    question = {"id": f"{canary}-m2", "role": "user", "content": canary}
    server.scripts.say(Call("look", {"what": canary}))
    body = {"threadId": f"{canary}-thread", "runId": canary, "messages": [question], "protocolVersion": "1.0"}
    assert (await user.post("/ag-ui?agent=Looker", json=body)).status_code == 200  # and it waits
    history = [{"role": "user", "content": canary}, {"role": "assistant", "content": f"{canary}."}]
    call = {"id": canary, "type": "function", "function": {"name": canary, "arguments": f'{{"a": "{canary}"}}'}}
    opening = [
        {"role": "user", "content": f"Again, {canary}"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": canary, "content": canary},
    ]
    told = {"role": "system", "content": f"Say {canary}."}
    completion = {"model": "scripted", "messages": [told, *history, *opening], "metadata": {"note": canary}}
    sent = await user.post("/openai/v1/chat/completions", json=completion, headers={"idempotency-key": canary})
    assert sent.status_code == 200, sent.text
    response = {"model": "scripted", "input": [*history, opening[0]], "instructions": canary, "metadata": {"n": canary}}
    sent = await user.post("/openai/v1/responses", json=response | {"store": False})
    assert sent.status_code == 200, sent.text
    sent = await user.post("/openai/v1/responses", json=response)
    assert (await user.delete(f"/openai/v1/responses/{sent.json()['id']}")).status_code == 200
    item = {"type": "message", "role": "user", "content": canary}
    sent = await user.post("/openai/v1/conversations", json={"items": [item], "metadata": {"note": canary}})
    assert sent.status_code == 200, sent.text
    form = {"file": (f"{canary}.txt", canary.encode())}
    sent = await user.post("/openai/v1/files", files=form, data={"purpose": "user_data"})
    assert sent.status_code == 200, sent.text


class TestAUser:
    async def test_leaves_no_word_and_no_byte_anywhere(self, server: ApiServer, service: Client, place: Place) -> None:
        name = f"{place.canary}@example.com"
        user, conversation_id = await leave_words(server, service, place, name)
        other = await server.user(service, "bob")
        kept = await other.ask("Bob's words")
        assert await place.findings()
        started = await service.post(f"/v1/users/{name}/erase")
        assert started.status_code == 202, started.text
        erasure = await done(service, started.json()["erasure_id"])
        assert await place.findings() == []
        counts = erasure["counts"]
        assert (counts["conversations"], counts["pages"], counts["tables"], counts["table_rows"]) == (3, 1, 1, 1)
        assert (counts["turns"], counts["files"]) == (5, 3)
        assert (await user.get("/v1/conversations")).status_code == 401
        assert (await service.get(f"/v1/users/{name}")).status_code == 404
        assert (await service.get(f"/v1/conversations/{conversation_id}")).status_code == 404
        assert (await other.read(f"/v1/conversations/{kept['conversation_id']}"))["message_count"] == 2
        assert (await service.read("/v1/usage"))["messages"] == 5, "four of the user's, one of Bob's"
        rows = (await service.read("/v1/usage", params={"group_by": "user"}))["rows"]
        assert sorted((row["messages"], row["user"] is None) for row in rows) == [(1, False), (4, True)]

    async def test_leaves_nothing_of_what_other_clients_sent(
        self, server: ApiServer, service: Client, place: Place
    ) -> None:
        user, canary = await server.user(service, "ann"), place.canary
        trace = Place(place.settings)
        trace.canary = secrets.token_hex(16)
        await leave_words_of_other_clients(server, service, user, canary, trace_id=trace.canary)
        assert await place.findings()
        await done(service, (await service.post("/v1/users/ann/erase")).json()["erasure_id"])
        assert await place.findings() == []
        assert await trace.findings() == []

    async def test_leaves_no_word_of_decisions_about_calls_of_others(
        self, server: ApiServer, service: Client, place: Place
    ) -> None:
        admin = await server.user(service, "ada", role="admin")
        assert (await service.patch("/v1/users/ada", json={"name": f"Ada {place.canary}"})).status_code == 200
        tools = [{"type": "native", "name": "look", "approval": "always"}]
        made = await service.post("/v1/agents", json={"name": "Looker", "tools": tools, "approvers": ["admin"]})
        user = await server.user(service, "bob")
        server.scripts.say(*(Call("look", {"what": "x"}) for _ in range(2)))
        server.scripts.say("Not seen.")
        turn = (await user.ask("Look twice.", agent_id=made.json()["id"]))["turn"]
        first, second = (call["id"] for call in turn["waiting_for"]["calls"])
        decisions = [
            {"call_id": first, "decision": "deny", "reason": f"{place.canary} is too far."},
            {"call_id": second, "decision": "allow", "args": {"what": "y"}},
        ]
        decided = await admin.post(f"/v1/turns/{turn['id']}/approvals", json={"decisions": decisions})
        assert decided.status_code == 200, decided.text
        async with asyncio.timeout(DONE_SECONDS):
            while (await user.read(f"/v1/turns/{turn['id']}"))["status"] != "succeeded":  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert await place.findings()
        await done(service, (await service.post("/v1/users/ada/erase")).json()["erasure_id"])
        assert await place.findings() == []
        *_, answer = (await user.read(f"/v1/conversations/{turn['conversation_id']}/messages"))["data"]
        steps = [part for part in answer["content"] if part["type"] == "step"]
        assert [step.get("error") for step in steps] == ["Denied.", None]
        await user.ask("And again?", conversation_id=turn["conversation_id"])
        assert "Denied." in str(server.scripts.requests[-1])
        assert place.canary not in str(server.scripts.requests[-1])

    async def test_is_gone_from_the_caches_of_the_process(
        self, server: ApiServer, service: Client, place: Place
    ) -> None:
        await leave_words(server, service, place, "ann")
        runtime = server.runtime
        histories, contents = runtime.engine._worker._histories._histories, runtime.files._cache
        assert len(histories) > 0
        assert place.canary in repr(contents)
        await done(service, (await service.post("/v1/users/ann/erase")).json()["erasure_id"])
        assert len(histories) == len(contents) == 0

    async def test_whose_turns_run_and_wait_is_stopped_first(
        self, server: ApiServer, service: Client, place: Place
    ) -> None:
        user = await server.user(service, "ann")
        spoken, never = asyncio.Event(), asyncio.Event()

        async def wait() -> None:
            spoken.set()
            await never.wait()

        server.scripts.say(f"Slowly, {place.canary} ", Until(wait), "never")
        running = await user.ask(f"{place.canary}?", background=True)
        where = {"conversation_id": running["conversation_id"], "background": True}
        waiting = await user.ask(f"{place.canary} next", **where, if_busy="enqueue")
        posted = asyncio.create_task(
            user.post("/v1/turns", json={"message": place.canary, **where, "background": False, "if_busy": "enqueue"})
        )
        async with (
            user.stream("GET", running["events_url"]) as of_running,
            user.stream("GET", waiting["events_url"]) as of_waiting,
        ):
            reading = asyncio.gather(read_events(of_running), read_events(of_waiting))
            await spoken.wait()
            while not server.runtime.engine._waiting:  # noqa: ASYNC110 - the request waits a moment later
                await asyncio.sleep(0.02)
            started = await service.post("/v1/users/ann/erase")
            assert [events[-1].event for events in await asyncio.wait_for(reading, DONE_SECONDS)] == ["error", "error"]
        ended = await asyncio.wait_for(posted, DONE_SECONDS)
        assert ended.status_code == 404 or ended.json()["turn"]["status"] == "cancelled"
        await done(service, started.json()["erasure_id"])
        assert await place.findings() == []

    async def test_who_asks_on_meanwhile_is_refused_and_leaves_nothing(
        self, server: ApiServer, service: Client, place: Place
    ) -> None:
        user = await server.user(service, "ann")

        async def ask() -> set[int]:
            statuses: set[int] = set()
            while not statuses & {401, 403}:
                response = await user.post("/v1/turns", json={"message": place.canary})
                statuses.add(response.status_code)
            return statuses

        asking = [asyncio.create_task(ask()) for _ in range(4)]
        await asyncio.sleep(0.2)
        started = await service.post("/v1/users/ann/erase")
        for statuses in await asyncio.gather(*asking):
            assert statuses <= {200, 401, 403, 404}
        await done(service, started.json()["erasure_id"])
        assert await place.findings() == []

    async def test_whose_upload_ends_too_late_leaves_no_bytes(
        self, server: ApiServer, service: Client, place: Place
    ) -> None:
        user = await server.user(service, "ann")
        conversation_id = (await user.post("/v1/conversations")).json()["id"]
        half, rest = asyncio.Event(), asyncio.Event()

        async def body() -> AsyncIterator[bytes]:
            yield b'--b\r\ncontent-disposition: form-data; name="file"; filename="a.txt"\r\n\r\n'
            yield (place.canary + " ").encode() * 100_000
            half.set()
            await rest.wait()
            yield b"\r\n--b--\r\n"

        kind = {"content-type": "multipart/form-data; boundary=b"}
        sending = asyncio.create_task(
            user.post(f"/v1/conversations/{conversation_id}/files", content=body(), headers=kind)
        )
        await half.wait()
        erasure_id = (await service.post("/v1/users/ann/erase")).json()["erasure_id"]
        await done(service, erasure_id)
        rest.set()
        assert (await sending).status_code in {403, 404}
        assert await place.findings() == []

    async def test_may_be_erased_by_admins_and_keys_of_the_workspace_and_not_by_themselves(
        self, server: ApiServer, service: Client
    ) -> None:
        admin = await server.user(service, "boss", role="admin")
        member = await server.user(service, "ann")
        assert (await member.post("/v1/users/boss/erase")).status_code == 403
        assert (await admin.post("/v1/users/boss/erase")).status_code == 403
        assert (await admin.post("/v1/users/nobody/erase")).status_code == 404
        started = await admin.post("/v1/users/ann/erase")
        assert started.status_code == 202
        other = await server.tenant("another")
        assert (await other.get(f"/v1/erasures/{started.json()['erasure_id']}")).status_code == 404
        assert (await done(admin, started.json()["erasure_id"]))["done_at"]
        again = await server.user(service, "ann")
        assert (await again.read("/v1/conversations"))["data"] == []


class TestAConversation:
    async def test_is_erased_at_once(self, server: ApiServer, service: Client, place: Place) -> None:
        user = await server.user(service, "ann")
        server.scripts.say(Call("look", {"what": place.canary}))
        server.scripts.say(f"It is {place.canary}.")
        answer = await user.ask(f"{place.canary}?")
        conversation = f"/v1/conversations/{answer['conversation_id']}"
        assert (await user.patch(conversation, json={"title": place.canary})).status_code == 200
        await user.post(f"{conversation}/files", files={"file": (f"{place.canary}.txt", place.canary.encode())})
        kept = await user.ask("Kept")
        assert (await user.post(f"{conversation}/erase")).status_code == 204
        assert await place.findings() == []
        assert (await user.get(conversation)).status_code == 404
        assert (await user.post(f"{conversation}/restore")).status_code == 404
        assert (await user.post(f"{conversation}/erase")).status_code == 404
        assert (await user.read(f"/v1/conversations/{kept['conversation_id']}"))["message_count"] == 2
        assert (await user.read("/v1/usage"))["messages"] == 2

    async def test_is_erased_while_it_runs_and_after_it_was_deleted(
        self, server: ApiServer, service: Client, place: Place
    ) -> None:
        user = await server.user(service, "ann")
        server.scripts.say(f"Slowly, {place.canary} ", Until(asyncio.Event().wait), "never")
        running = await user.ask(f"{place.canary}?", background=True)
        deleted = await user.ask(f"{place.canary} deleted")
        await user.delete(f"/v1/conversations/{deleted['conversation_id']}")
        for conversation_id in (running["conversation_id"], deleted["conversation_id"]):
            assert (await user.post(f"/v1/conversations/{conversation_id}/erase")).status_code == 204
        assert await place.findings() == []

    async def test_of_another_user_stays(self, server: ApiServer, service: Client) -> None:
        user = await server.user(service, "ann")
        mallory = await server.user(service, "mallory")
        answer = await user.ask("Mine")
        conversation = f"/v1/conversations/{answer['conversation_id']}"
        assert (await mallory.post(f"{conversation}/erase")).status_code == 404
        assert (await user.read(conversation))["message_count"] == 2

    async def test_many_at_once_share_the_scrubbing(self, server: ApiServer, service: Client, place: Place) -> None:
        user = await server.user(service, "ann")
        asked = [await user.ask(f"{place.canary} {n}") for n in range(8)]
        answers = await asyncio.gather(
            *(user.post(f"/v1/conversations/{each['conversation_id']}/erase") for each in asked)
        )
        assert {answer.status_code for answer in answers} == {204}
        assert await place.findings() == []


class TestBytesThatArriveAfterwards:
    """An upload may be under way, or its address still valid, when its user or conversation is erased."""

    @pytest.mark.parametrize("whose", ["user", "conversation"])
    async def test_leave_nothing(self, server: ApiServer, service: Client, place: Place, whose: str) -> None:
        user = await server.user(service, "ann")
        conversation = (await user.post("/v1/conversations", json={})).json()["id"]
        half = f"{place.canary} in a file".encode() * 100
        tickets = []
        for _ in range(2):
            body = {"name": "a.txt", "size": 2 * len(half), "conversation_id": conversation}
            tickets.append((await user.post("/v1/files", json=body)).json()["upload"])
        erased, is_half_sent = asyncio.Event(), asyncio.Semaphore(0)

        async def slowly(first: bytes, last: bytes) -> AsyncIterator[bytes]:
            yield first
            is_half_sent.release()
            await erased.wait()
            yield last

        anonymous = await server.client(None)
        put = asyncio.create_task(
            anonymous.put(tickets[0]["url"], content=slowly(half, half), headers={"content-length": str(2 * len(half))})
        )
        head = b'--x\r\ncontent-disposition: form-data; name="file"; filename="b.txt"\r\n\r\n'
        form = asyncio.create_task(
            user.post(
                f"/v1/conversations/{conversation}/files",
                content=slowly(head + half, half + b"\r\n--x--\r\n"),
                headers={"content-type": "multipart/form-data; boundary=x"},
            )
        )
        async with asyncio.timeout(DONE_SECONDS):
            for _ in range(2):
                await is_half_sent.acquire()
        if whose == "user":
            await done(service, (await service.post("/v1/users/ann/erase")).json()["erasure_id"])
        else:
            assert (await user.post(f"/v1/conversations/{conversation}/erase")).status_code == 204
        erased.set()
        late = await anonymous.put(tickets[1]["url"], content=half + half)
        is_bucket = place.settings.files_url.startswith("s3:")
        assert [(await put).status_code < 300, late.status_code < 300] == [is_bucket] * 2
        assert (await form).status_code >= 400
        await BagSweeper(server.runtime.store, server.runtime.bag.objects).tidy()
        assert await place.findings() == []
