"""What is true of a store's tables at every moment, on every database: no half turns, no wrong counts.

Pure: it looks at rows that somebody has read, as dictionaries by column. `sqlite_tables` reads those of a SQLite file.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import apsw

Rows = Sequence[Mapping[str, Any]]
Tables = Mapping[str, Rows]

TABLES = ("conversations", "turns", "messages", "turn_events", "turn_logs", "usage")
TERMINAL = {"result", "error"}


def broken(tables: Tables) -> list[str]:
    """Sentences about what should not be; empty when all is well."""
    conversations = {row["id"]: row for row in tables["conversations"]}
    turns = {row["id"]: row for row in tables["turns"]}
    messages, events = _by_turn(tables["messages"]), _by_turn(tables["turn_events"])
    found: list[str] = []
    for kind, rows in (("message", messages), ("event", events), ("log", _by_turn(tables["turn_logs"]))):
        found.extend(f"a {kind} of no turn {turn_id}" for turn_id in rows if turn_id not in turns)
    for turn in turns.values():
        if turn["conversation_id"] not in conversations:
            found.append(f"turn {turn['id']} of no conversation")
        found.extend(f"turn {turn['id']}: {what}" for what in _of_turn(turn, messages, events))
    for conversation in conversations.values():
        own = [turn for turn in turns.values() if turn["conversation_id"] == conversation["id"]]
        found.extend(
            f"conversation {conversation['id']}: {what}" for what in _of_conversation(conversation, own, messages)
        )
    return found


def sqlite_tables(path: Path) -> Tables:
    """The tables of a SQLite file that no store has open."""
    connection = apsw.Connection(str(path))
    try:
        return {table: _rows(connection, table) for table in TABLES}
    finally:
        connection.close()


def _rows(connection: apsw.Connection, table: str) -> Rows:
    columns = [name for (name,) in connection.execute("SELECT name FROM pragma_table_info(?)", (table,))]
    return [dict(zip(columns, row, strict=True)) for row in connection.execute(f"SELECT * FROM {table}")]


def _by_turn(rows: Rows) -> dict[str, list[Mapping[str, Any]]]:
    grouped: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        grouped[row["turn_id"]].append(row)
    return grouped


def _of_turn(
    turn: Mapping[str, Any],
    messages: Mapping[str, list[Mapping[str, Any]]],
    events: Mapping[str, list[Mapping[str, Any]]],
) -> Iterator[str]:
    rows = sorted(messages.get(turn["id"], []), key=lambda row: row["turn_sequence"])
    told = sorted(events.get(turn["id"], []), key=lambda event: event["seq"])
    is_settled = turn["status"] not in {"queued", "running"}
    if [row["turn_sequence"] for row in rows] != list(range(len(rows))):
        yield "its rows are not numbered 0, 1, 2 …"
    if not rows:
        yield "it has no rows"
    if [event["seq"] for event in told] != list(range(1, turn["last_seq"] + 1)):
        yield f"its events are not numbered 1 … {turn['last_seq']}"
    terminal = [event["seq"] for event in told if event["type"] in TERMINAL]
    if told and terminal != ([turn["last_seq"]] if is_settled else []):
        yield f"it is {turn['status']}, with terminal events at {terminal}"
    if is_settled != (turn["settled_at"] is not None):
        yield "its status and settled_at disagree"
    if turn["status"] == "succeeded" and (not rows or rows[-1]["internal"]):
        yield "it succeeded without a visible answer"
    if turn["active"] and turn["started_at"] is None:
        yield "it is visible but never started"


def _of_conversation(
    conversation: Mapping[str, Any], turns: Rows, messages: Mapping[str, list[Mapping[str, Any]]]
) -> Iterator[str]:
    chain = sorted((turn for turn in turns if turn["active"]), key=lambda turn: turn["ordinal"])
    visible = sum(not row["internal"] for turn in chain for row in messages.get(turn["id"], []))
    if conversation["turn_count"] != len(chain):
        yield f"turn_count is {conversation['turn_count']}, but {len(chain)} turns are visible"
    if conversation["message_count"] != visible:
        yield f"message_count is {conversation['message_count']}, but {visible} messages are visible"
    parents = [None, *(turn["id"] for turn in chain[:-1])]
    if [turn["parent_turn_id"] for turn in chain] != parents[: len(chain)]:
        yield "the visible turns are no chain"
    ordinals = sorted(turn["ordinal"] for turn in turns)
    if ordinals != list(range(1, conversation["next_ordinal"])):
        yield f"its turns are numbered {ordinals}, and the next is {conversation['next_ordinal']}"
    if sum(turn["status"] == "running" for turn in turns) > 1:
        yield "two turns run"
    settled = {turn["id"] for turn in turns if turn["settled_at"] is not None and turn["started_at"] is not None}
    if conversation["head_turn_id"] is not None and conversation["head_turn_id"] not in settled:
        yield "its head is no settled turn"
