"""From the lines of a sandbox to what readers see: live, on a replay, and in the history."""

import asyncio
import base64
import itertools
import random
from typing import Any

import msgspec
import pytest

from tests.api.harness import STREAM, Client, data_of, names, read_events, said
from tests.files.samples import PNG
from tests.sandbox.conftest import both
from tests.sandbox.scripted_runner import ScriptedRunner, Visit, delta, error, log, result, running, succeeded

Json = Any


async def turn_of(client: Client, message: str = "Do it.", **body: Json) -> Json:
    return await client.ask(message, kind="sandbox", **body)


async def stream_of(client: Client, message: str = "Do it.") -> list[Any]:
    body = {"message": message, "kind": "sandbox"}
    async with client.stream("POST", "/v1/turns", json=body, headers=STREAM) as response:
        assert response.status_code == 200
        return await read_events(response)


async def trace_of(service: Client, turn_id: str) -> list[Json]:
    response = await service.get(f"/v1/turns/{turn_id}/trace")
    assert response.status_code == 200, response.text
    return [msgspec.json.decode(line) for line in response.content.splitlines()]


WHOLE = (
    log("Loaded 3 skills"),
    delta("I will "),
    delta("look."),
    running("s1", args={"command": "ls"}, ts=1_750_000_000_123),
    log("half way", "debug"),
    succeeded("s1", result={"files": ["a.txt"]}, durationMs=412, ts=1_750_000_000_535),
    delta("There is "),
    delta("a.txt."),
    result("There is a.txt."),
)


