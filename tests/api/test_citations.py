"""An answer that cites: sources in the stream, and the same ones on the message after a reload."""

from typing import Any

from tests.api.conftest import both
from tests.api.harness import STREAM, ApiServer, Client, data_of, read_events
from turnkeep.providers.demo import answer_to
from turnkeep.providers.ports import ModelRequest, ToolOffer
from turnkeep.providers.scripted import Call
from turnkeep.tools.ports import Tools

NAMES = {
    "read_file",
    "save_to_table",
    "search_conversations",
    "search_files",
    "search_pages",
    "search_user_tables",
}


class TestTheAnswer:
    @both
    async def test_shows_the_same_citations_after_a_reload(
        self, server: ApiServer, service: Client, user: Client
    ) -> None:
        page = (await service.post("/v1/pages", json={"title": "Refunds", "content": "Within 30 days."})).json()
        table = (await service.post("/v1/tables", json={"name": "Fees", "columns": [{"name": "Fee"}]})).json()
        await service.post(f"/v1/tables/{table['id']}/rows", json={"rows": [{"Fee": "refund costs 5"}]})
        made = await service.post("/v1/agents", json={"name": "A", "tools": ["search_pages", "search_user_tables"]})
        assert made.status_code == 201, made.text
        server.scripts.say(Call("search_pages", {"query": "30 days"}))
        server.scripts.say(Call("search_user_tables", {"query": "refund"}))
        server.scripts.say("Within 30 days [1], for a fee [2].")
        body = {"message": "How?", "agent_id": made.json()["id"]}
        async with user.stream("POST", "/v1/turns", json=body, headers=STREAM) as response:
            events = await read_events(response)
        shown = [source for event in events if event.event == "sources" for source in data_of(event)["sources"]]
        assert [(source["number"], source["title"]) for source in shown] == [(1, "Refunds"), (2, "Fees")]
        assert shown[0]["page_id"] == page["id"]
        assert (shown[1]["table_id"], shown[1]["row"], shown[1]["place"]) == (table["id"], 1, "row 1")
        conversation = data_of(events[0])["conversation_id"]
        messages = (await user.read(f"/v1/conversations/{conversation}/messages"))["data"]
        assert messages[-1]["sources"] == shown

    async def test_agents_may_name_the_native_tools_and_no_other(self, server: ApiServer, service: Client) -> None:
        tools: Tools = server.runtime.tools
        assert {spec.name for spec in tools.native} >= NAMES
        refused = await service.post("/v1/agents", json={"name": "A", "tools": ["search_everything"]})
        assert refused.status_code == 422
        assert "search_pages" in refused.json()["detail"]


class TestTheDemoModel:
    async def test_uses_the_tools_when_it_is_asked_to(self, server: ApiServer) -> None:
        box: Any = server.runtime.tools
        offers = tuple(
            ToolOffer(name=name, description="", input_schema=box._tools[name].spec.input_schema)
            for name in sorted(NAMES)
        )

        def called(text: str) -> tuple[str, Any]:
            request = ModelRequest(
                model="demo", messages=[{"role": "user", "content": text}], system="", tools=offers, may_call=True
            )
            _, [use] = answer_to(request)
            return use.name, use.input

        assert called("search pages for saffron prices") == ("search_pages", {"query": "saffron prices"})
        assert called("Please search tables for salt") == ("search_user_tables", {"query": "salt"})
        assert called("use search_files to find the contract") == ("search_files", {"query": "contract"})
        assert called("read file notes.txt") == ("read_file", {"file": "notes.txt"})
