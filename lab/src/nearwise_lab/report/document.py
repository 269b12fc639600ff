"""A report as data, the same for every kind of folder; `writers` has its forms."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from nearwise import __version__
from nearwise_lab.comparisons import PairedDifference
from nearwise_lab.report.drawing import Picture
from nearwise_lab.results.gallery import Gallery
from nearwise_lab.results.measures import (
    Cell,
    Mean,
    Measure,
    Table,
    difference_cell,
    is_best,
    show_mean,
)


@dataclass(frozen=True)
class Words:
    """A paragraph."""

    text: str
    style: Literal["", "note", "failed"] = ""


@dataclass(frozen=True)
class Terms:
    """Names, each with its description."""

    items: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Fold:
    """Something that the page shows on request, and other forms show at once."""

    title: str
    blocks: Sequence["Block | None"]


Block = Words | Terms | Table | Picture | Gallery | Fold


@dataclass(frozen=True)
class Section:
    """A heading of level 2 or 3 with its blocks; blocks that are None are left out."""

    title: str
    blocks: Sequence[Block | None] = ()
    level: int = 2

    def flat(self) -> Iterator[Block]:
        """Blocks with folds opened, and galleries of table rows as tables."""
        return _flat(self.blocks)


def _flat(blocks: Sequence[Block | None]) -> Iterator[Block]:
    for block in blocks:
        if isinstance(block, Fold):
            yield from _flat(block.blocks)
        elif isinstance(block, Gallery) and not block.holds_images:
            yield from block.tables()
        elif block is not None:
            yield block


@dataclass(frozen=True)
class Document:
    """A whole report.

    `facts` say what the numbers were made under and are shown at the end; `reference` is the row
    that stands out in tables. For CSV and JSON: `numbers`, every mean and difference; `claims`, the
    verdicts; `failed` rows.
    """

    title: str
    lead: str
    sections: Sequence[Section]
    facts: Sequence[tuple[str, str]] = ()
    reference: str = ""
    numbers: Sequence[Mapping[str, Any]] = ()
    claims: Sequence[Mapping[str, Any]] = ()
    failed: Sequence[Mapping[str, Any]] = ()
    footer: str = field(default=f"Made by nearwise {__version__} from the records in its folder.")

    def parts(self) -> list[Section]:
        """Sections that hold something, the facts last."""
        facts = Fold("Hardware, versions and commands", [Terms([f for f in self.facts if f[1]])])
        found = [*self.sections, Section("What made these numbers", [facts], 3)]
        return [s for s in found[: None if self.facts else -1] if any(s.blocks)]

    def tables(self) -> list[Table]:
        """Every table, in order."""
        return [b for s in self.parts() for b in s.flat() if isinstance(b, Table)]

    def pictures(self) -> list[Picture]:
        """Every figure, in order."""
        return [b for s in self.parts() for b in s.flat() if isinstance(b, Picture)]


NONE = '"None": the interval holds 0, so no difference is shown.'
Find = Callable[[str, Measure], Mean | None]


def mean_rows(
    names: Mapping[str, str], measures: Sequence[Measure], find: Find
) -> list[tuple[str, list[Cell]]]:
    """Rows of means, one per name with values; the best mean of each column is marked."""
    means = {n: [find(n, m) for m in measures] for n in names}
    kept = {n: row for n, row in means.items() if any(mean is not None for mean in row)}
    columns = list(zip(*kept.values(), strict=True))
    return [
        (names[n], [Cell(show_mean(mean, m), "best" if is_best(mean, column, m) else "")
                    for mean, m, column in zip(row, measures, columns, strict=True)])
        for n, row in kept.items()
    ]  # fmt: skip


def mean_table(
    title: str, caption: str, first: str, names: Mapping[str, str] | Sequence[str],
    measures: Sequence[Measure], find: Find,
) -> Table | None:  # fmt: skip
    """Lay names out by the measures that have any value, the best of each column marked.

    None where nothing was found.
    """
    titles = names if isinstance(names, Mapping) else {n: n for n in names}
    shown = [m for m in measures if any(find(n, m) is not None for n in titles)]
    rows = mean_rows(titles, shown, find)
    return Table(title, caption, [first, *(m.title for m in shown)], rows) if rows else None


def difference_table(
    title: str, caption: str, first: str,
    rows: Mapping[str, Callable[[Measure], PairedDifference | None]], measures: Sequence[Measure],
) -> Table | None:  # fmt: skip
    """Show differences with their intervals and words, rows without any left out."""
    table = Table(title, f"{caption} {NONE}", [first, *(m.title for m in measures)])
    for name, find in rows.items():
        found = [find(m) for m in measures]
        if any(found):
            cells = [difference_cell(d, m) for d, m in zip(found, measures, strict=True)]
            table.rows.append((name, cells))
    return table if table.rows else None
