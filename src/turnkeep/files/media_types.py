"""Media types: which are accepted, in seven families, and which one a file has.

The first bytes of a file decide its type; its name only chooses between types that look alike (a `.docx` and a `.zip`,
a `.csv` and a `.txt`). A file whose bytes and name contradict each other is refused: such files are made to be mistaken
for something else.

Decision: docs/decisions/0702
"""

from collections.abc import Iterable
from enum import StrEnum

from msgspec import Struct

from turnkeep.errors import UnsupportedMediaType
from turnkeep.files.names import extension_of
from turnkeep.model.files import MEDIA_TYPE

HEAD_BYTES = 64 * 1024
"""How much of a file is inspected."""
UNKNOWN = "application/octet-stream"


class Family(StrEnum):
    """The kind of a file. A name and a content may differ in type, but only within one family."""

    IMAGE = "image"
    PDF = "pdf"
    TEXT = "text"
    OFFICE = "office"
    AUDIO = "audio"
    VIDEO = "video"
    ARCHIVE = "archive"


_OOXML = "application/vnd.openxmlformats-officedocument"
_ODF = "application/vnd.oasis.opendocument"

# fmt: off
_TABLE: dict[Family, dict[str, str]] = {
    Family.IMAGE: {
        "image/png": "png", "image/jpeg": "jpg jpeg jpe jfif", "image/gif": "gif", "image/webp": "webp",
        "image/bmp": "bmp", "image/tiff": "tif tiff", "image/x-icon": "ico", "image/heic": "heic", "image/heif": "heif",
        "image/avif": "avif", "image/svg+xml": "svg",
    },
    Family.PDF: {"application/pdf": "pdf"},
    Family.TEXT: {
        "text/plain": "txt text log conf cfg ini env", "text/markdown": "md markdown", "text/csv": "csv",
        "text/tab-separated-values": "tsv", "text/html": "html htm xhtml", "text/css": "css", "text/calendar": "ics",
        "text/vtt": "vtt", "application/x-subrip": "srt", "application/json": "json geojson ipynb",
        "application/x-ndjson": "ndjson jsonl", "application/xml": "xml xsl xsd rss atom",
        "application/yaml": "yaml yml", "application/toml": "toml", "application/sql": "sql",
        "text/javascript": "js mjs cjs", "text/x-typescript": "ts tsx jsx", "text/x-python": "py pyi",
        "text/x-shellscript": "sh bash zsh", "text/x-c": "c h cc cpp hpp", "text/x-java": "java kt scala",
        "text/x-rust": "rs", "text/x-go": "go", "text/x-ruby": "rb", "text/x-php": "php", "text/x-tex": "tex bib",
        "text/x-diff": "diff patch", "text/x-rst": "rst", "message/rfc822": "eml", "text/vcard": "vcf",
    },
    Family.OFFICE: {
        "application/msword": "doc dot", "application/vnd.ms-excel": "xls xlt",
        "application/vnd.ms-powerpoint": "ppt pot pps", "application/vnd.ms-outlook": "msg", "application/rtf": "rtf",
        f"{_OOXML}.wordprocessingml.document": "docx dotx", f"{_OOXML}.spreadsheetml.sheet": "xlsx xltx",
        f"{_OOXML}.presentationml.presentation": "pptx potx",
        "application/vnd.ms-word.document.macroEnabled.12": "docm",
        "application/vnd.ms-excel.sheet.macroEnabled.12": "xlsm",
        "application/vnd.ms-powerpoint.presentation.macroEnabled.12": "pptm",
        f"{_ODF}.text": "odt", f"{_ODF}.spreadsheet": "ods", f"{_ODF}.presentation": "odp", f"{_ODF}.graphics": "odg",
        "application/epub+zip": "epub",
    },
    Family.AUDIO: {
        "audio/mpeg": "mp3", "audio/wav": "wav", "audio/ogg": "ogg oga opus", "audio/flac": "flac",
        "audio/mp4": "m4a m4b", "audio/aac": "aac", "audio/aiff": "aif aiff", "audio/midi": "mid midi",
        "audio/amr": "amr", "audio/webm": "weba",
    },
    Family.VIDEO: {
        "video/mp4": "mp4 m4v", "video/quicktime": "mov", "video/webm": "webm", "video/x-matroska": "mkv",
        "video/x-msvideo": "avi", "video/mpeg": "mpg mpeg", "video/ogg": "ogv", "video/x-flv": "flv",
        "video/x-ms-wmv": "wmv", "video/3gpp": "3gp",
    },
    Family.ARCHIVE: {
        "application/zip": "zip", "application/x-tar": "tar", "application/gzip": "gz tgz",
        "application/x-bzip2": "bz2", "application/x-xz": "xz", "application/x-7z-compressed": "7z",
        "application/vnd.rar": "rar", "application/zstd": "zst",
    },
}
# fmt: on

