"""Share links over HTTP: who makes, lists and revokes them, and what everybody who has one can read."""

import re
import time
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.api.conftest import both
from tests.api.harness import ApiServer, Client, Json, code_of, fake_id, settings_for
from tests.api.test_files import a_conversation, send, upload
from turnkeep.providers.scripted import Call, Think

HEADERS = {"cache-control": "no-store", "referrer-policy": "no-referrer", "x-robots-tag": "noindex, nofollow"}


async def share(client: Client, conversation_id: str, **body: Json) -> Json:
    response = await client.post(f"/v1/conversations/{conversation_id}/shares", json=body)
    assert response.status_code == 201, response.text
    return response.json()


def token_of(made: Json) -> str:
    return urlsplit(str(made["url"])).fragment


async def opened(server: ApiServer, made: Json, query: str = "") -> httpx.Response:
    anonymous = await server.client(None)
    return await anonymous.get(f"/v1/shared{query}", headers={"turnkeep-share": token_of(made)})


async def said(server: ApiServer, made: Json) -> list[str]:
    response = await opened(server, made)
    assert response.status_code == 200, response.text
    return [part["text"] for message in response.json()["data"] for part in message["content"] if "text" in part]


@both
class TestALink:
    async def test_is_read_without_a_key(self, server: ApiServer, user: Client) -> None:
        server.scripts.say("We open at nine.")
        answer = await user.ask("When do you open?")
        made = await share(user, answer["conversation_id"])
        parts = urlsplit(made["url"])
        assert (f"{parts.scheme}://{parts.netloc}", parts.path, parts.query) == (server.url, "/share", "")
        assert re.fullmatch(r"tks_[\w-]{43}", parts.fragment)
        response = await opened(server, made)
        assert {name: response.headers[name] for name in HEADERS} == HEADERS
        shown = response.json()
        assert (shown["title"], shown["with_files"], shown["next_cursor"]) == (made["title"], False, None)
        assert [(one["role"], one["content"]) for one in shown["data"]] == [
            ("user", [{"type": "text", "text": "When do you open?"}]),
            ("assistant", [{"type": "text", "text": "We open at nine."}]),
        ]

    async def test_shows_no_ids_and_no_internals(self, server: ApiServer, service: Client, user: Client) -> None:
        page = (await service.post("/v1/pages", json={"title": "Handbook", "content": "Open at nine."})).json()
        agent = {"name": "A", "instructions": "SECRET-INSTRUCTIONS", "tools": ["search_pages"]}
        agent_id = (await service.post("/v1/agents", json=agent)).json()["id"]
        server.scripts.say(Think("SECRET-THOUGHT"), Call("search_pages", {"query": "SECRET-ARGUMENT nine"}))
        server.scripts.say("At nine [1].")
        answer = await user.ask("When?", agent_id=agent_id, metadata={"note": "SECRET-METADATA"})
        made = await share(user, answer["conversation_id"])
        response = await opened(server, made)
        step, _ = response.json()["data"][1]["content"]
        assert (step["name"], step["status"]) == ("search_pages", "succeeded")
        assert set(step) <= {"type", "id", "name", "status", "durationMs"}
        assert "SECRET" not in response.text
        me = await user.read("/v1/me")
        hidden = [made["id"], answer["conversation_id"], answer["turn"]["id"], agent_id, page["id"], me["user_id"]]
        assert [id_ for id_ in hidden if id_ in response.text] == []
        assert re.findall(r"(?:conv|turn|msg|user|ws|org|agent|page|call)_[0-9a-f]{32}", response.text) == []

    async def test_is_fixed_when_it_is_made(self, server: ApiServer, user: Client) -> None:
        answer = await user.ask("First?")
        made = await share(user, answer["conversation_id"])
        before = await said(server, made)
        await user.ask("Second?", conversation_id=answer["conversation_id"])
        await user.patch(f"/v1/conversations/{answer['conversation_id']}", json={"title": "Another title"})
        assert await said(server, made) == before
        assert (await opened(server, made)).json()["title"] == made["title"] != "Another title"

    async def test_pages_have_whole_turns(self, server: ApiServer, user: Client) -> None:
        answer = await user.ask("0")
        for n in range(1, 3):
            await user.ask(str(n), conversation_id=answer["conversation_id"])
        made = await share(user, answer["conversation_id"])
        first = (await opened(server, made, "?limit=2")).json()
        rest = (await opened(server, made, f"?limit=2&cursor={first['next_cursor']}")).json()
        assert [len(first["data"]), len(rest["data"]), rest["next_cursor"]] == [4, 2, None]
        assert code_of(await opened(server, made, "?cursor=x")) == (422, "invalid_request")

    async def test_whatever_does_not_open_answers_alike(self, server: ApiServer, user: Client) -> None:
        answer = await user.ask()
        revoked, ended = [await share(user, answer["conversation_id"]) for _ in range(2)]
        await user.delete(f"/v1/shares/{revoked['id']}")
        deleted = await user.ask()
        gone = await share(user, deleted["conversation_id"])
        await user.delete(f"/v1/conversations/{deleted['conversation_id']}")
        path = f"/v1/conversations/{answer['conversation_id']}/turns/{answer['turn']['id']}"
        assert (await user.post(f"{path}/edit", json={"message": "Other?"})).status_code == 200
        anonymous = await server.client(None)
        tokens = [token_of(made) for made in (revoked, ended, gone)]
        tokens += ["", "tks_", "tks_" + "x" * 43, "tks_" + "x" * 5_000, user.key]
        seen = set()
        for token in tokens:
            response = await anonymous.get("/v1/shared", headers={"turnkeep-share": token})
            assert code_of(response) == (404, "not_found")
            seen.add((response.json()["detail"], response.headers["cache-control"]))
        assert code_of(await anonymous.get("/v1/shared")) == (404, "not_found")
        assert len(seen) == 1

    async def test_ends_with_its_user(self, server: ApiServer, service: Client, user: Client) -> None:
        answer = await user.ask()
        made = await share(user, answer["conversation_id"])
        name = (await user.read("/v1/me"))["user"]["external_id"]
        await service.patch(f"/v1/users/{name}", json={"is_disabled": True})
        assert (await opened(server, made)).status_code == 404
        await service.patch(f"/v1/users/{name}", json={"is_disabled": False})
        assert (await opened(server, made)).status_code == 200
        erased = await service.post(f"/v1/users/{name}/erase")
        assert erased.status_code == 202, erased.text
        assert (await opened(server, made)).status_code == 404


