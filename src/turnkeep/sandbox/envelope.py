"""What the server tells the runner about one turn, read and checked.

The shapes are those of the wire (`turnkeep_client.wire.sandbox`). Unknown fields are passed over, so that a newer
server can talk to an older runner. A known field that is wrong is refused.
"""

import re
from typing import TypeVar

import msgspec
from msgspec import Struct

from turnkeep.errors import InvalidRequest
from turnkeep.files.zip_files import ZipRefused, safe_path
from turnkeep_client.wire.sandbox import SandboxConfig, SandboxEnvironment, SandboxSkill

VARIABLE_BYTES = 128 * 1024
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SKILL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

Value = TypeVar("Value", bound=Struct)


def read(data: bytes, kind: type[Value], *, origin: str) -> Value:
    """The value, or InvalidRequest that names where it came from and what is wrong with it."""
    try:
        value = msgspec.json.decode(data, type=kind)
        if isinstance(value, SandboxEnvironment):
            _check_variables(value)
        elif isinstance(value, SandboxConfig):
            for skill in value.agent.skills:
                _check_skill(skill)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as exc:
        raise InvalidRequest(f"{origin} does not fit the contract: {exc}") from exc
    return value


def _check_variables(environment: SandboxEnvironment) -> None:
    for name, value in environment.variables.items():
        if not _VARIABLE.fullmatch(name):
            raise ValueError(f"{name!r} is not the name of a variable")
        if "\0" in value or len(value.encode("utf-8", "replace")) > VARIABLE_BYTES:
            raise ValueError(f"the variable {name} is too long, or has a NUL in it")


def _check_skill(skill: SandboxSkill) -> None:
    if not _SKILL.fullmatch(skill.name):
        raise ValueError(f"{skill.name!r} is not the name of a skill")
    for path in skill.files:
        try:
            safe_path(path)
        except ZipRefused as exc:
            raise ValueError(f"the skill {skill.name}: {exc.detail}") from exc
