"""A report as a PDF: its parts as data, laid out by templates/report.typ with typst's own fonts."""

import json
from collections.abc import Sequence
from importlib.resources import files
from typing import Any, Literal

from nearwise.conditions import require_extra
from nearwise_lab.report.document import Block, Document, Terms, Words
from nearwise_lab.report.drawing import Picture, print_svg
from nearwise_lab.results.gallery import Example, Gallery, Shown
from nearwise_lab.results.measures import Cell, Table

_TEMPLATE = files("nearwise_lab.report") / "templates" / "report.typ"
_MAX_IMAGES, _MAX_NEIGHBORS = 5, 8  # of a gallery of images
PIXELS_PER_INCH = 300.0
_ONE_FIGURE = b"""
#set document(date: none)
#set page(width: auto, height: auto, margin: 0pt)
#set text(font: "Libertinus Serif")
#image(bytes(sys.inputs.svg), format: "svg")
"""
# A PNG as an SVG, for JSON holds no bytes.
_PIXELS = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1 1">'
    '<image width="1" height="1" image-rendering="pixelated" href="{}"/></svg>'
)


def document_pdf(document: Document) -> bytes:
    """Render a document as PDF.

    A title page with the contents, then every section. The same document gives the same bytes,
    whatever fonts the machine has. Raises ImportError where typst is missing.
    """
    require_extra("a report as PDF", "pdf", "typst", of="nearwise-lab")
    import typst

    content = {
        "title": document.title,
        "lead": document.lead,
        "footer": document.footer,
        "sections": [
            {
                "title": section.title,
                "level": section.level,
                "blocks": [b for block in section.flat() for b in _block(block)],
            }
            for section in document.parts()
        ],
    }
    return typst.compile(
        _TEMPLATE.read_bytes(),
        format="pdf",
        sys_inputs={"document": json.dumps(content)},
        ignore_system_fonts=True,
    )


def picture_files(picture: Picture) -> dict[str, bytes]:
    """Render a figure by itself, for a paper or a slide.

    Gives "svg", whose text takes the reader's fonts, and "pdf" and "png" (of `PIXELS_PER_INCH`),
    the same bytes for the same figure, whatever fonts the machine has.
    """
    require_extra("figures as files", "pdf", "typst", of="nearwise-lab")
    import typst

    svg = print_svg(picture.svg)

    def compiled(form: Literal["pdf", "png"]) -> bytes:
        file: bytes = typst.compile(
            _ONE_FIGURE,
            format=form,
            ppi=PIXELS_PER_INCH,
            sys_inputs={"svg": svg},
            ignore_system_fonts=True,
        )
        return file

    lone = svg.replace("<svg ", '<svg font-family="sans-serif" ', 1)
    return {"svg": f"{lone}\n".encode(), "pdf": compiled("pdf"), "png": compiled("png")}


def _block(block: Block) -> list[dict[str, Any]]:
    """Convert a block to the template's input; images are SVG."""
    if isinstance(block, Gallery):
        return _gallery(block)
    if isinstance(block, Picture):
        svg = print_svg(block.svg)
        return [{"kind": "picture", "svg": svg, "alt": block.alt, "caption": block.caption}]
    if isinstance(block, Table):
        rows = [[Cell(name), *cells] for name, cells in block.rows]
        return [{"kind": "table", **vars(block), "rows": [list(map(vars, r)) for r in rows]}]
    if isinstance(block, Words):
        return [{"kind": "words", **vars(block)}]
    assert isinstance(block, Terms)  # folds are opened
    return [{"kind": "terms", "items": list(block.items)}]


def _gallery(gallery: Gallery) -> list[dict[str, Any]]:
    """Images with their neighbors: the wrong ones, then the unsure ones."""
    return [
        _images(f"{gallery.dataset}, {words.format(gallery.method)}, seed {gallery.seed}", shown)
        for words, shown in gallery.parts()
    ]


def _images(title: str, examples: Sequence[Example]) -> dict[str, Any]:
    def shown(row: Shown, text: str, agrees: bool = False) -> dict[str, Any]:
        svg = None if row.image is None else _PIXELS.format(row.image)
        return {"svg": svg, "text": text, "agrees": agrees}

    rows = [
        [shown(example.row, example.prediction.replace(", ", "\n"))]
        + [
            shown(n.row, f"{n.label} ({100 * n.weight:.0f} %)", n.agrees)
            for n in example.neighbors[:_MAX_NEIGHBORS]
        ]
        for example in examples[:_MAX_IMAGES]
    ]
    caption = (
        "Left the test image; beside it its strongest neighbors, their labels and attention "
        "weights. A label equal to the true one is framed."
    )
    return {"kind": "gallery", "title": title, "caption": caption, "rows": rows}
