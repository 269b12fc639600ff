"""Target columns: classes or numbers, and their conversion."""

import fnmatch
import math
from collections.abc import Sequence
from numbers import Number
from typing import TYPE_CHECKING, Any, Literal

from nearwise.cli.console import say
from nearwise.cli.options import refuse
from nearwise.cli.rows.frames import named, refuse_cells, require_columns, split_target
from nearwise.names import listed, spelled_alike

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from nearwise.cli.rows.frames import Frame
    from nearwise.cli.rows.rows import Rows

Task = Literal["auto", "classification", "regression"]
_MOST_CLASSES = 20  # up to this many distinct integers are classes
_MOST_CODES = 500  # ... or this many if every one repeats, as codes do
_REPEATS = 5  # least rows per value


def choose_task(column: "pd.Series", wish: Task, *, quiet: bool) -> Task:
    """Choose the task for a target column, and print it unless given (`wish`).

    Text, booleans and dates are classes, numbers with fractions are numbers. Integers are
    classes if there are up to 20 distinct values, or up to 500 with at least five rows each. So is
    text of digits; other text is numbers if it has a number format, such as $5 and 1,5.
    """
    import pandas as pd

    if wish != "auto":
        return wish
    read = None if pd.api.types.is_bool_dtype(column) else _numbers_in(column)
    numbers = pd.Series() if read is None else read.dropna()
    counts = numbers.value_counts()
    digits = column.dropna().astype(str).str.isdecimal().all()
    is_class = (
        len(counts) <= _MOST_CLASSES
        or (digits and not pd.api.types.is_numeric_dtype(column))
        or (len(counts) <= _MOST_CODES and counts.min() >= _REPEATS)
    )
    why = f"{len(counts)} different whole numbers in {len(numbers)} rows"
    if (numbers % 1 != 0).any():
        is_class, why = False, "numbers with fractions"
    task, other = ("classification", "regression")[:: 1 if is_class else -1]
    if not quiet:
        held = f"{why} (--task {other} if not)" if len(numbers) else "no numbers"
        say(f"Task: {task}, as {column.name!r} holds {held}.")
    return "classification" if is_class else "regression"


def _numbers_in(column: "pd.Series") -> "pd.Series | None":
    """Read a column as float64, with text as in features; None if it holds no numbers.

    A few words among numbers are missing values.
    """
    import pandas as pd

    from nearwise.estimators.inputs.text_columns import may_be_gaps, numbers_among

    kinds = pd.api.types
    if kinds.is_any_real_numeric_dtype(column) or kinds.is_bool_dtype(column):
        return column.astype("Float64").astype(float)
    if not (kinds.is_object_dtype(column) or kinds.is_string_dtype(column)):
        return None
    values = column.dropna().unique().tolist()
    common, others, _ = numbers_among(values)
    if common is None or len(common.signs - {""}) > 1:
        return None
    if any(isinstance(one, bool) or not isinstance(one, str | Number) for one in values):
        return None
    if others and not may_be_gaps(others, column.value_counts()):
        return None
    return common.spelling().numbers(column.where(~column.isin(others)), str(column.name))


def target_numbers(column: "pd.Series", where: str) -> "pd.Series":
    """Return targets as finite float64; ValueError with the first bad row."""
    import pandas as pd

    read = _numbers_in(column)
    numbers = pd.to_numeric(column.astype(str), errors="coerce") if read is None else read
    advice = "Write numbers, or empty such cells and leave their rows out with --skip-unlabelled"
    refuse_cells(column, ~(numbers.abs() < math.inf), f"{where}: the target", f". {advice}")
    return numbers


def estimator_for(rows: "Rows", **of_classes: object) -> Any:
    """Return the estimator class for rows; ValueError for an option that it lacks."""
    from nearwise.estimators import AttnKNNClassifier, AttnKNNRegressor

    if rows.task == "classification":
        return AttnKNNClassifier
    name = getattr(rows.y, "name", None) or next(iter(rows.y))
    refuse(f"is for classes, and {name!r} is learned as a number", of_classes)
    return AttnKNNRegressor


def expand_targets(wishes: Sequence[str], table: "pd.DataFrame", where: str) -> list[str]:
    """Return the target columns; a name with * or ? stands for all columns that match it.

    ValueError for a pattern without a column, or a column named twice.
    """
    found: list[str] = []
    for wish in wishes:
        if wish in table.columns or not set(wish) & set("*?"):
            require_columns(table, [wish], where)
            found.append(wish)
            continue
        matched = [str(name) for name in table.columns if fnmatch.fnmatchcase(str(name), wish)]
        if not matched:
            some = listed(table.columns.tolist(), n=12)
            raise ValueError(f"{named(where)}: no column matches --target {wish!r}. It has {some}.")
        found += [name for name in matched if name not in found]
    if len(set(found)) < len(found):
        raise ValueError("--target names a column twice. Give each target once.")
    return found


def split_targets(
    frame: "Frame", targets: Sequence[str], where: str, *, skip: bool, quiet: bool
) -> "tuple[pd.DataFrame, pd.DataFrame]":
    """Separate features and target columns; only rows with all targets stay, as `split_target`."""
    import pandas as pd

    columns: list[Any] = []
    features = frame.table
    for target in targets:
        rest, y = split_target(
            frame._replace(table=features), target, where, skip=skip, quiet=quiet
        )
        columns = [*(one.loc[y.index] for one in columns), y]
        features = rest
    return features, pd.concat(columns, axis=1)


def class_positions(labels: "pd.Series", classes: "np.ndarray", where: str) -> "np.ndarray":
    """Convert labels to positions among the model's classes; ValueError for any other label."""
    import pandas as pd

    positions = pd.Index(classes).get_indexer(pd.Index(labels.to_numpy()))
    unknown = labels[positions < 0]
    if len(unknown):
        names = ", ".join(repr(str(label)) for label in unknown.unique()[:5])
        advice = (
            "Write labels as True and False"
            if classes.dtype.kind == "b"
            else "Add rows of that class with 'nearwise add'"
        )
        if alike := spelled_alike(unknown.unique().tolist(), classes.tolist()):
            label, meant = next(iter(alike.items()))
            advice = f"Did you mean {meant!r} by {label!r}? Correct the labels"
        raise ValueError(
            f"{where}: {len(unknown)} of {len(labels)} rows have a label that the model does not "
            f"have ({names}); it has {', '.join(repr(str(label)) for label in classes[:20])}. "
            f"{advice}, or leave those rows out."
        )
    return positions