BY_EXTENSION: dict[str, str] = {
    extension: mime_type
    for family in _TABLE.values()
    for mime_type, extensions in family.items()
    for extension in extensions.split()
}

_FAMILY_OF: dict[str, Family] = {
    mime_type.lower(): family for family, mime_types in _TABLE.items() for mime_type in mime_types
}
_FAMILY_OF_MAIN_TYPE = {
    "image": Family.IMAGE,
    "text": Family.TEXT,
    "audio": Family.AUDIO,
    "video": Family.VIDEO,
}


def family_of(mime_type: str) -> Family | None:
    """The family of a type; None for a type that is not accepted."""
    known = mime_type.lower()
    if not MEDIA_TYPE.fullmatch(known):
        return None
    return _FAMILY_OF.get(known) or _FAMILY_OF_MAIN_TYPE.get(known.partition("/")[0])


class Magic(Struct, frozen=True):
    """Bytes at an offset, and the type of a file that has them there."""

    place: int
    pattern: bytes
    mime_type: str


PROGRAMS: tuple[Magic, ...] = (
    Magic(0, b"\x7fELF", "an ELF program"),
    Magic(0, b"MZ", "a Windows program"),
    Magic(0, b"\xca\xfe\xba\xbe", "a Java class or a macOS program"),
    Magic(0, b"\xfe\xed\xfa\xce", "a macOS program"),
    Magic(0, b"\xfe\xed\xfa\xcf", "a macOS program"),
    Magic(0, b"\xce\xfa\xed\xfe", "a macOS program"),
    Magic(0, b"\xcf\xfa\xed\xfe", "a macOS program"),
    Magic(0, b"\0asm", "a WebAssembly program"),
    Magic(0, b"dex\n", "an Android program"),
)

_PROGRAM_NAMES = frozenset({"exe", "dll", "scr", "msi", "sys", "cpl", "so", "dylib"})
_PROGRAM_TYPES = frozenset(
    {
        "application/vnd.microsoft.portable-executable",
        "application/x-dosexec",
        "application/x-elf",
        "application/x-executable",
        "application/x-mach-binary",
        "application/x-msdos-program",
        "application/x-msdownload",
        "application/x-msi",
        "application/x-sharedlib",
    }
)

