"""Edit and regenerate take the options of `POST /v1/turns`: files, and what to do while the conversation is busy."""

from tests.api.conftest import both
from tests.api.harness import ApiServer, Client, Json, code_of, fake_id
from tests.api.test_attachments import chip, loose
from tests.api.test_files import a_conversation, send, upload
from tests.api.test_turns import ModelPause


async def asked(user: Client, *names: str) -> tuple[str, list[Json]]:
    """A question with these files: the path of its turn, and the files."""
    conversation = await a_conversation(user)
    files = (await send(user, conversation, *((name, name.encode()) for name in names))).json()["data"]
    ids = [file["id"] for file in files]
    turn = (await user.ask("Look.", conversation_id=conversation, attachment_ids=ids))["turn"]
    return f"/v1/conversations/{conversation}/turns/{turn['id']}", files


async def attached(user: Client, path: str) -> list[Json]:
    """The files of the first visible question."""
    conversation = path.partition("/turns/")[0]
    attachments: list[Json] = (await user.read(f"{conversation}/messages"))["data"][0]["attachments"]
    return attachments


class TestFiles:
    @both
    async def test_those_of_the_question_stay_where_none_are_named(self, server: ApiServer, user: Client) -> None:
        path, files = await asked(user, "a.txt", "b.txt")
        for verb, body in (("edit", {"message": "Again."}), ("regenerate", {})):
            assert (await user.post(f"{path}/{verb}", json=body)).status_code == 200
            assert await attached(user, path) == [chip(file) for file in files]

    @both
    async def test_an_edit_has_exactly_those_that_it_names(self, server: ApiServer, user: Client) -> None:
        path, [first, second] = await asked(user, "a.txt", "b.txt")
        new = await loose(user, "c.txt")
        body = {"message": "These.", "attachment_ids": [second["id"], new["id"]]}
        response = await user.post(f"{path}/edit", json=body)
        assert response.status_code == 200, response.text
        assert await attached(user, path) == [chip(second), chip(new)]
        assert "a.txt" not in str(server.scripts.requests[-1].messages)
        assert (await user.get(f"/v1/files/{first['id']}")).status_code == 200

    async def test_none_if_it_names_none(self, user: Client) -> None:
        path, _ = await asked(user, "a.txt")
        assert (await user.post(f"{path}/edit", json={"message": "Bare.", "attachment_ids": []})).status_code == 200
        assert await attached(user, path) == []

    async def test_a_file_block_names_one_too(self, user: Client) -> None:
        path, [first, second] = await asked(user, "a.txt", "b.txt")
        message = [{"type": "text", "text": "This."}, {"type": "file", "file_id": second["id"]}]
        await user.post(f"{path}/edit", json={"message": message})
        assert await attached(user, path) == [chip(second)]
        await user.post(f"{path}/edit", json={"message": message, "attachment_ids": [first["id"]]})
        assert await attached(user, path) == [chip(first), chip(second)]

    async def test_they_are_checked_as_those_of_a_new_turn(self, user: Client) -> None:
        path, _ = await asked(user, "a.txt")
        for ids, expected in (
            ([fake_id("file")], (404, "not_found")),
            ([fake_id("file") for _ in range(11)], (422, "too_many_files")),
        ):
            response = await user.post(f"{path}/edit", json={"message": "?", "attachment_ids": ids})
            assert code_of(response) == expected

    async def test_one_of_another_conversation_is_copied(self, user: Client) -> None:
        path, _ = await asked(user, "a.txt")
        elsewhere = await upload(user, await a_conversation(user), "x.txt")
        response = await user.post(f"{path}/edit", json={"message": "?", "attachment_ids": [elsewhere["id"]]})
        assert response.status_code == 200, response.text
        [copy] = await attached(user, path)
        assert (copy["name"], copy["file_id"] == elsewhere["id"]) == ("x.txt", False)

    async def test_an_answer_asked_for_again_keeps_its_question(self, user: Client) -> None:
        path, files = await asked(user, "a.txt")
        bodies: list[Json] = [{"attachment_ids": []}, {"message": "?"}, {"workflow_id": "w"}]
        for body in bodies:
            response = await user.post(f"{path}/regenerate", json=body)
            assert code_of(response) == (422, "invalid_request")
            assert next(iter(body)) in response.json()["detail"]
        assert await attached(user, path) == [chip(file) for file in files]


