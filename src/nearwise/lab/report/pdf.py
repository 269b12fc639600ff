"""A report as a PDF: pages laid out by matplotlib, text and figures as vectors, no network."""

import io
from collections.abc import Sequence
from typing import Any

import matplotlib
from matplotlib.artist import Artist
from matplotlib.backends.backend_pdf import PdfPages
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.transforms import Bbox

from nearwise.lab.report.document import Block, Document, Section, Terms, Words, flat_blocks
from nearwise.lab.report.gallery_figure import gallery_blocks
from nearwise.lab.report.pdf_table import Columns, lay_out
from nearwise.report.drawing import POINT, Picture, page_style, recolor, text_width, wrapped
from nearwise.report.gallery import Gallery
from nearwise.report.measures import Table

PAGE = (11.69, 8.27)  # A4 landscape, inches
MARGIN, BOTTOM = 0.6, 0.55
WIDTH = PAGE[0] - 2 * MARGIN
LEADING = 1.38  # line height over font size
_INK, _MUTED, _LINE = "#1d2126", "#5b6470", "#d5d4ce"
_COLORS = {"best": _INK, "better": "#11694a", "worse": "#a3262a", "none": _MUTED, "": _INK}
_HEADINGS = {2: 15.0, 3: 11.5, 4: 10.0}
# Type 42 keeps the text of the file searchable.
_STYLE: Any = {"pdf.fonttype": 42, "font.family": "sans-serif", "font.sans-serif": ["DejaVu Sans"]}


def document_pdf(document: Document) -> bytes:
    """Render a document as PDF.

    Parameters
    ----------
    document : Document

    Returns
    -------
    bytes
        The file: a title page with the contents, then every section. The same document gives the
        same bytes.
    """
    buffer = io.BytesIO()
    metadata: dict[str, Any] = {"Title": document.title, "CreationDate": None, "ModDate": None}
    with (
        page_style(),
        matplotlib.rc_context(_STYLE),
        PdfPages(buffer, metadata=metadata) as file,
    ):
        pages = _Pages(file, document.title)
        _title_page(pages, document)
        for section in document.sections:
            _section(pages, section)
        pages.close()
    return buffer.getvalue()


class _Placed(Artist):
    """A figure drawn inside a page."""

    def __init__(self, child: Figure) -> None:
        super().__init__()
        self.child = child

    def draw(self, renderer: Any) -> None:
        """Draw the figure where its box lies."""
        self.child.draw(renderer)


class _Pages:
    """Fill pages from top to bottom."""

    def __init__(self, file: PdfPages, title: str) -> None:
        self.file, self.title = file, title
        self.page: Figure | None = None
        self.number = 0
        self.left = 0.0  # inches between the last thing and the bottom margin

    def need(self, height: float) -> None:
        """Begin a page where less than `height` inches are left."""
        if self.page is None or height > self.left:
            self.new_page()

    @property
    def is_empty(self) -> bool:
        """Whether nothing stands on the page yet."""
        return self.page is None or self.left >= PAGE[1] - MARGIN - BOTTOM - 1e-6

    def new_page(self) -> None:
        """Finish the page and begin another."""
        self.close()
        self.page = Figure(figsize=PAGE)
        self.number += 1
        self.left = PAGE[1] - MARGIN - BOTTOM
        self._put(self.title, MARGIN, 0.34, 7, _MUTED)
        number = str(self.number)
        self._put(number, PAGE[0] - MARGIN - text_width(number, 7), 0.34, 7, _MUTED)

    def close(self) -> None:
        """Write the page, if there is one."""
        if self.page is not None:
            self.file.savefig(self.page)
            self.page = None

    def space(self, height: float) -> None:
        """Leave room, but not at the top of a page."""
        if not self.is_empty:
            self.left = max(0.0, self.left - height)

    def text(
        self, text: str, size: float, *, color: str = _INK, bold: bool = False,
        indent: float = 0.0, width: float | None = None,
    ) -> None:  # fmt: skip
        """Write a paragraph, over pages where it must be."""
        room = (WIDTH if width is None else width) - indent
        for line in wrapped(text, size, room, bold):
            self.need(size * LEADING * POINT)
            self.left -= size * LEADING * POINT
            self._put(line, MARGIN + indent, self.left + BOTTOM, size, color, bold)

    def _put(
        self, text: str, x: float, y: float, size: float, color: str, bold: bool = False
    ) -> None:
        assert self.page is not None  # begun before anything is put there
        self.page.text(
            x / PAGE[0], y / PAGE[1], text, size=size, color=color, va="baseline", ha="left",
            weight="bold" if bold else "normal", parse_math=False,
        )  # fmt: skip

    def rule(self, width: float, thickness: float = 0.6, color: str = _INK) -> None:
        """Draw a line across a table."""
        assert self.page is not None
        y = (self.left + BOTTOM) / PAGE[1]
        x = [MARGIN / PAGE[0], (MARGIN + width) / PAGE[0]]
        self.page.add_artist(Line2D(x, [y, y], color=color, lw=thickness))

    def picture(self, figure: Figure) -> None:
        """Place a figure as it was drawn, in the middle of the width."""
        width, height = map(float, figure.get_size_inches())
        self.need(height)
        assert self.page is not None
        figure.set_dpi(72)  # that of a PDF page
        recolor(figure)
        figure.patch.set_visible(False)
        self.left -= height
        left = MARGIN + max(0.0, (WIDTH - width) / 2)
        figure.bbox_inches.set(Bbox.from_bounds(left, self.left + BOTTOM, width, height))
        self.page.add_artist(_Placed(figure))

    def row(self, columns: Columns, lines: Sequence[Sequence[tuple[str, str, bool]]]) -> None:
        """Write one row of a table: for each cell its lines with their mark."""
        size = columns.size
        step = size * LEADING * POINT
        top = self.left
        for place, (cell, x, width) in enumerate(
            zip(lines, columns.starts, columns.widths, strict=True)
        ):
            for number, (text, mark, is_detail) in enumerate(cell):
                small = size * 0.88 if is_detail else size
                bold = mark in ("best", "head") and not is_detail
                to_left = place == 0 or columns.to_left
                shift = 0.0 if to_left else width - text_width(text, small, bold)
                color = _MUTED if is_detail else _COLORS.get(mark, _INK)
                y = top - (number + 0.8) * step + BOTTOM
                self._put(text, MARGIN + x + shift, y, small, color, bold)
        self.left = top - max(map(len, lines)) * step


