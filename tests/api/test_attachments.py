"""Attachments from the upload to the model: joined to the bag, written onto the message, seen by the provider."""

import asyncio
import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.json import encode
from PIL import Image

from tests.api.conftest import both
from tests.api.harness import ApiServer, Client, code_of, settings_for
from tests.api.test_files import a_conversation, announce, put, send, storage_key_of, upload
from tests.api.test_turns import ModelPause
from tests.files.samples import PNG, picture
from tests.knowledge.test_file_tools import a_docx, a_pdf, a_pptx, an_xlsx, zipped
from turnkeep.providers.demo import DemoProvider
from turnkeep.providers.ports import Abilities
from turnkeep.providers.registry import ProviderRegistry
from turnkeep.providers.scripted import Call, ScriptedProvider

Json = Any


async def loose(client: Client, name: str = "a.txt", data: bytes = b"hello") -> Json:
    """A file that is in no bag yet."""
    promised = await announce(client, name, data)
    await put(promised, data)
    response = await client.post(f"/v1/files/{promised['file']['id']}/complete")
    assert response.status_code == 200, response.text
    return response.json()


def chip(file: Json, reading: str = "text") -> Json:
    """How a message shows a file."""
    return {
        "type": "file",
        "file_id": file["id"],
        "name": file["name"],
        "mime_type": file["mime_type"],
        "size": file["size"],
        "reading": reading,
    }


def told(server: ApiServer) -> str:
    """All that the model was sent the last time, as text."""
    return encode(server.scripts.requests[-1].messages).decode()


class TestJoining:
    async def test_a_file_may_stand_in_the_message_as_the_transcript_shows_it(self, user: Client) -> None:
        conversation = await a_conversation(user)
        [file] = (await send(user, conversation, ("a.txt", b"one"))).json()["data"]
        for block in ({"type": "file", "file_id": file["id"]}, chip(file, "text")):
            body = {"message": [{"type": "text", "text": "Look."}, block], "conversation_id": conversation}
            assert (await user.post("/v1/turns", json=body)).status_code == 200
        messages = (await user.read(f"/v1/conversations/{conversation}/messages"))["data"]
        assert [message["attachments"] for message in messages if message["role"] == "user"] == [
            [chip(file, "text")]
        ] * 2

    @both
    async def test_files_of_the_bag_are_written_onto_the_message(self, server: ApiServer, user: Client) -> None:
        conversation = await a_conversation(user)
        files = (await send(user, conversation, ("a.txt", b"one"), ("b.png", PNG))).json()["data"]
        await user.ask("Look.", conversation_id=conversation, attachment_ids=[file["id"] for file in files])
        asked = (await user.read(f"/v1/conversations/{conversation}/messages"))["data"][0]
        assert asked["attachments"] == [chip(files[0], "text"), chip(files[1], "image")]
        listed = (await user.read(f"/v1/conversations/{conversation}/files"))["data"]
        assert [file["message_id"] for file in listed] == [asked["id"]] * 2

    @both
    async def test_a_file_made_before_the_conversation_joins_with_the_first_turn(
        self, server: ApiServer, user: Client
    ) -> None:
        file = await loose(user)
        assert file["conversation_id"] is None
        conversation = (await user.ask("Look.", attachment_ids=[file["id"]]))["conversation_id"]
        [joined] = (await user.read(f"/v1/conversations/{conversation}/files"))["data"]
        assert joined == file | {"conversation_id": conversation, "message_id": joined["message_id"]}
        assert (await user.get(f"/v1/files/{file['id']}/content")).content == b"hello"

    async def test_it_takes_another_name_where_its_own_is_taken(self, user: Client) -> None:
        conversation = await a_conversation(user)
        await upload(user, conversation, "a.txt")
        file = await loose(user, "A.TXT")
        await user.ask("Look.", conversation_id=conversation, attachment_ids=[file["id"]])
        assert (await user.read(f"/v1/files/{file['id']}"))["name"] == "A-1.TXT"

    async def test_what_cannot_be_attached(self, server: ApiServer, service: Client, user: Client) -> None:
        conversation = await a_conversation(user)
        pending = (await announce(user, "a.txt", b"hello"))["file"]
        foreign = await loose(await server.user(service, "mallory"))
        many = [(await upload(user, conversation, f"{n}.txt"))["id"] for n in range(11)]
        refusals: Sequence[tuple[list[str], tuple[int, str]]] = (
            ([pending["id"]], (422, "invalid_request")),
            ([foreign["id"]], (404, "not_found")),
            ([many[0], many[0]], (422, "invalid_request")),
            (many, (422, "too_many_files")),
        )
        for ids, expected in refusals:
            body = {"message": "Look.", "conversation_id": conversation, "attachment_ids": ids}
            assert code_of(await user.post("/v1/turns", json=body)) == expected
        assert (await user.read(f"/v1/conversations/{conversation}"))["turn_count"] == 0


