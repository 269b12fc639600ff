"""Tables of the command line: reading, target column, model columns, writing."""

import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from nearwise.cli.console import say
from nearwise.cli.tables import shown_cell
from nearwise.names import did_you_mean, listed

if TYPE_CHECKING:
    import pandas as pd

    from nearwise.data.tables.cells import Cells

_SHOWN = 12
_LONG = 15  # digits that every float keeps


class Frame(NamedTuple):
    """A table, and a function for its original columns."""

    table: "pd.DataFrame"
    cells: "Cells"

    def _held(self, names: Sequence[str]) -> "pd.DataFrame":
        """Cells of some columns as the file has them; some rows of the file may be left out."""
        return (self.cells(names) if names else self.table[[]]).loc[self.table.index]

    def as_written(self, names: Sequence[str]) -> "pd.DataFrame":
        """Return columns in their original form in the file."""
        import pandas as pd

        from nearwise.data.tables.cells import as_written

        held = self._held(names)
        columns = {name: as_written(self.table[name], held[name]) for name in names}
        return pd.DataFrame(columns, index=self.table.index)

    def in_text(self, name: str) -> "pd.Series":
        """Return a number column as text; missing values stay missing."""
        return self._held([name])[name].astype(str).where(self.table[name].notna(), None)

    def words(self, names: Sequence[str]) -> dict[str, str]:
        """Describe words in columns that are read as missing values, per column with such words."""
        found = {}
        for name, held in self._held(names).items():
            gaps = held[self.table[name].isna()].dropna().astype(str).str.strip()
            said = Counter(gaps[gaps != ""].tolist()).most_common(3)
            found[str(name)] = ", ".join(f"{n} cells say {word!r}" for word, n in said)
        return {name: said for name, said in found.items() if said}


def read_frame(
    path: str,
    header: bool | None = None,
    *,
    known: Collection[str] = (),
    like: Any = None,
    keep_words: Collection[str] = (),
    sheet: str | None = None,
    quiet: bool = False,
) -> Frame:
    """Read a table, or standard input ("-"), and report changes to its content.

    `keep_words` are columns in which NA and the like are words. `header` says whether the first
    line holds column names; by default it does, with an error if it looks like data. A first line
    with all columns of a model (`known`) holds names; numbers are read as in the training table of
    a model (`like`). `sheet` names a sheet of a workbook.
    """
    from nearwise.data.tables.files import read_cells

    table, cells = read_cells(
        path,
        header=header,
        known=known,
        like=like,
        keep_words=keep_words,
        sheet=sheet,
        note=lambda text: None if quiet else say(f"note: {text}"),
    )
    return Frame(table, cells)


def unmerged(frame: Frame, names: Iterable[str], where: str, *, quiet: bool = False) -> None:
    """Keep columns as text if one number would stand for several codes (1E3, 1000).

    Missing columns of `names` are skipped.
    """
    import pandas as pd

    for name in names:
        if name not in frame.table or not pd.api.types.is_numeric_dtype(frame.table[name]):
            continue
        text = frame.in_text(name).dropna().str.strip()
        # 1, 1.0, 1.00 and +1 are one number
        plain = text.str.replace(r"(\.\d*?)0+$", r"\1", regex=True).str.rstrip(".").str.lstrip("+")
        if plain.nunique() <= frame.table[name].nunique():
            continue
        if not quiet:
            some = listed(text.unique().tolist())
            say(f"note: {named(where)}: {name!r} stays text, as numbers would merge some: {some}.")
        frame.table[name] = frame.in_text(name)


def as_learned(frame: Frame, known: "dict[str, list[object]]") -> None:
    """Convert columns to the categories of a model: words for missing values, codes as text.

    `known` has the categories or classes of columns. If they include distinct texts of one number,
    such as 1E3 and 1000, or more digits than a float keeps, numbers get the text of their cells.
    """
    import pandas as pd

    from nearwise.data.tables.cells import MISSING, with_words
    from nearwise.estimators.inputs.by_text import as_read

    for name, values in known.items():
        if name not in frame.table:
            continue
        if not {"?", *MISSING}.isdisjoint(map(str, values)):
            frame.table[name] = with_words(frame.cells([name])[name])
        if not all(isinstance(value, str) for value in values):
            continue
        read = {as_read(value) for value in values}
        long = any(value.isdigit() and len(value) > _LONG for value in map(str, values))
        if pd.api.types.is_numeric_dtype(frame.table[name]) and (len(read) < len(values) or long):
            frame.table[name] = frame.in_text(name)


def split_target(
    frame: Frame, target: str, where: str, *, skip: bool = False, quiet: bool = False
) -> tuple["pd.DataFrame", "pd.Series"]:
    """Separate features and target column.

    Rows without a target are skipped on request (`skip`); otherwise they raise ValueError.
    """
    require_columns(frame.table, [target], where)
    y = frame.table[target]
    missing = int(y.isna().sum())
    words = frame.words([target]).get(target, "") if missing else ""
    if missing == len(y) or (missing and not skip):
        said = f" ({words})" if words else ""
        first = f", first row {y.index[int(y.isna().to_numpy().argmax())]} (counted from 0)"
        flag = f"--keep-words {shlex.quote(target)}"
        keep = f"keep such words as labels with {flag}, " if words else ""
        raise ValueError(
            f"{named(where)}: {missing} of {len(y)} rows have no value in the target column "
            f"{target!r}{said}{first}. Fill them, {keep}or leave those rows out with "
            "--skip-unlabelled."
        )
    if missing and not quiet:
        said = f", of which {words}" if words else ""
        say(f"note: {named(where)}: left out {missing} rows without a label{said}.")
    features = frame.table.drop(columns=target)
    return (features[y.notna()], y[y.notna()]) if missing else (features, y)


