"""Tables of the command line: read them, find the target, match a model's columns, write them."""

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from nearwise.cli.console import say
from nearwise.names import did_you_mean, listed

if TYPE_CHECKING:
    import pandas as pd

_SHOWN = 12


def read_frame(
    path: str,
    header: bool | None = None,
    *,
    known: Collection[str] = (),
    like: Any = None,
    quiet: bool = False,
) -> "pd.DataFrame":
    """Read a table, or standard input ("-"), and report what was not read as it stands.

    `header` says whether the first line holds column names; by default it does, and is refused if
    it seems not to. A first line with all columns of a model (`known`) holds names; numbers are
    read as in the training table of a model (`like`).
    """
    from nearwise.data.tables.files import read_table

    return read_table(
        path,
        header=header,
        known=known,
        like=like,
        note=lambda text: None if quiet else say(f"note: {text}"),
    )


def split_target(
    frame: "pd.DataFrame", target: str, where: str
) -> tuple["pd.DataFrame", "pd.Series"]:
    """Separate the features from the target column, in which no value may be missing."""
    require_columns(frame, [target], where)
    y = frame[target]
    missing = int(y.isna().sum())
    if missing:
        raise ValueError(
            f"{named(where)}: {missing} of {len(y)} rows have no value in the target column "
            f"{target!r}. Fill them or leave those rows out."
        )
    return frame.drop(columns=target), y


def free_name(name: object, taken: Collection[str]) -> str:
    """Give a column's name, with a _ after it for each time that it is taken."""
    free = str(name)
    while free in taken:
        free += "_"
    return free


def require_columns(frame: "pd.DataFrame", names: Iterable[str], where: str) -> None:
    """Raise if a column is missing, naming it, its nearest match, and what is there."""
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
    """Give the columns a model uses, by name and in its order.

    Nothing is learned from those of `optional`, which may be missing; `expected` ones (the target)
    may be there beside, others are ignored with a note.
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
    classes: Iterable[object],
    where: str,
    *,
    quiet: bool = False,
) -> "pd.DataFrame":
    """Name the columns "0", "1", ... of a table without a header as a model does.

    Numbers count as in the table that the model was fitted on, its target among them. With as many
    columns as `names` and other numbers, or none of the classes in the target's position, the
    target is taken to be missing, and the columns to be those of the model in order. ValueError if
    it is unclear which column is which.
    """
    if set(names) <= set(frame.columns):
        if target not in frame.columns:
            return frame
        labels = frame[target].dropna().astype(str)
        if not len(labels) or labels.isin([str(label) for label in classes]).any():
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
    """Name a file in a message."""
    return "standard input" if path == "-" else path