@both
class TestFiles:
    async def test_are_shown_only_if_they_were_chosen(self, server: ApiServer, user: Client) -> None:
        conversation = await a_conversation(user)
        shown, beside = [
            (await send(user, conversation, (name, name.encode()))).json()["data"][0] for name in ("a.txt", "b.txt")
        ]
        await user.ask("Read.", conversation_id=conversation, attachment_ids=[shown["id"]])
        bare, full = await share(user, conversation), await share(user, conversation, with_files=True)
        hidden = (await opened(server, bare)).text
        assert "a.txt" not in hidden
        assert (await opened(server, bare)).json()["data"][0]["hidden_files"] == 1
        question = (await opened(server, full)).json()["data"][0]
        assert (question["attachments"][0]["name"], question["hidden_files"]) == ("a.txt", 0)
        anonymous = await server.client(None)

        async def fetch(made: Json, file_id: str) -> httpx.Response:
            token = {"turnkeep-share": token_of(made)}
            return await anonymous.get(f"/v1/shared/file?file_id={file_id}", headers=token)

        found = await fetch(full, shown["id"])
        assert (found.status_code, found.content) == (200, b"a.txt")
        assert {name: found.headers[name] for name in HEADERS} == HEADERS
        assert found.headers["content-disposition"].startswith("attachment")
        assert "sandbox" in found.headers["content-security-policy"]
        for made, file_id in ((bare, shown["id"]), (full, beside["id"]), (full, fake_id("file")), (full, "x")):
            assert code_of(await fetch(made, file_id)) == (404, "not_found")
        await user.delete(f"/v1/files/{shown['id']}")
        assert code_of(await fetch(full, shown["id"])) == (404, "not_found")

    async def test_of_another_branch_or_conversation_are_not_shown(self, server: ApiServer, user: Client) -> None:
        conversation = await a_conversation(user)
        file = await upload(user, conversation)
        first = (await user.ask("Plain.", conversation_id=conversation))["turn"]["id"]
        await user.ask(f"Read {file['id']}.", conversation_id=conversation, attachment_ids=[file["id"]])
        made = await share(user, conversation, with_files=True, turn_id=first)
        anonymous = await server.client(None)
        token = {"turnkeep-share": token_of(made)}
        response = await anonymous.get(f"/v1/shared/file?file_id={file['id']}", headers=token)
        assert code_of(response) == (404, "not_found")


