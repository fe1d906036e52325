"""Ids: sortable, hard to guess, with a prefix that says their kind."""

import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

from turnkeep import ids
from turnkeep.errors import InvalidRequest

MAKERS: dict[str, Callable[[], str]] = {
    "org": ids.new_org_id,
    "ws": ids.new_workspace_id,
    "user": ids.new_user_id,
    "key": ids.new_key_id,
    "agent": ids.new_agent_id,
    "conv": ids.new_conversation_id,
    "turn": ids.new_turn_id,
    "msg": ids.new_message_id,
    "file": ids.new_file_id,
    "call": ids.new_call_id,
}


class TestMaking:
    @pytest.mark.parametrize("prefix", MAKERS)
    def test_a_prefix_and_a_uuid_of_version_7(self, prefix: str) -> None:
        assert re.fullmatch(rf"{prefix}_[0-9a-f]{{12}}7[0-9a-f]{{3}}[89ab][0-9a-f]{{15}}", MAKERS[prefix]())

    def test_they_carry_the_time(self) -> None:
        before = time.time_ns() // 1_000_000
        made = int(ids.new_turn_id().removeprefix("turn_")[:12], 16)
        assert before <= made <= time.time_ns() // 1_000_000 + 1

    def test_those_of_one_process_rise_strictly(self) -> None:
        made = [ids.new_turn_id() for _ in range(20_000)]
        assert made == sorted(set(made))

    def test_in_several_threads_too(self) -> None:
        made: list[list[str]] = [[] for _ in range(4)]

        def make(some: list[str]) -> None:
            some.extend(ids.new_turn_id() for _ in range(5_000))

        threads = [threading.Thread(target=make, args=(some,)) for some in made]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(some == sorted(some) for some in made)
        assert len({id_ for some in made for id_ in some}) == 20_000

    def test_their_ends_cannot_be_guessed(self) -> None:
        ends = {ids.new_turn_id()[-15:] for _ in range(1_000)}
        assert len(ends) == 1_000


class TestRandomBytes:
    def test_each_is_used_once(self) -> None:
        taken = [ids.random_bytes(8) for _ in range(1_000)]
        assert len(set(taken)) == 1_000
        assert {len(each) for each in taken} == {8}
        assert len(ids.random_bytes(5_000)) == 5_000

    def test_a_forked_process_has_its_own(self) -> None:
        program = (
            "import os; from turnkeep import ids; ids.random_bytes(8); child = os.fork(); "
            "os.write(1, ids.random_bytes(8).hex().encode() + b' '); child and os.waitpid(child, 0)"
        )
        printed = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, timeout=60)
        assert len(set(printed.stdout.split())) == 2


class TestChecking:
    @pytest.mark.parametrize("prefix", MAKERS)
    def test_one_of_the_right_kind_is_returned(self, prefix: str) -> None:
        made = MAKERS[prefix]()
        assert ids.check_id(made, prefix) == made

    @pytest.mark.parametrize(
        "value",
        [
            "conv_" + "0" * 32,
            "turn_" + "0" * 31,
            "turn_" + "0" * 33,
            "turn_" + "A" * 32,
            "turn_" + "0" * 32 + "\n",
            " turn_" + "0" * 32,
            "turn-" + "0" * 32,
            "turn_" + "\uff10" * 32,
            "0" * 32,
            "",
            None,
            5,
            b"turn_" + b"0" * 32,
            "x" * 100_000,
        ],
        ids=lambda value: ascii(value)[:20],
    )
    def test_anything_else_is_refused_with_the_kind_that_was_expected(self, value: object) -> None:
        with pytest.raises(InvalidRequest, match="expected turn_") as refused:
            ids.check_id(value, "turn")
        assert len(refused.value.detail) < 200