class TestAWholeTurn:
    @both
    async def test_becomes_events_in_order_and_the_step_lines_stay_as_they_were(
        self, user: Client, runner: ScriptedRunner
    ) -> None:
        runner.says(*WHOLE)
        events = await stream_of(user)
        assert names(events) == ["turn", "tool_calls", "step", "step", "result"]
        spoken, began, ended, last = (data_of(event) for event in events if event.event not in {"turn", "delta"})
        assert (spoken["iteration"], spoken["text"], spoken["calls"]) == (0, "I will look.", [])
        assert {"type": "step", **began} == WHOLE[3]
        assert {"type": "step", **ended} == WHOLE[5]
        assert last["message"] == "There is a.txt."
        ids = [int(event.id) for event in events if event.event != "delta"]
        assert ids == [1, 2, 3, 4, 5]

    async def test_reads_in_the_history_as_it_was_shown_live(self, user: Client, runner: ScriptedRunner) -> None:
        runner.says(*WHOLE)
        events = await stream_of(user)
        turn, last = data_of(events[0]), data_of(events[-1])
        page = await user.read(f"/v1/conversations/{turn['conversation_id']}/messages")
        answer = page["data"][-1]
        assert answer["content"] == last["content"]
        assert [part["type"] for part in answer["content"]] == ["text", "step", "text"]
        step = answer["content"][1]
        assert (step["status"], step["args"], step["result"]) == ("succeeded", {"command": "ls"}, {"files": ["a.txt"]})
        assert step["durationMs"] == 412
        async with user.stream("GET", f"/v1/turns/{turn['turn_id']}/events") as response:
            again = await read_events(response)
        assert names(again) == names(events)
        assert data_of(again[-1]) == last

    async def test_keeps_its_logs_for_the_trace_alone(
        self, service: Client, user: Client, runner: ScriptedRunner
    ) -> None:
        runner.says(*WHOLE)
        events = await stream_of(user)
        assert "log" not in names(events)
        trace = await trace_of(service, data_of(events[0])["turn_id"])
        assert [(line["type"], line.get("after_seq")) for line in trace if line["type"] == "log"] == [
            ("log", 1),
            ("log", 3),
        ]

    async def test_text_that_is_not_in_the_result_is_kept_before_it(self, user: Client, runner: ScriptedRunner) -> None:
        runner.says(delta("Let me think."), result("42"))
        answer = await turn_of(user)
        assert [part["text"] for part in answer["message"]["content"]] == ["Let me think.", "42"]
        assert answer["turn"]["response"] == "42"

    async def test_says_how_its_answer_ended(self, user: Client, runner: ScriptedRunner) -> None:
        for line, finish in (
            (result("Half of a sen", finish="length"), "length"),
            (result(""), "empty"),
            (result("Done.", finish="something new"), "complete"),
        ):
            runner.says(line)
            assert (await turn_of(user))["message"]["finish"] == finish

    async def test_a_step_that_never_ended_is_closed_before_the_result(
        self, user: Client, runner: ScriptedRunner
    ) -> None:
        runner.says(running("s1"), result("Done."))
        answer = await turn_of(user)
        assert answer["message"]["content"][0]["status"] == "failed"

    async def test_gets_the_text_of_the_user_block_by_block(self, user: Client, runner: ScriptedRunner) -> None:
        runner.says(result("Yes."))
        blocks = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
        answer = (await user.post("/v1/turns", json={"message": blocks, "kind": "sandbox"})).json()
        assert runner.visits[0].envelope["prompt"] == "one\n\ntwo"
        assert (await user.read(f"/v1/conversations/{answer['conversation_id']}"))["title"] == "one"

    async def test_takes_a_picture_only_as_a_file(self, user: Client, runner: ScriptedRunner) -> None:
        data = base64.b64encode(PNG).decode()
        blocks = [{"type": "image", "media_type": "image/png", "data": data}]
        refused = await user.post("/v1/turns", json={"message": blocks, "kind": "sandbox"})
        assert (refused.status_code, refused.json()["code"]) == (422, "invalid_request")
        assert "attachment_ids" in refused.json()["detail"]
        assert (await user.read("/v1/conversations"))["data"] == []

    @both
    async def test_cites_its_sources_live_and_in_the_history(self, user: Client, runner: ScriptedRunner) -> None:
        atlas = {"title": "Atlas", "snippet": "Up north.", "page_id": "page_1", "place": "Maps", "number": 1}
        runner.says(
            delta("Let me see."),
            {"type": "sources", "sources": [atlas, {"title": "N\0ul", "snippet": "x" * 9_000, "number": 2}]},
            result("North [1]."),
        )
        events = await stream_of(user)
        assert names(events) == ["turn", "tool_calls", "sources", "result"]
        cited = data_of(events[-2])["sources"]
        assert cited[0] == atlas
        assert (cited[1]["title"], len(cited[1]["snippet"])) == ("N\ufffdul", 2_000)
        page = await user.read(f"/v1/conversations/{data_of(events[0])['conversation_id']}/messages")
        assert page["data"][-1]["sources"] == cited

    async def test_with_more_sources_than_a_message_can_hold_breaks_the_protocol(
        self, user: Client, runner: ScriptedRunner
    ) -> None:
        some = {"type": "sources", "sources": [{"title": f"{n}", "snippet": ""} for n in range(600)]}
        more = {"type": "sources", "sources": [{"title": f"{n}", "snippet": ""} for n in range(500, 1_001)]}
        runner.says(some, some, more, result("Enough."))
        events = await stream_of(user)
        assert names(events) == ["turn", "sources", "sources", "error"], "what came before is kept"
        assert data_of(events[-1])["code"] == "sandbox_protocol"
        assert "1,000 sources" in data_of(events[-1])["message"]

    async def test_is_part_of_the_history_of_a_later_turn(self, user: Client, runner: ScriptedRunner) -> None:
        told: list[Json] = []

        async def listen(visit: Visit) -> None:
            told.append(await visit.config())
            await visit.write(result("Yes."))

        runner.says(*WHOLE)
        first = await turn_of(user, "Look.")
        runner.says(delta("Half of"), error("tired", "Too late."))
        await user.ask("And now?", conversation_id=first["conversation_id"])
        runner.plays(listen)
        await user.ask("Again?", conversation_id=first["conversation_id"])
        assert told[0]["prompt"] == "Again?"
        assert [(one["role"], one["content"]) for one in told[0]["conversation"]] == [
            ("user", "Look."),
            ("assistant", "I will look.\n\nThere is a.txt."),
            ("user", "And now?"),
            ("assistant", "Half of"),
        ]


