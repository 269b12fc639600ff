"""Input rows of commands, from a table or from folders of images."""

import math
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from nearwise.cli.console import load_library, say
from nearwise.cli.options import ReadOptions
from nearwise.cli.rows.column_options import column_lines
from nearwise.cli.rows.frames import (
    Frame,
    as_learned,
    in_order,
    match_columns,
    match_places,
    named,
    read_frame,
    refuse_cells,
    require_columns,
    split_target,
    unmerged,
)
from nearwise.cli.rows.image_rows import (
    check_target,
    names_images,
    read_class_folder,
    read_files,
)
from nearwise.cli.rows.sparse_rows import labelled_sparse, refuse_names, sparse_like
from nearwise.cli.rows.targets import (
    Task,
    choose_task,
    expand_targets,
    split_targets,
    target_numbers,
)
from nearwise.cli.tables import shown_cell
from nearwise.names import listed

_SHOWN = 50  # columns in a message
_OF_ARRAY = re.compile(r"f\d+")  # columns of an array in an npz

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from nearwise.estimators.inputs.images import ImageEncoder
    from nearwise.estimators.opening import Estimator


@dataclass(frozen=True)
class Rows:
    """Rows with labels, none missing: a table, a sparse matrix, or images with files (`names`).

    `frame` is the table with its original columns; `groups` the group of each row; `show` the
    column that is shown with the rows. In a regression `y` holds numbers.
    """

    X: Any
    y: Any
    weight: "np.ndarray | None" = None
    names: "np.ndarray | None" = None
    frame: Frame | None = None
    groups: "pd.Series | None" = None
    task: Task = "classification"
    show: str | None = None

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.y)

    @property
    def noun(self) -> str:
        """Noun for the rows in messages."""
        return "rows" if self.names is None else "images"

    @property
    def source(self) -> Any:
        """Input of `fit` and `add`."""
        from nearwise.estimators.inputs.groups import check_groups
        from nearwise.estimators.inputs.rows import Source

        return Source(self.X, self.y, self.names, check_groups(self.groups), self.show)

    def take(self, at: "np.ndarray") -> "Rows":
        """Return the rows at these positions."""
        names, weight = (None if of is None else of[at] for of in (self.names, self.weight))
        groups = None if self.groups is None else self.groups.iloc[at]
        return Rows(take_rows(self.X, at), self.y.iloc[at], weight, names, self.frame, groups)

    def described(self, row: int, names: Sequence[str]) -> dict[str, str]:
        """Describe a row by these columns, or by its file."""
        import pandas as pd

        if isinstance(self.X, pd.DataFrame):
            # not as one row: it could become floats
            return {name: shown_cell(self.X[name].iloc[row]) for name in names}
        return {} if self.names is None else {"file": str(self.names[row])}


def take_rows(
    features: "pd.DataFrame | np.ndarray", rows: "np.ndarray"
) -> "pd.DataFrame | np.ndarray":
    """Select rows of a table, sparse rows, or images, by position."""
    from pandas import DataFrame

    return features.iloc[rows] if isinstance(features, DataFrame) else features[rows]


