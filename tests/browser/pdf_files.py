"""PDF files for the tests of the page: scans, text in a font that is not in the file, and files that try to do harm."""

import struct
from io import BytesIO

from PIL import Image, ImageDraw, ImageOps
from PIL.TiffImagePlugin import TiffImageFile
from pypdf import PdfReader, PdfWriter
from pypdf.generic import (
    ArrayObject,
    ByteStringObject,
    DecodedStreamObject,
    DictionaryObject,
    EncodedStreamObject,
    FloatObject,
    NameObject,
    NumberObject,
    PdfObject,
    TextStringObject,
)

from tests.knowledge.test_file_tools import a_pdf

SIDE = 64
"""Width and height of a scan."""


def locked_pdf() -> bytes:
    writer = PdfWriter(clone_from=PdfReader(BytesIO(a_pdf("Only for those who know the word."))))
    writer.encrypt("secret", algorithm="RC4-128")
    return _written(writer)


def scans_pdf() -> bytes:
    """Two pages: a black square on white as JPEG 2000, and the same as JBIG2."""
    writer = PdfWriter()
    square = Image.new("L", (SIDE, SIDE), 255)
    ImageDraw.Draw(square).rectangle((16, 16, 47, 47), fill=0)
    jpeg2000 = BytesIO()
    square.save(jpeg2000, "JPEG2000", irreversible=False)
    for data, method, bits in ((jpeg2000.getvalue(), "/JPXDecode", 8), (_jbig2(square), "/JBIG2Decode", 1)):
        picture = EncodedStreamObject()
        picture._data = data
        picture.update(
            _named(
                Type="/XObject",
                Subtype="/Image",
                Width=SIDE,
                Height=SIDE,
                BitsPerComponent=bits,
                ColorSpace="/DeviceGray",
                Filter=method,
            )
        )
        _add_page(writer, "q 200 0 0 200 50 50 cm /Im0 Do Q", _named(XObject=_named(Im0=writer._add_object(picture))))
    return _written(writer)


def _jbig2(picture: Image.Image) -> bytes:
    """The picture as the two segments of an embedded JBIG2 stream, of which the second one has the coding of a fax."""
    fax = BytesIO()
    # Black is 1 in JBIG2, and 0 in the TIFF that is made here.
    ImageOps.invert(picture).convert("1").save(fax, "TIFF", compression="group4")
    tiff = Image.open(BytesIO(fax.getvalue()))
    assert isinstance(tiff, TiffImageFile)
    start, size = tiff.tag_v2[273][0], tiff.tag_v2[279][0]
    coded = fax.getvalue()[start : start + size]
    page = struct.pack(">IIIIBH", picture.width, picture.height, 0, 0, 0, 0)
    region = struct.pack(">IIIIBB", picture.width, picture.height, 0, 0, 0, 1) + coded
    return b"".join(
        struct.pack(">IBBBI", number, kind, 0, 1, len(data)) + data
        for number, kind, data in ((0, 48, page), (1, 38, region))
    )


def chinese_pdf(text: str) -> bytes:
    """A text in a font that is not in the file, and in an encoding that the file only names."""
    writer = PdfWriter()
    descriptor = _named(
        Type="/FontDescriptor",
        FontName="/STSong-Light",
        Flags=6,
        ItalicAngle=0,
        Ascent=880,
        Descent=-120,
        CapHeight=700,
        StemV=80,
        FontBBox=ArrayObject(NumberObject(number) for number in (-25, -254, 1000, 880)),
    )
    system = DictionaryObject(
        {
            NameObject("/Registry"): TextStringObject("Adobe"),
            NameObject("/Ordering"): TextStringObject("GB1"),
            NameObject("/Supplement"): NumberObject(2),
        }
    )
    inner = _named(
        Type="/Font",
        Subtype="/CIDFontType0",
        BaseFont="/STSong-Light",
        CIDSystemInfo=system,
        DW=1000,
        FontDescriptor=writer._add_object(descriptor),
    )
    font = _named(
        Type="/Font",
        Subtype="/Type0",
        BaseFont="/STSong-Light",
        Encoding="/UniGB-UCS2-H",
        DescendantFonts=ArrayObject([writer._add_object(inner)]),
    )
    drawn = f"BT /F1 24 Tf 20 200 Td <{text.encode('utf-16-be').hex()}> Tj ET"
    _add_page(writer, drawn, _named(Font=_named(F1=writer._add_object(font))))
    return _written(writer)


