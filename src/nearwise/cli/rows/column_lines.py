"""The column report in lines of text: what each column is used as, and what is left out."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nearwise.classifier import ColumnReport

_ALL = 30  # columns up to which each has its line; of more, only those with something to say
_SHOWN = 20
_PLURAL = {"number": "numbers", "category": "categories", "date": "dates", "left out": "left out"}


def column_lines(reports: "Sequence[ColumnReport]", *, flags: bool) -> list[str]:
    """Lay a column report out, readable for ten thousand columns too.

    Parameters
    ----------
    reports : sequence of ColumnReport
    flags : bool
        Whether to name the flag of 'nearwise fit' that uses a column in another way.

    Returns
    -------
    lines : list of str
        How many columns are used as what; then a line for each column of up to 30, else for the
        first 20 that are left out, dates, or come with a reason.
    """
    counts = Counter(one.use for one in reports)
    named = [
        f"{n} {_PLURAL[use] if n > 1 or use == 'left out' else use}" for use, n in counts.items()
    ]
    lines = [f"{len(reports)} column{'s' if len(reports) > 1 else ''}: {', '.join(named)}."]
    with_gaps = [one for one in reports if one.missing]
    some = list(reports)
    if len(reports) > _ALL:
        some = [one for one in reports if one.reason or one.use in ("left out", "date")]
        some.sort(key=lambda one: one.use != "left out")
        if with_gaps:
            most = max(with_gaps, key=lambda one: one.missing)
            lines.append(
                f"  {len(with_gaps)} columns have gaps, most {most.name} ({most.missing} rows)."
            )
    shown = some if len(reports) <= _ALL else some[:_SHOWN]
    width = min(max((len(one.name) for one in shown), default=0), 30)
    lines += [f"  {one.name:<{width}}  {_described(one, flags)}" for one in shown]
    if len(some) > len(shown):
        lines.append(f"  and {len(some) - len(shown)} more like these ('nearwise inspect --json').")
    return lines


def _described(one: "ColumnReport", flags: bool) -> str:
    parts = [f"{one.use} ({one.type})"]
    if one.distinct is not None:
        parts.append(f"{one.distinct} distinct")
    if one.missing:
        parts.append(f"{one.missing} missing")
    if one.parts:
        parts.append("becomes " + ", ".join(one.parts))
    text = ", ".join(parts)
    if one.reason:
        text += f"; {one.reason}"
    if flags and one.change:
        text += f" (--{one.change} {_quoted(one.name)} changes that)"
    return text


def _quoted(name: str) -> str:
    return f'"{name}"' if " " in name else name