def read_to_learn(
    data: str,
    target: str | Sequence[str] | None,
    options: ReadOptions,
    *,
    uses: dict[str, Any],
    drop: Sequence[str] = (),
    keep_words: Sequence[str] = (),
    weight: str | None = None,
    groups: str | None = None,
    time: str | None = None,
    show: str | None = None,
    task: Task = "auto",
) -> Rows:
    """Read rows to fit a model.

    `data` is a table, "-" for standard input, a sparse file, or a folder with one folder of images
    per class; `target` (several make `y` a table), `drop`, `keep_words`, `weight`, `groups`, `time`
    and `show` name columns of a table, `uses` sets the use of some; the use of all is reported.
    Rows are sorted by `time`; columns of weights and groups are no features. `task` is the kind of
    the target; "auto" calls `choose_task`. Rows without a label are skipped on request. ValueError
    if an option does not fit `data`, or it cannot be read.
    """
    load_library()
    from nearwise.data.tables.sparse_files import is_sparse_file
    from nearwise.estimators import report_columns

    wishes = [target] if isinstance(target, str) else list(target or ())
    if names_images(data):
        check_target(wishes[0] if wishes else None)
        by_name = {"drop": drop, "keep_words": keep_words, "weight": weight}
        options.refuse_of_tables(**by_name, groups=groups, time=time, show=show)
        if task == "regression":
            raise ValueError(
                "--task regression needs a table; images are classified. Embed them first "
                "('nearwise embed'), and give a table of the embeddings and the target."
            )
        return _labelled(read_class_folder(data, "train", options))
    if is_sparse_file(data):
        named_columns = {"target": wishes, "drop": drop, "keep_words": keep_words, "weight": weight}
        named_columns |= {"groups": groups, "time": time, "show": show}
        named_columns |= {use.partition(":")[0]: name for name, use in uses.items()}
        X, y = labelled_sparse(data, options, **named_columns)
        task = choose_task(y, task, quiet=options.quiet)
        return Rows(X, target_numbers(y, data) if task == "regression" else y, task=task)
    options.refuse_of_images(f"{named(data)} is read as a table")
    quiet = options.quiet
    read = read_frame(data, options.header, keep_words=keep_words, sheet=options.sheet, quiet=quiet)
    require_columns(read.table, drop, data)
    taken = [name for name in (weight, groups, time, show) if name is not None]
    targets = expand_targets(wishes, read.table, data)
    if set(targets) & set(taken) or len(set(taken)) < len(taken):
        raise ValueError(
            "--target, --weight, --groups, --time and --show name different columns; give each "
            "another one."
        )
    require_columns(read.table, taken, data)
    table = read.table
    if time is not None:
        table = in_order(table, time, data, uses.get(time, ""))
    beside = {*drop, *(name for name in (weight, groups) if name is not None)}
    frame = read._replace(table=table.drop(columns=list(beside)))
    if not targets:
        columns = sorted(frame.table.columns, key=lambda name: bool(_OF_ARRAY.fullmatch(str(name))))
        raise ValueError(
            f"Which column of {named(data)} holds the labels? Name it with --target; it has: "
            f"{listed(columns, n=_SHOWN)}."
        )
    require_columns(frame.table, targets, data)
    tasks = {
        choose_task(frame.table[one], task, quiet=quiet or len(targets) > 1) for one in targets
    }
    if len(tasks) > 1:
        raise ValueError(
            "Some targets are classes and others numbers. Fit a model to each kind, or choose with "
            "--task."
        )
    (task,) = tasks
    category = [name for name, use in uses.items() if use == "category"]
    codes = category if task == "regression" else [*targets, *category]
    unmerged(frame, codes, data, quiet=quiet)
    skip = options.skip_unlabelled
    labels: Any
    if len(targets) == 1:
        features, labels = split_target(frame, targets[0], data, skip=skip, quiet=quiet)
        if task == "regression":
            labels = target_numbers(labels, named(data))
    else:
        features, labels = split_targets(frame, targets, data, skip=skip, quiet=quiet)
        if task == "regression":
            labels = labels.apply(target_numbers, where=named(data))
    _note_words(frame, features, data, quiet=quiet)
    weights = None if weight is None else _weights(table[weight][labels.index], data)
    require_columns(features, uses, data)
    reports = report_columns(features, uses, show=show)
    for line in [] if quiet else column_lines(reports, flags=True):
        say(line)
    own = None if groups is None else _groups(table[groups][labels.index], data)
    return Rows(features, labels, weights, frame=frame, groups=own, task=task, show=show)


def _note_words(frame: Frame, features: "pd.DataFrame", data: str, *, quiet: bool) -> None:
    """Print the words that are read as missing values in text columns."""
    import pandas as pd

    if quiet:
        return
    with_gaps = [
        str(name)
        for name, column in features.items()
        if pd.api.types.is_object_dtype(column) or pd.api.types.is_string_dtype(column)
        if column.isna().any() and column.notna().any()
    ]
    for name, said in frame.words(with_gaps).items():
        say(
            f"note: {named(data)}: in {name!r} {said}, read as gaps; --keep-words "
            f"{shlex.quote(name)} keeps them as words."
        )