BAD_LINES = {
    "an unknown type": {"type": "party", "message": "!"},
    "bad JSON": b'{"type": "log", \n',
    "a wrong field": {"type": "step", "id": 7, "name": "x", "status": "running"},
    "a missing field": {"type": "step", "id": "s", "status": "running"},
    "an unknown status": {"type": "step", "id": "s", "name": "x", "status": "paused"},
    "bytes that are no text": b'{"type": "delta", "text": "\xff"}\n',
    "a line over 1 MiB": b'{"type": "delta", "text": "' + b"x" * 1_100_000 + b'"}\n',
    "a list": b"[]\n",
}


class TestALineThatBreaksTheContract:
    async def test_fails_the_turn_and_what_came_before_is_kept(self, user: Client, runner: ScriptedRunner) -> None:
        for fault, line in BAD_LINES.items():
            runner.says(succeeded("s1", result="kept"), delta("So far"), line, result("Too late."))
            answer = await turn_of(user)
            assert answer["turn"]["status"] == "failed", fault
            assert answer["turn"]["error"]["code"] == "sandbox_protocol", fault
            kept = answer["message"]["content"]
            assert [part["type"] for part in kept] == ["step", "text"], fault
            assert (kept[0]["result"], kept[1]["text"]) == ("kept", "So far"), fault

    async def test_a_stream_without_an_end_fails_the_turn(self, user: Client, runner: ScriptedRunner) -> None:
        runner.says(running("s1"))
        answer = await turn_of(user)
        assert answer["turn"]["error"]["code"] == "sandbox_protocol"
        assert answer["message"]["content"][0]["status"] == "failed"

    async def test_an_empty_stream_fails_the_turn(self, user: Client, runner: ScriptedRunner) -> None:
        runner.says()
        answer = await turn_of(user)
        assert answer["turn"]["error"]["code"] == "sandbox_protocol"
        assert answer["message"] is None

    async def test_after_the_end_lines_are_ignored_and_noted(
        self, service: Client, user: Client, runner: ScriptedRunner
    ) -> None:
        runner.says(result("The first."), result("The second."), b"garbage\n", error("late", "no"))
        answer = await turn_of(user)
        assert answer["turn"]["response"] == "The first."
        trace = await trace_of(service, answer["turn"]["id"])
        assert "3 lines after the end of the turn were ignored." in [line.get("message") for line in trace]
        assert sum(line["type"] in {"result", "error"} for line in trace) == 1

    @both
    async def test_unknown_fields_and_odd_times_are_accepted_and_noted(
        self, service: Client, user: Client, runner: ScriptedRunner
    ) -> None:
        step = succeeded("s1", result="kept", ts=1_750_000_000.5)
        runner.says(
            log("begun") | {"ts": 1e300, "logger": "x"},
            log("goes on") | {"ts": 1_750_000_000.25},
            step | {"host": "a"},
            result("Done.") | {"cost": 0.5, "ts": -1},
        )
        events = await stream_of(user)
        assert {"type": "step", **data_of(events[1])} == step
        assert data_of(events[-1])["message"] == "Done."
        trace = await trace_of(service, data_of(events[0])["turn_id"])
        logged = [line["message"] for line in trace if line["type"] == "log"]
        assert sorted(logged) == [
            "The field 'cost' of a `result` line was passed over.",
            "The field 'host' of a `step` line was passed over.",
            "The field 'logger' of a `log` line was passed over.",
            "begun",
            "goes on",
        ]

    async def test_characters_that_databases_refuse_are_replaced(self, user: Client, runner: ScriptedRunner) -> None:
        runner.says(log("a\0b"), succeeded("s\0", result={"k\0": ["\0"]}), delta("c\0d"), result("c\0d"))
        answer = await turn_of(user)
        assert answer["turn"]["status"] == "succeeded"
        assert answer["turn"]["response"] == "c\ufffdd"


