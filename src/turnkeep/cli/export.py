"""`turnkeep export`: conversations as files, without loss (JSON) or for reading (Markdown)."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, BinaryIO, Literal

import typer

from turnkeep.cli.connecting import Server, asks_a_server
from turnkeep.cli.markdown import conversation_as_markdown
from turnkeep.cli.printing import remark
from turnkeep.client.sync import Turnkeep
from turnkeep.errors import InvalidRequest, StorageFull

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
                sink.write(_written(turnkeep, one, form))
    if output is not None:
        count = len(wanted)
        remark(f"{count} {'conversation' if count == 1 else 'conversations'} written to {output}.")


def _written(turnkeep: Turnkeep, conversation_id: str, form: Format) -> bytes:
    if form == "json":
        return turnkeep.conversations.export(conversation_id) + b"\n"
    conversation = turnkeep.conversations.get(conversation_id)
    return conversation_as_markdown(conversation, turnkeep.conversations.messages(conversation_id)).encode() + b"\n"


@contextmanager
def whole_file(output: Path | None) -> Iterator[BinaryIO]:
    """Standard output, or a file that appears under its name only when it is whole."""
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