MAGIC: tuple[Magic, ...] = (
    Magic(0, b"\x89PNG\r\n\x1a\n", "image/png"),
    Magic(0, b"\xff\xd8\xff", "image/jpeg"),
    Magic(0, b"GIF87a", "image/gif"),
    Magic(0, b"GIF89a", "image/gif"),
    Magic(8, b"WEBP", "image/webp"),
    Magic(0, b"II*\0", "image/tiff"),
    Magic(0, b"MM\0*", "image/tiff"),
    Magic(0, b"\0\0\1\0", "image/x-icon"),
    Magic(0, b"PK\3\4", "application/zip"),
    Magic(0, b"PK\5\6", "application/zip"),
    Magic(0, b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "application/x-ole-storage"),
    Magic(0, b"{\\rtf", "application/rtf"),
    Magic(0, b"\x1f\x8b", "application/gzip"),
    Magic(0, b"BZh", "application/x-bzip2"),
    Magic(0, b"\xfd7zXZ\0", "application/x-xz"),
    Magic(0, b"7z\xbc\xaf\x27\x1c", "application/x-7z-compressed"),
    Magic(0, b"Rar!\x1a\x07", "application/vnd.rar"),
    Magic(0, b"\x28\xb5\x2f\xfd", "application/zstd"),
    Magic(257, b"ustar", "application/x-tar"),
    Magic(0, b"ID3", "audio/mpeg"),
    Magic(8, b"WAVE", "audio/wav"),
    Magic(0, b"fLaC", "audio/flac"),
    Magic(0, b"OggS", "audio/ogg"),
    Magic(0, b"MThd", "audio/midi"),
    Magic(8, b"AIFF", "audio/aiff"),
    Magic(0, b"#!AMR", "audio/amr"),
    Magic(0, b"\xff\xf1", "audio/aac"),
    Magic(0, b"\xff\xf9", "audio/aac"),
    Magic(0, b"\xff\xfb", "audio/mpeg"),
    Magic(0, b"\xff\xf3", "audio/mpeg"),
    Magic(0, b"\xff\xf2", "audio/mpeg"),
    Magic(8, b"AVI ", "video/x-msvideo"),
    Magic(0, b"\x1a\x45\xdf\xa3", "video/x-matroska"),
    Magic(0, b"\0\0\1\xba", "video/mpeg"),
    Magic(0, b"\0\0\1\xb3", "video/mpeg"),
    Magic(0, b"FLV\1", "video/x-flv"),
    Magic(0, b"\x30\x26\xb2\x75\x8e\x66\xcf\x11", "video/x-ms-wmv"),
)

_BRANDS: dict[bytes, str] = {
    b"avif": "image/avif",
    b"avis": "image/avif",
    b"heic": "image/heic",
    b"heix": "image/heic",
    b"mif1": "image/heif",
    b"M4A ": "audio/mp4",
    b"M4B ": "audio/mp4",
    b"qt  ": "video/quicktime",
}
_ALSO_WORDS = frozenset({b"MZ", b"ID3", b"BZh", b"fLaC", b"OggS", b"MThd", b"dex\n"})
"""Signatures that are also the beginning of ordinary texts."""
_OLE = frozenset({"doc", "dot", "xls", "xlt", "ppt", "pot", "pps", "msg"})
_GENERAL = frozenset(
    {"text/plain", "text/html", "application/zip", "audio/ogg", "video/mp4", "video/x-matroska", "video/webm"}
)
"""Types that the name may refine."""
_CONTROLS = bytes(set(range(32)) - {8, 9, 10, 11, 12, 13, 27})


def type_of(name: str, declared: str | None, head: bytes) -> str:
    """The type under which this file is stored. Raises UnsupportedMediaType if it is not accepted."""
    is_text = _is_text(head)
    for program in _found(PROGRAMS, head, is_text=is_text):
        raise _refused(name, f"it is {program}")
    claimed = claimed_type(name, declared)
    found = _sniffed(name, head, is_text=is_text)
    if found is None:
        raise _refused(name, "nothing tells what it is")
    kind = family_of(found)
    assert kind is not None, found
    if claimed is not None and not _agree(family_of(claimed), kind, found):
        raise _refused(name, f"its name or type says {claimed}, its content is {found}")
    return _refined(found, claimed)


def type_of_output(name: str, head: bytes) -> str:
    """The same for a file that a sandbox made. Nothing is refused: a file of an unknown type is plain bytes."""
    try:
        return type_of(name, None, head)
    except UnsupportedMediaType:
        return UNKNOWN


