"""How a setting is declared, and how settings are read from flags, environment and file, in this order.

A section of settings is a frozen Struct. Each of its fields has a type, a default and, as an annotation, a `Setting`:
how its text is parsed, what is allowed, and what it means. Everything else is made from these declarations: reading,
the flags of the commands, and the checks of the reference pages. A field without a `Setting` cannot be set by an
operator.

The parsers of settings stand below. A parser raises ValueError for a text that it does not accept. Secrets among the
values, and passwords in addresses, are masked before a text is shown.
"""

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from inspect import get_annotations
from pathlib import Path
from typing import Any, TypeVar, get_args
from urllib.parse import urlsplit, urlunsplit

from msgspec import Struct, structs

from turnkeep.errors import InvalidRequest
from turnkeep.http_server.sockets import is_loopback

PREFIX = "TURNKEEP_"
_SERVICE = re.compile(r"(_SERVICE_HOST|_SERVICE_PORT(_[A-Z0-9_]+)?|_PORT_\d+_(TCP|UDP|SCTP)(_[A-Z0-9_]+)?)$")
_SERVICE_ADDRESS = re.compile(r"(tcp|udp|sctp)://")
"""Names and values of the variables that Kubernetes adds to every pod, for each service."""
IMAGE_NAME = r"[a-z][a-z0-9-]{0,39}"
PACKAGE = r"[A-Za-z0-9][A-Za-z0-9._-]*(==[A-Za-z0-9.+!]+)?"
"""A Python package, perhaps with its version. No address and no option of pip."""
_ORIGIN = re.compile(r"https?://([a-z0-9]([a-z0-9._-]*[a-z0-9])?|\[[0-9a-f:.]+\])(:\d{1,5})?")
SELF = "'self'"
"""The server's own origin, as a content security policy writes it."""
PICTURE_TYPES: Mapping[str, str] = {
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".webp": "image/webp",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
}
PICTURE_BYTES = 262_144
MASK = "***"
SHORTEST = 8
"""A shorter value is no key, and would be found in innocent words."""


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
    shown_default: str
    """The default, as people read it."""
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
    defaults = {field.name: field.default for field in structs.fields(section)}
    return tuple(
        Variable(field=field, prefix=prefix, shown_default=_shown(setting, defaults[field]), **structs.asdict(setting))
        for owner in section.__mro__
        for field, annotation in get_annotations(owner).items()
        for setting in get_args(annotation)
        if isinstance(setting, Setting)
    )


def _shown(setting: Setting, default: Any) -> str:
    if setting.default is not None:
        return setting.default
    if isinstance(default, bool):
        return "1" if default else "0"
    return f"{default:g}" if isinstance(default, float) else str(default)


class ConfigFile(Struct, frozen=True, kw_only=True):
    """The settings of a file: texts by the names of variables, as in an environment."""

    path: Path
    values: Mapping[str, str]

    def origin(self, variable: Variable) -> str:
        return f"`{variable.field}` in {self.path}"


def read_config_file(path: Path, tables: Mapping[str | None, Sequence[Variable]]) -> ConfigFile:
    """The settings in a TOML file. `tables` says which variables each table of the file has; None is its top.

    Raises InvalidRequest for a file that cannot be read, and for a name that is not known, with a suggestion.
    """
    try:
        document = tomllib.loads(path.read_text("utf-8-sig"))
    except FileNotFoundError as exc:
        raise InvalidRequest(f"There is no file {path}.") from exc
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as exc:
        raise InvalidRequest(f"{path} cannot be read: {exc}.") from exc
    values: dict[str, str] = {}
    for table, variables in tables.items():
        given = document if table is None else document.get(table, {})
        if not isinstance(given, dict):
            raise InvalidRequest(f"`{table}` in {path} must be a table: [{table}].")
        known = {variable.field: variable for variable in variables}
        for name, value in given.items():
            if table is None and name in tables:
                continue
            if name not in known:
                where = "" if table is None else f" of [{table}]"
                raise InvalidRequest(f"`{name}`{where} in {path} is no setting.{_suggestion(name, known)}")
            values[known[name].name] = _text(value, f"`{name}` in {path}")
    return ConfigFile(path=path, values=values)


