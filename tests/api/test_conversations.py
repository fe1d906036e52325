"""Conversations as the contract lists them."""

import asyncio

from msgspec import structs

from tests.api.conftest import both
from tests.api.harness import ApiServer, Client, code_of, fake_id
from tests.api.test_turns import ModelPause
from turnkeep.config import Settings
from turnkeep.providers.scripted import Call

FIELDS = {
    "id",
    "workspace_id",
    "user",
    "user_id",
    "kind",
    "agent_id",
    "model",
    "workflow_id",
    "external_id",
    "title",
    "preview",
    "message_count",
    "turn_count",
    "head_turn_id",
    "running_turn",
    "metadata",
    "created_at",
    "updated_at",
    "queued_turns",
}


class TestMaking:
    @both
    async def test_a_new_one_has_every_field(self, server: ApiServer, user: Client) -> None:
        body = {"title": "Plans", "workflow_id": "wf", "metadata": {"a": [1]}, "model": "scripted/x"}
        made = await user.post("/v1/conversations", json=body)
        assert made.status_code == 201
        conversation = made.json()
        assert set(conversation) == FIELDS
        assert {name: conversation[name] for name in body} == body
        assert conversation["kind"] == "chat"
        assert conversation["message_count"] == conversation["turn_count"] == 0
        assert conversation["running_turn"] is None
        assert await user.read(f"/v1/conversations/{conversation['id']}") == conversation

    async def test_the_first_line_of_the_first_message_is_title_and_preview(self, user: Client) -> None:
        answer = await user.ask("Where is Bern?\nAnd why?")
        conversation = await user.read(f"/v1/conversations/{answer['conversation_id']}")
        assert conversation["preview"] == conversation["title"] == "Where is Bern?"
        assert conversation["message_count"] == 2
        assert conversation["turn_count"] == 1
        assert conversation["head_turn_id"] == answer["turn"]["id"]

    async def test_unknown_agents_and_models_are_refused(self, user: Client) -> None:
        unknown = await user.post("/v1/conversations", json={"agent_id": fake_id("agent")})
        assert code_of(unknown) == (404, "not_found")
        assert code_of(await user.post("/v1/conversations", json={"model": "x/y"})) == (422, "invalid_request")
        assert code_of(await user.post("/v1/conversations", json={"kind": "run"})) == (422, "invalid_request")


