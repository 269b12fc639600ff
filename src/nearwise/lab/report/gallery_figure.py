"""A gallery as a figure or as tables, for forms that cannot show the page's cards."""

from collections.abc import Sequence

from nearwise.report.drawing import ACCENT, FAINT, Picture, canvas, page_style, picture, slug
from nearwise.report.figures import head
from nearwise.report.gallery import Example, Gallery, png_pixels
from nearwise.report.measures import Cell, Table

MAX_EXAMPLES = 5
MAX_ROWS = 3  # of a table, each with its neighbors
_NEIGHBORS = 8
_WORDS = {"wrong": "where {} was wrong", "uncertain": "where {} was right but unsure"}


def gallery_blocks(gallery: Gallery) -> list[Picture | Table]:
    """Draw a gallery of images, or list one of rows: the wrong ones, then the unsure ones."""
    blocks: list[Picture | Table] = []
    for why, examples in (("wrong", gallery.wrong), ("uncertain", gallery.uncertain)):
        if not examples:
            continue
        title = f"{gallery.dataset}, {_WORDS[why].format(gallery.method)}, seed {gallery.seed}"
        if examples[0].row.image:
            name = slug(f"gallery-{gallery.dataset}-{gallery.method}-{why}")
            blocks.append(_image_gallery(title, name, examples[:MAX_EXAMPLES]))
        else:
            blocks.append(_row_gallery(title, gallery.columns, examples[:MAX_ROWS]))
    return blocks


def _image_gallery(title: str, name: str, examples: Sequence[Example]) -> Picture:
    columns = 1 + min(_NEIGHBORS, max(len(e.neighbors) for e in examples))
    with page_style():
        figure, axes = canvas(9.4, 0.4 + 1.2 * len(examples), len(examples), columns)
        head(figure, title)
        for row, example in zip(axes, examples, strict=True):
            for axis in row:
                axis.set_axis_off()
            words = _asked_words(example).replace(", ", "\n")
            _show(row[0], example.row.image, words, wide=True)
            for axis, neighbor in zip(row[1:], example.neighbors, strict=False):
                text = f"{neighbor.label} ({100 * neighbor.weight:.0f} %)"
                _show(axis, neighbor.row.image, text, agrees=neighbor.agrees)
    caption = (
        "Left the test image; beside it its strongest neighbors, their labels and attention "
        "weights. A label equal to the true one is framed."
    )
    return picture(figure, name, title, caption)


def _asked_words(example: Example) -> str:
    said = f"{example.predicted} ({100 * example.confidence:.0f} %)"
    return f"{said}, true {example.true}" if example.why == "wrong" else said


def _show(axis, image, text, *, agrees: bool = False, wide: bool = False) -> None:  # type: ignore[no-untyped-def]
    if image is not None:
        axis.imshow(png_pixels(image), interpolation="nearest")
    axis.set_title(text, fontsize=7.5, loc="center", pad=2.5, fontweight="bold" if wide else None)
    axis.set_axis_on()
    axis.set_xticks([])
    axis.set_yticks([])
    for side in axis.spines.values():
        side.set_visible(True)
        side.set_color(ACCENT if agrees else FAINT)
        side.set_linewidth(1.8 if agrees else 0.6)


def _row_gallery(title: str, columns: Sequence[str], examples: Sequence[Example]) -> Table:
    table = Table(
        title,
        "Each test row with its strongest neighbors: labels, attention weights, distances.",
        ["row", "label", "weight", "distance", *columns],
    )
    for number, example in enumerate(examples, start=1):
        asked = [Cell(example.true, "best"), Cell(_asked_words(example)), Cell("")]
        table.rows.append((f"asked {number}", [*asked, *map(Cell, example.row.values)]))
        for place, n in enumerate(example.neighbors[:5], start=1):
            cells = [Cell(n.label), Cell(f"{100 * n.weight:.1f} %"), Cell(f"{n.distance:.3g}")]
            table.rows.append((f"neighbor {place}", [*cells, *map(Cell, n.row.values)]))
    return table