def _groups(column: "pd.Series", data: str) -> "pd.Series":
    """Return the column of groups; ValueError for the first row without one."""
    advice = ". Give a row that belongs to no group a value of its own"
    refuse_cells(column, column.isna(), f"{named(data)}: the --groups", advice)
    return column


def _weights(column: "pd.Series", data: str) -> "np.ndarray":
    """Return the column of weights as float64 (n,); ValueError for the first invalid row."""
    import pandas as pd

    weights = pd.to_numeric(column, errors="coerce").astype("Float64").astype(float)
    advice = ". Give every row a finite weight of at least 0, or leave those rows out"
    bad = ~((weights >= 0) & (weights < math.inf))
    refuse_cells(column, bad, f"{named(data)}: the --weight", advice)
    return weights.to_numpy()


def read_for_model(
    model: "Estimator",
    name: Path,
    data: str,
    target: str | None,
    options: ReadOptions,
    *,
    part: Literal["train", "test"],
    groups: str | None = None,
) -> Rows:
    """Read labelled rows of the kind used by the model in folder `name`.

    As `read_to_learn`, but the default target is that of the model; `part` selects the training or
    test part of an image folder with both, `groups` is a further column to read.
    """
    from nearwise.data.tables.sparse_files import is_sparse_file
    from nearwise.estimators.inputs.by_text import labels_as_classes

    of_images = check_kind(model, name, [data], options)
    if of_images is not None:
        options.refuse_of_tables(groups=groups)
        check_target(target, model.fitted_.target_name)
        rows = _labelled(read_class_folder(data, part, options, of_images))
        return Rows(rows.X, labels_as_classes(rows.y, model.classes_), names=rows.names)
    classes = getattr(model, "classes_", None)
    if is_sparse_file(data):
        X, y = labelled_sparse(data, options, model, target=target, groups=groups)
        return Rows(
            X, target_numbers(y, data) if classes is None else labels_as_classes(y, classes)
        )
    target = target or model.fitted_.target_name
    frame, values = _read_as(model, data, options)
    as_learned(frame, values if classes is None else values | {target: classes.tolist()})
    skip, quiet = options.skip_unlabelled, options.quiet
    features, labels = split_target(frame, target, data, skip=skip, quiet=quiet)
    belongs = None
    if groups is not None:
        require_columns(features, [groups], data)
        belongs = _groups(features[groups], data)
    names, spare, known = [*model.feature_names_in_], _left_out(model), model.fitted_.group_name
    also = [name for name in (groups, known) if name]
    X = match_columns(features, names, data, optional=spare, expected=also, quiet=quiet)
    if classes is None:
        return Rows(X, target_numbers(labels, named(data)), groups=belongs)
    return Rows(X, labels_as_classes(labels, classes), groups=belongs)


def read_for_targets(model: Any, name: Path, data: str, options: ReadOptions) -> Rows:
    """Read labelled rows of a table for a model of several targets; `y` has a column per target."""
    import pandas as pd

    from nearwise.estimators.inputs.by_text import labels_as_classes

    one, targets = model.estimators_[0], model.target_names_
    if check_kind(one, name, [data], options) is not None:
        raise ValueError(f"{name} was fitted on images, and no folder gives them several labels.")
    frame, values = _read_as(one, data, options)
    classes = dict(zip(targets, getattr(model, "classes_", ()), strict=False))
    as_learned(frame, values | {target: known.tolist() for target, known in classes.items()})
    skip, quiet = options.skip_unlabelled, options.quiet
    features, y = split_targets(frame, targets, data, skip=skip, quiet=quiet)
    spare, expected = _left_out(one), [one.fitted_.group_name or ""]
    names = [*model.feature_names_in_]
    X = match_columns(features, names, data, optional=spare, expected=expected, quiet=quiet)
    columns = [
        labels_as_classes(y[target], classes[target])
        if target in classes
        else target_numbers(y[target], named(data))
        for target in targets
    ]
    return Rows(X, pd.concat(columns, axis=1))