def in_order(table: "pd.DataFrame", time: str, where: str, use: str = "") -> "pd.DataFrame":
    """Sort rows by a column of dates, times or numbers, the latest last.

    `use` may have the format of the dates ("date:%d-%m-%y"). ValueError with the first invalid
    cell, or if day and month are ambiguous.
    """
    import pandas as pd

    from nearwise.estimators.inputs.dates import moments_of

    column = table[time]
    layout = use.partition(":")[2]
    is_number = pd.api.types.is_numeric_dtype(column) and not layout
    when = column if is_number else moments_of(column, layout)
    why = ", which is no date that can be told and no number"
    advice = f"{why}. Write dates as 2024-12-31, or leave those rows out"
    refuse_cells(column, when.isna(), f"{named(where)}: the --time", advice)
    return table.loc[when.sort_values(kind="stable").index]


def refuse_cells(column: "pd.Series", bad: "pd.Series", what: str, advice: str) -> None:
    """Raise ValueError for the first bad cell of a column, if any, with advice."""
    if bad.any():
        row = int(bad.to_numpy().argmax())
        value = column.iloc[row]
        text = repr(value) if isinstance(value, str) else shown_cell(value) or "no value"
        raise ValueError(
            f"{what} column {column.name!r} holds {text} in row {column.index[row]} (counted from "
            f"0; {int(bad.sum())} such rows of {len(column)}){advice}."
        )


def free_name(name: object, taken: Collection[str]) -> str:
    """Return a column name that is not taken, by adding "_" as often as needed."""
    free = str(name)
    while free in taken:
        free += "_"
    return free


def require_columns(frame: "pd.DataFrame", names: Iterable[str], where: str) -> None:
    """Raise ValueError for missing columns, with the nearest name and the existing ones."""
    present, wanted = [str(column) for column in frame.columns], list(names)
    missing = [name for name in wanted if name not in present]
    if not missing:
        return
    hint = did_you_mean(missing[0], [name for name in present if name not in wanted])
    lacks = "has no column" if len(missing) == 1 else f"lacks {len(missing)} columns:"
    raise ValueError(
        f"{named(where)} {lacks} {listed(missing, n=_SHOWN)}.{hint} "
        f"It has: {listed(present, n=_SHOWN)}."
    )


def match_columns(
    frame: "pd.DataFrame",
    names: Sequence[str],
    where: str,
    *,
    optional: Iterable[str] = (),
    expected: Iterable[str] = (),
    quiet: bool = False,
) -> "pd.DataFrame":
    """Return the columns used by a model, in its order.

    `optional` columns, which the model does not use, may be missing; `expected` ones (the target)
    may be present. Others are ignored with a note.
    """
    spare = set(optional)
    require_columns(frame, [name for name in names if name not in spare], where)
    known = {*names, *expected}
    extra = [str(column) for column in frame.columns if column not in known]
    if extra and not quiet:
        say(f"note: {named(where)}: the model has no {listed(extra, n=_SHOWN)}; ignored.")
    return frame[[name for name in names if name in frame.columns]]


def match_places(
    frame: "pd.DataFrame",
    names: Sequence[str],
    target: str,
    classes: Iterable[object] | None,
    where: str,
    *,
    quiet: bool = False,
) -> "pd.DataFrame":
    """Rename the columns "0", "1", ... of a table without a header to the model's columns.

    Positions are those of the training table, including its target. The target
    is taken as missing if there is no known class at its position, or if as many columns as `names`
    have other positions. The columns are then the model's in order. ValueError if the match is
    ambiguous. Without `classes` the target holds numbers.
    """
    import pandas as pd

    if set(names) <= set(frame.columns):
        if target not in frame.columns:
            return frame
        labels = frame[target].dropna().astype(str)
        fits = pd.to_numeric(labels, errors="coerce").notna()
        if classes is not None:
            fits = labels.isin([str(label) for label in classes])
        if not len(labels) or fits.any():
            return frame
    if frame.shape[1] == len(names):
        if not quiet:
            order = listed(names, n=_SHOWN)
            say(f"note: {named(where)}: its {len(names)} columns are taken in order: {order}.")
        return frame.set_axis(list(names), axis=1)
    raise ValueError(
        f"{named(where)} has {frame.shape[1]} columns without names, and the model has "
        f"{listed(names, n=_SHOWN)} and the target {target!r}. Give the columns in the order of "
        "the training table with the target or a column in its place, give just those that the "
        "model has, or add a first line with their names."
    )


def named(path: str) -> str:
    """Return the name of a file for messages."""
    return "standard input" if path == "-" else path
