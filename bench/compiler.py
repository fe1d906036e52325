"""The compiler: what it costs to turn 20 stored turns into a request, and whether a long past makes it dearer.

`json.dumps` of the same output is the yardstick: a request must be written out anyway, so compiling should not be
what one waits for. Three histories: the usual one; parallel calls whose results are rows of their own, with
reasoning; and one in which every turn crashed before its results. Runs are interleaved, and medians reported.

    python -m bench.compiler
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from bench.harness import quiet, target
from turnkeep.compiler import Budget, Compiled, Target, compile
from turnkeep.ids import CallId, ConversationId, MessageId, TurnId
from turnkeep.model.messages import Message
from turnkeep_client.wire.blocks import Block, Reasoning, Role, Text, ToolResult, ToolUse

Row = dict[str, Any]
Turn = Callable[[int], list[Message]]

TARGETS: tuple[Target, ...] = ("anthropic", "openai_chat", "openai_responses", "sandbox")
TURNS = 20
LENGTHS = (20, 200, 2_000)

QUESTION = "Could you look up what the warehouse says about these orders? " * 9
NARRATION = "Let me look that up in the warehouse first. " * 3
RESULT = json.dumps([{"order": n, "status": "shipped", "note": "left the depot on time"} for n in range(24)])
ANSWER = "All of these orders have left the depot, and none of them is late. " * 14


def run(*, quick: bool = False) -> list[Row]:
    """Figures for each target, each kind of history and each length of the past; and the targets."""
    repeats = 51 if quick else 501
    usual = [_figures("20 usual turns", one, _usual, repeats) for one in TARGETS]
    hard = [_figures("20 turns of parallel calls", "anthropic", _parallel, repeats)]
    broken = [_figures("20 crashed turns", "anthropic", _crashed, repeats)]
    lengths = _by_length(repeats)
    slowest = max(row["median_us"] for rows in usual for row in rows if row["role"] == "ours")
    return [
        *(row for rows in (*usual, *hard, *broken) for row in rows),
        *lengths,
        target("compile 20 turns (80 rows, 70 kB), slowest target", slowest / 1000, 1.0, unit="ms"),
        target(f"the same out of {LENGTHS[-1]:,} turns", lengths[-1]["median_us"] / lengths[0]["median_us"], 1.33),
    ]


def main() -> int:
    for row in run():
        print("  ".join(f"{key}={value}" for key, value in row.items()))
    return 0


def _figures(figure: str, to: Target, turn: Turn, repeats: int) -> list[Row]:
    rows = [row for number in range(TURNS) for row in turn(number)]
    compiled = _compile(rows, to)
    kilobytes = round(len(json.dumps(compiled.messages)) / 1000, 1)
    ours, limit = _medians(lambda: _compile(rows, to), lambda: json.dumps(compiled.messages), repeats=repeats)
    common = {"figure": f"{figure} → {to}", "turns": TURNS}
    return [
        {**common, "contender": "json.dumps of it", "role": "limit", "median_us": limit},
        {
            **common,
            "contender": "Turnkeep",
            "role": "ours",
            "median_us": ours,
            "ratio_to_limit": ours / limit,
            "rows": len(rows),
            "kB": kilobytes,
        },
    ]


def _by_length(repeats: int) -> list[Row]:
    histories = [[row for number in range(length) for row in _usual(number)] for length in LENGTHS]
    jobs = [_compiling(rows, length) for rows, length in zip(histories, LENGTHS, strict=True)]
    medians = _medians(*jobs, repeats=repeats)
    figure = "the last 20 turns → anthropic"
    return [
        {"figure": figure, "turns": length, "contender": "Turnkeep", "role": "ours", "median_us": median}
        for length, median in zip(LENGTHS, medians, strict=True)
    ]


def _compiling(rows: list[Message], turns: int) -> Callable[[], Compiled]:
    return lambda: compile(rows, target="anthropic", turn_count=turns, budget=Budget(turns=TURNS))


def _compile(rows: list[Message], to: Target) -> Compiled:
    system = "You are a helpful assistant."
    return compile(rows, target=to, turn_count=TURNS, system=system, thinking="adaptive")


def _medians(*jobs: Callable[[], object], repeats: int) -> list[float]:
    """Microseconds, of runs in turn so that a slow moment of the machine meets all of them."""
    times: list[list[float]] = [[] for _ in jobs]
    with quiet():
        for _ in range(repeats):
            for job, found in zip(jobs, times, strict=True):
                began = time.perf_counter_ns()
                job()
                found.append((time.perf_counter_ns() - began) / 1000)
    return [round(statistics.median(found), 1) for found in times]


def _usual(number: int) -> list[Message]:
    """Four rows, about 3.5 kB: a question, a call, its result, an answer."""
    call = CallId(f"call_{number:032x}")
    return [
        _row(number, 0, "user", Text(text=QUESTION)),
        _row(number, 1, "assistant", Text(text=NARRATION), ToolUse(id=call, name="search", input={"q": str(number)})),
        _row(number, 2, "user", ToolResult(call_id=call, content=RESULT)),
        _row(number, 3, "assistant", Text(text=ANSWER)),
    ]


def _parallel(number: int) -> list[Message]:
    """Six rows: three calls at once, each result recorded when it came, the last call's first."""
    calls = [CallId(f"call_{number:016x}{n:016x}") for n in range(3)]
    thought = Reasoning(text=NARRATION, provider="anthropic", signature="s" * 300)
    return [
        _row(number, 0, "user", Text(text=QUESTION)),
        _row(number, 1, "assistant", thought, *(ToolUse(id=call, name="search", input={"q": call}) for call in calls)),
        *(
            _row(number, 2 + n, "user", ToolResult(call_id=call, content=RESULT[:600]))
            for n, call in enumerate(reversed(calls))
        ),
        _row(number, 5, "assistant", Text(text=ANSWER)),
    ]


def _crashed(number: int) -> list[Message]:
    return _usual(number)[:2]


def _row(number: int, sequence: int, role: Role, *blocks: Block) -> Message:
    return Message(
        id=MessageId(f"msg_{number:016x}{sequence:016x}"),
        turn_id=TurnId(f"turn_{number:032x}"),
        conversation_id=ConversationId("conv_bench"),
        turn_sequence=sequence,
        role=role,
        blocks=blocks,
        created_at=1_700_000_000_000 + number,
        provider="anthropic/claude",
    )


if __name__ == "__main__":
    sys.exit(main())