class TestExternalIds:
    """A host page names its conversation by an id of its own."""

    @both
    async def test_a_conversation_is_made_once_and_then_used(self, server: ApiServer, user: Client) -> None:
        made = await user.post("/v1/conversations", json={"external_id": "doc-1", "title": "Mine"})
        assert (made.status_code, made.json()["external_id"]) == (201, "doc-1")
        again = await user.post("/v1/conversations", json={"external_id": "doc-1", "title": "Other"})
        assert (again.status_code, again.json()) == (200, made.json())
        answer = await user.ask(external_id="doc-1")
        assert answer["conversation_id"] == made.json()["id"]
        first = await user.ask(external_id="doc-2")
        second = await user.ask("And then?", external_id="doc-2")
        assert second["conversation_id"] == first["conversation_id"]
        assert len(server.scripts.requests[-1].messages) == 3
        assert (await user.read(f"/v1/conversations/{first['conversation_id']}"))["external_id"] == "doc-2"

    @both
    async def test_fifty_posts_at_once_make_one(self, server: ApiServer, user: Client) -> None:
        made = await asyncio.gather(*(user.post("/v1/conversations", json={"external_id": "doc-1"}) for _ in range(50)))
        assert sorted(each.status_code for each in made) == [200] * 49 + [201]
        assert len({each.json()["id"] for each in made}) == 1

    @both
    async def test_fifty_questions_at_once_go_to_one(self, server: ApiServer, user: Client) -> None:
        body = {"message": "Hi", "external_id": "doc-1", "if_busy": "enqueue", "background": True}
        asked = await asyncio.gather(*(user.post("/v1/turns", json=body) for _ in range(50)))
        accepted = [each.json() for each in asked if each.status_code == 202]
        assert len(accepted) >= 20
        assert {code_of(each) for each in asked if each.status_code != 202} <= {(429, "queue_full")}
        assert len({each["conversation_id"] for each in accepted}) == 1
        assert len((await user.read("/v1/conversations"))["data"]) == 1

    @both
    async def test_each_user_has_their_own(self, server: ApiServer, service: Client, user: Client) -> None:
        other = await server.user(service, "bob")
        ids = [(await each.ask(external_id="doc-1"))["conversation_id"] for each in (user, other, service)]
        assert len(set(ids)) == 3
        for_ann = await service.post(
            "/v1/conversations", json={"external_id": "doc-1"}, headers={"turnkeep-user": "ann"}
        )
        assert (for_ann.status_code, for_ann.json()["id"]) == (200, ids[0])

    async def test_agent_and_model_of_a_later_turn_hold_for_that_turn(self, server: ApiServer, user: Client) -> None:
        first = await user.ask(external_id="doc-1", model="scripted/a")
        second = await user.ask(external_id="doc-1", model="scripted/b")
        third = await user.ask(external_id="doc-1")
        assert [each["turn"]["model"] for each in (first, second, third)] == ["scripted/a", "scripted/b", "scripted/a"]
        unknown = await user.post(
            "/v1/turns", json={"message": "?", "external_id": "doc-1", "agent_id": fake_id("agent")}
        )
        assert code_of(unknown) == (404, "not_found")

    async def test_a_refused_question_makes_no_conversation(self, user: Client) -> None:
        for body in ({"model": "x/y"}, {"agent_id": fake_id("agent")}, {"attachment_ids": [fake_id("file")]}):
            response = await user.post("/v1/turns", json={"message": "?", "external_id": "doc-1", **body})
            assert response.status_code in {404, 422}
        assert (await user.read("/v1/conversations"))["data"] == []

    async def test_a_repeated_request_makes_no_second_one(self, user: Client) -> None:
        key = {"idempotency-key": "k"}
        first = await user.ask(external_id="doc-1", headers=key)
        assert (await user.ask(external_id="doc-1", headers=key))["turn"]["id"] == first["turn"]["id"]
        await user.delete(f"/v1/conversations/{first['conversation_id']}")
        again = await user.post("/v1/turns", json={"message": "Hello?", "external_id": "doc-1"}, headers=key)
        assert code_of(again) == (404, "not_found")
        assert (await user.read("/v1/conversations"))["data"] == []
        assert (await user.ask(external_id="doc-1"))["conversation_id"] != first["conversation_id"]

    async def test_what_belongs_to_the_conversation_must_fit(self, user: Client) -> None:
        made = (await user.post("/v1/conversations", json={"external_id": "doc-1", "workflow_id": "w"})).json()["id"]
        for body in ({"workflow_id": "x"}, {"kind": "sandbox"}, {"conversation_id": made, "external_id": "doc-2"}):
            response = await user.post("/v1/turns", json={"message": "?", "external_id": "doc-1", **body})
            assert code_of(response) == (422, "invalid_request"), body
        await user.ask(external_id="doc-1", workflow_id="w", kind="chat", conversation_id=made)

    async def test_a_wrong_one_is_refused(self, user: Client) -> None:
        for bad in ("", "x" * 201, 7, "a\0b"):
            for path, body in (("/v1/conversations", {}), ("/v1/turns", {"message": "?"})):
                response = await user.post(path, json={"external_id": bad, **body})
                assert code_of(response) == (422, "invalid_request"), bad
                assert "external_id" in response.json()["detail"]
        assert (await user.post("/v1/conversations", json={"external_id": "é" * 200})).status_code == 201

    async def test_an_import_says_if_it_lost_its_id(self, service: Client) -> None:
        answer = await service.ask(external_id="doc-1")
        document = (await service.get(f"/v1/conversations/{answer['conversation_id']}/export")).content
        imported = (await service.post("/v1/import", content=document)).json()
        assert imported["conversation"]["external_id"] is None
        assert "doc-1" in imported["remarks"][0]
        await service.delete(f"/v1/conversations/{answer['conversation_id']}")
        imported = (await service.post("/v1/import", content=document)).json()
        assert (imported["conversation"]["external_id"], imported["remarks"]) == ("doc-1", [])