def _title_page(pages: _Pages, document: Document) -> None:
    pages.new_page()
    pages.left -= 1.1
    pages.text(document.title, 24, bold=True)
    pages.left -= 0.25
    pages.text(document.lead, 11, width=8.6)
    pages.left -= 0.3
    for section in document.sections:
        if section.level == 2 and pages.left > 0.6:
            pages.text(section.title, 9.5, color=_MUTED)
    pages.need(0.5)
    pages.left = min(pages.left, 0.5)
    pages.text(document.footer, 8, color=_MUTED, width=8.6)


def _section(pages: _Pages, section: Section) -> None:
    size = _HEADINGS.get(section.level, 10.0)
    blocks = flat_blocks(section)
    if section.level == 2:
        pages.new_page()
    else:
        pages.space(0.3)
        pages.need(0.6 + min(4.2, _height(blocks[0]) if blocks else 0.0))
    pages.text(section.title, size, bold=True)
    pages.left -= 0.08
    for block in blocks:
        _block(pages, block)


def _height(block: Block) -> float:
    """Inches that a block needs at once."""
    if isinstance(block, Picture) and block.figure is not None:
        return float(block.figure.get_size_inches()[1]) + 0.5
    return 1.2 if isinstance(block, Table) else 0.4


def _block(pages: _Pages, block: Block) -> None:
    if isinstance(block, Words):
        color = {"note": _MUTED, "failed": _COLORS["worse"]}.get(block.style, _INK)
        pages.text(block.text, 9, color=color, width=9.2)
        pages.space(0.1)
    elif isinstance(block, Terms):
        for name, text in block.items:
            pages.text(f"{name}: {text}", 8.5, indent=0.18, width=9.6)
            pages.space(0.04)
        pages.space(0.08)
    elif isinstance(block, Table):
        _table(pages, block)
    elif isinstance(block, Picture):
        _picture(pages, block)
    elif isinstance(block, Gallery):
        for part in gallery_blocks(block):
            _block(pages, part)


def _picture(pages: _Pages, block: Picture) -> None:
    if block.figure is None:
        return
    lines = wrapped(block.caption, 8, 9.2)
    pages.space(0.08)
    pages.need(float(block.figure.get_size_inches()[1]) + len(lines) * 8 * LEADING * POINT + 0.06)
    pages.picture(block.figure)
    pages.space(0.04)
    pages.text(block.caption, 8, color=_MUTED, width=9.2)
    pages.space(0.12)


def _table(pages: _Pages, table: Table) -> None:
    columns, rows = lay_out(table, WIDTH)
    step = columns.size * LEADING * POINT
    pages.space(0.14)
    caption = wrapped(table.caption, 8, 9.2)
    first = sum(max(map(len, row)) for row in rows[:4]) * step
    pages.need(0.4 + len(caption) * 8 * LEADING * POINT + first)
    pages.text(table.title, 9.5, bold=True)
    pages.text(table.caption, 8, color=_MUTED, width=9.2)
    pages.left -= 0.09
    heading, body = rows[0], rows[1:]
    _heading(pages, columns, heading)
    for row in body:
        height = max(map(len, row)) * step + 0.04
        if height > pages.left:
            pages.rule(columns.total)
            pages.new_page()
            pages.text(f"{table.title} (continued)", 9.5, bold=True)
            pages.left -= 0.05
            _heading(pages, columns, heading)
        pages.row(columns, row)
        pages.left -= 0.02
        pages.rule(columns.total, 0.3, _LINE)
        pages.left -= 0.02
    pages.rule(columns.total, 0.9)
    pages.left = max(0.0, pages.left - 0.16)


def _heading(
    pages: _Pages, columns: Columns, heading: Sequence[Sequence[tuple[str, str, bool]]]
) -> None:
    pages.rule(columns.total, 0.9)
    pages.left -= 0.03
    pages.row(columns, heading)
    pages.left -= 0.03
    pages.rule(columns.total, 0.5)
    pages.left -= 0.02
