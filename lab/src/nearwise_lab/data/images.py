"""Load a registered image set, whole or in part, or a folder of class folders."""

import hashlib
import logging
import os
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import get_args

import numpy as np
from numpy.typing import NDArray
from sklearn import __version__ as sklearn_version
from sklearn.datasets import load_digits

from nearwise.data.dataset import Dataset
from nearwise.data.images.decode import Color, Images, Size
from nearwise.data.images.folder import Split, load_image_folder
from nearwise.safe_files import replacing
from nearwise_lab.data.files import (
    ChecksumError,
    cache_dir,
    find_root,
    locate,
    warn_if_other_size,
    warn_of_other,
)
from nearwise_lab.data.formats import ParquetShards
from nearwise_lab.data.sets import IMAGE_SETS, PARTS, ImageSet, Part

Rows = tuple[Images, NDArray[np.int64]]
_VERSION = b"1"  # another decoding of the same files needs another number
_log = logging.getLogger(__name__)


def _cached(name: str, files: Sequence[Path], make: Callable[[], Rows]) -> Rows:
    """Return the result of `make`, cached by the content of the files.

    A copy that is damaged is remade; one that cannot be written is done without.
    """
    path = cached_path(name, files)
    try:
        with np.load(path, allow_pickle=False) as stored:
            return stored["X"], stored["codes"]
    except FileNotFoundError:
        pass
    # the archive's own check sums detect a damaged copy
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        _log.warning("%s is damaged (%s); decoding again", path, error)
    X, codes = make()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as stream:
            np.savez(stream, X=X, codes=codes)
    except OSError as error:
        _log.warning("decoded images are not kept: %s", error)
    return X, codes


def cached_path(name: str, files: Sequence[Path]) -> Path:
    """Return the path of the decoded copy of these files, keyed by sha256; it need not exist."""
    key = hashlib.sha256(_VERSION)
    for file in files:
        with file.open("rb") as stream:
            key.update(hashlib.file_digest(stream, "sha256").digest())
    return cache_dir() / "decoded" / f"{name}-{key.hexdigest()[:20]}.npz"


DIGITS = "digits-images"
IMAGE_NAMES = (*IMAGE_SETS, DIGITS)
_BRIGHTEST_DIGIT = 16


def load_images(
    name: str | os.PathLike[str],
    *,
    split: Split = "all",
    limit: int | tuple[int, int] | None = None,
    image_size: Size | None = None,
    color: Color | None = None,
    skip_damaged: bool = False,
    data_root: str | os.PathLike[str] | None = None,
    download: bool = True,
) -> Dataset:
    """Load an image set, or the first rows of it.

    ``load_images(name)`` gives what ``load_dataset(name)`` gives. CIFAR may lie in `data_root` or
    the cache as Parquet shards (``cifar10/train-00000-of-00003.parquet``, ...), MNIST as idx files.
    The first of the two places that holds any of the files decides. Decoded Parquet shards are
    kept in the cache; a slice is decoded again.

    Parameters
    ----------
    name : str or path
        "cifar10", "cifar100", "mnist", "digits-images", or a folder of class folders.
    split : {"all", "train", "test"}, default="all"
        Which official part to load.
    limit : int or (int, int), optional
        At most this many rows of each part, the first ones; a pair is for the training and the
        test part. Only the requested rows are decoded. Not for folders, whose rows lie class by
        class.
    image_size : int or (int, int), optional
        For folders: height and width to bring every image to, without keeping the aspect; one
        number means a square. Default: all images must have one size.
    color : {"rgb", "grey"}, optional
        For folders: what to turn every image into. Default: all must be of one kind.
    skip_damaged : bool, default=False
        For folders: whether images that cannot be read are left out, with a warning that names
        them, instead of being an error.
    data_root : path, optional
        Folder searched first; default: the environment variable NEARWISE_DATA.
    download : bool, default=True
        Whether files found nowhere may be downloaded.

    Returns
    -------
    dataset : Dataset
        Of kind "images", X a uint8 array of shape (n_rows, height, width, channels); the training
        part first. `test_index` is set where both parts were loaded.

    Raises
    ------
    ValueError
        If the name is not an image set, an option does not fit, or a file is damaged or cut short.
    FileNotFoundError
        If files are in none of the places; the message names each.
    ChecksumError
        If a download is not what was published; it is removed.
    ImportError
        If images must be decoded and the extra "images" is missing.

    Warns
    -----
    UserWarning
        If the files give other rows than the official ones, or files of a folder are left out.

    Examples
    --------
    >>> from nearwise_lab.data import load_images
    >>> load_images("digits-images", limit=100).X.shape
    (100, 8, 8, 1)
    """
    key = os.fspath(name)
    if split not in get_args(Split):
        raise ValueError(f"split={split!r} is not one of {', '.join(get_args(Split))}.")
    limits = _check_limit(limit)
    if key not in IMAGE_NAMES:
        if not Path(key).is_dir():
            raise ValueError(
                f"{key!r} is not an image set: pass one of {', '.join(IMAGE_NAMES)}, or a folder "
                "of class folders."
            )
        if limit is not None:
            raise ValueError(
                f"limit={limit} is not for folders, whose rows lie class by class. Leave it out, "
                "and choose rows from what is loaded."
            )
        return load_image_folder(
            key, split=split, image_size=image_size, color=color, skip_damaged=skip_damaged
        )
    if image_size is not None or color is not None or skip_damaged:
        raise ValueError(
            f"image_size, color and skip_damaged are for folders; {key!r} keeps its images. Leave "
            "them out."
        )
    if key == DIGITS:
        return _load_digits(split, limits["train"])
    return _load_set(IMAGE_SETS[key], split, limits, data_root, download)