def _text(value: Any, origin: str) -> str:
    match value:
        case bool():
            return "1" if value else "0"
        case str() | int() | float():
            return str(value)
        case list() if all(isinstance(item, str) for item in value):
            return ",".join(value)
    raise InvalidRequest(f"{origin} must be a text, a number, true, false or a list of texts.")


def refuse_unknown(environ: Mapping[str, str], known: Iterable[str]) -> None:
    """Raises InvalidRequest for a variable that looks like a setting and is none: it may be misspelled. Variables that
    Kubernetes sets for its services are left alone."""
    names = frozenset(known)
    for name in sorted(environ):
        if name.startswith(PREFIX) and given_text(environ, name) and name not in names and not _SERVICE.search(name):
            raise InvalidRequest(f"{name} is no setting.{_suggestion(name, names)} Unset it.")


def given_text(environ: Mapping[str, str], name: str) -> str:
    """The text of a variable; none for the address that Kubernetes puts into `TURNKEEP_PORT` and
    `TURNKEEP_SANDBOX_PORT` for services of these names."""
    text = environ.get(name, "").strip()
    return "" if name.endswith("_PORT") and _SERVICE_ADDRESS.match(text) else text


def _suggestion(name: str, known: Iterable[str]) -> str:
    """The nearest name. The beginning that all names share does not count."""
    ends = {each.removeprefix(PREFIX): each for each in known}
    near = get_close_matches(name.removeprefix(PREFIX), list(ends), n=1)
    return f" Did you mean {ends[near[0]]}?" if near else ""


def read_variables(
    table: Sequence[Variable],
    environ: Mapping[str, str],
    flags: Mapping[str, str | None] | None = None,
    file: ConfigFile | None = None,
) -> dict[str, Any]:
    """What is set, by field: `flags` (None where absent) over `environ` over `file`. An empty text counts as absent."""
    values: dict[str, Any] = {}
    for variable in table:
        flag = (flags or {}).get(variable.field)
        if flag is not None:
            values[variable.field] = variable.read(flag, origin=variable.flag)
        elif text := given_text(environ, variable.name):
            values[variable.field] = variable.read(text, origin=variable.name)
        elif file is not None and (text := file.values.get(variable.name, "").strip()):
            values[variable.field] = variable.read(text, origin=file.origin(variable))
    return values


SECRET_CHARS = 32
"""Minimum number of characters of a secret that signs."""


Amount = TypeVar("Amount", int, float)