class TestBusy:
    @both
    async def test_an_interrupting_edit_stops_the_turn_and_takes_its_place(
        self, server: ApiServer, user: Client
    ) -> None:
        pause = ModelPause()
        server.scripts.say("Half an", pause(), " answer.")
        first = await user.ask("One", background=True)
        await pause.reached.wait()
        base = f"/v1/conversations/{first['conversation_id']}"
        server.scripts.say("Edited.")
        body = {"message": "Two", "if_busy": "interrupt"}
        edited = (await user.post(f"{base}/turns/{first['turn_id']}/edit", json=body)).json()
        assert edited["turn"]["response"] == "Edited."
        assert (await user.read(f"/v1/turns/{first['turn_id']}"))["status"] == "cancelled"
        messages = (await user.read(f"{base}/messages"))["data"]
        assert [message["content"][0]["text"] for message in messages] == ["Two", "Edited."]
        assert messages[0]["siblings"] == [first["turn_id"], edited["turn"]["id"]]

    async def test_an_enqueued_one_waits_for_its_end(self, server: ApiServer, user: Client) -> None:
        pause = ModelPause()
        server.scripts.say(pause(), "First.")
        server.scripts.say("Second.")
        first = await user.ask("One", background=True)
        await pause.reached.wait()
        base = f"/v1/conversations/{first['conversation_id']}"
        body = {"if_busy": "enqueue", "background": True}
        again = (await user.post(f"{base}/turns/{first['turn_id']}/regenerate", json=body)).json()
        assert (await user.read(f"/v1/turns/{again['turn_id']}"))["status"] == "queued"
        pause.opened.set()
        assert "event: result" in (await user.get(again["events_url"])).text
        assert (await user.read(f"/v1/turns/{first['turn_id']}"))["response"] == "First."
        messages = (await user.read(f"{base}/messages"))["data"]
        assert [message["content"][0]["text"] for message in messages] == ["One", "Second."]

    async def test_a_refusal_names_the_turn_that_runs(self, server: ApiServer, user: Client) -> None:
        pause = ModelPause()
        server.scripts.say(pause(), "First.")
        first = await user.ask("One", background=True)
        await pause.reached.wait()
        path = f"/v1/conversations/{first['conversation_id']}/turns/{first['turn_id']}"
        response = await user.post(f"{path}/edit", json={"message": "?"})
        assert code_of(response) == (409, "conversation_busy")
        said = response.json()
        running = await user.read(f"/v1/turns/{first['turn_id']}")
        assert (said["turn_id"], said["events_url"]) == (first["turn_id"], first["events_url"])
        assert said["started_at"] == running["started_at"] is not None
        pause.opened.set()


class TestKindAndWorkflow:
    async def test_may_repeat_what_the_conversation_has_and_not_change_it(self, user: Client) -> None:
        made = (await user.post("/v1/conversations", json={"workflow_id": "w1"})).json()["id"]
        turn = (await user.ask(conversation_id=made))["turn"]["id"]
        path = f"/v1/conversations/{made}/turns/{turn}"
        for verb, body in (("edit", {"message": "Again."}), ("regenerate", {})):
            for wrong in ({"kind": "sandbox"}, {"workflow_id": "w2"}):
                refused = await user.post(f"{path}/{verb}", json=body | wrong)
                assert code_of(refused) == (422, "invalid_request")
                assert f"`{next(iter(wrong))}` of this conversation is" in refused.json()["detail"]
            for right in ({"kind": "chat", "workflow_id": "w1"}, {"kind": None, "workflow_id": None}):
                accepted = await user.post(f"{path}/{verb}", json=body | right)
                assert accepted.status_code == 200, accepted.text