def read_to_predict(
    model: "Estimator",
    name: Path,
    data: Sequence[str],
    copy: Sequence[str],
    options: ReadOptions,
    *,
    others: Sequence[str] = (),
) -> "tuple[pd.DataFrame, Any]":
    """Read rows without labels for a model; return columns to copy, and features.

    `data` is one table, or files and folders of images; for images the column "file" is copied, as
    given. The table may have `others`, further targets.
    """
    import pandas as pd

    from nearwise.data.tables.sparse_files import is_sparse_file

    of_images = check_kind(model, name, data, options)
    if of_images is not None:
        options.refuse_of_tables()
        if copy:
            raise ValueError(
                f"--copy {copy[0]}: images have no columns; their file is always named."
            )
        files, images = read_files(data, options, of_images)
        return pd.DataFrame({"file": [str(file) for file in files]}), images
    if len(data) > 1:
        raise ValueError(f"{name} was fitted on a table: give one table, not {len(data)} files.")
    (table,) = data
    if is_sparse_file(table):
        X = sparse_like(model, table, options, copy=copy)
        return pd.DataFrame(index=range(X.shape[0])), X
    names, target = list(model.feature_names_in_), model.fitted_.target_name
    whole, values = _read_as(model, table, options)
    require_columns(whole.table, copy, table)
    copied = whole.as_written(list(dict.fromkeys(copy)))
    if options.header is not False or set(names) <= set(whole.table):
        as_learned(whole, values)
    frame = whole.table
    if options.header is False:
        classes = getattr(model, "classes_", None)
        frame = match_places(frame, names, target, classes, table, quiet=options.quiet)
    expected = [*copied.columns, *others, target, model.fitted_.group_name]
    spare, quiet = _left_out(model), options.quiet
    features = match_columns(frame, names, table, optional=spare, expected=expected, quiet=quiet)
    return copied.reset_index(drop=True), features.reset_index(drop=True)


def _read_as(
    model: "Estimator", data: str, options: ReadOptions
) -> "tuple[Frame, dict[str, list[object]]]":
    """Read a table for a model; return it with the categories of each column."""
    encoder: Any = model.fitted_.predictor.encoder
    known = set(model.feature_names_in_) - set(_left_out(model))
    given: Any = {"sheet": options.sheet, "quiet": options.quiet}
    frame = read_frame(data, options.header, known=known, like=model, **given)
    return frame, dict(encoder.categories)


def _left_out(model: "Estimator") -> list[str]:
    """Columns that a model stores but does not use; its tables may lack them."""
    return [name for name, use in model.report_.columns.items() if use == "left out"]


def _labelled(dataset: Any) -> Rows:
    import numpy as np
    import pandas as pd

    labels = pd.Series(dataset.y, name=dataset.target_name)
    return Rows(dataset.X, labels, names=np.array(dataset.row_names))


def check_kind(
    model: "Estimator", name: Path, data: Sequence[str], options: ReadOptions
) -> "ImageEncoder | None":
    """Raise ValueError for rows of another kind than the model's; return an image encoder."""
    encoder: Any = model.fitted_.predictor.encoder
    known = encoder if encoder.kind == "images" else None
    if known is None:
        options.refuse_of_images(f"{name} was fitted on a table")
    for path in data:
        if known is None and not names_images(path) and (path == "-" or Path(path).exists()):
            refuse_names(model, name, path)
        if known is None and names_images(path):
            kind = "a folder" if Path(path).is_dir() else "an image"
            raise ValueError(f"{name} was fitted on a table, and {path} is {kind}. Give a table.")
        if known is not None and not names_images(path) and (path == "-" or Path(path).exists()):
            raise ValueError(
                f"{name} was fitted on images, and {named(path)} is not one by its ending. Give "
                "images or a folder of them."
            )
    return known