class TestFilters:
    async def ids(self, client: Client, **params: str) -> list[str]:
        return [each["id"] for each in (await client.read("/v1/conversations", params=params))["data"]]

    @both
    async def test_narrow_the_list_and_the_search(self, server: ApiServer, service: Client, user: Client) -> None:
        agent = (await service.post("/v1/agents", json={"name": "A"})).json()["id"]
        plain = (await user.ask("needle"))["conversation_id"]
        doc = (await user.ask("needle", external_id="doc-1", agent_id=agent))["conversation_id"]
        since = (await user.read(f"/v1/conversations/{doc}"))["updated_at"]
        sandbox = (await user.post("/v1/conversations", json={"kind": "sandbox", "title": "needle"})).json()["id"]
        for search in ({}, {"q": "needle"}):
            assert await self.ids(user, **search) == [sandbox, doc, plain]
            assert await self.ids(user, external_id="doc-1", **search) == [doc]
            assert await self.ids(user, agent_id=agent, **search) == [doc]
            assert await self.ids(user, kind="sandbox", **search) == [sandbox]
            assert await self.ids(user, kind="run", **search) == []
            assert plain not in await self.ids(user, since=str(since), agent_id=agent, **search)
            assert await self.ids(user, since=str(since), external_id="doc-1", kind="chat", **search) == [doc]
            assert await self.ids(user, external_id="doc-1", kind="sandbox", **search) == []
            assert await self.ids(user, user="ann", external_id="doc-1", **search) == [doc]
            assert await self.ids(service, user="ann", external_id="doc-1", **search) == [doc]

    async def test_a_service_key_lists_those_of_one_user(
        self, server: ApiServer, service: Client, user: Client
    ) -> None:
        other = await server.user(service, "bob")
        mine, theirs = [(await each.ask("needle"))["conversation_id"] for each in (user, other)]
        ann = (await user.read("/v1/me"))["user"]["id"]
        assert await self.ids(service) == [theirs, mine]
        for name in ("ann", ann):
            assert await self.ids(service, user=name) == [mine]
            assert await self.ids(service, user=name, q="needle") == [mine]
            assert await self.ids(user, user=name) == [mine]
            assert code_of(await other.get("/v1/conversations", params={"user": name})) == (404, "not_found")
        assert code_of(await service.get("/v1/conversations", params={"user": "nobody"})) == (404, "not_found")
        admin = await server.user(service, "eve", role="admin")
        assert code_of(await admin.get("/v1/conversations", params={"user": "ann"})) == (404, "not_found")
        for_bob = await service.get("/v1/conversations", params={"user": "ann"}, headers={"turnkeep-user": "bob"})
        assert code_of(for_bob) == (404, "not_found")

    async def test_that_are_wrong_are_refused(self, user: Client) -> None:
        for params in (
            {"kind": "x"},
            {"since": "yesterday"},
            {"since": "-1"},
            {"since": str(2**60)},
            {"external_id": "x" * 201},
            {"external": "doc-1"},
        ):
            assert code_of(await user.get("/v1/conversations", params=params)) == (422, "invalid_request"), params


class TestPinsAndFolders:
    @both
    async def test_are_given_changed_and_listed_by(self, server: ApiServer, user: Client) -> None:
        filed = (await user.post("/v1/conversations", json={"title": "Bern", "folder": "Travel"})).json()
        assert filed["folder"] == "Travel"
        assert "is_pinned" not in filed
        plain = (await user.ask("Hello"))["conversation_id"]
        pinned = (await user.patch(f"/v1/conversations/{plain}", json={"is_pinned": True})).json()
        assert pinned["is_pinned"] is True
        assert "folder" not in pinned

        async def ids(**params: str) -> list[str]:
            return [one["id"] for one in (await user.read("/v1/conversations", params=params))["data"]]

        assert await ids(is_pinned="true") == [plain]
        assert await ids(folder="Travel") == await ids(is_filed="true") == [filed["id"]]
        assert await ids(is_pinned="false", is_filed="false") == []
        assert (await user.read("/v1/folders"))["data"] == [{"name": "Travel", "conversations": 1}]
        moved = await user.patch("/v1/folders", json={"name": "Travel", "new_name": "Journeys"})
        assert moved.json() == {"conversations": 1}
        assert code_of(await user.patch("/v1/folders", json={"name": "Travel", "new_name": "A"})) == (404, "not_found")
        assert (await user.patch("/v1/folders", json={"name": "Journeys", "new_name": None})).status_code == 200
        assert (await user.read("/v1/folders"))["data"] == []
        out = await user.patch(f"/v1/conversations/{plain}", json={"folder": "A"})
        assert out.json()["folder"] == "A"
        out = await user.patch(f"/v1/conversations/{plain}", json={"folder": None, "is_pinned": False})
        assert not {"folder", "is_pinned"} & out.json().keys()

    async def test_that_are_wrong_are_refused(self, user: Client) -> None:
        made = (await user.ask("Hello"))["conversation_id"]
        for body in ({"folder": ""}, {"folder": " x"}, {"folder": 1}, {"is_pinned": "yes"}, {"is_pinned": None}):
            answer = await user.patch(f"/v1/conversations/{made}", json=body)
            assert code_of(answer) == (422, "invalid_request"), body
        assert code_of(await user.patch("/v1/folders", json={"name": "A"})) == (422, "invalid_request")

    async def test_folders_of_a_list_are_read_in_pages(self, user: Client) -> None:
        for name in ("C", "A", "B"):
            await user.post("/v1/conversations", json={"folder": name})
        first = await user.read("/v1/folders", params={"limit": "2"})
        assert [one["name"] for one in first["data"]] == ["A", "B"]
        rest = await user.read("/v1/folders", params={"cursor": first["next_cursor"]})
        assert [one["name"] for one in rest["data"]] == ["C"]
        assert rest["next_cursor"] is None