@both
class TestWhoMay:
    async def test_members_see_and_revoke_their_own(self, server: ApiServer, service: Client, user: Client) -> None:
        bob = await server.user(service, "bob")
        mine = await share(user, (await user.ask())["conversation_id"])
        other = await share(bob, (await bob.ask())["conversation_id"])
        assert [one["id"] for one in (await user.read("/v1/shares"))["data"]] == [mine["id"]]
        assert code_of(await user.delete(f"/v1/shares/{other['id']}")) == (404, "not_found")
        answer = await bob.ask()
        response = await user.post(f"/v1/conversations/{answer['conversation_id']}/shares", json={})
        assert code_of(response) == (404, "not_found")
        assert (await user.delete(f"/v1/shares/{mine['id']}")).status_code == 204
        assert (await user.read("/v1/shares"))["data"] == []
        assert (await opened(server, mine)).status_code == 404
        assert (await opened(server, other)).status_code == 200

    async def test_admins_see_all_but_the_titles(self, server: ApiServer, service: Client, user: Client) -> None:
        made = await share(user, (await user.ask("A private question"))["conversation_id"])
        admin = await server.user(service, "boss", role="admin")
        [listed] = (await admin.read("/v1/shares"))["data"]
        assert (listed["id"], listed["title"], listed["user"]["external_id"]) == (
            made["id"],
            None,
            (await user.read("/v1/me"))["user"]["external_id"],
        )
        assert "url" not in listed
        [own] = (await user.read(f"/v1/shares?conversation_id={made['conversation_id']}"))["data"]
        assert own["title"] == "A private question"
        assert (await admin.read(f"/v1/shares?conversation_id={fake_id('conv')}"))["data"] == []
        assert (await admin.delete(f"/v1/shares/{made['id']}")).status_code == 204
        assert (await opened(server, made)).status_code == 404

    async def test_the_token_is_nowhere_but_in_the_answer(
        self, server: ApiServer, user: Client, caplog: pytest.LogCaptureFixture
    ) -> None:
        made = await share(user, (await user.ask())["conversation_id"])
        with caplog.at_level("DEBUG"):
            assert (await opened(server, made)).status_code == 200
        token = token_of(made)
        assert caplog.records
        assert not any(token in repr(vars(record)) for record in caplog.records)
        assert token not in str(await user.read("/v1/shares"))
        anonymous = await server.client(None)
        assert (await anonymous.get(f"/v1/shared?token={token}")).status_code in {401, 404, 422}


class TestTheSetting:
    async def test_links_last_no_longer_than_the_server_allows(self, tmp_path: Path) -> None:
        async with ApiServer.start(settings_for(tmp_path, share_link_days=7.0)) as server:
            user = await server.user(await server.tenant())
            conversation_id = (await user.ask())["conversation_id"]
            made = await share(user, conversation_id)
            assert abs(made["expires_at"] - time.time() * 1000 - 7 * 86_400_000) < 600_000
            path = f"/v1/conversations/{conversation_id}/shares"
            response = await user.post(path, json={"ttl_seconds": 8 * 86_400})
            assert code_of(response) == (422, "invalid_request")
            assert "7 days" in response.json()["detail"]
            for body in ({"ttl_seconds": 1}, {"ttl_seconds": 10**9}, {"turn_id": "x"}, {"other": 1}):
                assert (await user.post(path, json=body)).status_code in {404, 422}, body

    async def test_zero_switches_them_off(self, tmp_path: Path) -> None:
        async with ApiServer.start(settings_for(tmp_path)) as server:
            service = await server.tenant()
            user = await server.user(service)
            answer = await user.ask()
            made = await share(user, answer["conversation_id"])
            key = user.key
        async with ApiServer.start(settings_for(tmp_path, share_link_days=0.0)) as server:
            user = await server.client(key)
            response = await user.post(f"/v1/conversations/{answer['conversation_id']}/shares", json={})
            assert code_of(response) == (403, "forbidden")
            assert "TURNKEEP_SHARE_LINK_DAYS" in response.json()["detail"]
            assert (await opened(server, made)).status_code == 404
            assert len((await user.read("/v1/shares"))["data"]) == 1, "it can still be revoked"
            assert (await user.delete(f"/v1/shares/{made['id']}")).status_code == 204