class TestFilesFromElsewhere:
    """Files of other conversations, and the workspace's Files, can be attached: a copy joins the bag."""

    @both
    async def test_a_copy_joins_the_bag(self, server: ApiServer, service: Client, user: Client) -> None:
        other = await a_conversation(user)
        file = await upload(user, other, "plan.txt", b"The plan is 42.")
        colleague = await server.user(service, "bob")
        theirs = await upload(colleague, await a_conversation(colleague), "notes.txt", b"Notes of Bob.")
        saved = (await colleague.post(f"/v1/files/{theirs['id']}/save")).json()
        target = await a_conversation(user)
        await upload(user, target, "plan.txt", b"An older plan.")
        await user.ask("Look.", conversation_id=target, attachment_ids=[file["id"], saved["id"]])
        asked = (await user.read(f"/v1/conversations/{target}/messages"))["data"][0]
        assert [ref["name"] for ref in asked["attachments"]] == ["plan-1.txt", "notes.txt"]
        assert not {ref["file_id"] for ref in asked["attachments"]} & {file["id"], saved["id"], theirs["id"]}
        assert "The plan is 42." in told(server)
        assert "Notes of Bob." in told(server)
        await user.delete(f"/v1/conversations/{other}")
        copy = asked["attachments"][0]["file_id"]
        assert (await user.get(f"/v1/files/{copy}/content")).content == b"The plan is 42."

    async def test_in_a_new_conversation_too(self, user: Client) -> None:
        file = await upload(user, await a_conversation(user))
        made = (await user.ask("Look.", attachment_ids=[file["id"]]))["conversation_id"]
        [copy] = (await user.read(f"/v1/conversations/{made}/files"))["data"]
        assert (copy["name"], copy["sha256"]) == (file["name"], file["sha256"])
        assert (await user.read(f"/v1/files/{file['id']}"))["conversation_id"] != made

    @both
    async def test_a_refused_turn_leaves_no_copy(self, server: ApiServer, user: Client) -> None:
        pause = ModelPause()
        server.scripts.say("So ", pause(), "it is.")
        busy = await user.ask("One", background=True)
        file = await upload(user, await a_conversation(user))
        before = len(await server.runtime.store.all_files())
        body = {"message": "?", "conversation_id": busy["conversation_id"], "attachment_ids": [file["id"]]}
        assert code_of(await user.post("/v1/turns", json=body)) == (409, "conversation_busy")
        assert len(await server.runtime.store.all_files()) == before
        pause.opened.set()

    async def test_a_repeated_request_makes_no_second_copy(self, server: ApiServer, user: Client) -> None:
        file = await upload(user, await a_conversation(user))
        body = {"message": "?", "attachment_ids": [file["id"]]}
        answers = [await user.post("/v1/turns", json=body, headers={"Idempotency-Key": "k"}) for _ in range(2)]
        assert answers[0].json()["turn"]["id"] == answers[1].json()["turn"]["id"]
        assert len(await server.runtime.store.all_files()) == 2

    @both
    async def test_the_same_request_many_times_at_once_leaves_one_copy(self, server: ApiServer, user: Client) -> None:
        """Each of them copies the file, and one of them claims the turn."""
        file = await upload(user, await a_conversation(user))
        before = len(await server.runtime.store.all_files())
        body = {"message": "?", "attachment_ids": [file["id"]], "background": True}
        asked = (user.post("/v1/turns", json=body, headers={"Idempotency-Key": "k"}) for _ in range(8))
        answers = await asyncio.gather(*asked)
        assert len({answer.json()["turn_id"] for answer in answers}) == 1
        assert len(await server.runtime.store.all_files()) == before + 1
        stored = [each async for page in server.runtime.bag.objects.list("bag/") for each in page]
        assert len(stored) == 2

    async def test_what_its_owner_may_not_read_stays_out(
        self, server: ApiServer, service: Client, user: Client
    ) -> None:
        mallory = await server.user(service, "mallory")
        file = await upload(user, await a_conversation(user))
        gone = await upload(user, await a_conversation(user))
        await user.delete(f"/v1/files/{gone['id']}")
        for by, file_id in ((mallory, file["id"]), (user, gone["id"])):
            response = await by.post("/v1/turns", json={"message": "?", "attachment_ids": [file_id]})
            assert code_of(response) == (404, "not_found")


