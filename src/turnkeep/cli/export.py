"""`turnkeep export`: conversations as files, without loss (JSON) or for reading (Markdown)."""

import codecs
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal, Protocol

import typer

from turnkeep.cli.connecting import Server, asks_a_server
from turnkeep.cli.markdown import conversation_as_markdown
from turnkeep.cli.printing import print_text, remark
from turnkeep.cli.terminal_text import clean_json, clean_text
from turnkeep.errors import InvalidRequest, StorageFull
from turnkeep_client.sync import Turnkeep

Format = Literal["json", "markdown"]


@asks_a_server
def export(
    server: Server,
    conversation: Annotated[
        list[str] | None, typer.Argument(metavar="[CONVERSATION]...", help="conv_…; several may be named.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every conversation that the key can see.")] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A file; by default standard output.", dir_okay=False)
    ] = None,
    form: Annotated[
        Format | None,
        typer.Option(
            "--format", "-f", help="json is lossless, markdown is for reading; by default the output's ending decides."
        ),
    ] = None,
) -> None:
    """Write conversations to a file or to standard output.

    JSON holds everything (all branches, rows, events and logs), one document per line for each conversation;
    `turnkeep import` takes it back. The bytes of files are not in it: download those apart.

    **Examples**

    - `turnkeep export conv_… -o talk.json`

    - `turnkeep export conv_… --format markdown | less`

    - `turnkeep export --all -o backup.jsonl`
    """
    if bool(conversation) == everything:
        raise InvalidRequest("Name conversations, or say --all.")
    form = form or ("markdown" if output is not None and output.suffix in {".md", ".markdown"} else "json")
    with server.connected() as turnkeep:
        wanted = conversation or [one.id for one in turnkeep.conversations.list()]
        with whole_file(output) as sink:
            for one in wanted:
                written = _written(turnkeep, one, form)
                sink.write((written if output is not None else _shown(written, form)).encode())
    if output is not None:
        count = len(wanted)
        remark(f"{count} {'conversation' if count == 1 else 'conversations'} written to {output}.")


def _written(turnkeep: Turnkeep, conversation_id: str, form: Format) -> str:
    if form == "json":
        return turnkeep.conversations.export(conversation_id).decode() + "\n"
    conversation = turnkeep.conversations.get(conversation_id)
    return conversation_as_markdown(conversation, turnkeep.conversations.messages(conversation_id)) + "\n"


def _shown(written: str, form: Format) -> str:
    """What goes to standard output: the same JSON, or the text for reading."""
    return clean_json(written) if form == "json" else clean_text(written)


class Sink(Protocol):
    """Where a document is written, piece by piece."""

    def write(self, piece: bytes, /) -> object: ...


@contextmanager
def whole_file(output: Path | None) -> Iterator[Sink]:
    """A file that appears under its name only when it is whole, or standard output.

    What is written is exact, also in a pipe, where it is often a file again; a terminal gets it as clean text.
    """
    if output is None and sys.stdout.isatty():
        yield _Terminal()
        return
    if output is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    draft = output.with_name(f".{output.name}.part")
    try:
        with draft.open("wb") as sink:
            yield sink
        draft.replace(output)
    except OSError as exc:
        raise StorageFull(f"{output} cannot be written: {exc.strerror or exc}.") from exc
    finally:
        draft.unlink(missing_ok=True)


class _Terminal:
    """Standard output where somebody reads it. A piece may end in the middle of a character."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def write(self, piece: bytes, /) -> None:
        print_text(self._decoder.decode(piece), end="")
