"""One registry of data sets: by name, or from a file or folder of one's own."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import sklearn
from numpy.typing import NDArray
from sklearn import datasets as bundled

from nearwise.data.dataset import Dataset
from nearwise.data.tables.files import read_table, table_format
from nearwise.data.tables.npz import read_arrays
from nearwise.names import did_you_mean
from nearwise_lab.data import uci
from nearwise_lab.data.embeddings import LABEL_NAMES, pick_embeddings
from nearwise_lab.data.files import DataFile, locate, warn_if_other_size
from nearwise_lab.data.images import IMAGE_NAMES, load_images

_UCI_SOURCE = "UCI Machine Learning Repository (CC BY 4.0)"
_CIFAR10_FEATURES = DataFile(
    "cifar10-features/squeezenet_pca192.npz",
    how_to_get=(
        "cifar10-features cannot be downloaded, it is computed from CIFAR-10: images at 112 "
        "pixels through an ImageNet SqueezeNet 1.0, last fire module, average and maximum "
        "pooled, square root, 192 principal components of the training images; arrays train, "
        "train_label, test, test_label and, flipped, train_flip and test_flip."
    ),
)


@dataclass(frozen=True)
class _UciSet:
    """Files of a UCI set, their reader, and the official number of rows."""

    files: tuple[DataFile, ...]
    read: Callable[[Sequence[Path]], uci.Table]
    n_rows: int


_ADULT = tuple(
    DataFile(f"adult/{name}", f"adult/{name}", (sha256,))
    for name, sha256 in (
        ("adult.data", "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d"),
        ("adult.test", "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05"),
    )
)
_WINE = (  # color, sha256, rows, rows with features of their own
    ("red", "4a402cf041b025d4566d954c3b9ba8635a3a8a01e039005d97d6a710278cf05e", 1599, 1359),
    ("white", "76c3f809815c17c07212622f776311faeb31e87610d52c26d87d6e361b169836", 4898, 3961),
)
_LABELLED = (  # name, its file here, the official one, columns, target, rows, sha256
    ("letter", "letter-recognition.data", "letter-recognition/letter-recognition.data",
     uci.LETTER_COLUMNS, "lettr", 20000,
     ("2b89f3602cf768d3c8355267d2f13f2417809e101fc2b5ceee10db19a60de6e2",)),
    ("magic04", "magic04.data", "magic/magic04.data", uci.MAGIC_COLUMNS, "class", 19020,
     ("e9314b7ebd4b4b59a3b3d65f7316663963777b16a46786877651dbbaa640b36a",)),
    # the repository's file ends with a newline, common copies of it without one
    ("ionosphere", "ionosphere.csv", "ionosphere/ionosphere.data", uci.IONOSPHERE_COLUMNS, "Class",
     351,
     ("46d52186b84e20be52918adb93e8fb9926b34795ff7504c24350ae0616a04bbd",
      "fd6dd7864b55d56dac0a1e6e24af9ccc35bf2555ac79af8ab9f3d1daa065ab83")),
)  # fmt: skip


def _wine_sets() -> dict[str, _UciSet]:
    sets = {}
    for color, sha256, n_rows, n_distinct in _WINE:
        path = f"wine-quality/winequality-{color}.csv"
        for multiclass, drop in product((False, True), repeat=2):
            name = f"wine-{color}{'-multiclass' * multiclass}{'-dd' * drop}"
            read = partial(uci.read_wine_quality, multiclass=multiclass, drop_duplicates=drop)
            n = n_distinct if drop else n_rows
            sets[name] = _UciSet((DataFile(path, path, (sha256,)),), read, n)
    return sets


_UCI_SETS = {
    "adult": _UciSet(_ADULT, uci.read_adult, 48842),
    "adult-notebook": _UciSet(_ADULT, uci.read_adult_as_codes, 45222),
    **_wine_sets(),
    **{
        name: _UciSet(
            (DataFile(f"tabular/{here}", official, sha256),),
            partial(uci.read_labelled, columns=columns, target=target),
            n_rows,
        )
        for name, here, official, columns, target, n_rows, sha256 in _LABELLED
    },
}
_BUNDLED: dict[str, Callable[..., object]] = {
    "digits": bundled.load_digits,
    "iris": bundled.load_iris,
    "wine": bundled.load_wine,
    "breast_cancer": bundled.load_breast_cancer,
}
_EMBEDDINGS = "cifar10-features"


def dataset_names() -> tuple[str, ...]:
    """Return the names that `load_dataset` takes, besides paths."""
    return (*_BUNDLED, *_UCI_SETS, _EMBEDDINGS, *IMAGE_NAMES)


def load_dataset(
    name: str | os.PathLike[str],
    *,
    target: str | None = None,
    data_root: str | os.PathLike[str] | None = None,
    download: bool = True,
    views: bool = False,
) -> Dataset:
    """Load a data set by its registered name, from a file, or from a folder of images.

    Registered files are looked for under `data_root` (or the folder named by the environment
    variable NEARWISE_DATA), then in the user's cache, then downloaded into that cache and
    checked against their sha256. The sets of scikit-learn need no file. `load_images` loads parts
    of an image set, and folders whose images differ in size or kind.

    Parameters
    ----------
    name : str or path
        One of `dataset_names()`; or a CSV, Parquet, Excel, JSON or npz file; "-" reads a table from
        standard input. "FILE:COLUMN" is short for ``load_dataset(FILE, target=COLUMN)``. Or a
        folder with a folder of images for each class, these perhaps in folders "train" and
        "test" ("val", "valid", "validation").
    target : str, optional
        Column or array with the labels; only for files. Default: the only one called
        target, targets, label, labels, class, y or Y; a y beside an x is a coordinate and
        does not count.
    data_root : path, optional
        Folder searched first; default: NEARWISE_DATA.
    download : bool, default=True
        Whether files found nowhere may be downloaded.
    views : bool, default=False
        Whether to load other views of the rows as well: cifar10-features has "flip".

    Returns
    -------
    dataset : Dataset
        Rows in the order of the files. `test_index` is set where there is an official test part
        (cifar10, cifar100, mnist, cifar10-features; folders and npz files with one). adult is
        adult.data followed by adult.test, as one table without an official test part;
        adult-notebook are its rows without "?", text as numbers.

    Raises
    ------
    ValueError
        If the name is unknown, the target is missing, a file cannot be read, or images differ in
        size or kind.
    FileNotFoundError
        If the files are in none of the three places.
    ImportError
        If images must be decoded and the extra "images" is missing.

    Warns
    -----
    UserWarning
        If a registered file gives another number of rows than the official one, or other images;
        or files of a folder are left out.

    Examples
    --------
    >>> from nearwise_lab.data import load_dataset
    >>> load_dataset("iris").X.shape
    (150, 4)
    """
    key = os.fspath(name)
    if key not in dataset_names() and Path(key).is_dir():
        if target not in (None, "class"):
            raise ValueError(
                f"{key} is a folder of images with the target 'class'. Leave out target={target!r}."
            )
        return load_images(key)
    if key in dataset_names():
        dataset = _load_registered(key, data_root, download, views)
        if target not in (None, dataset.target_name):
            raise ValueError(
                f"Data set {key!r} has the target {dataset.target_name!r}; leave out "
                f"target={target!r}. For a file of that name pass its full path."
            )
        return dataset
    path, target = _as_file(key, target)
    if path is None:
        raise ValueError(_unknown(key))
    return _load_file(path, target, views)


def _load_registered(
    name: str, data_root: str | os.PathLike[str] | None, download: bool, views: bool
) -> Dataset:
    if name in _BUNDLED:
        return _load_bundled(name)
    if name in IMAGE_NAMES:
        return load_images(name, data_root=data_root, download=download)
    if name == _EMBEDDINGS:
        return _load_cifar10_features(data_root, download, views)
    entry = _UCI_SETS[name]
    paths = tuple(locate(f, data_root=data_root, download=download) for f in entry.files)
    X, y, target_name = entry.read(paths)
    warn_if_other_size(name, len(y), entry.n_rows, paths)
    return Dataset(name, X, y, target_name, "table", _UCI_SOURCE, files=paths)


def _load_bundled(name: str) -> Dataset:
    bunch: dict[str, object] = _BUNDLED[name](as_frame=True)  # type: ignore[assignment]
    X, codes = bunch["data"], np.asarray(bunch["target"])
    assert isinstance(X, pd.DataFrame)
    y: NDArray[np.generic] = codes.astype(np.int64)
    if name != "digits":  # there the class names are the digits themselves
        y = np.asarray(bunch["target_names"]).astype(str)[codes]
    target_name = "digit" if name == "digits" else "class"
    source = f"scikit-learn {sklearn.__version__}"
    return Dataset(name, X, y, target_name, "table", source, strata=codes.astype(np.int64))


def _load_cifar10_features(
    data_root: str | os.PathLike[str] | None, download: bool, views: bool
) -> Dataset:
    path = locate(_CIFAR10_FEATURES, data_root=data_root, download=download)
    source = "CIFAR-10 (Krizhevsky 2009) through an ImageNet SqueezeNet, 192 principal components"
    dataset = pick_embeddings(
        read_arrays(path), _EMBEDDINGS, source, where=str(path), files=(path,), views=views
    )
    warn_if_other_size(_EMBEDDINGS, len(dataset), 60000, (path,))
    return dataset


def _as_file(key: str, target: str | None) -> tuple[str | None, str | None]:
    """Split "FILE:COLUMN" and distinguish a path from a mis-spelt name (None)."""
    if key == "-" or Path(key).exists():
        return key, target
    path, colon, column = key.rpartition(":")
    if colon and target is None and (path == "-" or table_format(path) or Path(path).is_file()):
        return path, column
    looks_like_path = table_format(key) or "/" in key or os.sep in key
    return (key if looks_like_path else None), target


def _unknown(key: str) -> str:
    hint = did_you_mean(key, dataset_names(), n=3)
    return (
        f"Unknown data set {key!r}.{hint} Known: {', '.join(dataset_names())}; "
        "or pass the path of a CSV, Parquet, Excel, JSON or npz file, or of a folder of class "
        "folders."
    )


def _load_file(path: str, target: str | None, views: bool) -> Dataset:
    name = "stdin" if path == "-" else Path(path).stem
    files = () if path == "-" else (Path(path),)
    if table_format(path) == "npz" and Path(path).is_file():
        arrays = read_arrays(path)
        if any(values.ndim > 1 for values in arrays.values()):
            return pick_embeddings(
                arrays, name, path, where=path, files=files, target=target, views=views
            )
    frame = read_table(path)
    target = _find_target(frame, target, path)
    column = frame.pop(target)
    if not frame.shape[1]:
        raise ValueError(f"{path} has no column besides the target {target!r}. Add features.")
    y = np.asarray(column)
    if y.dtype == object and not column.isna().any():
        y = y.astype(str)
    return Dataset(name, frame, y, target, "table", path, files=files)


def _find_target(frame: pd.DataFrame, target: str | None, path: str) -> str:
    columns = list(frame.columns)
    if target is None:
        coordinates = {"y", "Y"} if {"x", "X"} & set(columns) else set()
        usual = [c for c in columns if c in {*LABEL_NAMES, "class"} - coordinates]
        if len(usual) == 1:
            return usual[0]
        seen = f"several columns that may be it ({', '.join(usual)})" if usual else "none marked"
        raise ValueError(
            f"{path}: which column is the target? It has {seen}. Name it, "
            f"as {path}:{columns[-1]} or target={columns[-1]!r}. The columns are {columns}."
        )
    if target not in columns:
        hint = did_you_mean(target, columns)
        raise ValueError(f"{path} has no column {target!r}.{hint} It has {columns}.")
    return target