class TestUnread:
    @both
    async def test_an_answer_of_a_background_turn_is_unread_until_it_is_marked(
        self, server: ApiServer, user: Client
    ) -> None:
        pause = ModelPause()
        server.scripts.say(pause())
        accepted = (await user.post("/v1/turns", json={"message": "Hi", "background": True})).json()
        path = f"/v1/conversations/{accepted['conversation_id']}"
        await pause.reached.wait()
        assert "is_unread" not in await user.read(path)
        pause.opened.set()
        await user.get(accepted["events_url"])  # to its end
        assert (await user.read(path))["is_unread"] is True
        [listed] = (await user.read("/v1/conversations"))["data"]
        assert listed["is_unread"] is True
        marked = (await user.patch(path, json={"is_unread": False})).json()
        assert "is_unread" not in marked
        assert marked["updated_at"] == listed["updated_at"]
        assert (await user.patch(path, json={"is_unread": True})).json()["is_unread"] is True
        assert code_of(await user.patch(path, json={"is_unread": None})) == (422, "invalid_request")

    async def test_an_answer_that_was_waited_for_is_read(self, user: Client) -> None:
        answer = await user.ask("Hi")
        assert "is_unread" not in await user.read(f"/v1/conversations/{answer['conversation_id']}")


class TestInstructionsAndTemperature:
    @both
    async def test_are_shown_replayed_traced_and_exported(
        self, server: ApiServer, service: Client, user: Client
    ) -> None:
        body = {"title": "A", "instructions": "Be brief.", "temperature": 0.5}
        made = (await user.post("/v1/conversations", json=body)).json()
        path = f"/v1/conversations/{made['id']}"
        assert (made["instructions"], made["temperature"]) == ("Be brief.", 0.5)
        answer = await user.ask("Hello", conversation_id=made["id"])
        [listed] = (await user.read("/v1/conversations"))["data"]
        assert "instructions" not in listed, "lists are short"
        assert listed["temperature"] == 0.5
        assert "Be brief." in (await service.get(f"{path}/replay")).text
        trace = (await service.get(f"/v1/turns/{answer['turn']['id']}/trace")).text
        assert "Be brief." in trace
        document = (await service.get(f"{path}/export")).content
        imported = (await service.post("/v1/import", content=document)).json()["conversation"]
        assert (imported["instructions"], imported["temperature"]) == ("Be brief.", 0.5)
        plain = (await user.patch(path, json={"instructions": None, "temperature": None})).json()
        assert not {"instructions", "temperature"} & plain.keys()
        for wrong in ({"temperature": 3}, {"temperature": "hot"}, {"instructions": ""}, {"instructions": 1}):
            assert code_of(await user.patch(path, json=wrong)) == (422, "invalid_request"), wrong

    @both
    async def test_hold_for_the_turn_that_creates_the_conversation(
        self, server: ApiServer, service: Client, user: Client
    ) -> None:
        body = {"message": "Hello", "instructions": "Be brief.", "temperature": 0.5}
        headers = {"idempotency-key": "once"}
        answer = (await user.post("/v1/turns", json=body, headers=headers)).json()
        path = f"/v1/conversations/{answer['conversation_id']}"
        shown = await user.read(path)
        assert (shown["instructions"], shown["temperature"]) == ("Be brief.", 0.5)
        assert "Be brief." in (await service.get(f"/v1/turns/{answer['turn']['id']}/trace")).text
        again = (await user.post("/v1/turns", json=body, headers=headers)).json()
        assert again["turn"]["id"] == answer["turn"]["id"], "a repeated request creates no second conversation"
        for wrong in ({"temperature": 3}, {"instructions": ""}, {"instructions": "x" * 10_001}):
            refused = await user.post("/v1/turns", json={"message": "Hello", **wrong})
            assert code_of(refused) == (422, "invalid_request"), wrong
        assert len((await user.read("/v1/conversations"))["data"]) == 1

    async def test_are_not_changed_by_a_later_turn(self, user: Client) -> None:
        body = {"message": "Hello", "external_id": "doc-1", "instructions": "Be brief."}
        headers = {"idempotency-key": "once"}
        answer = (await user.post("/v1/turns", json=body, headers=headers)).json()
        made = answer["conversation_id"]
        for place in ({"conversation_id": made}, {"external_id": "doc-1"}):
            await user.ask("Hello", **place, instructions="Be brief.")
            for wrong in ({"instructions": "Be long."}, {"temperature": 0.5}):
                refused = await user.post("/v1/turns", json={"message": "Hello", **place, **wrong})
                assert code_of(refused) == (422, "invalid_request")
                assert f"`{next(iter(wrong))}` of this conversation is" in refused.json()["detail"]
        await user.patch(f"/v1/conversations/{made}", json={"instructions": "Be long."})
        again = (await user.post("/v1/turns", json=body, headers=headers)).json()
        assert again["turn"]["id"] == answer["turn"]["id"], "a repeat gets its turn, whatever was changed since"


