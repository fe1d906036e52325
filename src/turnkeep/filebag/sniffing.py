"""What a file is: by its first bytes, not by what its name or its sender says.

The bytes decide; the name only chooses between types that look alike (a `.docx` and a `.zip`, a `.csv` and a `.txt`).
Where both speak and disagree, the file is refused: such files are made to be mistaken for something else.
"""

from collections.abc import Iterable

from msgspec import Struct

from turnkeep.errors import UnsupportedMediaType
from turnkeep.filebag.naming import extension_of
from turnkeep.filebag.types import BY_EXTENSION, Family, family_of

HEAD_BYTES = 64 * 1024
"""So much of a file is looked at."""
UNKNOWN = "application/octet-stream"


class Magic(Struct, frozen=True):
    """Bytes at a place, and what a file is that has them there."""

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
"""A text may begin with these just so."""
_OLE = frozenset({"doc", "dot", "xls", "xlt", "ppt", "pot", "pps", "msg"})
_GENERAL = frozenset(
    {"text/plain", "text/html", "application/zip", "audio/ogg", "video/mp4", "video/x-matroska", "video/webm"}
)
"""What the name may say more exactly."""
_CONTROLS = bytes(set(range(32)) - {8, 9, 10, 11, 12, 13, 27})


def type_of(name: str, declared: str | None, head: bytes) -> str:
    """The type under which this file is kept. Raises UnsupportedMediaType if it is not one of those we take."""
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
    """The same for what a sandbox made, where nothing is refused: a file of no known type is just bytes."""
    try:
        return type_of(name, None, head)
    except UnsupportedMediaType:
        return UNKNOWN


def claimed_type(name: str, declared: str | None) -> str | None:
    """What the name says, else what the sender says; None where neither says anything that we know.

    Raises UnsupportedMediaType for what calls itself a program: no content makes that one of the types we take.
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
    """Office files are archives: those of LibreOffice and EPUB say first what they are, those of Microsoft by name."""
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
        # An older encoding: letters with accents among plain ones, not noise.
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
    """The more telling of two that agree."""
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
