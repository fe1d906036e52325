"""The beginnings of files of many kinds, real enough for whoever looks at their first bytes."""

import io
import zipfile

from PIL import Image


def picture(kind: str = "PNG", size: tuple[int, int] = (8, 6), color: str = "red") -> bytes:
    made = io.BytesIO()
    Image.new("RGB", size, color).save(made, kind)
    return made.getvalue()


def zip_of(**members: bytes) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, data in members.items():
            archive.writestr(name.replace("__", "/"), data)
    return made.getvalue()


def tar_head() -> bytes:
    return b"a.txt".ljust(257, b"\0") + b"ustar\x0000" + bytes(250)


PNG = picture("PNG")
PDF = b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n1 0 obj\n"
ELF = b"\x7fELF\x02\x01\x01" + bytes(60)
PE = b"MZ\x90\0\x03\0\0\0\x04\0\0\0\xff\xff" + bytes(60) + b"PE\0\0"
HTML = b"<!DOCTYPE html><html><script>alert(document.domain)</script></html>"
SVG = b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg" onload="alert(1)"><script>alert(2)</script></svg>'
MP4 = b"\0\0\0\x20ftypisom\0\0\x02\0isomiso2avc1mp41" + bytes(40)
DOCX = zip_of(**{"[Content_Types].xml": b"<Types/>", "word__document.xml": b"<w/>"})
ODT = zip_of(mimetype=b"application/vnd.oasis.opendocument.text", content=b"<office/>")
OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600)
GIF_SCRIPT = b"GIF89a/*" + bytes(20) + b"*/=1;alert(document.domain)//"
"""A picture and a script at once."""
