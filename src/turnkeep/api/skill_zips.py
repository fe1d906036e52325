"""A skill that comes as a zip: one folder of texts with a `SKILL.md`. It is taken whole, or refused in words."""

import io
import re

from turnkeep.api.agent_wire import Skill
from turnkeep.api.native.agent_checks import check_skill
from turnkeep.errors import FileTooLarge, InvalidRequest, UnsupportedMediaType
from turnkeep.filebag.forms import FilePart
from turnkeep.filebag.unzipping import NotAZip, ZipReader, ZipRefused

ZIP_BYTES = 2 * 1024 * 1024
"""Of a zip, packed and unpacked. The skill in it may have less; this leaves room for what is passed over."""
ZIP_ENTRIES = 1_000
NAME_CHARS = 64


async def read_zip(part: FilePart) -> Skill:
    """The skill in this zip. Raises FileTooLarge, UnsupportedMediaType, InvalidRequest."""
    data = bytearray()
    async for chunk in part.chunks:
        data += chunk
        if len(data) > ZIP_BYTES:
            raise FileTooLarge(f"The zip of a skill may have {ZIP_BYTES:,} bytes, this one has more.")
    return skill_of(part.name, bytes(data))


def skill_of(name: str, data: bytes) -> Skill:
    """The skill is called after its folder, or after the zip where that has no single folder at its top."""
    try:
        files = _texts(ZipReader(io.BytesIO(data), max_bytes=ZIP_BYTES, max_files=ZIP_ENTRIES))
    except NotAZip as exc:
        raise UnsupportedMediaType(f"{name[:100]!r} is no zip archive. Skills come as .zip.") from exc
    except ZipRefused as exc:
        raise InvalidRequest(f"{name[:100]!r} was refused. {exc.detail}") from exc
    folder = _only_folder(files)
    if folder:
        files = {path.removeprefix(f"{folder}/"): text for path, text in files.items()}
    skill = Skill(name=_name(folder or re.sub(r"\.zip$", "", name, flags=re.IGNORECASE)), files=files)
    check_skill(skill)
    return skill


def _texts(archive: ZipReader) -> dict[str, str]:
    """The files of the archive, without those that systems leave behind in folders."""
    files: dict[str, str] = {}
    for entry in archive.entries:
        if any(part.startswith(".") or part == "__MACOSX" for part in entry.path.split("/")):
            continue
        try:
            files[entry.path] = b"".join(archive.pieces(entry)).decode()
        except UnicodeDecodeError as exc:
            raise ZipRefused(f"{entry.path!r} in it is not text in UTF-8, and skills are made of texts.") from exc
    return files


def _only_folder(files: dict[str, str]) -> str:
    """The folder in which all files lie, if there is one."""
    tops = {path.partition("/")[0] for path in files}
    return tops.pop() if len(tops) == 1 and all("/" in path for path in files) else ""


def _name(given: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "-", given).lstrip("-_")[:NAME_CHARS] or "skill"