def url(*schemes: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        parts = urlsplit(text)
        if parts.scheme not in schemes or not (parts.netloc or parts.path.strip("/")):
            raise ValueError(text)
        return text

    return parse


def http_url(text: str) -> str:
    return url("http", "https")(text).rstrip("/")


def issuer(text: str) -> str:
    """The address of an identity provider: over TLS, or on this machine."""
    found = http_url(text)
    parts = urlsplit(found)
    if parts.query or parts.fragment or (parts.scheme == "http" and not is_loopback(parts.hostname or "")):
        raise ValueError(text)
    return found


def http_url_or_off(text: str) -> str:
    return text.lower() if text.lower() == "off" else http_url(text)


def origins(text: str) -> tuple[str, ...]:
    return tuple(_origin(item.strip()) for item in text.split(",") if item.strip())


def _origin(text: str) -> str:
    """As browsers write it in `Origin`: in lower case, without the usual port."""
    found = text.lower().removesuffix("/")
    if not _ORIGIN.fullmatch(found):
        raise ValueError(text)
    parts = urlsplit(found)
    if parts.port == {"http": 80, "https": 443}[parts.scheme]:
        found = found.rpartition(":")[0]
    return found


def origins_or_self(text: str) -> tuple[str, ...]:
    """Origins, and `'self'`. No patterns: a name below a domain may belong to another person."""
    items = [item.strip() for item in text.split(",") if item.strip()]
    return tuple(SELF if item.lower() in {"self", SELF} else _origin(item) for item in items)


def short_text(limit: int) -> Callable[[str], str]:
    """A text of one line."""

    def parse(text: str) -> str:
        if not 0 < len(text) <= limit or not text.isprintable():
            raise ValueError(text)
        return text

    return parse


def colors(text: str) -> tuple[str, ...]:
    """One colour, or one for the light and one for the dark appearance."""
    found = tuple(item.strip().lower() for item in text.split(","))
    if len(found) > 2 or not all(re.fullmatch(r"#([0-9a-f]{3}|[0-9a-f]{6})", item) for item in found):
        raise ValueError(text)
    return found


def picture(text: str) -> Path:
    """A file that browsers show as a picture."""
    path = Path(text)
    try:
        size = path.stat().st_size
    except OSError as exc:
        raise ValueError(text) from exc
    if path.suffix.lower() not in PICTURE_TYPES or not path.is_file() or not 0 < size <= PICTURE_BYTES:
        raise ValueError(text)
    return path


def visible(text: str) -> str:
    """A text without spaces that can be sent in a header."""
    if not re.fullmatch(r"[\x21-\x7e]+", text):
        raise ValueError(text)
    return text


def words(text: str) -> tuple[str, ...]:
    words = tuple(word.strip() for word in text.split(",") if word.strip())
    if not words:
        raise ValueError(text)
    return words


class SandboxImage(Struct, frozen=True):
    """An image that agents may choose for their boxes, and the Python packages that are in it."""

    name: str
    packages: tuple[str, ...]


def image_list(text: str) -> tuple[SandboxImage, ...]:
    """`science: numpy pandas; text: nltk`. `none` means that there are none."""
    if text.strip().lower() == "none":
        return ()
    images = tuple(_sandbox_image(item) for item in text.split(";") if item.strip())
    if not images or len({image.name for image in images}) != len(images):
        raise ValueError(text)
    return images


def _sandbox_image(text: str) -> SandboxImage:
    name, _, packages = text.partition(":")
    image = SandboxImage(name.strip(), tuple(packages.replace(",", " ").split()))
    if not re.fullmatch(IMAGE_NAME, image.name) or not all(re.fullmatch(PACKAGE, one) for one in image.packages):
        raise ValueError(text)
    return image


def secret_words(text: str) -> tuple[str, ...]:
    """Secrets. The first must be long enough to sign; shorter ones may follow, to decrypt what they encrypted
    before."""
    secrets = words(text)
    if len(secrets[0]) < SECRET_CHARS:
        raise ValueError("too short")
    return secrets


def header_secret(text: str) -> str:
    """A secret that can be sent in a header."""
    if len(visible(text)) < SECRET_CHARS:
        raise ValueError("too short")
    return text


def yes_or_no(text: str) -> bool:
    known = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    if text.lower() not in known:
        raise ValueError(text)
    return known[text.lower()]


def one_of(*choices: str) -> dict[str, Any]:
    def parse(text: str) -> str:
        if text.lower() not in choices:
            raise ValueError(text)
        return text.lower()

    return {"parse": parse, "allowed": f"one of {', '.join(choices)}"}


def count(low: int, high: int) -> dict[str, Any]:
    return {"parse": _within(int, low, high), "allowed": f"a whole number from {low} to {high}"}


def seconds(low: float, high: float, unit: str = "seconds") -> dict[str, Any]:
    return {"parse": _within(float, low, high), "allowed": f"a number of {unit} from {low:g} to {high:g}"}


def _within(kind: Callable[[str], Amount], low: Amount, high: Amount) -> Callable[[str], Amount]:
    def parse(text: str) -> Amount:
        value = kind(text)
        if not low <= value <= high:  # false for NaN too
            raise ValueError(text)
        return value

    return parse


def masked(text: str, secrets: Iterable[str], *, shortest: int = SHORTEST) -> str:
    """The text without these secrets. The longest are replaced first, so that no part of a longer one is left over."""
    for secret in sorted(set(secrets), key=len, reverse=True):
        if len(secret) >= shortest:
            text = text.replace(secret, MASK)
    return text


def mask_url(text: str) -> str:
    """An address without the password inside it. Other texts stay as they are."""
    try:
        parts = urlsplit(text)
        password = parts.password
    except ValueError:
        return text
    if not parts.scheme or not password:
        return text
    user, _, host = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{user.partition(':')[0]}:{MASK}@{host}"))
