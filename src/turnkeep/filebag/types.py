"""The types of files that are taken, in seven families, and the names by which people know them."""

from enum import StrEnum


class Family(StrEnum):
    """What kind of thing a file is. Types of one family may stand for each other; those of two may not."""

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
    """The family of a type; None for a type that is not taken."""
    known = mime_type.lower()
    return _FAMILY_OF.get(known) or _FAMILY_OF_MAIN_TYPE.get(known.partition("/")[0])
