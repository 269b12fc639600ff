"""Rows in other containers: folders, files, data sets, dicts, Series and Arrow tables."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import torch

from nearwise.estimators.inputs.columns import ColumnReport, Wish, plan_columns, refuse_repeated
from nearwise.estimators.inputs.sparse_columns import dense_rows
from nearwise.nn import lite0


def are_files(X: Any) -> bool:
    """Whether rows are given as image files: one path of a file, or a list of paths."""
    if isinstance(X, list | tuple):
        return bool(X) and all(isinstance(path, str | os.PathLike) for path in X)
    return isinstance(X, str | Path) and Path(X).is_file()


def read_source(
    X: Any, y: Any, *, training: bool, like: Any = None
) -> tuple[Any, Any, np.ndarray | None]:
    """Read a folder of class folders, a `Dataset` or a `datasets` data set.

    Images of a folder are read as by a model's encoder (`like`), or for a fit (None).
    Returns rows, labels and names of the rows. For training, the official test part of a source
    is left out. Other input is returned unchanged.
    """
    from nearwise.data import Dataset, image_dataset, load_image_folder
    from nearwise.data.images.folder import Split, has_test_part

    if training and are_files(X):
        raise ValueError(
            "Image files alone have no labels. Give a folder with one folder per class, or "
            "images = nearwise.data.read_images(files) with y."
        )
    if isinstance(X, str | Path):
        if not Path(X).is_dir():
            raise ValueError(
                f"X={str(X)!r} is not a folder of images. Give a folder with one folder per class, "
                "an array, or what nearwise.data.load_image_folder or read_table returns."
            )
        part: Split = "train" if training and has_test_part(Path(X)) else "all"
        dataset = load_image_folder(X, split=part, **image_options(like))
    elif isinstance(X, Dataset):
        dataset = X
    elif type(X).__module__.split(".")[0] == "datasets":
        dataset = image_dataset(X)
    else:
        return X, y, None
    if y is not None:
        raise ValueError("A folder or a data set has its own labels. Leave y out.")
    if dataset.views:
        raise ValueError(
            f"The data set {dataset.name!r} has further views ({', '.join(dataset.views)}), whose "
            "rows would be left out. Give its X and y, and the views as views=[...]."
        )
    chosen = np.arange(len(dataset))
    if training and dataset.test_index is not None:
        chosen = np.setdiff1d(chosen, dataset.test_index)
    rows, labels = dataset.rows(chosen)
    names = None if dataset.row_names is None else np.array(dataset.row_names)[chosen]
    return rows, pd.Series(labels, name=dataset.target_name), names


def stacked_images(X: Any) -> Any:
    """Join a list or object array of images, arrays of two or three axes; ValueError by their size.

    Other rows are returned unchanged.
    """
    is_list = isinstance(X, list | tuple)
    if not is_list and not (isinstance(X, np.ndarray) and X.dtype == object and X.ndim == 1):
        return X
    are_images = (isinstance(one, np.ndarray | torch.Tensor) and one.ndim in (2, 3) for one in X)
    if not len(X) or not all(are_images):
        return X
    arrays = [one.detach().cpu().numpy() if isinstance(one, torch.Tensor) else one for one in X]
    first = arrays[0].shape
    other = next((at for at, one in enumerate(arrays) if one.shape != first), None)
    if other is not None:
        one, another = (" x ".join(map(str, arrays[at].shape)) for at in (0, other))
        raise ValueError(
            f"The images of a list differ in size (height x width x channels): image 0 is {one}, "
            f"image {other} is {another}. Bring them to one size, or give their files: "
            'nearwise.data.load_image_folder("photos", image_size=128) for a fit, '
            "read_images(files, image_size=128) for rows to predict."
        )
    return np.stack(arrays)


def image_options(known: Any = None, *, resize: bool = False) -> dict[str, Any]:
    """Options to read images as a model's encoder needs them, or for a fit (None).

    For a fit photographs of mixed sizes get the size that the pretrained network reads, if it is
    installed. A model of such photographs resizes all images, others only if asked to (`resize`).
    """
    if known is None or known.kind != "images":
        return {"mixed_size": lite0.SIDE if lite0.is_installed() else None}
    return {
        "image_size": known.size if known.resizes or resize else None,
        "color": known.color,
    }


def as_rows(X: Any, names: Sequence[str] | None = None, width: int | None = None) -> Any:
    """Convert rows to a DataFrame; arrays and lists of numbers are returned unchanged.

    An object with an Arrow stream (polars, pyarrow, duckdb) is a table. A mapping from names to
    values, and a Series indexed by columns (`names` or `width` of training), are one row; a list
    of mappings is one row each. ValueError if `X` is lazy, empty, partly sparse or one column.
    """
    X = dense_rows(X)
    if isinstance(X, torch.Tensor):
        X = X.detach().cpu()
        return (X.float() if X.dtype == torch.bfloat16 else X).numpy()
    if isinstance(X, pd.DataFrame | np.ndarray):
        return X
    if isinstance(X, pd.Series):
        return _one_row(X, names, width)
    if isinstance(X, Mapping):
        is_row = all(np.ndim(value) == 0 for value in X.values())
        return pd.DataFrame([dict(X)]) if is_row else pd.DataFrame(dict(X))
    if isinstance(X, list | tuple) and not X:
        raise ValueError("Found array with 0 sample(s): X is empty. Give some rows.")
    if isinstance(X, list | tuple) and all(isinstance(row, Mapping) for row in X):
        return pd.DataFrame([dict(row) for row in X])
    if hasattr(X, "collect") and not hasattr(X, "__arrow_c_stream__"):
        raise ValueError(f"X is a {type(X).__name__}, which holds no rows yet. Give X.collect().")
    return _from_arrow(X) if _is_arrow(X) else X


def _is_arrow(X: Any) -> bool:
    return hasattr(X, "__arrow_c_stream__") or isinstance(X, pa.RecordBatch)


def _from_arrow(X: Any) -> pd.DataFrame:
    if isinstance(X, pa.RecordBatch):
        return pa.Table.from_batches([X]).to_pandas()
    try:
        return (X if isinstance(X, pa.Table) else pa.table(X)).to_pandas()
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise ValueError(
            f"X is a {type(X).__name__} that gives no table ({error}). Give a table with a column "
            "for each feature."
        ) from error


def _one_row(row: pd.Series, names: Sequence[str] | None, width: int | None) -> Any:
    index = [str(name) for name in row.index]
    if names is not None and set(index) & set(names):
        return pd.DataFrame([row.tolist()], columns=pd.Index(index))
    if names is None and width == len(row):
        return row.to_numpy()[None]
    raise ValueError(
        f"Expected 2D array, got 1D array: X is a Series of {len(row)} values. A Series is one "
        "row, named by the columns of training; give one column as X.to_frame(). Reshape your "
        "data."
    )


def report_columns(
    X: Any, columns: Mapping[str, Wish] | None = None, *, show: str | None = None
) -> list[ColumnReport]:
    """Report the use of each column of a table, without fitting a model.

    Parameters
    ----------
    X : DataFrame of shape (n_rows, n_columns), or a table of polars or pyarrow
    columns : mapping of str to str, optional
        Wanted use of columns by name; as in `AttnKNNClassifier`.
    show : str, optional
        Column that is shown with each row; as in `AttnKNNClassifier.fit`.

    Returns
    -------
    reports : list of ColumnReport

    Raises
    ------
    ValueError
        If `X` is not a table, and as in `AttnKNNClassifier.fit`.
    """
    frame = as_rows(X)
    if not isinstance(frame, pd.DataFrame):
        raise ValueError(f"X is a {type(X).__name__}, which has no columns by name. Give a table.")
    names = [str(name) for name in frame.columns]
    refuse_repeated(names)
    frame = frame.set_axis(names, axis=1)
    return [plan.report for plan in plan_columns(frame, columns, shown=show)]