class TestTrash:
    @both
    async def test_lists_what_can_be_restored_and_until_when(
        self, server: ApiServer, service: Client, user: Client
    ) -> None:
        gone = (await user.ask("Gone"))["conversation_id"]
        kept = (await user.ask("Kept"))["conversation_id"]
        other = await server.user(service, "bob")
        assert (await user.delete(f"/v1/conversations/{gone}")).status_code == 204
        [shown] = (await user.read("/v1/conversations", params={"deleted": "true"}))["data"]
        assert (shown["id"], shown["title"]) == (gone, "Gone")
        assert shown["purge_at"] == shown["deleted_at"] + 30 * 86_400_000
        [listed] = (await user.read("/v1/conversations"))["data"]
        assert listed["id"] == kept
        assert "deleted_at" not in listed
        assert (await other.read("/v1/conversations", params={"deleted": "true"}))["data"] == []
        for params in ({}, {"user": "ann"}):
            of_service = await service.read("/v1/conversations", params={"deleted": "true", **params})
            assert [one["id"] for one in of_service["data"]] == [gone]
        assert (await user.post(f"/v1/conversations/{gone}/restore")).status_code == 200
        assert (await user.read("/v1/conversations", params={"deleted": "true"}))["data"] == []

    @both
    async def test_what_is_erased_leaves_it(self, server: ApiServer, user: Client) -> None:
        gone = (await user.ask("Gone"))["conversation_id"]
        await user.delete(f"/v1/conversations/{gone}")
        assert (await user.post(f"/v1/conversations/{gone}/erase")).status_code == 204
        assert (await user.read("/v1/conversations", params={"deleted": "true"}))["data"] == []
        assert code_of(await user.post(f"/v1/conversations/{gone}/restore")) == (404, "not_found")

    async def test_takes_no_other_filter(self, service: Client, user: Client) -> None:
        for params in ({"q": "x"}, {"kind": "chat"}, {"since": "1"}, {"external_id": "doc-1"}):
            answer = await user.get("/v1/conversations", params={"deleted": "true", **params})
            assert code_of(answer) == (422, "invalid_request"), params
        assert code_of(await user.get("/v1/conversations", params={"deleted": "maybe"})) == (422, "invalid_request")


