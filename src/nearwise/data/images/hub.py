"""Image data sets of the `datasets` library, as a `Dataset`."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from nearwise.data.dataset import Dataset
from nearwise.data.images.decode import Color, Encoded, Images, Size, decode_images

_TEST_SPLITS = ("test", "validation", "val", "valid")
_NAMES = {"image": ("image", "img"), "label": ("label", "labels", "fine_label", "class", "target")}


def image_dataset(
    hub_dataset: Any,
    image_column: str | None = None,
    label_column: str | None = None,
    *,
    name: str = "images",
    image_size: Size | None = None,
    color: Color | None = None,
) -> Dataset:
    """Load the images and labels of a `datasets` data set into memory.

    Parameters
    ----------
    hub_dataset : datasets.Dataset or datasets.DatasetDict
        One table, or several. "train" becomes the training part, the first of "test",
        "validation", "val" and "valid" the test part. Other tables are ignored.
    image_column : str, optional
        Column with the feature Image. Default: the only one (or the one named image or img).
    label_column : str, optional
        Column with classes. Default: the only one with the feature ClassLabel, else the only one
        named label, labels, fine_label, class or target.
    name : str, default="images"
        Name of the data set.
    image_size : int or (int, int), optional
        Target height and width; default: all images must have one size.
    color : {"rgb", "grey"}, optional
        Target color mode; default: all images must have the same mode.

    Returns
    -------
    dataset : Dataset
        Data set of kind "images", rows in the order of the tables, the training part first.
        Labels are the names of a ClassLabel, or the values of any other column.

    Raises
    ------
    ValueError
        If a column is not found or has another type, a label is missing, or an image is damaged
        or unlike the others; the message names it.
    ImportError
        If the extra "vision" is missing.
    """
    _import_datasets()
    parts = _parts(hub_dataset)
    first = next(iter(parts.values()))
    image = _find_column(first, image_column, "image")
    label = _find_column(first, label_column, "label")
    for part in parts.values():
        _check_columns(part, image, label)
    names = getattr(first.features[label], "names", None)
    if any(getattr(part.features[label], "names", None) != names for part in parts.values()):
        raise ValueError(
            f"The tables {', '.join(parts)} name the classes of {label!r} differently. Cast them "
            "to one ClassLabel first."
        )
    tables = {key: _encoded(part, image) for key, part in parts.items()}
    n = sum(len(part) for part in parts.values())
    if not n:
        raise ValueError(f"Data set {name!r} has no rows. Pass at least one.")
    X: Images = decode_images(
        (one for key, table in tables.items() for one in _images(table, image, key)),
        n,
        image_size=image_size,
        color=color,
    )
    values = np.concatenate([_labels(part, label, key) for key, part in parts.items()])
    return Dataset(
        name,
        X,
        np.array(names)[values] if names else values,
        label,
        "images",
        f"datasets: {', '.join(parts)}",
        test_index=np.arange(len(first), n, dtype=np.int64) if len(parts) == 2 else None,
        strata=values.astype(np.int64) if names else None,
    )


def _import_datasets() -> Any:
    try:
        import datasets
    except ImportError as error:
        raise ImportError(
            'data sets of the hub need the extra "vision": pip install nearwise[vision]'
        ) from error
    return datasets


def _parts(hub_dataset: Any) -> dict[str, Any]:
    if not isinstance(hub_dataset, Mapping):
        if not hasattr(hub_dataset, "cast_column") or not hasattr(hub_dataset, "__len__"):
            raise ValueError(
                f"image_dataset got a {type(hub_dataset).__name__}. Pass a datasets.Dataset, or "
                "a datasets.DatasetDict with a table called train; a streamed one has no length: "
                "load it without streaming."
            )
        return {"rows": hub_dataset}
    if "train" not in hub_dataset:
        raise ValueError(
            f"The tables are {', '.join(map(str, hub_dataset))}; none is called train. Pass one of "
            f"them, as in image_dataset(tables[{next(iter(hub_dataset), 'train')!r}])."
        )
    parts = {"train": hub_dataset["train"]}
    test = next((key for key in _TEST_SPLITS if key in hub_dataset), None)
    return parts | {test: hub_dataset[test]} if test else parts


def _find_column(table: Any, given: str | None, kind: Literal["image", "label"]) -> str:
    columns = table.features
    if given is not None:
        return given
    hub = _import_datasets()
    feature = hub.Image if kind == "image" else hub.ClassLabel
    found = [c for c, own in columns.items() if isinstance(own, feature)]
    if len(found) != 1:
        usual = [c for c in (found or columns) if c in _NAMES[kind]]
        found = usual if len(usual) == 1 else found
    if len(found) == 1:
        return str(found[0])
    seen = f"several may be it ({', '.join(found)})" if found else "none is marked"
    raise ValueError(
        f"Which column holds the {kind}s? {seen}. Pass {kind}_column= one of {list(columns)}."
    )


def _check_columns(table: Any, image: str, label: str) -> None:
    for kind, column in (("image", image), ("label", label)):
        if column not in table.features:
            raise ValueError(
                f"There is no column {column!r}; pass {kind}_column= one of {list(table.features)}."
            )
    if not isinstance(table.features[image], _import_datasets().Image):
        raise ValueError(
            f"Column {image!r} has the feature {table.features[image]}, not Image. Pass another "
            "image_column, or cast it with table.cast_column(name, datasets.Image())."
        )


def _encoded(table: Any, image: str) -> Any:
    """Return the images as encoded bytes, for the one decoder with its checks."""
    return table.cast_column(image, _import_datasets().Image(decode=False)).with_format(None)


def _images(table: Any, image: str, part: str) -> Iterator[Encoded]:
    for i, row in enumerate(table.select_columns([image])):
        value = row[image]
        where = f"{part}, row {i}"
        if value is None or (value["bytes"] is None and value["path"] is None):
            raise ValueError(f"{where} has no image. Drop such rows first.")
        if value["bytes"] is not None:
            yield Encoded(where, value["bytes"])
        else:
            yield Encoded(f"{where} ({value['path']})", Path(value["path"]))


def _labels(table: Any, label: str, part: str) -> NDArray[np.generic]:
    values = np.asarray(table.with_format(None)[label][:])
    names = getattr(table.features[label], "names", None)
    strange = [i for i, v in enumerate(values.tolist()) if v is None or (names and v < 0)]
    if strange:
        raise ValueError(
            f"{part}: {len(strange)} of {len(values)} rows have no label in {label!r}, the first "
            f"is row {strange[0]}. Drop them, or leave that table out."
        )
    if values.ndim != 1 or values.dtype.kind not in "iubUS":
        raise ValueError(
            f"Column {label!r} holds {values.dtype} of shape {values.shape}; labels are one whole "
            "number or text per row. Pass another label_column."
        )
    return values
