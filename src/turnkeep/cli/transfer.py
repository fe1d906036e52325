"""`turnkeep export` and `turnkeep import`: conversations to files and back.

An export is lossless (JSON) or for reading (Markdown). An import takes our own exports, and histories of other systems.
"""

import json
from contextlib import nullcontext
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from turnkeep.cli.file_io import whole_file
from turnkeep.cli.markdown import conversation_as_markdown
from turnkeep.cli.output import ProgressBar, clean_json, clean_text, print_lines, remark, say
from turnkeep.cli.server_options import AsJson, ServerOptions, asks_a_server
from turnkeep.errors import InvalidRequest, TurnkeepError
from turnkeep.files.zip_files import ZipReader
from turnkeep.transfer.chatgpt import BranchLimit, is_chatgpt_export, is_conversation_file, read_chatgpt_export
from turnkeep.transfer.transcripts import without_surrogates
from turnkeep_client.sync import Turnkeep
from turnkeep_client.wire import Conversation

Form = Literal["anthropic", "openai_chat", "openai_responses", "ai_sdk", "rows", "plain"]
Format = Literal["json", "markdown"]
UNPACKED_BYTES = 16 * 1024**3
ZIP_FILES = 1_000_000


@asks_a_server
def export(
    server: ServerOptions,
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
    `turnkeep import` reads it. The bytes of files are not in it: download them separately.

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
        # On standard output the conversations themselves show how far it has come.
        with ProgressBar("exporting", len(wanted)) if output else nullcontext() as bar, whole_file(output) as sink:
            for place, one in enumerate(wanted, start=1):
                written = _written(turnkeep, one, form)
                sink.write((written if output is not None else _shown(written, form)).encode())
                if bar is not None:
                    bar.update(place, said=_counted(place))
    if output is not None:
        remark(f"{_counted(len(wanted))} written to {output}.")


def _counted(count: int) -> str:
    return f"{count:,} {'conversation' if count == 1 else 'conversations'}"


def _written(turnkeep: Turnkeep, conversation_id: str, form: Format) -> str:
    if form == "json":
        return turnkeep.conversations.export(conversation_id).decode() + "\n"
    conversation = turnkeep.conversations.get(conversation_id)
    return conversation_as_markdown(conversation, turnkeep.conversations.messages(conversation_id)) + "\n"


def _shown(written: str, form: Format) -> str:
    """What goes to standard output: the same JSON, or the text for reading."""
    return clean_json(written) if form == "json" else clean_text(written)


@asks_a_server
def import_(
    server: ServerOptions,
    file: Annotated[
        list[Path],
        typer.Argument(help="Exports, or JSON (or JSON lines) with the messages of a chat; - is standard input."),
    ],
    title: Annotated[str | None, typer.Option("--title", help="The title, where one file is imported.")] = None,
    form: Annotated[
        Form | None, typer.Option("--form", help="The form of the messages, if it cannot be detected.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make conversations of files: exports of Turnkeep or ChatGPT, or lists of messages from elsewhere.

    Anthropic messages, OpenAI chat messages, OpenAI Responses items, messages of the AI SDK (`parts`), rows with
    `content_blocks` and plain `{role, content}` lists are known, alone or inside a request body. ChatGPT's export is
    the whole zip or its conversations.json; each conversation keeps its branches. Leading system and developer messages
    are kept, and a message without content is refused. A conversation that a provider refused elsewhere can be
    continued here. With a service key, `--user` says whom the conversations belong to; with the local key they are the
    operator's own, and visible on the page.

    **Examples**

    - `turnkeep import backup.jsonl`

    - `turnkeep import chatgpt-export.zip --user ann`

    - `turnkeep import messages.json --title "From the old system" --user ann`

    - `curl -s https://example.org/chat.json | turnkeep import -`
    """
    documents = [(path, document) for path in file for document in read_documents(path)]
    if title is not None and len(documents) > 1:
        raise InvalidRequest(f"--title fits one conversation, and these are {len(documents)}.")
    made: list[Conversation] = []
    with server.connected(as_operator=True) as turnkeep, ProgressBar("importing", len(documents)) as bar:
        for place, (path, document) in enumerate(documents, start=1):
            try:
                imported = turnkeep.conversations.import_(document, title=title, form=form)
            except TurnkeepError as exc:
                done = f" {len(made)} before it are imported." if made else ""
                exc.detail = f"{path}, conversation {place}: {exc.detail}{done}"
                raise
            made.append(imported.conversation)
            for said in imported.remarks:
                remark(f"{path}: {said}")
            bar.update(place, said=_counted(place))
    if as_json:
        print_lines(made)
        return
    for one in made:
        count = one.message_count
        say(f"{one.id}  {count} {'message' if count == 1 else 'messages'}  {one.title or ''}".rstrip())


def read_documents(path: Path) -> list[bytes]:
    """The documents of a file: one, or several exports line by line, or each conversation of ChatGPT's export. Lines
    that are messages are one document."""
    try:
        raw = typer.get_binary_stream("stdin").read() if str(path) == "-" else path.read_bytes()
    except FileNotFoundError as exc:
        raise InvalidRequest(f"There is no file {path}.") from exc
    except OSError as exc:
        raise InvalidRequest(f"{path} cannot be read: {exc.strerror or exc}.") from exc
    if raw.startswith(b"PK\x03\x04"):
        return [document for part in _unzipped(raw) for document in _conversations(part)]
    raw = raw.removeprefix(b"\xef\xbb\xbf").strip()
    if not raw:
        raise InvalidRequest(f"{path} is empty.")
    if (document := _parsed(raw)) is not None:
        return _conversations(raw) if is_chatgpt_export(document) else [raw]
    lines = [line for line in raw.splitlines() if line.strip()]
    parsed = [_parsed(line) for line in lines]
    if any(line is None for line in parsed):
        raise InvalidRequest(f"{path} is neither JSON nor JSON lines (line {parsed.index(None) + 1}).")
    exports = [isinstance(line, dict) and "turnkeep_export" in line for line in parsed]
    if all(exports):
        return lines
    if any(exports):
        raise InvalidRequest(f"{path} mixes exports with other lines. Import them separately.")
    return [json.dumps(parsed, ensure_ascii=False).encode()]


def _unzipped(raw: bytes) -> list[bytes]:
    """The files of ChatGPT's zip that hold conversations."""
    archive = ZipReader(BytesIO(raw), max_bytes=UNPACKED_BYTES, max_files=ZIP_FILES)
    found = sorted((entry for entry in archive.entries if is_conversation_file(entry.path)), key=lambda one: one.path)
    if not found:
        raise InvalidRequest("This zip has no conversations.json, so it is not an export of ChatGPT.")
    return [b"".join(archive.pieces(entry)) for entry in found]


def _conversations(raw: bytes) -> list[bytes]:
    """Each conversation of ChatGPT's export alone, without those in which nothing was said. So an export of any size
    fits into requests. All of them are read here first: one that is not valid is refused before any is sent."""
    document = _parsed(raw)
    listed = document if isinstance(document, list) else [document]
    documents = [json.dumps(without_surrogates(each)).encode() for each in listed]
    return [
        document
        for each, document in zip(listed, documents, strict=True)
        if read_chatgpt_export(each, limit=BranchLimit(len(document)))
    ]


def _parsed(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return None