class TestListing:
    @both
    async def test_newest_change_first_in_pages(self, server: ApiServer, user: Client) -> None:
        made = [(await user.ask(f"Question {n}"))["conversation_id"] for n in range(5)]
        await user.ask("Again", conversation_id=made[0])
        expected = [made[0], *reversed(made[1:])]
        seen: list[str] = []
        cursor: str | None = None
        while True:
            params = {"limit": "2"} | ({"cursor": cursor} if cursor else {})
            page = await user.read("/v1/conversations", params=params)
            seen += [conversation["id"] for conversation in page["data"]]
            cursor = page["next_cursor"]
            if cursor is None:
                break
        assert seen == expected

    async def test_limits_and_cursors_are_checked(self, user: Client) -> None:
        for params in ({"limit": "0"}, {"limit": "101"}, {"limit": "x"}, {"cursor": "bogus!"}):
            assert code_of(await user.get("/v1/conversations", params=params)) == (422, "invalid_request")
        twice = await user.get("/v1/conversations?limit=1&limit=2")
        assert code_of(twice) == (422, "invalid_request")

    @both
    async def test_a_cursor_is_good_for_the_list_that_gave_it_alone(self, server: ApiServer, user: Client) -> None:
        one, other = [(await user.ask(f"Rain {n}"))["conversation_id"] for n in range(2)]
        listed = (await user.read("/v1/conversations", params={"limit": 1}))["next_cursor"]
        found = (await user.read("/v1/conversations", params={"limit": 1, "q": "rain"}))["next_cursor"]
        messages = f"/v1/conversations/{one}/messages"
        upwards = (await user.read(messages, params={"limit": 1}))["next_cursor"]
        assert listed
        assert found
        assert upwards
        for path, params in (
            ("/v1/conversations", {"cursor": found}),
            ("/v1/conversations", {"cursor": listed, "q": "rain"}),
            ("/v1/conversations", {"cursor": found, "q": "snow"}),
            ("/v1/conversations", {"cursor": upwards}),
            ("/v1/agents", {"cursor": listed}),
            (messages, {"cursor": upwards, "order": "desc"}),
            (messages, {"cursor": listed}),
            (f"/v1/conversations/{other}/messages", {"cursor": upwards}),
        ):
            refused = await user.get(path, params=params)
            assert code_of(refused) == (422, "invalid_request"), (path, params)
            assert "of another list" in refused.json()["detail"]
        assert len((await user.read(messages, params={"cursor": upwards}))["data"]) == 1

    @both
    async def test_a_search_marks_what_it_found(self, server: ApiServer, user: Client) -> None:
        server.scripts.say("The capital is Bern, of course.")
        found = await user.ask("Switzerland?")
        await user.ask("Something else")
        page = await user.read("/v1/conversations", params={"q": "capital ber"})
        assert [hit["id"] for hit in page["data"]] == [found["conversation_id"]]
        assert "**Bern**" in page["data"][0]["snippet"]
        assert set(page["data"][0]) == FIELDS - {"queued_turns"} | {"snippet"}
        assert (await user.read("/v1/conversations", params={"q": "Atlantis"}))["data"] == []


class TestChanging:
    async def test_only_what_is_given_changes(self, user: Client) -> None:
        conversation = (await user.ask())["conversation_id"]
        before = await user.read(f"/v1/conversations/{conversation}")
        after = (await user.patch(f"/v1/conversations/{conversation}", json={"title": "New"})).json()
        assert after["title"] == "New"
        assert {**after, "title": 0} == {**before, "title": 0}

    async def test_bad_changes_are_refused(self, user: Client) -> None:
        path = f"/v1/conversations/{(await user.ask())['conversation_id']}"
        for body in ({"title": ""}, {"title": None}, {"preview": "x"}, {"title": "x" * 201}, {"model": "x/y"}):
            assert (await user.patch(path, json=body)).status_code == 422, body
        for body in ({"agent_id": fake_id("agent")}, {"head_turn_id": fake_id("turn")}):
            assert code_of(await user.patch(path, json=body)) == (404, "not_found")


class TestDeleting:
    @both
    async def test_it_is_gone_for_every_route_until_it_is_restored(self, server: ApiServer, user: Client) -> None:
        answer = await user.ask()
        path = f"/v1/conversations/{answer['conversation_id']}"
        assert (await user.delete(path)).status_code == 204
        for url in (path, f"{path}/messages"):
            assert code_of(await user.get(url)) == (404, "not_found")
        assert code_of(await user.delete(path)) == (404, "not_found")
        body = {"message": "?", "conversation_id": answer["conversation_id"]}
        assert code_of(await user.post("/v1/turns", json=body)) == (404, "not_found")
        assert (await user.read("/v1/conversations"))["data"] == []
        restored = await user.post(f"{path}/restore")
        assert restored.status_code == 200
        assert len((await user.read(f"{path}/messages"))["data"]) == 2
        again = await user.post(f"{path}/restore")
        assert (again.status_code, again.json()) == (200, restored.json()), "it may be sent again"


