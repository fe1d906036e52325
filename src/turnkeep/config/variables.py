"""How a setting is declared, and how settings are read from flags and environment.

A section of settings is a frozen Struct. Each of its fields has a type, a default and, as an annotation, a `Setting`:
how its text is parsed, what is allowed, and what it means. Everything else is made from these declarations: reading,
the flags of the commands, and the checks of the reference pages. A field without a `Setting` cannot be set by an
operator.
"""

from collections.abc import Callable, Mapping, Sequence
from inspect import get_annotations
from typing import Any, get_args

from msgspec import Struct, structs

from turnkeep.config.secret_masking import mask_url
from turnkeep.errors import InvalidRequest

PREFIX = "TURNKEEP_"


class Setting(Struct, frozen=True, kw_only=True):
    """The annotation of one field: how its text is parsed, what is allowed, what it means."""

    parse: Callable[[str], Any]
    allowed: str
    meaning: str
    default: str | None = None
    """How the reference page shows the default; None shows the default of the field."""
    is_secret: bool = False


class Variable(Setting, frozen=True, kw_only=True):
    """One setting of a section, with the names by which an operator sets it."""

    field: str
    prefix: str = PREFIX

    @property
    def name(self) -> str:
        return f"{self.prefix}{self.field.upper()}"

    @property
    def flag(self) -> str:
        return f"--{self.field.replace('_', '-')}"

    def read(self, text: str, *, origin: str) -> Any:
        """The value, or InvalidRequest with the name, what is allowed, and (unless it is secret) what was given."""
        try:
            return self.parse(text.strip())
        except ValueError as exc:
            given = "what it is" if self.is_secret else repr(mask_url(text))
            raise InvalidRequest(f"{origin} must be {self.allowed}, not {given}.") from exc


def variables_of(section: type[Struct], *, prefix: str = PREFIX) -> tuple[Variable, ...]:
    """Every setting of the section: first its own, then those of the section that it extends."""
    return tuple(
        Variable(field=field, prefix=prefix, **structs.asdict(setting))
        for owner in section.__mro__
        for field, annotation in get_annotations(owner).items()
        for setting in get_args(annotation)
        if isinstance(setting, Setting)
    )


def read_variables(
    table: Sequence[Variable], environ: Mapping[str, str], flags: Mapping[str, str | None] | None = None
) -> dict[str, Any]:
    """What is set, by field: `flags` (None where absent) over `environ`, where an empty text counts as absent."""
    values: dict[str, Any] = {}
    for variable in table:
        flag = (flags or {}).get(variable.field)
        if flag is not None:
            values[variable.field] = variable.read(flag, origin=variable.flag)
        elif text := environ.get(variable.name, "").strip():
            values[variable.field] = variable.read(text, origin=variable.name)
    return values
