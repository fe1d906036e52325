"""Skills of an agent: added as zip files, removed by name. A zip holds one folder of texts with a `SKILL.md`.

The checks of a skill are here too. They hold for every way in which an agent gets one.
"""

import io
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
from msgspec import structs
from starlette.types import ASGIApp

from turnkeep.api.http.endpoints import ApiCall, Endpoints, Nothing, Policy, ResponseSpec
from turnkeep.api.http.requests import body_chunks
from turnkeep.api.http.responses import json_response
from turnkeep.api.views import agent_of
from turnkeep.errors import FileTooLarge, InvalidRequest, NotFound, UnsupportedMediaType
from turnkeep.files.multipart import FormFile, file_parts
from turnkeep.files.zip_files import NotAZip, ZipReader, ZipRefused, refuse_collisions, safe_path
from turnkeep.ids import AgentId
from turnkeep.model.agents import AgentSpec
from turnkeep_client.wire.agents import Agent, Skill
from turnkeep_client.wire.blocks import JsonObject

ZIP_BYTES = 2 * 1024 * 1024
"""Maximum size of a zip, packed and unpacked. A skill may have less; the rest is for files that are ignored."""
ZIP_ENTRIES = 1_000
MAX_SKILLS = 50
MAX_SKILL_FILES = 200
MAX_SKILL_BYTES = 512 * 1024
MAX_PATH_CHARS = 200
NAME_CHARS = 64

FORM = "multipart/form-data"

endpoints = Endpoints("agents")

AGENT = ResponseSpec(status=200, meaning="The agent", type=Agent)


@endpoints.add(
    "POST",
    "/v1/agents/{agent_id}/skills",
    policy=Policy.ADMIN,
    raw_body=FORM,
    responses=(AGENT,),
    errors=(404, 413, 415, 422, 503, 507),
)
async def add_skills(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """Give an agent skills: a form with zips as the field `file`, all or none. One of the same name is replaced; its
    `approval` stays."""
    await call.runtime.store.agent(call.principal, _id(call))
    content_type = call.headers.get("content-type", "")
    if not content_type.lower().startswith(FORM):
        raise UnsupportedMediaType(f"Send the zip of a skill as the field `file` of a form ({FORM}).")
    most = call.runtime.settings.max_files_per_message
    parts = file_parts(content_type, body_chunks(call.receive), max_files=most)
    added = [await _read_zip(part) async for part in parts]
    new = {skill.name: msgspec.to_builtins(skill) for skill in added}
    if len(new) < len(added):
        raise InvalidRequest("Two of the zips hold skills of the same name.")

    def add(before: Sequence[JsonObject]) -> list[JsonObject]:
        known = {str(skill["name"]) for skill in before}
        skills = [_replaced(skill, new.get(str(skill["name"]))) for skill in before]
        skills += [skill for name, skill in new.items() if name not in known]
        check_skill_names(str(skill["name"]) for skill in skills)
        return skills

    return await _changed(call, add)


@endpoints.add(
    "DELETE", "/v1/agents/{agent_id}/skills/{skill}", policy=Policy.ADMIN, responses=(AGENT,), errors=(404, 507)
)
async def remove_skill(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """Take a skill away from an agent."""
    name = call.path("skill")

    def remove(before: Sequence[JsonObject]) -> list[JsonObject]:
        left = [skill for skill in before if skill["name"] != name]
        if len(left) == len(before):
            raise NotFound(f"The agent has no skill called {name[:100]!r}.")
        return left

    return await _changed(call, remove)


def _replaced(before: JsonObject, new: JsonObject | None) -> JsonObject:
    """The new skill of this name, if there is one. A zip has no rules, so those of the one before stay."""
    if new is None:
        return before
    return new | ({"approval": before["approval"]} if before.get("approval") is not None else {})


def check_skill(skill: Skill) -> None:
    """Raises InvalidRequest for a skill that cannot be written into a sandbox."""
    if "SKILL.md" not in skill.files:
        raise InvalidRequest(f"The skill `{skill.name}` has no SKILL.md.")
    if len(skill.files) > MAX_SKILL_FILES:
        raise InvalidRequest(f"The skill `{skill.name}` has more than {MAX_SKILL_FILES} files.")
    try:
        for path in skill.files:
            if len(safe_path(path)) > MAX_PATH_CHARS:
                raise ZipRefused(f"{path[:60]!r}… is longer than {MAX_PATH_CHARS} characters.")
        refuse_collisions([path.casefold() for path in skill.files])
    except ZipRefused as exc:
        raise InvalidRequest(f"The skill `{skill.name}` has a file with an impossible name. {exc.detail}") from exc
    if sum(len(text.encode("utf-8", "replace")) for text in skill.files.values()) > MAX_SKILL_BYTES:
        raise InvalidRequest(f"The skill `{skill.name}` has more than {MAX_SKILL_BYTES:,} bytes.")


def check_skill_names(names: Iterable[str]) -> None:
    """Raises InvalidRequest for two names that are the same folder on a file system that ignores case."""
    folded: dict[str, str] = {}
    for name in names:
        other = folded.setdefault(name.casefold(), name)
        if other != name:
            raise InvalidRequest(f"The skills `{other}` and `{name}` differ in case alone. Rename one of them.")


def _id(call: ApiCall[Any, Any]) -> AgentId:
    return AgentId(call.id("agent_id", "agent"))


async def _changed(call: ApiCall[Any, Any], change: Callable[[Sequence[JsonObject]], Sequence[JsonObject]]) -> ASGIApp:
    """The agent with other skills. `change` gets those that it has when they are stored."""

    def changed(before: AgentSpec) -> AgentSpec:
        skills = change(before.skills)
        if len(skills) > MAX_SKILLS:
            raise InvalidRequest(f"An agent may have {MAX_SKILLS} skills, and this would be {len(skills)}.")
        return structs.replace(before, skills=tuple(skills))

    return json_response(agent_of(await call.runtime.store.change_agent(call.principal, _id(call), changed)))


async def _read_zip(part: FormFile) -> Skill:
    """The skill in this zip. Raises FileTooLarge, UnsupportedMediaType, InvalidRequest."""
    data = bytearray()
    async for chunk in part.chunks:
        data += chunk
        if len(data) > ZIP_BYTES:
            raise FileTooLarge(f"The zip of a skill may have {ZIP_BYTES:,} bytes, this one has more.")
    return _skill_of(part.name, bytes(data))


def _skill_of(name: str, data: bytes) -> Skill:
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