class TestReading:
    async def test_messages_in_both_orders_and_in_pages(self, user: Client) -> None:
        conversation = (await user.ask("One"))["conversation_id"]
        await user.ask("Two", conversation_id=conversation)
        path = f"/v1/conversations/{conversation}/messages"
        ascending = (await user.read(path))["data"]
        descending = (await user.read(path, params={"order": "desc"}))["data"]
        assert ascending == list(reversed(descending))
        assert [message["role"] for message in ascending] == ["user", "assistant"] * 2
        page = await user.read(path, params={"limit": "3"})
        rest = await user.read(path, params={"limit": "3", "cursor": page["next_cursor"]})
        assert page["data"] + rest["data"] == ascending
        assert rest["next_cursor"] is None

    async def test_the_trace_has_all_rows_for_services_alone(
        self, server: ApiServer, service: Client, user: Client
    ) -> None:
        server.scripts.say(Call("nothing", {"x": 1}))
        answer = await user.ask()
        path = f"/v1/conversations/{answer['conversation_id']}/trace"
        assert code_of(await user.get(path)) == (403, "forbidden")
        rows = (await service.read(path))["data"]
        assert [(row["turn_sequence"], row["role"], row["internal"]) for row in rows] == [
            (0, "user", False),
            (1, "assistant", True),
            (2, "user", True),
            (3, "assistant", False),
        ]
        assert rows[1]["blocks"][0]["type"] == "tool_use"
        assert rows[2]["blocks"][0]["type"] == "tool_result"
        first = await service.read(path, params={"limit": "1"})
        assert first["data"] == rows[:1]
        assert first["next_cursor"]

    async def test_nothing_changes_for_readers_when_old_turns_are_compacted(
        self, server: ApiServer, service: Client
    ) -> None:
        answer = await service.ask("One")
        conversation, turn = f"/v1/conversations/{answer['conversation_id']}", f"/v1/turns/{answer['turn']['id']}"
        paths = (f"{conversation}/trace", f"{conversation}/messages", f"{conversation}/replay", f"{turn}/trace", turn)

        async def read() -> list[str]:
            stream = await service.get(f"{turn}/events", headers={"accept": "text/event-stream"})
            return [stream.text, *[(await service.get(path)).text for path in paths]]

        before = await read()
        assert not await server.runtime.store.compact(settled_before=2**60)
        assert await server.runtime.store.last_seqs([answer["turn"]["id"]]) == {answer["turn"]["id"]: 0}
        assert await read() == before

    async def test_the_replay_is_what_the_next_turn_sends(self, server: ApiServer, service: Client) -> None:
        answer = await service.ask("One")
        path = f"/v1/conversations/{answer['conversation_id']}/replay"
        replay = await service.read(path)
        assert set(replay) == {"messages", "system", "turns_included", "turns_dropped", "chars"}
        assert (replay["turns_included"], replay["turns_dropped"]) == (1, 0)
        await service.ask("Two", conversation_id=answer["conversation_id"])
        sent = server.scripts.requests[-1].messages
        assert sent[: len(replay["messages"])] == replay["messages"]
        assert len(sent) == len(replay["messages"]) + 1
        for provider in ("anthropic", "openai_chat", "openai_responses", "sandbox"):
            assert (await service.read(path, params={"provider": provider}))["messages"]
        assert code_of(await service.get(path, params={"provider": "x"})) == (422, "invalid_request")

    async def test_the_replay_of_a_full_window_is_what_the_next_turn_sends(self, settings: Settings) -> None:
        async with ApiServer.start(structs.replace(settings, context_chars=1_000)) as server:
            service = await server.tenant()
            server.scripts.always = lambda _: ["x" * 239]
            conversation = (await service.ask("1"))["conversation_id"]
            for number in range(2, 6):
                await service.ask(str(number), conversation_id=conversation)
            replay = await service.read(f"/v1/conversations/{conversation}/replay")
            assert (replay["turns_included"], replay["turns_dropped"]) == (3, 2)
            await service.ask("6", conversation_id=conversation)
            sent = list(server.scripts.requests[-1].messages)
            assert sent[:-1] == replay["messages"]

    async def test_the_replay_is_for_services_alone(self, user: Client) -> None:
        conversation = (await user.ask())["conversation_id"]
        assert code_of(await user.get(f"/v1/conversations/{conversation}/replay")) == (403, "forbidden")
