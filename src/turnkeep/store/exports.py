"""Exports of whole conversations: their file format, their making from foreign rows, and new ids for an import.

An id of an export may exist in this database already, in another tenant. So an import never keeps ids: the
conversation, its turns, messages and files get new ones, and every reference inside follows.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import TypeVar, assert_never

import msgspec
from msgspec import Struct, structs

from turnkeep.clock import month_of
from turnkeep.errors import InvalidRequest
from turnkeep.ids import (
    ConversationId,
    FileId,
    MessageId,
    TurnId,
    UserId,
    WorkspaceId,
    new_conversation_id,
    new_file_id,
    new_message_id,
    new_turn_id,
)
from turnkeep.model.agents import Snapshot
from turnkeep.model.conversations import Conversation, events_from_rows, title_and_preview
from turnkeep.model.files import File
from turnkeep.model.legacy import legacy_blocks
from turnkeep.model.messages import PROVIDERS, Message
from turnkeep.model.principals import Principal
from turnkeep.model.turns import Turn, TurnReport
from turnkeep.store.checks import check_exported
from turnkeep.store.commands import Exported, TurnTrace
from turnkeep_client import wire
from turnkeep_client.wire.blocks import Block, FilePart, FileRef, Part, Usage
from turnkeep_client.wire.events import (
    Approval,
    ClientCalls,
    Decided,
    Failure,
    Files,
    Recorded,
    Reset,
    Result,
    Source,
    Sources,
    Steered,
    Step,
    ToolCalls,
    TurnBegan,
    TurnEvent,
)

Id = TypeVar("Id", bound=str)
FORMAT = 1


class _File(Struct, frozen=True, kw_only=True):
    turnkeep_export: int
    exported: Exported


def write_export(exported: Exported) -> bytes:
    """The whole of it as JSON, with the number of the format in front."""
    return msgspec.json.encode(_File(turnkeep_export=FORMAT, exported=exported))


def read_export(data: bytes) -> Exported:
    """What `write_export` wrote. Raises InvalidRequest for anything else, and for a format of a later release."""
    try:
        number = msgspec.json.decode(data, type=_Header).turnkeep_export
        if number != FORMAT:
            raise InvalidRequest(f"This export has format {number}; this release reads {FORMAT}. Upgrade Turnkeep.")
        return msgspec.json.decode(data, type=_File).exported
    except msgspec.DecodeError as exc:
        raise InvalidRequest(f"This is not an export of a Turnkeep conversation: {exc}.") from exc


class _Header(Struct, frozen=True, kw_only=True):
    turnkeep_export: int


def exported_from_rows(
    rows: Sequence[Message],
    *,
    title: str | None = None,
    parents: Mapping[TurnId, TurnId | None] | None = None,
    head: TurnId | None = None,
) -> Exported:
    """A conversation made of rows from elsewhere, in which every turn has succeeded.

    Rows of one turn stand side by side. The final row of a turn gets the display that a live turn would have left. Each
    turn follows the one before it, unless `parents` says which one it follows. `head` is the last turn in view.
    """
    if not rows:
        raise InvalidRequest("There is nothing to import: the history is empty.")
    conversation_id = new_conversation_id()
    groups = [(turn_id, list(group)) for turn_id, group in groupby(rows, key=lambda row: row.turn_id)]
    before = [None, *(turn_id for turn_id, _ in groups)]
    parents = parents or dict(zip((turn_id for turn_id, _ in groups), before, strict=False))
    head = head or groups[-1][0]
    in_view = _chain(head, parents)
    traces: list[TurnTrace] = []
    for ordinal, (turn_id, group) in enumerate(groups, start=1):
        own = [structs.replace(row, conversation_id=conversation_id) for row in group]
        turn = _ended_turn(own, turn_id, ordinal=ordinal, parent=parents[turn_id])
        turn = structs.replace(turn, active=turn_id in in_view)
        traces.append(TurnTrace(turn=turn, rows=tuple(_with_display(turn, own)), events=(), logs=()))
    asked = next((row.blocks for row in rows if row.role == "user" and not row.internal), ())
    first_words, preview = title_and_preview(asked)
    return Exported(
        conversation=Conversation(
            id=conversation_id,
            workspace_id=_NOWHERE,
            user_id=None,
            title=title or first_words,
            preview=preview,
            message_count=sum(not row.internal for row in rows if row.turn_id in in_view),
            turn_count=len(in_view),
            head_turn_id=head,
            running_turn_id=None,
            created_at=min(row.created_at for row in rows),
            updated_at=max(row.created_at for row in rows),
        ),
        turns=tuple(traces),
    )


def _chain(head: TurnId, parents: Mapping[TurnId, TurnId | None]) -> set[TurnId]:
    """The turns from the first one to the head."""
    chain: set[TurnId] = set()
    turn_id: TurnId | None = head
    while turn_id is not None and turn_id not in chain:
        chain.add(turn_id)
        turn_id = parents[turn_id]
    return chain


_NOWHERE = WorkspaceId("")
"""An import belongs to the importer. Until then it has no workspace."""


def _ended_turn(rows: Sequence[Message], turn_id: TurnId, *, ordinal: int, parent: TurnId | None) -> Turn:
    said = [row.provider for row in rows if row.provider and row.provider not in PROVIDERS]
    return Turn(
        id=turn_id,
        conversation_id=rows[0].conversation_id,
        workspace_id=_NOWHERE,
        user_id=None,
        parent_turn_id=parent,
        ordinal=ordinal,
        active=True,
        status="succeeded",
        attempt=1,
        failures=0,
        last_seq=0,
        cancel_requested_at=None,
        background=False,
        source="api",
        model=said[-1] if said else None,
        snapshot=Snapshot(),
        usage=Usage(),
        month=month_of(rows[0].created_at),
        error=None,
        metadata={},
        created_at=rows[0].created_at,
        started_at=rows[0].created_at,
        settled_at=rows[-1].created_at,
    )


def _with_display(turn: Turn, rows: Sequence[Message]) -> list[Message]:
    """Steps of an imported turn are shown as those of a live one: on its final row."""
    result = events_from_rows(turn, rows)[-1]
    assert isinstance(result, Result)
    return [structs.replace(row, display=result.content) if row.id == result.message_id else row for row in rows]


def checked_and_renamed(exported: Exported, principal: Principal, attached: Sequence[FileId] = ()) -> Exported:
    """The same conversation with new ids, in the workspace of the principal and owned by them. Its turns are numbered
    1, 2, 3 … in their order, whatever gaps their ordinals had. Nothing else changes.

    Raises InvalidRequest for an export that could not have been exported. A long conversation takes seconds, so this is
    called in a thread.

    Files become `pending` under a new storage key: their bytes must follow. What the export only refers to gets a new
    id too, which names nothing here. Its own id might name something of another tenant. Files in `attached` are here,
    and keep their ids.
    """
    check_exported(exported)
    return _Renaming(exported, principal.workspace_id, principal.user_id, attached).exported()


class _NewIds(dict[Id, Id]):
    """The new id of each old one. An id that the export does not hold gets its new id when it is met."""

    def __init__(self, new_id: Callable[[], Id], held: Iterable[Id]) -> None:
        super().__init__({old: new_id() for old in held})  # ids sort by age, so the new ones are in the same order
        self._new_id = new_id

    def __missing__(self, old: Id) -> Id:
        self[old] = new = self._new_id()
        return new

    def of(self, old: Id | None) -> Id | None:
        return None if old is None else self[old]


class _Renaming:
    def __init__(
        self, exported: Exported, workspace_id: WorkspaceId, user_id: UserId | None, attached: Sequence[FileId]
    ) -> None:
        self._exported = exported
        self._workspace_id = workspace_id
        self._user_id = user_id
        self._conversation_id: ConversationId = new_conversation_id()
        self._turns: _NewIds[TurnId] = _NewIds(new_turn_id, (trace.turn.id for trace in exported.turns))
        self._messages: _NewIds[MessageId] = _NewIds(
            new_message_id, (row.id for trace in exported.turns for row in trace.rows)
        )
        self._files: _NewIds[FileId] = _NewIds(new_file_id, (file.id for file in exported.files))
        self._files |= dict(zip(attached, attached, strict=True))
        self._ordinals = {old: new for new, old in enumerate(sorted(trace.turn.ordinal for trace in exported.turns), 1)}

    def exported(self) -> Exported:
        conversation = self._exported.conversation
        return Exported(
            conversation=structs.replace(
                conversation,
                id=self._conversation_id,
                workspace_id=self._workspace_id,
                user_id=self._user_id,
                head_turn_id=self._turns.of(conversation.head_turn_id),
                agent_id=None if conversation.workspace_id != self._workspace_id else conversation.agent_id,
                read_at=None,
            ),
            turns=tuple(self._trace(trace) for trace in self._exported.turns),
            files=tuple(self._file(file) for file in self._exported.files),
        )

    def _trace(self, trace: TurnTrace) -> TurnTrace:
        return TurnTrace(
            turn=self._turn(trace.turn),
            rows=tuple(self._row(row) for row in trace.rows),
            events=tuple(Recorded(seq=each.seq, event=self._event(each.event)) for each in trace.events),
            logs=trace.logs,
        )

    def _turn(self, turn: Turn) -> Turn:
        return structs.replace(
            turn,
            id=self._turns[turn.id],
            conversation_id=self._conversation_id,
            workspace_id=self._workspace_id,
            user_id=self._user_id,
            parent_turn_id=self._turns.of(turn.parent_turn_id),
            ordinal=self._ordinals[turn.ordinal],
            report=self._report(turn.report),
        )

    def _report(self, report: TurnReport) -> TurnReport:
        cut = report.cut
        return structs.replace(
            report,
            readings={self._files[file_id]: each for file_id, each in report.readings.items()},
            cut=None if cut is None else structs.replace(cut, first=self._turns[cut.first]),
        )

    def _row(self, row: Message) -> Message:
        return structs.replace(
            row,
            id=self._messages[row.id],
            turn_id=self._turns[row.turn_id],
            conversation_id=self._conversation_id,
            blocks=tuple(self._block(block) for block in blocks_of(row)),
            display=None if row.display is None else self._parts(row.display),
            attachments=tuple(self._ref(ref) for ref in row.attachments),
            sources=tuple(self._source(source) for source in row.sources),
        )

    def _event(self, event: TurnEvent) -> TurnEvent:
        match event:
            case TurnBegan():
                return structs.replace(
                    event,
                    turn_id=self._turns[event.turn_id],
                    conversation_id=self._conversation_id,
                    user_message_id=self._messages[event.user_message_id],
                )
            case Files():
                return Files(files=tuple(self._written(file) for file in event.files))
            case Sources():
                return Sources(sources=tuple(self._source(source) for source in event.sources))
            case Result():
                message_id = self._messages[event.message_id]
                return structs.replace(event, message_id=message_id, content=self._parts(event.content))
            case Failure():
                content = None if event.content is None else self._parts(event.content)
                return structs.replace(event, message_id=self._messages.of(event.message_id), content=content)
            case Steered():
                return structs.replace(event, message_id=self._messages[event.message_id])
            case ToolCalls() | Step() | Reset() | Approval() | ClientCalls() | Decided():
                return event
            case _:
                assert_never(event)

    def _block(self, block: Block) -> Block:
        return self._ref(block) if isinstance(block, FileRef) else block

    def _ref(self, ref: FileRef) -> FileRef:
        return structs.replace(ref, file_id=self._files[ref.file_id])

    def _parts(self, parts: Iterable[Part]) -> tuple[Part, ...]:
        return tuple(
            structs.replace(part, file_id=self._files[part.file_id]) if isinstance(part, FilePart) else part
            for part in parts
        )

    def _source(self, source: Source) -> Source:
        if source.file_id is None:
            return source
        return structs.replace(source, file_id=self._files[FileId(source.file_id)])

    def _written(self, file: wire.File) -> wire.File:
        return structs.replace(
            file,
            id=self._files[file.id],
            conversation_id=None if file.conversation_id is None else self._conversation_id,
            message_id=self._messages.of(file.message_id),
        )

    def _file(self, file: File) -> File:
        file_id = self._files[file.id]
        return structs.replace(
            file,
            id=file_id,
            workspace_id=self._workspace_id,
            conversation_id=None if file.conversation_id is None else self._conversation_id,
            message_id=self._messages.of(file.message_id),
            storage_key=f"imported/{file_id}",
            status="pending",
            turn_id=None,
            saved_at=None,
        )


def blocks_of(row: Message) -> tuple[Block, ...]:
    """The blocks that a row of an export will have. A legacy row gets some: readers and the search know no others."""
    return row.blocks if row.blocks or row.legacy is None else legacy_blocks(row.legacy)
