"""Turns in a sandbox, end to end: a real runner, real boxes, and a fake server that follows the contract."""

import asyncio
import io
import json
from typing import Any

import pytest
from aiohttp import web
from msgspec import structs

from tests.sandbox_runner.box_processes import eventually
from tests.sandbox_runner.fake_server import FakeTurn, zip_of
from tests.sandbox_runner.harness import SMALL, Line, Site, ending, logs, site, step_ends, steps
from turnkeep.providers.scripted import Call, Think, Until
from turnkeep.streaming.ndjson import LineParser

SKILL = {
    "name": "charts",
    "files": {
        "SKILL.md": "---\nname: charts\ndescription: Draws charts.\n---\n# Charts\nRun recipes/draw.sh with a title.\n",
        "recipes/draw.sh": '#!/bin/sh\nread request\nprintf \'{"title": "%s", "asked": %s}\' "$1" "$request"\n',
    },
}


def a_turn(*scripts: list[Any], **config: Any) -> FakeTurn:
    return FakeTurn(scripts, **config)


def offered(name: str, seconds: float = 5.0, **more: Any) -> dict[str, Any]:
    return {"name": name, "description": "", "input_schema": {"type": "object"}, "timeout_seconds": seconds, **more}


def names_offered(turn: FakeTurn) -> list[str]:
    return [tool["function"]["name"] for tool in turn.asked[0].get("tools", ())]