def claimed_type(name: str, declared: str | None) -> str | None:
    """The type by the name, else the declared type; None if neither is known.

    Raises UnsupportedMediaType for a name or type of a program: no content makes such a file acceptable.
    """
    extension = extension_of(name)
    by_name = BY_EXTENSION.get(extension)
    if by_name is not None:
        return by_name
    plain = (declared or "").partition(";")[0].strip().lower()
    if extension in _PROGRAM_NAMES or plain in _PROGRAM_TYPES:
        raise _refused(name, "its name or type says that it is a program")
    return plain if family_of(plain) is not None else None


def _sniffed(name: str, head: bytes, *, is_text: bool) -> str | None:
    if not head:
        return claimed_type(name, None) or "text/plain"
    if head.startswith(b"%PDF-") or (b"%PDF-" in head[:1024] and not is_text):
        return "application/pdf"
    if head[4:8] == b"ftyp":
        return _BRANDS.get(head[8:12], "video/mp4")
    for found in _found(MAGIC, head, is_text=is_text):
        match found:
            case "image/webp" | "audio/wav" | "video/x-msvideo" if head[:4] != b"RIFF":
                continue
            case "audio/aiff" if head[:4] != b"FORM":
                continue
            case "application/zip":
                return _inside_zip(name, head)
            case "application/x-ole-storage":
                return BY_EXTENSION.get(extension_of(name)) if extension_of(name) in _OLE else None
            case "video/x-matroska" if b"webm" in head[:64]:
                return "video/webm"
        return found
    if head[:2] == b"BM" and len(head) > 26 and head[6:10] == b"\0\0\0\0":
        return "image/bmp"
    return _text_type(name, head) if is_text else None


def _inside_zip(name: str, head: bytes) -> str:
    """Office files are zip archives. LibreOffice and EPUB name the type in the first entry, Microsoft does not."""
    if head[30:38] == b"mimetype":
        said = head[38:138].split(b"PK", 1)[0].decode("ascii", "replace")
        if family_of(said) is not None:
            return said
    by_name = BY_EXTENSION.get(extension_of(name))
    if by_name is not None and family_of(by_name) is Family.OFFICE:
        return by_name
    return "application/zip"


def _text_type(name: str, head: bytes) -> str:
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1024].lower()
    if start.startswith((b"<!doctype html", b"<html")):
        return "text/html"
    is_drawing = start.startswith((b"<?xml", b"<!--", b"<!doctype svg")) or extension_of(name) == "svg"
    if start.startswith(b"<svg") or (is_drawing and b"<svg" in head):
        return "image/svg+xml"
    return "text/plain"


def _is_text(head: bytes) -> bool:
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return len(head) > 2 and b"\0\0" not in head[:64]
    if head.translate(None, _CONTROLS) != head:
        return False
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as exc:
        if exc.end >= len(head) - 3 and len(head) >= HEAD_BYTES:
            return True  # cut in the middle of a character
        # Perhaps an older encoding: mostly ASCII, with accented letters between.
        return sum(byte < 128 for byte in head) >= 0.7 * len(head) and not any(0x80 <= byte < 0x90 for byte in head)
    return True


def _agree(claimed: Family | None, found: Family, mime_type: str) -> bool:
    if claimed is None or claimed is found:
        return True
    if {claimed, found} == {Family.AUDIO, Family.VIDEO}:
        return True  # the same containers hold both
    if claimed is Family.ARCHIVE:
        return found is Family.OFFICE
    return mime_type == "image/svg+xml" and claimed is Family.TEXT


def _refined(found: str, claimed: str | None) -> str:
    """The more precise of two types that agree."""
    if claimed is None:
        return found
    return claimed if found in _GENERAL else found


def _found(table: Iterable[Magic], head: bytes, *, is_text: bool) -> Iterable[str]:
    return (
        magic.mime_type
        for magic in table
        if head[magic.place : magic.place + len(magic.pattern)] == magic.pattern
        and not (is_text and magic.pattern in _ALSO_WORDS)
    )


def _refused(name: str, reason: str) -> UnsupportedMediaType:
    return UnsupportedMediaType(
        f"{name!r} is not accepted: {reason}. Images, PDF, text, office, audio, video and archives are."
    )
