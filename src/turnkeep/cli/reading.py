"""Texts that a command is given as a file, or on standard input."""

from pathlib import Path

import typer

from turnkeep.errors import InvalidRequest


def read_text(file: Path) -> str:
    """The text of the file; `-` is standard input. Raises InvalidRequest."""
    try:
        return typer.get_text_stream("stdin").read() if str(file) == "-" else file.read_text("utf-8-sig")
    except FileNotFoundError as exc:
        raise InvalidRequest(f"There is no file {file}.") from exc
    except (OSError, UnicodeDecodeError) as exc:
        raise InvalidRequest(f"{file} cannot be read as text: {exc}.") from exc
