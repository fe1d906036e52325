"""Feedback over HTTP: users rate answers, and admins export the ratings."""

import csv
import io
import json

from tests.api.conftest import both
from tests.api.harness import ApiServer, Client, Json, code_of
from tests.api.test_erasure import done


@both
class TestARating:
    async def test_is_given_changed_read_and_removed(self, server: ApiServer, user: Client) -> None:
        answer = await user.ask()
        path = f"/v1/turns/{answer['turn']['id']}/feedback"
        first = await user.put(path, json={"rating": "down", "comment": "Too short."})
        assert (first.status_code, first.json()["comment"]) == (200, "Too short.")
        second = await user.put(path, json={"rating": "up"})
        assert (second.json()["rating"], second.json()["comment"]) == ("up", None)
        own = f"/v1/conversations/{answer['conversation_id']}/feedback"
        assert (await user.read(own))["data"] == [second.json()]
        assert (await user.delete(path)).status_code == 204
        assert (await user.read(own))["data"] == []
        assert code_of(await user.delete(path)) == (404, "not_found")

    async def test_what_is_refused(self, server: ApiServer, service: Client, user: Client) -> None:
        answer = await user.ask()
        path = f"/v1/turns/{answer['turn']['id']}/feedback"
        bodies: tuple[Json, ...] = (
            {},
            {"rating": "great"},
            {"rating": "up", "comment": "x" * 4_001},
            {"rating": "up", "stars": 5},
        )
        for body in bodies:
            assert code_of(await user.put(path, json=body)) == (422, "invalid_request"), body
        bob = await server.user(service, "bob")
        assert code_of(await bob.put(path, json={"rating": "up"})) == (404, "not_found")
        assert code_of(await bob.get(f"/v1/conversations/{answer['conversation_id']}/feedback")) == (404, "not_found")
        assert code_of(await service.put(path, json={"rating": "up"})) == (403, "forbidden")
        assert code_of(await user.get("/v1/feedback")) == (403, "forbidden")


@both
class TestTheExport:
    async def test_has_turn_model_agent_rating_and_comment(
        self, server: ApiServer, service: Client, user: Client
    ) -> None:
        agent_id = (await service.post("/v1/agents", json={"name": "A", "model": "scripted"})).json()["id"]
        answer = await user.ask("A private question", agent_id=agent_id)
        turn_id = answer["turn"]["id"]
        comment = '=HYPERLINK("http://evil.example")\nsecond line'
        await user.put(f"/v1/turns/{turn_id}/feedback", json={"rating": "down", "comment": comment})
        other = await user.ask()
        await user.put(f"/v1/turns/{other['turn']['id']}/feedback", json={"rating": "up"})
        admin = await server.user(service, "boss", role="admin")
        listed = (await admin.read("/v1/feedback"))["data"]
        assert [one["rating"] for one in listed] == ["up", "down"]
        [item] = (await admin.read(f"/v1/feedback?agent_id={agent_id}"))["data"]
        assert (item["turn_id"], item["agent_id"], item["comment"]) == (turn_id, agent_id, comment)
        assert item["model"] == "scripted"
        assert item["usage"]["output_tokens"] > 0
        assert item["user"]["external_id"] == (await user.read("/v1/me"))["user"]["external_id"]
        lines = await admin.get("/v1/feedback?format=jsonl&rating=down")
        assert lines.headers["content-type"].startswith("application/x-ndjson")
        assert [json.loads(line) for line in lines.text.splitlines()] == [item]
        sheet = await admin.get("/v1/feedback?format=csv")
        assert sheet.headers["content-disposition"] == 'attachment; filename="feedback.csv"'
        rows = list(csv.DictReader(io.StringIO(sheet.text, newline="")))
        assert [row["rating"] for row in rows] == ["up", "down"]
        assert rows[1]["comment"] == f"'{comment}", "a spreadsheet runs nothing"
        assert (rows[1]["turn_id"], rows[1]["model"], rows[1]["agent_id"]) == (turn_id, "scripted", agent_id)
        for text in (lines.text, sheet.text):
            assert "private" not in text

    async def test_has_all_pages(self, server: ApiServer, service: Client, user: Client) -> None:
        answer = await user.ask()
        for n in range(120):
            if n:
                answer = await user.ask(str(n), conversation_id=answer["conversation_id"])
            await user.put(f"/v1/turns/{answer['turn']['id']}/feedback", json={"rating": "up"})
        assert len((await service.get("/v1/feedback?format=jsonl")).text.splitlines()) == 120
        assert len((await service.read("/v1/feedback?limit=50"))["data"]) == 50

    async def test_goes_with_an_erased_user(self, server: ApiServer, service: Client, user: Client) -> None:
        answer = await user.ask()
        await user.put(f"/v1/turns/{answer['turn']['id']}/feedback", json={"rating": "up", "comment": "Mine"})
        name = (await user.read("/v1/me"))["user"]["external_id"]
        await done(service, (await service.post(f"/v1/users/{name}/erase")).json()["erasure_id"])
        assert "Mine" not in (await service.get("/v1/feedback?format=jsonl")).text

    async def test_a_token_for_some_agents_reads_those_alone(
        self, server: ApiServer, service: Client, user: Client
    ) -> None:
        agents = [(await service.post("/v1/agents", json={"name": name})).json()["id"] for name in "AB"]
        for agent_id in (*agents, None):
            answer = await user.ask(agent_id=agent_id)
            await user.put(f"/v1/turns/{answer['turn']['id']}/feedback", json={"rating": "up"})
        scopes = {"agents": [agents[0]], "features": ["export"]}
        narrow = await server.user(service, "boss", role="admin", scopes=scopes)
        assert [one["agent_id"] for one in (await narrow.read("/v1/feedback"))["data"]] == [agents[0]]