def _check_limit(limit: int | tuple[int, int] | None) -> dict[Part, int | None]:
    if limit is None:
        return dict.fromkeys(PARTS)
    values = limit if isinstance(limit, (tuple, list)) else (limit, limit)
    if len(values) != 2 or any(
        isinstance(v, bool) or not isinstance(v, (int, np.integer)) or v < 1 for v in values
    ):
        raise ValueError(
            f"limit={limit!r} is not a number of rows. Pass a positive integer, or one for the "
            "training and one for the test part."
        )
    return {"train": int(values[0]), "test": int(values[1])}


def _load_digits(split: Split, limit: int | None) -> Dataset:
    if split != "all":
        raise ValueError(f"{DIGITS!r} has no official test part. Leave out split={split!r}.")
    bunch = load_digits()
    # exact halves do not occur: v * 255 / 16 = v * 16 - v / 16
    X = np.rint(bunch.images * (255 / _BRIGHTEST_DIGIT)).astype(np.uint8)[:limit, :, :, None]
    y = bunch.target.astype(np.int64)[:limit]
    return Dataset(DIGITS, X, y, "digit", "images", f"scikit-learn {sklearn_version}")


def _load_set(
    spec: ImageSet, split: Split, limits: dict[Part, int | None],
    data_root: str | os.PathLike[str] | None, download: bool,
) -> Dataset:  # fmt: skip
    wanted = [part for part in PARTS if split in ("all", part)]
    found = _find(spec, wanted, data_root, download)
    parts = {part: _read(spec, part, found[part], limits[part]) for part in found}
    paths = tuple(path for one in found.values() for path in one)
    X = np.concatenate([X for X, _ in parts.values()])
    codes = np.concatenate([codes for _, codes in parts.values()])
    if all(limits[part] is None for part in wanted):
        official = sum(spec.known[part].n_rows for part in wanted)
        warn_if_other_size(spec.name, len(codes), official, paths)
    n_train = len(parts["train"][1]) if "train" in parts else 0
    return Dataset(
        spec.name, X, np.array(spec.class_names)[codes] if spec.class_names else codes,
        spec.target_name, "images", spec.source,
        test_index=np.arange(n_train, len(codes), dtype=np.int64) if len(parts) == 2 else None,
        files=paths,
    )  # fmt: skip


def _find(
    spec: ImageSet, wanted: Sequence[Part], data_root: str | os.PathLike[str] | None, download: bool
) -> dict[Part, tuple[Path, ...]]:
    """Return the files of each part; without a training part where the data root has none."""
    root, _ = find_root(data_root)
    if root is not None:
        folder = root / spec.name
        here = {part: found for part in wanted if (found := spec.form.find(folder, part))}
        # a test part alone is useful, to query images of other classes; the reverse misleads
        if here and "test" in wanted and "test" not in here:
            raise FileNotFoundError(
                f"{folder} holds the training part of {spec.name} and no test part. Add it, or "
                f'load the training part alone: load_images({spec.name!r}, split="train").'
            )
        if here:
            return here
    return {
        part: spec.form.find(cache_dir() / spec.name, part)
        or tuple(
            locate(file, data_root=data_root, download=download) for file in spec.downloads[part]
        )
        for part in wanted
    }


def _read(
    spec: ImageSet, part: Part, paths: tuple[Path, ...], limit: int | None
) -> tuple[Images, NDArray[np.int64]]:
    if limit is None and isinstance(spec.form, ParquetShards):
        X, codes = _cached(f"{spec.name}-{part}", paths, lambda: spec.form.read(paths, None))
    else:
        X, codes = spec.form.read(paths, limit)
    where = ", ".join(map(str, paths))
    if X.shape[1:] != spec.shape:
        raise ValueError(
            f"{where}: images have shape {X.shape[1:]}, those of {spec.name} have {spec.shape}. "
            "Replace the files by the original ones."
        )
    if codes.min() < 0 or codes.max() >= spec.n_classes:
        raise ValueError(
            f"{where}: class numbers run from {codes.min()} to {codes.max()}; those of "
            f"{spec.name} are 0 to {spec.n_classes - 1}. Replace the files by the original ones."
        )
    _check_content(spec, part, X, codes, paths, whole=limit is None)
    return X, codes


def _check_content(
    spec: ImageSet, part: Part, X: Images, codes: NDArray[np.int64], paths: tuple[Path, ...],
    *, whole: bool,
) -> None:  # fmt: skip
    """Compare pixels and labels with the published checksums, if these are known."""
    known = spec.known[part]
    n = known.checked_rows
    differs = bool(n) and len(X) >= n and content_digest(X[:n], codes[:n]) != known.sha256
    downloaded = [path for path in paths if path.is_relative_to(cache_dir())]
    if downloaded and (differs or (whole and len(X) != known.n_rows)):
        for path in downloaded:
            path.unlink(missing_ok=True)
        raise ChecksumError(
            f"{', '.join(map(str, downloaded))} did not hold the published {known.n_rows:,} rows "
            f"of the {part} part of {spec.name}, and was removed from the cache. Load again to "
            "download anew, or put a copy you trust under the data root."
        )
    if differs:
        what = (
            f"has pixels or labels of the {part} part that differ from the official ones (sha256)"
        )
        warn_of_other(spec.name, what, paths)


def content_digest(X: Images, codes: NDArray[np.int64]) -> str:
    """Return the sha256 of uint8 pixels (n_rows, height, width, channels) and class numbers."""
    digest = hashlib.sha256(np.ascontiguousarray(X).reshape(-1).data)
    digest.update(codes.astype(np.uint8).data)
    return digest.hexdigest()
