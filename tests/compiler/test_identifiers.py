"""Ids and names as providers accept them: unchanged where they fit, stable and distinct where they do not."""

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compiler.histories import answered, asked, called
from turnkeep.compiler import compile, safe_name
from turnkeep.compiler.provider_formats import CallNames
from turnkeep.ids import TurnId, new_call_id

odd_ids = st.lists(st.text(min_size=0, max_size=200), max_size=12)


class TestCallIds:
    def test_ours_fit_everywhere(self) -> None:
        own = new_call_id()
        assert CallNames(40).take(own) == own

    def test_a_long_one_is_cut_and_keeps_its_beginning(self) -> None:
        name = CallNames(40).take("toolu_" + "x" * 100)
        assert name.startswith("toolu_xxx")
        assert len(name) == 40

    def test_two_that_differ_only_at_the_end_stay_apart(self) -> None:
        names = CallNames(40)
        assert names.take("x" * 80 + "1") != names.take("x" * 80 + "2")

    def test_the_same_id_gets_the_same_name_in_every_request(self) -> None:
        assert CallNames(64).take("functions.Bash:0") == CallNames(64).take("functions.Bash:0")

    def test_a_second_call_of_one_id_gets_another_name(self) -> None:
        names = CallNames(64)
        assert len({names.take("call_0") for _ in range(3)}) == 3
        assert names.renamed == ["call_0", "call_0"]

    def test_a_stand_in_that_somebody_already_uses_is_passed_over(self) -> None:
        taken = CallNames(64).take("a.b")
        names = CallNames(64)
        assert names.take(taken) == taken
        assert names.take("a.b") != taken

    @settings(deadline=None, database=None)
    @given(odd_ids, st.sampled_from([40, 64]))
    def test_any_ids_get_names_that_are_legal_and_distinct(self, ids: list[str], limit: int) -> None:
        names = CallNames(limit)
        given_names = [names.take(call_id) for call_id in ids]
        assert len(set(given_names)) == len(ids)
        assert all(re.fullmatch(r"[A-Za-z0-9_-]+", name) and len(name) <= limit for name in given_names)


class TestToolNames:
    def test_a_plain_name_stays(self) -> None:
        assert safe_name("search_pages") == "search_pages"

    def test_another_gets_a_stand_in_under_which_it_can_be_declared(self) -> None:
        assert safe_name("mcp.files/read") == safe_name("mcp.files/read")
        assert safe_name("mcp.files/read") != safe_name("mcp_files_read")
        assert safe_name("mcp.files/read").startswith("mcp_files_read_")


class TestInARequest:
    def test_call_and_result_carry_the_same_name(self) -> None:
        long = "x" * 200
        rows = [asked("turn_a"), called("turn_a", 1, long, "b.c"), answered("turn_a", 2, "b.c", long)]
        _, calling, results = compile(rows, target="anthropic", open_turn=TurnId("turn_a")).messages
        assert [block["id"] for block in calling["content"]] == [b["tool_use_id"] for b in results["content"]]

    def test_an_id_used_again_in_a_later_turn_is_renamed_and_reported(self) -> None:
        rows = [
            *(asked("turn_a"), called("turn_a", 1, "call_0"), answered("turn_a", 2, "call_0")),
            *(asked("turn_b"), called("turn_b", 1, "call_0"), answered("turn_b", 2, "call_0")),
        ]
        compiled = compile(rows, target="openai_responses", open_turn=TurnId("turn_b"))
        ids = [item["call_id"] for item in compiled.messages if "call_id" in item]
        assert ids[0] == ids[1] == "call_0"
        assert ids[2] == ids[3] != "call_0"
        assert "call_renamed" in [repair.kind for repair in compiled.repairs]
