"""The rows that a command is given, whether they lie in a table or are images in folders."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from nearwise.cli.rows.frames import (
    drop_columns,
    match_columns,
    match_places,
    named,
    read_frame,
    require_columns,
    split_target,
)
from nearwise.cli.rows.image_rows import (
    ImageOptions,
    Size,
    check_target,
    image_size,
    names_images,
    read_class_folder,
    read_files,
)

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from nearwise.classifier import AttnKNNClassifier


@dataclass(frozen=True)
class Rows:
    """Rows with labels.

    Attributes
    ----------
    X : DataFrame, or uint8 ndarray of shape (n, height, width, channels)
    y : Series
        No label missing.
    weight : ndarray of shape (n,), optional
    names : ndarray of str of shape (n,), optional
        Files of images; None for a table.
    """

    X: "pd.DataFrame | np.ndarray"
    y: "pd.Series"
    weight: "np.ndarray | None" = None
    names: "np.ndarray | None" = None

    def __len__(self) -> int:
        """How many there are."""
        return len(self.y)

    @property
    def noun(self) -> str:
        """What to call them."""
        return "rows" if self.names is None else "images"

    @property
    def source(self) -> Any:
        """What `fit` and `add` take for X."""
        from nearwise.classifier.inputs.images import Source

        return Source(self.X, self.y, self.names)

    def described(self, row: int, n_columns: int) -> dict[str, str]:
        """Tell what a row is: its first columns, or its file."""
        import pandas as pd

        if isinstance(self.X, pd.DataFrame):
            values = self.X.iloc[row, :n_columns]
            return {str(name): str(value) for name, value in values.items()}
        assert self.names is not None  # an array comes from files
        return {"file": str(self.names[row])}


def read_to_learn(
    data: str,
    target: str | None,
    options: ImageOptions,
    *,
    drop: Sequence[str] = (),
    weight: str | None = None,
    header: bool | None = None,
    quiet: bool = False,
) -> Rows:
    """Read rows that a model is to be fitted to.

    Raises ValueError if an option does not go with `data`, or this cannot be read.

    Parameters
    ----------
    data : str
        A table, "-" for one on standard input, or a folder with a folder of images for each class.
    target : str, optional
        Column with the labels of a table.
    drop : sequence of str
        Columns of a table to leave out.
    weight : str, optional
        Column of a table with weights.
    header : bool, optional
        Whether the first line of a table holds column names; see `read_frame`.
    quiet : bool, default=False
        No notes.
    """
    if names_images(data):
        check_target(target)
        _refuse_header(header)
        for option, value in (("--drop", drop), ("--weight", weight)):
            if value:
                raise ValueError(f"{option} names a column; images have none. Leave it out.")
        return _labelled(read_class_folder(data, "train", options, quiet=quiet))
    options.refuse(f"{named(data)} is read as a table")
    frame = drop_columns(read_frame(data, header, quiet=quiet), drop, data)
    if target is None:
        columns = ", ".join(repr(str(column)) for column in frame.columns)
        raise ValueError(
            f"Which column of {named(data)} holds the labels? Say it with --target; it has: "
            f"{columns}."
        )
    weights = None
    if weight is not None:
        require_columns(frame, [weight], data)
        weights = _weights(frame.pop(weight), data)
    features, labels = split_target(frame, target, data)
    return Rows(features, labels, weights)


def _weights(column: "pd.Series", data: str) -> "np.ndarray":
    """Give a column of weights as float64 (n,), or name the first row that holds none."""
    import numpy as np
    import pandas as pd

    weights = pd.to_numeric(column, errors="coerce").to_numpy(dtype=float, na_value=np.nan)
    bad = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if len(bad):
        value = column.iloc[bad[0]]
        seen = "no value" if pd.isna(value) else f"{value!r}" if isinstance(value, str) else value
        raise ValueError(
            f"{named(data)}: the --weight column {column.name!r} holds {seen} in row {bad[0]} "
            f"(counted from 0; {len(bad)} such rows of {len(column)}). Give every row a finite "
            "weight of at least 0, or leave those rows out."
        )
    return weights


def read_for_model(
    model: "AttnKNNClassifier",
    name: Path,
    data: str,
    target: str | None,
    options: ImageOptions,
    *,
    part: Literal["train", "test"],
    header: bool | None = None,
    quiet: bool = False,
) -> Rows:
    """Read labelled rows of the kind that a model knows.

    Raises ValueError if `data` is of another kind than the model knows, or cannot be read.

    Parameters
    ----------
    name : Path
        Folder of the model, for messages.
    data, target, options, header, quiet
        As for `read_to_learn`; the target is the model's own by default.
    part : {"train", "test"}
        Which part of a folder to take that has both.
    """
    import pandas as pd

    size = _check_kind(model, name, [data], options)
    if size is None:
        names = list(model.feature_names_in_)
        spare = _left_out(model)
        frame = read_frame(data, header, known=set(names) - set(spare), quiet=quiet)
        features, labels = split_target(frame, target or model.target_name_, data)
        return Rows(match_columns(features, names, data, optional=spare, quiet=quiet), labels)
    _refuse_header(header)
    check_target(target, model.target_name_)
    rows = _labelled(read_class_folder(data, part, options, size, quiet=quiet))
    # a model fitted in Python may know its classes as numbers; a folder's name is text
    known = {str(label): label for label in model.classes_.tolist()}
    own = [known.get(label, label) for label in rows.y.tolist()]
    return Rows(rows.X, pd.Series(own, name=rows.y.name), names=rows.names)


def read_to_predict(
    model: "AttnKNNClassifier",
    name: Path,
    data: Sequence[str],
    keep: Sequence[str],
    options: ImageOptions,
    *,
    header: bool | None = None,
    quiet: bool = False,
) -> "tuple[pd.DataFrame, pd.DataFrame | np.ndarray]":
    """Read rows without labels, of the kind that a model knows.

    Raises ValueError if `data` is of another kind than the model knows, or cannot be read.

    Parameters
    ----------
    model, name, options, header, quiet
        As for `read_for_model`.
    data : sequence of str
        One table; or files and folders of images.
    keep : sequence of str
        Columns of a table to hand on.

    Returns
    -------
    kept : DataFrame
        These columns; for images "file", as it was given.
    features : DataFrame or uint8 ndarray of shape (n, height, width, channels)
    """
    import pandas as pd

    size = _check_kind(model, name, data, options)
    if size is not None:
        _refuse_header(header)
        if keep:
            raise ValueError(
                f"--keep {keep[0]}: images have no columns; their file is always named."
            )
        files, images = read_files(data, options, size)
        return pd.DataFrame({"file": [str(file) for file in files]}), images
    if len(data) > 1:
        raise ValueError(f"{name} was fitted on a table: give one table, not {len(data)} files.")
    (table,) = data
    names, target = list(model.feature_names_in_), model.target_name_
    spare = _left_out(model)
    frame = read_frame(table, header, known=set(names) - set(spare), quiet=quiet)
    require_columns(frame, keep, table)
    kept = frame[list(dict.fromkeys(keep))]
    if header is False:
        frame = match_places(frame, names, target, model.classes_, table, quiet=quiet)
    expected = [*kept.columns, target]
    return kept, match_columns(frame, names, table, optional=spare, expected=expected, quiet=quiet)


def _left_out(model: "AttnKNNClassifier") -> list[str]:
    """Columns that a model remembers and does not use; tables for it may lack them."""
    return [name for name, use in model.column_types_.items() if use == "left out"]


def _labelled(dataset: Any) -> Rows:
    import numpy as np
    import pandas as pd

    labels = pd.Series(dataset.y, name=dataset.target_name)
    return Rows(dataset.X, labels, names=np.array(dataset.row_names))


def _refuse_header(header: bool | None) -> None:
    if header is not None:
        option = "--header" if header else "--no-header"
        raise ValueError(f"{option} is about a table; images have no columns. Leave it out.")


def _check_kind(
    model: "AttnKNNClassifier", name: Path, data: Sequence[str], options: ImageOptions
) -> Size | None:
    """Refuse images for a model of tables and the reverse; return the size of a model's images."""
    size = image_size(model)
    if size is None:
        options.refuse(f"{name} was fitted on a table")
    for one in data:
        if size is None and names_images(one):
            what = "a folder" if Path(one).is_dir() else "an image"
            raise ValueError(f"{name} was fitted on a table, and {one} is {what}. Give a table.")
        if size is not None and not names_images(one) and (one == "-" or Path(one).exists()):
            raise ValueError(
                f"{name} was fitted on images, and {named(one)} is none by its ending. Give images "
                "or a folder of them."
            )
    return size
