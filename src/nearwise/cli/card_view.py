"""Cards of answers in a terminal, and as tab-separated text."""

import textwrap
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import rich.box
import rich.table
from rich.cells import cell_len
from rich.text import Text

from nearwise.cli.tables import cut, tab_separated
from nearwise.html.numbers import cell, percent

if TYPE_CHECKING:
    from nearwise.cli.explaining import Explained

_BAR = 10  # characters of the largest weight
_WIDEST = 14  # characters of a value, and of a line of its column's name
_COLORS = {"good": "green", "fair": "yellow", "poor": "red", "plain": ""}
_WIDE = ("file", "show")  # what tells rows apart gets the room that there is
_SPACE, _GAP = "\N{NO-BREAK SPACE}", 3


def headline(one: "Explained") -> Text:
    """Return the claim and its chips, colored by their meaning."""
    text = Text(one.card.claim, style="bold")
    for chip in one.card.chips:
        text.append(" · ", style="dim")
        text.append(chip.text, style=_COLORS[chip.meaning])
    if one.label:
        text.append(f" · remembered as {one.label}", style="dim")
    return text


def drawn(one: "Explained", width: int) -> tuple[rich.table.Table, str]:
    """Draw the row above its neighbors, and say what the table leaves out.

    Columns that differ come first and are marked, as far as they fit into `width` characters.
    """
    card, extra = one.card, _extra_columns(one)
    table = rich.table.Table(box=rich.box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    lead = [
        ["row", one.key, *(str(each.id) for each in card.neighbors)],
        [card.target or "label", one.label, *(each.label for each in card.neighbors)],
        ["weight", "", *(f"{'':<{_BAR}} {percent(each.weight):>7}" for each in card.neighbors)],
        ["without it", "", *(each.without for each in card.neighbors)],
    ]
    left = width - sum(max(map(cell_len, column)) + _GAP for column in lead)
    for (head, *_), right in zip(lead, (True, False, False, True), strict=True):
        table.add_column(head, justify="right" if right else "left", no_wrap=True)
    values = []
    for name, of in extra:
        head = "\n".join(textwrap.wrap(name, _WIDEST, max_lines=3, placeholder="…"))
        widest = max(_WIDEST, left - _GAP) if name in _WIDE else _WIDEST
        cells = [(cut(text, widest), differs) for text, differs in of]
        left -= max(map(cell_len, [*head.split("\n"), *(text for text, _ in cells)])) + _GAP
        if left < 0:
            break
        table.add_column(head, no_wrap=True)
        values.append(cells)
    table.add_row(one.key, one.label, "", "", *(of[0][0] for of in values), style="bold")
    for at, each in enumerate(card.neighbors):
        bar = Text("━" * max(1, round(_BAR * each.bar)), style="cyan")
        bar.append(" " * (_BAR - len(bar)) + f" {percent(each.weight):>7}", style="default")
        faces = [Text(of[at + 1][0], style=_marked(of[at + 1][1])) for of in values]
        label = Text(each.label, style="green" if each.agrees else "yellow")
        without = Text(each.without, style="bold red" if each.flips else "")
        table.add_row(str(each.id), label, bar, without, *faces)
    notes = [card.attention.replace(_SPACE, " ")]
    if any(differs for of in values for _, differs in of):
        notes.append("Bold values differ from the row's.")
    hidden = len(extra) - len(values)
    if hidden:
        notes.append(f"A wider terminal shows {hidden} more column{'s' if hidden > 1 else ''}.")
    return table, " ".join(notes)


def as_text(found: Sequence["Explained"]) -> str:
    """Write all cards as one tab-separated table: the row, its neighbors, and the other weights."""
    names = list(dict.fromkeys(name for one in found for name, _ in _extra_columns(one)))
    target = found[0].card.target or "label"
    heads = ["asked", "what", "id", target, "weight", "without it", "note"]
    table = rich.table.Table()
    for head in [*heads, *names]:
        table.add_column(head)
    for line in chain.from_iterable(_lines(one, names) for one in found):
        table.add_row(*(text.replace(_SPACE, " ") for text in line))
    return tab_separated(table)


def _lines(one: "Explained", names: list[str]) -> list[list[str]]:
    card, columns = one.card, dict(_extra_columns(one))
    values = [[columns[name][at][0] if name in columns else "" for name in names]
              for at in range(len(card.neighbors) + 1)]  # fmt: skip
    known = [f"remembered as {one.label}"] if one.label else []
    chips = " · ".join([*(chip.text for chip in card.chips), *known])
    lines = [[one.key, "row", "", card.answer, "", "", chips, *values[0]]]
    for each, cells in zip(card.neighbors, values[1:], strict=True):
        own = [one.key, "neighbor", str(each.id), each.label, f"{each.weight:.4f}"]
        lines.append([*own, each.without, each.difference, *cells])
    blank = [""] * (1 + len(names))
    for what, weight in (("other neighbors", card.others), ("no neighbor", card.null_mass)):
        lines.append([one.key, what, "", "", f"{weight:.4f}", "", *blank])
    return lines


def _extra_columns(one: "Explained") -> list[tuple[str, list[tuple[str, bool]]]]:
    """Return name and cells (text, differs) of each column; the first cell is the row's own."""
    faces = [one.card.query, *(each.face for each in one.card.neighbors)]
    found: list[tuple[str, list[tuple[str, bool]]]] = []
    if any(one.files):
        found.append(("file", [("", False), *((file, False) for file in one.files)]))
    elif any(face.show for face in faces):
        found.append(("show", [(face.show, False) for face in faces]))
    table: Any = one.table
    for at, name in enumerate(() if table is None or table.query is None else table.columns):
        cells = [(cell(row[at][0]), row[at][1]) for row in table.cells]
        found.append((str(name), [(cell(table.query[at]), False), *cells]))
    return found


def _marked(differs: bool) -> str:
    return "bold yellow" if differs else "dim"