class TestWhatTheModelSees:
    async def test_the_words_of_a_text_and_the_pixels_of_a_picture(self, server: ApiServer, user: Client) -> None:
        conversation = await a_conversation(user)
        files = (await send(user, conversation, ("notes.md", b"# The secret is 42"), ("p.png", PNG))).json()["data"]
        ids = [file["id"] for file in files]
        await user.ask("What is the secret?", conversation_id=conversation, attachment_ids=ids)
        assert "The secret is 42" in told(server)
        assert base64.b64encode(PNG).decode() in told(server)
        await user.ask("And again?", conversation_id=conversation)
        assert "The secret is 42" in told(server), "the history is shown again with its files"

    async def test_the_replay_is_what_the_next_turn_sends(
        self, server: ApiServer, service: Client, user: Client
    ) -> None:
        conversation = await a_conversation(user)
        files = (await send(user, conversation, ("notes.md", b"The secret is 42"), ("p.png", PNG))).json()["data"]
        await user.ask("Hm?", conversation_id=conversation, attachment_ids=[file["id"] for file in files])
        replay = await service.read(f"/v1/conversations/{conversation}/replay")
        await user.ask("And?", conversation_id=conversation)
        assert list(server.scripts.requests[-1].messages[:-1]) == replay["messages"]
        assert "The secret is 42" in str(replay["messages"])
        for provider in ("anthropic", "openai_chat", "openai_responses"):
            replay = await service.read(f"/v1/conversations/{conversation}/replay", params={"provider": provider})
            assert base64.b64encode(PNG).decode() in str(replay["messages"])

    async def test_a_deleted_file_becomes_a_note(self, server: ApiServer, user: Client) -> None:
        conversation = await a_conversation(user)
        file = await upload(user, conversation, "notes.md", b"The secret is 42")
        await user.ask("Hm?", conversation_id=conversation, attachment_ids=[file["id"]])
        await user.delete(f"/v1/files/{file['id']}")
        await user.ask("And?", conversation_id=conversation)
        assert "secret" not in told(server)
        assert "no longer available" in told(server)

    async def test_bytes_that_are_lost_become_a_note_too(self, server: ApiServer, user: Client) -> None:
        conversation = await a_conversation(user)
        file = await upload(user, conversation, "notes.md", b"The secret is 42")
        await server.runtime.bag.objects.delete([await storage_key_of(server, file)])
        await user.ask("Hm?", conversation_id=conversation, attachment_ids=[file["id"]])
        assert "no longer available" in told(server)
        assert code_of(await user.get(f"/v1/files/{file['id']}/content")) == (404, "not_found")

    async def test_a_broken_picture_is_named_and_not_shown(self, server: ApiServer, user: Client) -> None:
        """A provider refuses it, and would refuse the conversation for ever."""
        conversation = await a_conversation(user)
        whole = picture("PNG", (300, 300))
        broken = await upload(user, conversation, "broken.png", whole[: len(whole) // 2])
        huge = await upload(user, conversation, "huge.png", picture("PNG", (9_000, 10)))
        await user.ask("Hm?", conversation_id=conversation, attachment_ids=[broken["id"], huge["id"]])
        assert "broken.png" in told(server)
        assert base64.b64encode(whole[:30]).decode() not in told(server)
        assert told(server).count("base64") == 1, "the large one was made smaller"

    async def test_a_long_text_is_cut(self, server: ApiServer, user: Client) -> None:
        conversation = await a_conversation(user)
        file = await upload(user, conversation, "long.txt", "é".encode() * 1_000_000)
        await user.ask("Hm?", conversation_id=conversation, attachment_ids=[file["id"]])
        assert "more characters left out" in told(server)
        assert 290_000 < len(told(server)) < 310_000


async def readings(client: Client, conversation: str) -> list[str]:
    """How the model was given the files of the newest question."""
    page = await client.read(f"/v1/conversations/{conversation}/messages", params={"order": "desc"})
    asked = next(message for message in page["data"] if message["role"] == "user")
    return [file["reading"] for file in asked["attachments"]]


DOCUMENTS: dict[str, bytes] = {
    "tides.pdf": a_pdf("High water at eight."),
    "tides.docx": a_docx("High water at eight."),
    "tides.xlsx": an_xlsx("High water at eight."),
    "tides.pptx": a_pptx("High water at eight."),
    "tides.csv": b"what,when\nHigh water at eight.,08:00\n",
    "tides.html": b"<html><style>p {}</style><p>High <b>water</b> at eight.</p><script>x()</script></html>",
    "tides.txt": b"High water at eight.",
}


class TestDocuments:
    """They reach the model as text, without an agent and its tools."""

    @pytest.mark.parametrize("name", DOCUMENTS)
    async def test_are_read_for_the_model(self, server: ApiServer, user: Client, name: str) -> None:
        conversation = await a_conversation(user)
        file = await upload(user, conversation, name, DOCUMENTS[name])
        await user.ask("When is high water?", conversation_id=conversation, attachment_ids=[file["id"]])
        assert "High water at eight." in told(server)
        assert "<script>" not in told(server)
        assert await readings(user, conversation) == ["text"]
        await user.ask("And again?", conversation_id=conversation)
        assert "High water at eight." in told(server)

    @both
    async def test_say_how_they_were_read(self, server: ApiServer, user: Client) -> None:
        conversation = await a_conversation(user)
        files = [
            await upload(user, conversation, name, data)
            for name, data in (
                ("notes.txt", b"Short."),
                ("long.txt", b"x" * 500_000),
                ("p.png", PNG),
                ("broken.pdf", a_pdf("x")[:80]),
                ("all.zip", zipped({"a.txt": b"a"})),
            )
        ]
        ids = [file["id"] for file in files]
        answer = await user.ask("Look.", conversation_id=conversation, attachment_ids=ids)
        assert answer["turn"]["status"] == "succeeded"
        assert await readings(user, conversation) == ["text", "too_long", "image", "named", "named"]
        assert "broken.pdf" in told(server)
        assert "its content could not be read" in told(server)
        assert "all.zip" in told(server)
        assert "its content is not shown" in told(server)
        assert "more characters left out" in told(server)

    async def test_of_one_message_share_the_budget(self, tmp_path: Path) -> None:
        settings = settings_for(tmp_path, context_chars=4_000)
        async with ApiServer.start(settings) as server:
            user = await server.user(await server.tenant())
            conversation = await a_conversation(user)
            files = [await upload(user, conversation, f"{n}.txt", f"{n}".encode() * 3_000) for n in range(2)]
            ids = [file["id"] for file in files]
            await user.ask("Look.", conversation_id=conversation, attachment_ids=ids)
            assert len(told(server)) < 4_300
            assert await readings(user, conversation) == ["too_long", "too_long"]

    async def test_are_shorter_after_a_tool_round_that_needs_the_room(self, tmp_path: Path) -> None:
        """Every request is within the budget."""
        settings = settings_for(tmp_path, context_chars=8_000)
        async with ApiServer.start(settings) as server:
            service = await server.tenant()
            user = await server.user(service)
            await service.post("/v1/pages", json={"title": "Tides", "content": "Tides come and go. " * 400})
            agent = (await service.post("/v1/agents", json={"name": "A", "tools": ["search_pages"]})).json()
            conversation = (await user.post("/v1/conversations", json={"agent_id": agent["id"]})).json()["id"]
            file = await upload(user, conversation, "long.txt", b"z" * 20_000)
            for _ in range(3):
                server.scripts.say(Call("search_pages", {"query": "tides"}))
            await user.ask("Look.", conversation_id=conversation, attachment_ids=[file["id"]])
            shown = [str(request.messages).count("z") for request in server.scripts.requests]
            assert len(shown) == 4
            assert shown[0] > 5_500
            assert shown == sorted(shown, reverse=True)
            assert shown[-1] < shown[0]

    async def test_are_not_shown_to_a_model_that_does_not_see_pictures(self, tmp_path: Path) -> None:
        blind = ScriptedProvider([["I see nothing."]], name="blind", abilities=Abilities(sees_images=False))
        settings = settings_for(tmp_path, model="blind")
        async with ApiServer.start(settings, providers=ProviderRegistry([blind])) as server:
            user = await server.user(await server.tenant())
            conversation = await a_conversation(user)
            file = await upload(user, conversation, "p.png", PNG)
            await user.ask("Look.", conversation_id=conversation, attachment_ids=[file["id"]])
            assert "its content is not shown" in str(blind.requests[-1].messages)
            assert await readings(user, conversation) == ["named"]

    async def test_that_are_large_photos_are_made_smaller(self, server: ApiServer, user: Client) -> None:
        conversation = await a_conversation(user)
        photo = noise((2_400, 1_800))
        assert len(photo) > 5_000_000
        file = await upload(user, conversation, "photo.png", photo)
        await user.ask("Look.", conversation_id=conversation, attachment_ids=[file["id"]])
        assert await readings(user, conversation) == ["image"]


def noise(size: tuple[int, int]) -> bytes:
    made = io.BytesIO()
    Image.effect_noise(size, 100).convert("RGB").save(made, "PNG")
    return made.getvalue()


class TestTheDemoModel:
    async def test_reads_what_was_uploaded(self, tmp_path: Path) -> None:
        settings = settings_for(tmp_path, model="demo")
        async with ApiServer.start(settings, providers=ProviderRegistry([DemoProvider(word_seconds=0)])) as server:
            user = await server.user(await server.tenant())
            conversation = await a_conversation(user)
            file = await upload(user, conversation, "p.png", PNG)
            answer = await user.ask("What is this?", conversation_id=conversation, attachment_ids=[file["id"]])
            assert "a picture" in answer["turn"]["response"]
            notes = await upload(user, conversation, "notes.txt", b"The colour is mauve.")
            answer = await user.ask("And?", conversation_id=conversation, attachment_ids=[notes["id"]])
            assert "mauve" in answer["turn"]["response"]
