"""Markdown tables of records: rows as they are, or one measure with a column per method."""

from collections.abc import Iterable, Mapping
from typing import Any

from keeping import RESULTS, read
from results_page import as_table

Row = Mapping[str, Any]


def record(name: str) -> dict[str, Any]:
    """A record of benchmarks/results."""
    content: dict[str, Any] = read(RESULTS / f"{name}.json")
    return content


def rows_of(name: str, key: str = "results") -> list[dict[str, Any]]:
    """Rows of a record."""
    rows: list[dict[str, Any]] = record(name)[key]
    return rows


def around(mean: float, half: float) -> dict[str, float]:
    """A mean with the ends of its interval, from half of the interval."""
    return {"mean": mean, "low": mean - half, "high": mean + half}


def cell(value: Any, digits: int = 3) -> str:
    """A text, a count, a number, or a mean with the ends of its 95 % interval."""
    if value is None:
        return ""
    if isinstance(value, Mapping):
        text = cell(value["mean"], digits)
        low, high = value.get("low"), value.get("high")
        return text if low is None else f"{text} [{cell(low, digits)}, {cell(high, digits)}]"
    if isinstance(value, float):
        text = f"{round(value, digits) + 0.0:,.{digits}f}"  # and no -0
        return text.replace("0.", ".", 1) if text.startswith(("0.", "-0.")) else text
    return f"{value:,}" if isinstance(value, int) else str(value)


def listing(rows: Iterable[Row], columns: Mapping[str, str], digits: int = 3) -> list[str]:
    """A row for each of a record; columns: title and key."""
    cells = [[cell(row.get(key), digits) for key in columns.values()] for row in rows]
    return as_table(list(columns), cells)


def pivot(
    rows: Iterable[Row],
    labels: Mapping[str, str],
    across: str,
    value: str,
    names: Mapping[str, str],
    digits: int = 3,
) -> list[str]:
    """One measure, with a column for each method.

    Parameters
    ----------
    rows : rows of a record
    labels : titles and keys of what stands at the left
    across : key whose values become columns
    value : key of the measure
    names : values of `across`, in order, and the titles of their columns
    digits : decimal places
    """
    found: dict[tuple[str, ...], dict[str, str]] = {}
    for row in rows:
        place = tuple(cell(row[key]) for key in labels.values())
        found.setdefault(place, {})[row[across]] = cell(row.get(value), digits)
    cells = [[*place, *(of.get(name, "") for name in names)] for place, of in found.items()]
    return as_table([*labels, *names.values()], cells)
