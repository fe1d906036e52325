"""A skill on this computer, a folder or a zip, as the one zip that the server takes."""

import io
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path

from turnkeep.errors import InvalidRequest, NotFound

MOST_BYTES = 2 * 1024 * 1024
"""What the server takes. A folder that was named by mistake is not read to its end."""
SKILL_FILE = "SKILL.md"


def packed(source: str | os.PathLike[str]) -> tuple[str, bytes]:
    """The name of a zip, and its bytes. Raises NotFound, InvalidRequest."""
    path = Path(source)
    try:
        if path.is_dir():
            return f"{path.resolve().name}.zip", _zip_of(path)
        if path.is_file() and path.stat().st_size > MOST_BYTES:
            raise _too_large(path)
        return path.name, path.read_bytes()
    except FileNotFoundError as exc:
        raise NotFound(f"There is no {path}.") from exc
    except OSError as exc:
        raise InvalidRequest(f"{path} cannot be read: {exc.strerror or exc}.") from exc


def _zip_of(folder: Path) -> bytes:
    if not (folder / SKILL_FILE).is_file():
        raise InvalidRequest(f"{folder} is no skill: it has no {SKILL_FILE}.")
    buffer, left = io.BytesIO(), MOST_BYTES
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in _files(folder):
            left -= path.stat().st_size
            if left < 0:
                raise _too_large(folder)
            archive.writestr(path.relative_to(folder).as_posix(), path.read_bytes())
    return buffer.getvalue()


def _files(folder: Path) -> Iterator[Path]:
    """The files below the folder, without hidden ones. A link may lead anywhere, so none is followed."""
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        if path.is_symlink():
            raise InvalidRequest(f"{path} is a link. Put the file itself into the skill.")
        if path.is_dir():
            yield from _files(path)
        elif path.is_file():
            yield path


def _too_large(path: Path) -> InvalidRequest:
    return InvalidRequest(f"{path} has more than {MOST_BYTES:,} bytes, which is too much for a skill.")