class TestAnErrorLine:
    @both
    async def test_settles_the_turn_as_failed_with_the_sandbox_s_own_code(
        self, user: Client, runner: ScriptedRunner
    ) -> None:
        runner.says(running("s1"), delta("Half"), error("model_timeout", "Provider timed out after 60s"))
        events = await stream_of(user)
        assert names(events) == ["turn", "step", "step", "tool_calls", "error"]
        last = data_of(events[-1])
        assert (last["code"], last["message"]) == ("model_timeout", "Provider timed out after 60s")
        assert said(events) == "Half"


class TestBulk:
    async def test_thousands_of_lines_are_recorded_in_few_writes(
        self, user: Client, runner: ScriptedRunner, server: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        writes = 0
        record = server.runtime.store.record

        async def counted(*args: Any, **named: Any) -> Any:
            nonlocal writes
            writes += 1
            return await record(*args, **named)

        monkeypatch.setattr(server.runtime.store, "record", counted)
        runner.says(*(line for n in range(2_000) for line in (running(f"s{n}"), succeeded(f"s{n}"))), result("All."))
        answer = await turn_of(user)
        assert answer["turn"]["status"] == "succeeded"
        assert sum(part["type"] == "step" for part in answer["message"]["content"]) == 2_000
        assert writes < 200

    async def test_a_turn_with_huge_results_still_becomes_a_message(self, user: Client, runner: ScriptedRunner) -> None:
        big = "x" * 900_000
        runner.says(*(succeeded(f"s{n}", result=big) for n in range(8)), result("y" * 900_000))
        answer = await turn_of(user)
        assert answer["turn"]["status"] == "succeeded"
        content = answer["message"]["content"]
        assert [part["type"] for part in content] == ["step"] * 8 + ["text"]
        assert "[cut: 900,000 characters in all]" in content[0]["result"]
        assert "[cut: 900,000 characters in all]" in answer["turn"]["response"]
        async with user.stream("GET", f"/v1/turns/{answer['turn']['id']}/events") as response:
            replayed = await read_events(response)
        assert data_of(replayed[1])["result"] == big


class TestAnything:
    async def test_that_a_sandbox_writes_ends_with_exactly_one_last_event(
        self, service: Client, user: Client, runner: ScriptedRunner
    ) -> None:
        choose = random.Random(7)
        pool = [
            *WHOLE,
            *BAD_LINES.values(),
            error("e", "m"),
            b"\n",
            b"\r\n",
            b'{"type":"result","message":"x"}',
            b"\0" * 9,
        ]
        for _ in range(40):
            lines = choose.choices(pool, k=choose.randrange(0, 12))
            body = b"".join(line if isinstance(line, bytes) else msgspec.json.encode(line) + b"\n" for line in lines)
            cuts = sorted(choose.randrange(len(body) + 1) for _ in range(3))

            async def part(visit: Visit, body: bytes = body, cuts: list[int] = cuts) -> None:
                for start, end in itertools.pairwise([0, *cuts, len(body)]):
                    await visit.write(body[start:end])
                    await asyncio.sleep(0)

            runner.plays(part)
            answer = await turn_of(user)
            assert answer["turn"]["status"] in {"succeeded", "failed"}
            trace = [line for line in await trace_of(service, answer["turn"]["id"]) if "seq" in line]
            assert [line["seq"] for line in trace] == list(range(1, len(trace) + 1))
            assert [line["type"] in {"result", "error"} for line in trace] == [False] * (len(trace) - 1) + [True]
