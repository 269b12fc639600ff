"""Tables and cells: drawn for a terminal, tab-separated text for a pipe or a file."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import rich.box
import rich.table
import rich.text

_ENTRIES = 30  # most entries of a dict in a table of facts


def grid(
    title: str,
    heads: Sequence[str],
    rows: Iterable[Sequence[Any]],
    left: Sequence[str] = (),
    *,
    fold: bool = True,
) -> rich.table.Table:
    """Make a table of right-aligned columns; the first one and `left` are left-aligned.

    Cells that are too long are folded; without `fold` only the last column wraps, at blanks.
    """
    table = _empty(title)
    for head in heads:
        at_left = head in (heads[0], *left)
        whole = not fold and head != heads[-1]
        overflow: Any = "ellipsis" if whole else "fold"
        justify: Any = "left" if at_left else "right"
        table.add_column(head, justify=justify, overflow=overflow, no_wrap=whole)
    for row in rows:
        table.add_row(*map(shown_cell, row))
    return table


def fact_table(facts: Mapping[str, Any], title: str) -> rich.table.Table:
    """Make a table of names and values; a dict is shown up to 30 entries, one a line."""
    table = _empty(title, show_header=False)
    table.add_column("name", style="bold")
    table.add_column("value", overflow="fold")
    for name, value in facts.items():
        if isinstance(value, Mapping):
            lines = [f"{key}: {short(entry)}" for key, entry in list(value.items())[:_ENTRIES]]
            if len(value) > _ENTRIES:
                lines.append(f"and {len(value) - _ENTRIES} more (--json shows all)")
            value = "\n".join(lines)
        table.add_row(name, short(value))
    return table


def _empty(title: str, *, show_header: bool = True) -> rich.table.Table:
    return rich.table.Table(
        title=title,
        title_justify="left",
        title_style="bold",
        header_style="bold",
        show_header=show_header,
        box=rich.box.SIMPLE_HEAD if show_header else None,
        pad_edge=False,
    )


def tab_separated(table: rich.table.Table) -> str:
    """Write a table as lines of tab-separated cells below a header, without its title.

    Line breaks and tabs in a cell become blanks. In a table of facts, which shows no header, each
    line of a value is a row of its own with the same name.
    """
    lines = ["\t".join(_one_line(column.header) for column in table.columns)]
    for cells in zip(*(list(column.cells) for column in table.columns), strict=True):
        if table.show_header:
            lines.append("\t".join(map(_one_line, cells)))
        else:
            name, value = cells
            lines += [f"{_one_line(name)}\t{_one_line(part)}" for part in value.split("\n")]
    return "\n".join(lines) + "\n"


def _one_line(cell: Any) -> str:
    if not isinstance(cell, str | rich.text.Text):
        raise TypeError(f"A table's cells are text, not {type(cell).__name__}.")
    return " ".join(str(cell).replace("\t", "\n").split("\n"))


def short(value: Any) -> str:
    """Format a value in one line; floats with four digits."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return ", ".join(f"{name} {short(entry)}" for name, entry in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(short, value))
    return str(value)


def percent(share: float, digits: int = 1) -> str:
    """Format a share, such as 91.8 %."""
    return f"{100 * share:.{digits}f} %"


def cut(text: str, width: int) -> str:
    """Shorten a text to a number of characters; of a path or a URL the end stays."""
    if len(text) <= width:
        return text
    is_path = "/" in text and " " not in text
    return "…" + text[len(text) - width + 1 :] if is_path else text[: width - 1] + "…"


def shown_cell(value: Any) -> str:
    """Format a table cell: empty for a missing value, integers in full, others with six digits."""
    if value is None or value != value or str(value) in ("<NA>", "NaT"):
        return ""
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() and abs(value) < 2**53 else f"{value:.6g}"
    return str(value)