def hostile_pdf(elsewhere: str) -> bytes:
    """A file with scripts, programs to start, forms to send and things to load from another server."""
    script = (
        f"window.__ran = 1; app.alert('ran'); app.launchURL('{elsewhere}/js'); this.submitForm('{elsewhere}/form');"
    )
    writer = PdfWriter(clone_from=PdfReader(BytesIO(a_pdf("A harmless page.", "<img src=x onerror=window.__ran=1>"))))
    writer.add_attachment("run.html", b"<script>window.__ran = 1</script>")
    address = TextStringObject(f"{elsewhere}/remote.pdf")
    remote = DictionaryObject({NameObject("/FS"): NameObject("/URL"), NameObject("/F"): address})
    run = _action("JavaScript", JS=TextStringObject(script))
    actions = [
        run,
        _action("Launch", F=TextStringObject("/bin/sh")),
        _action("URI", URI=TextStringObject(f"{elsewhere}/uri")),
        _action("URI", URI=TextStringObject("javascript:window.__ran=1")),
        _action("GoToR", F=remote, D=ArrayObject([NumberObject(0), NameObject("/Fit")])),
        _action("SubmitForm", F=remote, Fields=ArrayObject()),
        _action("ImportData", F=remote),
    ]
    root = writer._root_object
    root[NameObject("/OpenAction")] = run
    names = root[NameObject("/Names")]
    assert isinstance(names, DictionaryObject)
    names[NameObject("/JavaScript")] = _named(Names=ArrayObject([TextStringObject("at once"), run]))
    root[NameObject("/AA")] = _named(**{name: actions[at] for at, name in enumerate(("WC", "WS", "DS", "WP", "DP"))})
    page = writer.pages[0]
    page[NameObject("/AA")] = _named(O=_action("URI", URI=TextStringObject(f"{elsewhere}/opened")), C=run)
    page[NameObject("/Annots")] = ArrayObject(
        [
            *(_annotation(writer, "Link", A=action) for action in actions),
            _annotation(writer, "Movie", Movie=_named(F=remote), A=NumberObject(1)),
            _annotation(writer, "FileAttachment", FS=remote),
            _annotation(writer, "Widget", FT="/Tx", T=TextStringObject("name"), AA=_named(K=run, F=run, Fo=run), A=run),
            _annotation(writer, "Widget", FT="/Btn", T=TextStringObject("send"), Ff=65536, A=actions[5]),
        ]
    )
    root[NameObject("/AcroForm")] = DictionaryObject(
        {
            NameObject("/Fields"): ArrayObject(list(page[NameObject("/Annots")])[-2:]),  # type: ignore[call-overload]
            NameObject("/NeedAppearances"): NumberObject(1),
            NameObject("/XFA"): TextStringObject(f"<xdp><script>{script}</script></xdp>"),
        }
    )
    picture = DecodedStreamObject()
    picture.set_data(b"")
    picture.update(_named(Type="/XObject", Subtype="/Image", Width=1, Height=1, BitsPerComponent=8, F=remote))
    picture[NameObject("/ColorSpace")] = NameObject("/DeviceGray")
    form = DecodedStreamObject()
    form.set_data(b"")
    form.update(_named(Type="/XObject", Subtype="/Form", Ref=_named(F=remote, Page=0)))
    form[NameObject("/BBox")] = ArrayObject(NumberObject(number) for number in (0, 0, 9, 9))
    font = _named(
        Type="/Font",
        Subtype="/Type1",
        BaseFont=f"/x);src:url({elsewhere}/font)",
        FontMatrix=ArrayObject([*(FloatObject(0.001) for _ in range(5)), ByteStringObject(b"0); window.__ran = 1; (")]),
    )
    drawn = b"BT /F1 12 Tf 20 200 Td (A harmless page.) Tj /F2 12 Tf 0 -40 Td (In another font.) Tj ET /Im0 Do /Fm0 Do"
    stream = DecodedStreamObject()
    stream.set_data(drawn)
    page[NameObject("/Contents")] = writer._add_object(stream)
    resources = page[NameObject("/Resources")]
    assert isinstance(resources, DictionaryObject)
    resources[NameObject("/XObject")] = _named(Im0=writer._add_object(picture), Fm0=writer._add_object(form))
    fonts = resources[NameObject("/Font")]
    assert isinstance(fonts, DictionaryObject)
    fonts[NameObject("/F2")] = writer._add_object(font)
    return _written(writer)


def _action(kind: str, **values: PdfObject) -> DictionaryObject:
    return _named(S=f"/{kind}", **values)


def _annotation(writer: PdfWriter, kind: str, **values: "PdfObject | str | int") -> PdfObject:
    """An annotation that covers the whole page."""
    box = ArrayObject(NumberObject(number) for number in (0, 0, 300, 300))
    return writer._add_object(_named(Type="/Annot", Subtype=f"/{kind}", Rect=box, **values))


def _named(**values: "PdfObject | str | int") -> DictionaryObject:
    """A dictionary. Texts are names, and numbers are numbers."""
    made = DictionaryObject()
    for name, value in values.items():
        plain = NameObject(value) if isinstance(value, str) else value
        given = NumberObject(plain) if isinstance(plain, int) else plain
        made[NameObject(f"/{name}")] = value if isinstance(value, PdfObject) else given
    return made


def _add_page(writer: PdfWriter, drawn: str, resources: DictionaryObject) -> None:
    page = writer.add_blank_page(width=300, height=300)
    stream = DecodedStreamObject()
    stream.set_data(drawn.encode())
    page[NameObject("/Contents")] = writer._add_object(stream)
    page[NameObject("/Resources")] = resources


def _written(writer: PdfWriter) -> bytes:
    out = BytesIO()
    writer.write(out)
    return out.getvalue()
