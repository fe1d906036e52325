"""Files that commands read, write, send and fetch. `-`, or no name, means standard input or output."""

import codecs
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import typer

from turnkeep.cli.output import ProgressBar, print_text
from turnkeep.errors import InvalidRequest, StorageFull
from turnkeep_client.sync import Turnkeep
from turnkeep_client.wire import File


def read_text(file: Path) -> str:
    """The text of the file; `-` is standard input. Raises InvalidRequest."""
    try:
        return typer.get_text_stream("stdin").read() if str(file) == "-" else file.read_text("utf-8-sig")
    except FileNotFoundError as exc:
        raise InvalidRequest(f"There is no file {file}.") from exc
    except (OSError, UnicodeDecodeError) as exc:
        raise InvalidRequest(f"{file} cannot be read as text: {exc}.") from exc


def upload_file(turnkeep: Turnkeep, path: Path, *, conversation_id: str | None = None) -> File:
    """Send a file, with a progress bar."""
    size = path.stat().st_size if path.is_file() else None
    with ProgressBar(path.name, size) as bar:
        return turnkeep.files.upload(path, conversation_id=conversation_id, on_sent=bar.bytes)


def download_file(turnkeep: Turnkeep, file_id: str, to: Path | None) -> Path:
    """Fetch a file, with a progress bar."""
    with ProgressBar("receiving", turnkeep.files.get(file_id).size) as bar:
        return turnkeep.files.download(file_id, to, on_received=bar.bytes)


class Sink(Protocol):
    """An output that takes a document piece by piece."""

    def write(self, piece: bytes, /) -> object: ...


@contextmanager
def whole_file(output: Path | None) -> Iterator[Sink]:
    """A file that appears under its name only when it is complete, or standard output.

    The bytes are written unchanged, also to a pipe, which often leads to a file. A terminal gets clean text instead.
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
    """Standard output when it is a terminal. A piece may end in the middle of a character."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def write(self, piece: bytes, /) -> None:
        print_text(self._decoder.decode(piece), end="")
