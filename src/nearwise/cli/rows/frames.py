"""Tables of the command line: read them, find the target, match a model's columns, write them."""

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from nearwise.cli.console import say
from nearwise.names import did_you_mean

if TYPE_CHECKING:
    import pandas as pd

_SHOWN = 12


def read_frame(
    path: str,
    header: bool | None = None,
    *,
    known: Collection[str] = (),
    quiet: bool = False,
) -> "pd.DataFrame":
    """Read a table, and say what was not read as it stands.

    Returns `frame`, DataFrame: at least one row. Raises ValueError if the file holds no rows or
    cannot be understood. Raises OSError if it cannot be read.

    Parameters
    ----------
    path : str
        File name, or "-" for standard input.
    header : bool, optional
        Whether the first line holds column names; by default it does, and is refused if it seems
        not to.
    known : collection of str
        Columns of a model; a first line with all of them holds names.
    quiet : bool, default=False
        No notes.
    """
    from nearwise.data.tables.files import read_table

    return read_table(
        path,
        header=header,
        known=known,
        note=lambda text: None if quiet else say(f"note: {text}"),
    )


def split_target(
    frame: "pd.DataFrame", target: str, where: str
) -> tuple["pd.DataFrame", "pd.Series"]:
    """Separate the features from the target column.

    Raises ValueError if there is no such column, or rows have no value in it.

    Parameters
    ----------
    frame : DataFrame
        The table as read.
    target : str
        Name of the column to predict.
    where : str
        Name of the file, for messages.

    Returns
    -------
    X : DataFrame
        All other columns.
    y : Series
        The target; no value missing.
    """
    require_columns(frame, [target], where)
    y = frame[target]
    missing = int(y.isna().sum())
    if missing:
        raise ValueError(
            f"{named(where)}: {missing} of {len(y)} rows have no value in the target column "
            f"{target!r}. Fill them or leave those rows out."
        )
    return frame.drop(columns=target), y


def require_columns(frame: "pd.DataFrame", names: Iterable[str], where: str) -> None:
    """Raise if a column is missing, naming it, its nearest match, and what is there.

    Raises ValueError if one of them is not.

    Parameters
    ----------
    frame : DataFrame
        The table as read.
    names : iterable of str
        Columns that must be there.
    where : str
        Name of the file, for the message.
    """
    present = [str(column) for column in frame.columns]
    missing = [name for name in names if name not in present]
    if not missing:
        return
    hint = did_you_mean(missing[0], present)
    lacks = "has no column" if len(missing) == 1 else f"lacks {len(missing)} columns:"
    raise ValueError(
        f"{named(where)} {lacks} {_listed(missing)}.{hint} It has: {_listed(present)}."
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
    """Give the columns a model knows, by name and in its order.

    Returns `X`, DataFrame: columns `names`, less those of `optional` that are missing. Raises
    ValueError if a column is missing.

    Parameters
    ----------
    frame : DataFrame
        The table as read; its columns may be in any order.
    names : sequence of str
        The model's columns.
    where : str
        Name of the file, for messages.
    optional : iterable of str
        Those of `names` that may be missing, because nothing is learned from them.
    expected : iterable of str
        Further columns that may be there (the target); others are ignored with a note.
    quiet : bool, default=False
        No note.
    """
    spare = set(optional)
    require_columns(frame, [name for name in names if name not in spare], where)
    known = {*names, *expected}
    extra = [str(column) for column in frame.columns if column not in known]
    if extra and not quiet:
        say(f"note: {named(where)}: the model does not know {_listed(extra)}; ignored.")
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
    """Name the columns of a table without a header as a model does.

    Returns `frame`, DataFrame: with all columns `names`. Raises ValueError if it cannot be told
    which column is which.

    Parameters
    ----------
    frame : DataFrame
        Columns "0", "1", ... Numbers count as in the table that the model was fitted on, its
        target among them. With as many columns as `names` and other numbers the target is taken
        to be missing, and the columns to be those of the model in order.
    names : sequence of str
        The model's columns.
    target : str
        The model's target.
    classes : iterable
        The model's classes; none of them in the target's place means that the target is missing.
    where : str
        Name of the file, for messages.
    quiet : bool, default=False
        No note.
    """
    if set(names) <= set(frame.columns):
        if target not in frame.columns:
            return frame
        labels = frame[target].dropna().astype(str)
        if not len(labels) or labels.isin([str(label) for label in classes]).any():
            return frame
    if frame.shape[1] == len(names):
        if not quiet:
            order = _listed(names)
            say(f"note: {named(where)}: its {len(names)} columns are taken in order: {order}.")
        return frame.set_axis(list(names), axis=1)
    raise ValueError(
        f"{named(where)} has {frame.shape[1]} columns without names, and the model knows "
        f"{_listed(names)} and the target {target!r}. Give the columns in the order of the "
        "training table with the target or a column in its place, give just those that the model "
        "knows, or add a first line with their names."
    )


def drop_columns(frame: "pd.DataFrame", names: Iterable[str], where: str) -> "pd.DataFrame":
    """Leave out columns the user named; a wrong name raises.

    Returns `frame`, DataFrame: the rest. Raises ValueError if a column is not there.

    Parameters
    ----------
    frame : DataFrame
        The table as read.
    names : iterable of str
        Columns to leave out.
    where : str
        Name of the file, for the message.
    """
    chosen = list(names)
    require_columns(frame, chosen, where)
    return frame.drop(columns=chosen)


def named(path: str) -> str:
    """Name a file in a message."""
    return "standard input" if path == "-" else path


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"