class TestAvailableTools:
    """Those of the box, as far as the key allows them, and those that the server calls."""

    async def test_a_key_limits_the_tools_of_the_box(self) -> None:
        turn = a_turn(
            [Call("shell", {"command": "echo broken out > assets/x"})],
            ["Well."],
            agent={"allowed_tools": ["read_file", "list*"], "skills": [SKILL]},
        )
        async with site() as here:
            lines = await here.run(turn)
        assert names_offered(turn) == ["read_file", "list_files"]
        (ended,) = step_ends(lines)
        assert "There is no tool called 'shell'" in ended["error"]
        assert turn.files == {}

    async def test_a_key_that_allows_no_tool_leaves_a_model_without_tools(self) -> None:
        turn = a_turn(["Just words."], agent={"allowed_tools": []})
        async with site() as here:
            lines = await here.run(turn)
        assert names_offered(turn) == []
        assert ending(lines)["message"] == "Just words."

    async def test_tools_that_the_server_offers_are_called_by_the_server(self) -> None:
        async def answer(asked: dict[str, Any]) -> web.StreamResponse:
            return web.json_response({"result": {"rain": False}, "error": None})

        turn = a_turn(
            [Call("crm__find", {"name": "Ann"})],
            ["Found."],
            gateway={"tools": [offered("crm__find"), offered("shell")], "notes": ["The MCP server x is away."]},
            on_tool=answer,
        )
        async with site() as here:
            lines = await here.run(turn)
        (call,) = turn.tool_calls
        assert (call["name"], call["arguments"]) == ("crm__find", {"name": "Ann"})
        began, ended = (line for line in lines if line["type"] == "step")
        assert call["call_id"] == began["id"]
        assert ended["result"] == {"rain": False}
        assert names_offered(turn).count("shell") == 1
        assert "The MCP server x is away." in logs(lines)
        assert any("two tools called shell" in note for note in logs(lines))

    async def test_passages_that_the_server_found_are_numbered_given_to_the_model_and_cited(self) -> None:
        async def answer(asked: dict[str, Any]) -> web.StreamResponse:
            found = [
                {"source": page(asked["arguments"]["q"]), "text": "Nine days."},
                {"source": page("b"), "text": "B."},
            ]
            return web.json_response({"result": "2 hits", "error": None, "passages": found, "sources": []})

        def page(title: str) -> dict[str, str]:
            return {"title": title, "snippet": "", "page_id": f"page_{title}", "place": "Start"}

        turn = a_turn(
            [Call("search_pages", {"q": "a"})],
            [Call("search_pages", {"q": "c"})],
            ["Nine days [1]."],
            gateway={"tools": [offered("search_pages")]},
            on_tool=answer,
        )
        async with site() as here:
            lines = await here.run(turn)
        cited = [line["sources"] for line in lines if line["type"] == "sources"]
        assert [[(each["number"], each["title"]) for each in some] for some in cited] == [
            [(1, "a"), (2, "b")],
            [(3, "c"), (2, "b")],
        ]
        told = [message["content"] for message in turn.asked[2]["messages"] if message["role"] == "tool"]
        assert told == [
            "2 hits\n\n[1] a, Start\nNine days.\n\n[2] b, Start\nB.",
            "2 hits\n\n[3] c, Start\nNine days.\n\n[2] b, Start\nB.",
        ]

    async def test_any_failure_of_a_server_tool_is_a_failed_step(self) -> None:
        hang = asyncio.Event()

        async def answer(asked: dict[str, Any]) -> web.StreamResponse:
            match asked["arguments"]["how"]:
                case "error":
                    return web.json_response({"result": None, "error": "No such customer."})
                case "refused":
                    return web.json_response({"detail": "The turn has ended."}, status=401)
                case "nonsense":
                    return web.Response(text="<html>")
                case "flood":
                    return web.Response(body=b'{"result": "' + b"x" * (9 << 20) + b'"}')
                case _:
                    await hang.wait()
                    raise web.HTTPGone

        hows = ["error", "refused", "nonsense", "flood", "hang"]
        turn = a_turn(
            [Call("crm", {"how": how}) for how in hows],
            ["I give up."],
            gateway={"tools": [offered("crm", seconds=0.5)]},
            on_tool=answer,
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("turnkeep.sandbox.server_client.GRACE_SECONDS", 0.5)
            async with site() as here:
                lines = await here.run(turn)
                hang.set()
        args = {line["id"]: line["args"]["how"] for line in lines if line["type"] == "step" and "args" in line}
        errors = {args[line["id"]]: line["error"] for line in step_ends(lines)}
        assert errors["error"] == "No such customer."
        assert "The turn has ended." in errors["refused"]
        assert "outcome_unknown" in errors["nonsense"]
        assert "longer than" in errors["flood"]
        assert "outcome_unknown" in errors["hang"]
        assert ending(lines)["message"] == "I give up."


class TestATurn:
    async def test_files_keep_their_names_and_a_bad_name_does_not_affect_other_files(self) -> None:
        names = r"""'a b.txt' ü.txt 100%.txt 'say "hi".txt' $'bad\xff.txt' c/d.txt"""
        made = f"cd assets && mkdir c && echo 1 | tee {names}"
        turn = a_turn([Call("shell", {"command": made})], [Call("list_files", {"path": "assets"})], ["Done."])
        async with site() as here:
            lines = await here.run(turn)
        assert ending(lines) == {**ending(lines), "type": "result", "message": "Done."}
        assert sorted(turn.files) == ["100%.txt", "a b.txt", "c/d.txt", 'say "hi".txt', "ü.txt"]
        listed, saved = step_ends(lines)[1:]
        assert "bad\ufffd.txt" in listed["result"]
        assert (saved["name"], saved["status"]) == ("save files", "failed")
        assert "bad\ufffd.txt" in saved["error"]

    async def test_it_answers_runs_steps_and_writes_its_files_back(self) -> None:
        turn = a_turn(
            ["I will write it.", Call("write_file", {"path": "assets/report.txt", "content": "All is well.\n"})],
            [Call("shell", {"command": "wc -c assets/report.txt"})],
            ["Done: ", "13 bytes."],
        )
        async with site() as here:
            lines = await here.run(turn)
        assert steps(lines) == [
            ("write_file", "running"),
            ("write_file", "succeeded"),
            ("shell", "running"),
            ("shell", "succeeded"),
        ]
        assert ending(lines)["message"] == "Done: 13 bytes."
        assert "".join(line["text"] for line in lines if line["type"] == "delta") == "I will write it.Done: 13 bytes."
        assert turn.files == {"report.txt": b"All is well.\n"}
        assert turn.tokens == {}, "each token was spent"

    async def test_its_lines_follow_the_contract(self) -> None:
        turn = a_turn([Call("shell", {"command": "echo hi"})], ["Hello."])
        async with site() as here, here.session.post(f"{here.url}/stream", json=here.server.add(turn)) as response:
            body = await response.read()
        parser = LineParser()
        assert len(parser.feed(body)) > 2
        assert parser.close().__struct_config__.tag == "result"
        assert parser.ignored_lines == 0

    async def test_the_model_gets_a_description_of_the_sandbox_and_the_conversation(self) -> None:
        turn = a_turn(
            ["Yes."],
            prompt="And now?",
            agent={"instructions": "Be kind.", "skills": [SKILL]},
            conversation=[
                {"role": "user", "content": "Hi", "ts": 1},
                {"role": "assistant", "content": "Hello", "ts": 2},
                {"role": "user", "content": "Are you there?", "ts": 3},
            ],
        )
        async with site() as here:
            await here.run(turn)
        system, *said = turn.asked[0]["messages"]
        assert system["content"].startswith("Be kind.")
        assert "/workspace/assets" in system["content"]
        assert "- charts: Draws charts." in system["content"]
        assert said[0] == {"role": "user", "content": "Hi"}
        assert said[-1]["content"].endswith("And now?")
        names = {tool["function"]["name"] for tool in turn.asked[0]["tools"]}
        assert names >= {"shell", "python", "read_file", "write_file", "edit_file", "list_files", "grep_files"}
        assert "run_recipe" in names

    async def test_files_variables_and_setup_script_are_available(self) -> None:
        turn = a_turn(
            [Call("shell", {"command": 'cat assets/data.csv made; printf "%s" "$TOKEN"'})],
            ["Seen."],
            bag=zip_of({"data.csv": b"1,2\n"}),
            variables={"TOKEN": "line one\nline two"},
            setup_script="cd /workspace && echo prepared $TOKEN > made\n",
        )
        async with site() as here:
            lines = await here.run(turn)
        assert steps(lines)[:2] == [("setup", "running"), ("setup", "succeeded")]
        assert step_ends(lines)[1]["result"] == "1,2\nprepared line one line two\nline one\nline two"
        assert turn.uploads == 0, "nothing is new"

    async def test_a_recipe_is_a_step_with_the_name_of_the_recipe(self) -> None:
        arguments = {"skill": "charts", "recipe": "recipes/draw.sh", "arguments": ["Sales"], "input": {"year": 2026}}
        turn = a_turn([Call("run_recipe", arguments)], ["Drawn."], agent={"skills": [SKILL]})
        async with site() as here:
            lines = await here.run(turn)
        began, ended = (line for line in lines if line["type"] == "step")
        assert (began["name"], began["args"]) == ("charts/recipes/draw.sh", arguments)
        assert (ended["id"], ended["name"]) == (began["id"], "charts/recipes/draw.sh")
        assert ended["result"] == {"title": "Sales", "asked": {"year": 2026}}
        assert ended["durationMs"] >= 0

    async def test_reasoning_is_sent_back_with_its_signature(self) -> None:
        turn = a_turn([Think("Let me see.", "sig-1"), Call("shell", {"command": "true"})], ["Fine."])
        async with site() as here:
            await here.run(turn)
        (called,) = [message for message in turn.asked[1]["messages"] if message.get("tool_calls")]
        assert called["reasoning_details"] == [{"type": "reasoning.text", "text": "Let me see.", "signature": "sig-1"}]

    async def test_output_streams_into_the_step_while_it_runs(self) -> None:
        seen = asyncio.Event()
        turn = a_turn([Call("shell", {"command": "echo first; until test -e go; do sleep 0.05; done"})], ["Over."])
        async with site() as here:
            lines: list[Line] = []
            async for line in here.stream(turn):
                lines.append(line)
                if line["type"] == "step" and line["status"] == "running" and "result" in line:
                    assert line["result"] == "first\n"
                    seen.set()
                    break
        assert seen.is_set()

    async def test_tools_that_the_server_does_not_call_are_named_in_the_log_only(self) -> None:
        turn = a_turn(["Hm."], agent={"tools": ["search_pages", {"type": "http", "name": "crm"}]})
        async with site() as here:
            lines = await here.run(turn)
        assert [note.partition(" ")[0] for note in logs(lines) if "not available" in note] == ["search_pages", "crm"]
        assert ending(lines)["type"] == "result"

    async def test_a_limit_ends_the_step_and_the_turn_goes_on(self) -> None:
        turn = a_turn(
            [Call("shell", {"command": "echo begun; sleep 100", "seconds": 0.3})],
            [Call("python", {"code": "while True: print('x' * 1000)"})],
            [Call("shell", {"command": "exit 3"})],
            ["I give up."],
        )
        async with site() as here:
            lines = await here.run(turn)
        slow, loud, wrong = (line["error"] for line in step_ends(lines))
        assert "time limit" in slow
        assert "begun" in slow
        assert "output limit" in loud
        assert wrong == "Exit code 3."
        assert ending(lines)["message"] == "I give up."

    async def test_an_argument_as_long_as_a_file_does_not_break_the_line(self) -> None:
        turn = a_turn([Call("write_file", {"path": "assets/long.txt", "content": "é" * 1_200_000})], ["Long."])
        async with site() as here:
            lines = await here.run(turn)
        assert "[cut: 1,200,000 characters in all]" in steps_of(lines)[0]["args"]["content"]
        assert turn.files == {"long.txt": ("é" * 1_200_000).encode()}


def steps_of(lines: list[Line]) -> list[Line]:
    return [line for line in lines if line["type"] == "step"]


class TestFilesThatCannotBeKept:
    async def test_they_are_shown_as_a_failed_step(self) -> None:
        turn = a_turn(
            [
                Call(
                    "shell", {"command": "cd assets; ln -s /etc/passwd link; head -c 5000 /dev/zero > big; echo x > ok"}
                )
            ],
            ["There."],
            limits={"max_file_bytes": 1_000},
        )
        async with site() as here:
            lines = await here.run(turn)
        assert turn.files == {"ok": b"x\n"}
        failed = step_ends(lines)[-1]
        assert (failed["name"], failed["status"]) == ("save files", "failed")
        assert "big: larger than 1,000 bytes" in failed["error"]
        assert "link: not a regular file" in failed["error"]
        assert ending(lines)["type"] == "result"

    async def test_files_above_the_maximum_number_are_named_in_a_failed_step(self) -> None:
        turn = a_turn([Call("shell", {"command": "touch assets/{a,b,c}"})], ["There."], limits={"max_files": 2})
        async with site() as here:
            lines = await here.run(turn)
        assert sorted(turn.files) == ["a", "b"]
        assert step_ends(lines)[-1]["error"] == "Not kept: c: more than 2 files."

    async def test_files_of_a_failed_turn_are_written_back_too(self) -> None:
        turn = FakeTurn(lambda body: [Call("shell", {"command": "echo x > assets/x"})], limits={"tool_rounds": 1})
        async with site() as here:
            lines = await here.run(turn)
        assert ending(lines)["code"] == "tool_rounds"
        assert turn.files == {"x": b"x\n"}

    async def test_without_an_upload_token_nothing_is_collected(self) -> None:
        turn = a_turn([Call("shell", {"command": "echo x > assets/x"})], ["There."])
        async with site() as here:
            lines = await here.run(turn, otp_upload=None)
        assert ending(lines)["type"] == "result"
        assert turn.uploads == 0


class TestFailedTurns:
    async def test_a_setup_script_that_fails_ends_the_turn(self) -> None:
        turn = a_turn(["Never said."], setup_script="echo broken; exit 4")
        async with site() as here:
            lines = await here.run(turn)
        assert step_ends(lines)[0]["error"] == "Exit code 4.\nbroken"
        assert ending(lines)["code"] == "setup_failed"
        assert turn.asked == []

    async def test_a_hostile_zip_ends_the_turn_before_the_model_is_called(self) -> None:
        turn = a_turn(["Never said."], bag=zip_of({"../../evil": b"x"}))
        async with site() as here:
            lines = await here.run(turn)
        assert ending(lines)["code"] == "bag_refused"
        assert turn.asked == []

    async def test_a_zip_larger_than_the_workspace_is_not_fetched_whole(self) -> None:
        turn = a_turn(["Never said."], bag=b"x" * (SMALL.limits.disk_bytes + 1))
        async with site() as here:
            lines = await here.run(turn)
        assert ending(lines)["code"] == "sandbox_origin"

    async def test_an_error_of_the_model_is_reported_unchanged(self) -> None:
        turn = FakeTurn(lambda body: ["Half an ans", Until(_broken)])
        async with site() as here:
            lines = await here.run(turn)
        assert ending(lines)["code"] == "provider_error"
        assert {"type": "delta", "text": "Half an ans"} in lines

    async def test_an_invalid_configuration_is_refused(self) -> None:
        for wrong in (
            {"agent": {"skills": [{"name": "../x", "files": {}}]}},
            {"agent": {"skills": [{"name": "x", "files": {"../../y": "z"}}]}},
            {"limits": {"tool_rounds": -1}},
            {"conversation": [{"role": "system", "content": "x", "ts": 1}]},
        ):
            async with site() as here:
                lines = await here.run(a_turn(["Never said."], **wrong))
            assert ending(lines)["code"] == "sandbox_origin"
            assert "does not fit the contract" in ending(lines)["message"]

    async def test_invalid_environment_variables_are_refused(self) -> None:
        async with site() as here:
            for variables in ({"A B": "x"}, {"A=B": "x"}, {"NUL": "a\0b"}, {"": "x"}):
                lines = await here.run(a_turn(["Never said."], variables=variables))
                assert ending(lines)["code"] == "sandbox_origin"


async def _broken() -> None:
    raise ConnectionResetError


class TestStolenTokens:
    async def test_a_token_that_was_used_before_is_refused(self) -> None:
        turn = a_turn(["Hello."], ["Hello again."])
        async with site() as here:
            request = here.server.add(turn)
            first = await _posted(here, request)
            second = await _posted(here, request)
        assert ending(first)["type"] == "result"
        assert ending(second)["code"] == "sandbox_token"
        assert len(turn.asked) == 1

    async def test_a_token_of_another_turn_is_refused(self) -> None:
        mine, other = a_turn(["Mine."]), a_turn(["Other."])
        async with site() as here:
            stolen = here.server.add(other)
            lines = await here.run(mine, otp_setup=stolen["otp_setup"])
            assert ending(lines)["code"] == "sandbox_token"
            lines = await here.run(mine, otp_run=stolen["otp_run"])
            assert ending(lines)["code"] == "sandbox_token"
        assert mine.asked == other.asked == []
        assert set(other.tokens) == {"setup", "run", "upload"}, "and it is not spent by that"

    async def test_an_expired_upload_token_fails_the_turn(self) -> None:
        turn = a_turn([Call("shell", {"command": "echo x > assets/x"})], ["There."])
        async with site() as here:
            request = here.server.add(turn)
            del turn.tokens["upload"]
            lines = await _posted(here, request)
        assert ending(lines)["code"] == "sandbox_token"
        assert turn.files == {}

    async def test_no_token_is_visible_in_the_box_or_in_the_lines(self) -> None:
        command = "env; cat /proc/*/environ /proc/*/cmdline; grep -r otp_ / --exclude-dir=proc --exclude-dir=usr -s"
        turn = a_turn([Call("shell", {"command": command})], ["Nothing."])
        secrets = [*turn.tokens.values(), turn.gateway_token, turn.signature]
        async with site() as here:
            lines = await here.run(turn)
        assert not [secret for secret in secrets if secret in str(lines)]


async def _posted(here: Site, request: dict[str, Any]) -> list[Line]:
    async with here.session.post(f"{here.url}/stream", json=request) as response:
        return [json_line for raw in (await response.read()).splitlines() if (json_line := _line(raw))]


def _line(raw: bytes) -> Line:
    found: Line = json.loads(raw)
    return found


class TestTheHttpServer:
    async def test_invalid_bodies_are_refused_before_anything_happens(self) -> None:
        good = {"agent_url": "http://127.0.0.1:1", "otp_setup": "a", "otp_run": "b"}
        async with site() as here:
            for body in (b"", b"{", b"[]", b'{"agent_url": 1}', *map(_encoded, _spoiled(good)), b"x" * 5_000_000):
                headers = {"Content-Type": "application/json"}
                async with here.session.post(f"{here.url}/stream", data=io.BytesIO(body), headers=headers) as response:
                    assert response.status == 422, body[:80]
                    problem = await response.json(content_type="application/problem+json")
                    assert problem["code"] == "invalid_request"

    async def test_other_paths_and_methods_are_refused_with_a_hint(self) -> None:
        async with site() as here:
            for method, path, status in (("GET", "/stream", 405), ("POST", "/healthz", 405), ("GET", "/", 404)):
                async with here.session.request(method, here.url + path) as response:
                    assert response.status == status

    async def test_a_server_that_does_not_respond_ends_the_turn_with_an_error(self) -> None:
        async with site() as here:
            lines = await here.run(a_turn(["x"]), agent_url="http://127.0.0.1:1/v1/sandbox/turn_x")
        assert ending(lines)["code"] == "sandbox_origin"

    async def test_a_runner_may_be_bound_to_one_server(self) -> None:
        settings = structs.replace(SMALL, server="https://chat.example.com")
        async with site(settings) as here:
            for url in (here.server.url, "https://chat.example.com.evil.org/v1", "https://chat.example.community"):
                body = here.server.add(a_turn(["x"])) | {"agent_url": url}
                async with here.session.post(f"{here.url}/stream", json=body) as response:
                    assert response.status == 422
                    assert "serves only" in await response.text()

    async def test_a_page_in_a_browser_cannot_drive_it(self) -> None:
        """It can send forms and plain text without being asked, and make its own name point here."""
        async with site() as here:
            body = _encoded(here.server.add(a_turn(["x"])))
            for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
                headers = {"Content-Type": kind}
                async with here.session.post(f"{here.url}/stream", data=body, headers=headers) as response:
                    assert response.status == 415, kind
            headers = {"Content-Type": "application/json", "Host": "evil.example"}
            async with here.session.post(f"{here.url}/stream", data=body, headers=headers) as response:
                assert response.status == 403
            async with here.session.get(f"{here.url}/healthz", headers={"Host": "evil.example"}) as response:
                assert response.status == 403
            async with here.session.get(f"{here.url}/healthz", headers={"Host": "127.0.0.9:1"}) as response:
                assert response.status == 200
            async with here.session.options(
                f"{here.url}/stream", headers={"Origin": "https://evil.example"}
            ) as response:
                assert response.status == 405
                assert "Access-Control-Allow-Origin" not in response.headers

    async def test_a_client_without_the_secret_is_refused(self) -> None:
        secret = "s" * 40
        async with site(structs.replace(SMALL, secret=secret)) as here:
            body = here.server.add(a_turn(["Hello."]))
            for given in ("", f"Bearer {secret}x", "Bearer ", "Bearer \xe9"):
                headers = {"Authorization": given}
                async with here.session.post(f"{here.url}/stream", json=body, headers=headers) as response:
                    assert response.status == 401, given
            headers = {"Authorization": f"Bearer {secret}"}
            async with here.session.post(f"{here.url}/stream", json=body, headers=headers) as response:
                assert response.status == 200
                assert b"Hello." in await response.read()

    async def test_a_redirect_does_not_send_a_token_to_another_server(self) -> None:
        from aiohttp import web

        async def elsewhere(request: web.Request) -> web.Response:
            raise web.HTTPFound(location="http://127.0.0.1:1/stolen")

        app = web.Application()
        app.router.add_get("/{tail:.*}", elsewhere)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            async with site() as here:
                lines = await here.run(a_turn(["x"]), agent_url=f"http://127.0.0.1:{runner.addresses[0][1]}/a")
            assert "status 302" in ending(lines)["message"]
        finally:
            await runner.cleanup()


def _encoded(value: object) -> bytes:
    return json.dumps(value).encode()


def _spoiled(good: dict[str, str]) -> list[dict[str, object]]:
    missing = [{name: value for name, value in good.items() if name != left_out} for left_out in good]
    empty = [good | {name: ""} for name in good]
    return [*missing, *empty, good | {"agent_url": "file:///etc/passwd"}, good | {"otp_run": 5}]  # type: ignore[list-item]


class TestConcurrency:
    async def test_twenty_turns_run_side_by_side(self) -> None:
        turns = [
            a_turn(
                [Call("shell", {"command": f"echo {number} > assets/n; sleep 0.2; cat assets/n"})],
                [f"Number {number}."],
            )
            for number in range(20)
        ]
        async with site() as here:
            all_lines = await asyncio.gather(*(here.run(turn) for turn in turns))
            assert (await here.health())["turns"] == 0
        for number, (turn, lines) in enumerate(zip(turns, all_lines, strict=True)):
            assert ending(lines)["message"] == f"Number {number}."
            assert step_ends(lines)[0]["result"] == str(number)
            assert turn.files == {"n": f"{number}\n".encode()}

    async def test_further_turns_wait_in_order_and_say_so_in_their_log(self) -> None:
        gate = asyncio.Event()
        first = a_turn([Until(gate.wait), "First."])
        second, third = a_turn(["Second."]), a_turn(["Third."])
        async with site(structs.replace(SMALL, turns=1, queue=2)) as here:
            running = [asyncio.create_task(here.run(first))]
            await eventually(lambda: bool(first.asked))
            for turn in (second, third):
                running.append(asyncio.create_task(here.run(turn)))
                await here.until_waiting(len(running) - 1)
            refused = here.server.add(a_turn(["Never."]))
            async with here.session.post(f"{here.url}/stream", json=refused) as response:
                assert response.status == 503
                assert (await response.json(content_type=None))["code"] == "sandbox_unavailable"
                assert response.headers["Retry-After"] == "5"
            gate.set()
            lines = await asyncio.gather(*running)
        assert [ending(each)["message"] for each in lines] == ["First.", "Second.", "Third."]
        assert "Waiting for a place, 1 ahead" in logs(lines[2])

    async def test_one_user_cannot_hold_all_places(self) -> None:
        gate = asyncio.Event()
        greedy = [a_turn([Until(gate.wait), "Mine."]) for _ in range(4)]
        async with site(structs.replace(SMALL, turns=4)) as here:

            async def run(turn: FakeTurn, user: str) -> str:
                headers = {"Turnkeep-Org": "acme", "Turnkeep-User": user}
                body = here.server.add(turn)
                async with here.session.post(f"{here.url}/stream", json=body, headers=headers) as response:
                    return await response.text()

            running = [asyncio.create_task(run(turn, "ann")) for turn in greedy]
            await here.until_waiting(2)
            assert "Other." in await run(a_turn(["Other."]), "ben")
            gate.set()
            assert all("Mine." in said for said in await asyncio.gather(*running))

    async def test_a_turn_does_not_wait_for_ever(self) -> None:
        gate = asyncio.Event()
        first, second = a_turn([Until(gate.wait), "First."]), a_turn(["Second."])
        async with site(structs.replace(SMALL, turns=1, queue_seconds=0.2)) as here:
            running = asyncio.create_task(here.run(first))
            await eventually(lambda: bool(first.asked))
            assert ending(await here.run(second))["code"] == "sandbox_unavailable"
            gate.set()
            assert ending(await running)["message"] == "First."
        assert set(second.tokens) == {"setup", "run", "upload"}, "its tokens are unspent"
