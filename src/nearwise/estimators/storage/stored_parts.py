"""Checks of the tensors in a model folder: impossible values raise ValueError."""

import errno
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from nearwise.estimators.fit.base import Candidate
from nearwise.estimators.inputs.shared_work import once
from nearwise.estimators.inputs.table import Encoded, TableEncoder
from nearwise.estimators.inputs.text_vectors import EmbedderError
from nearwise.estimators.model.array_models import Arrays
from nearwise.estimators.model.array_regressors import from_arrays, kind_of
from nearwise.estimators.model.memory_views import FINDABLE, FITTED, FOLD
from nearwise.estimators.model.row_models import FeatureSpace, ModelsOfTable, StageSpace
from nearwise.estimators.storage.stored_base import (
    UntrustedTypesError,
    dump_model,
    load_model,
)
from nearwise.memory import Folder

# Tensors that may hold infinity or NaN: thresholds of trees, and gaps in the original rows.
_MAY_BE_INFINITE = ("base/", "rows")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # errors of a full disk, as at compilation
_TOLERANCE = 1e-3  # largest error of the sum of float32 shares

Network = TypeVar("Network", bound=nn.Module)


class InvalidPartError(ValueError):
    """Error for an invalid part of a folder; the message starts with the part's name."""


@contextmanager
def part_of_folder(name: str) -> Iterator[None]:
    """Convert errors while reading a part to an `InvalidPartError` with the part's name.

    A stored part may be anything, so checks cannot foresee every error. Errors that are not faults
    of the part stay unchanged: a missing package or embedder, untrusted types, no memory or disk
    space.
    """
    try:
        yield
    except (InvalidPartError, UntrustedTypesError, EmbedderError, ImportError, MemoryError):
        raise
    except KeyError as error:
        raise InvalidPartError(f"{name}: {error} is missing") from error
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _FULL:
            raise
        reason = str(error).rstrip(".") or type(error).__name__
        raise InvalidPartError(f"{name}: {reason}") from error


def under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Tensors with a common name prefix, under their names without the prefix."""
    return {name[len(prefix) :]: t for name, t in tensors.items() if name.startswith(prefix)}


def check_tensors(meta: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Raise ValueError for infinite values, invalid class shares and columns out of range.

    `meta` is the checked JSON part. The ValueError names the first wrong tensor.
    """
    check_bank(meta, tensors)
    n_classes = meta["bank"]["n_classes"]
    prior = tensors["prior"]
    if prior.shape != (n_classes,) or not _are_shares(prior):
        raise ValueError(f"prior is not the shares of {n_classes} classes")
    for name, entries in _per_class(meta):
        # Classes added later have no entry.
        if entries is not None and not 2 <= len(entries) <= len(prior):
            raise ValueError(f"{name} has {len(entries)} entries for {len(prior)} classes")


def check_bank(meta: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Raise ValueError for infinite values, and for columns of the memory out of range."""
    n_classes = meta["bank"]["n_classes"]
    for name, tensor in tensors.items():
        free = name.startswith(_MAY_BE_INFINITE)
        if tensor.is_floating_point() and not free and not bool(torch.isfinite(tensor).all()):
            raise ValueError(f"{name} holds NaN or infinity")
    ids = tensors["bank/ids"]
    if len(ids) and int(ids.min()) < 0:
        raise ValueError("bank/ids holds negative numbers")
    folds, findable = (tensors.get(f"bank/columns.{name}") for name in (FOLD, FINDABLE))
    if folds is None or folds.dtype != torch.int64 or folds.ndim != 1:
        raise ValueError(f"bank/columns.{FOLD} is not one whole number per row")
    if len(folds) and not -1 <= int(folds.min()) <= int(folds.max()) <= 0:
        raise ValueError(f"bank/columns.{FOLD} holds values other than -1 and 0")
    if findable is not None and (findable.dtype != torch.bool or findable.ndim != 1):
        raise ValueError(f"bank/columns.{FINDABLE} is not one truth value per row")
    fitted = tensors.get(f"bank/columns.{FITTED}")
    if fitted is not None:
        whole = fitted.dtype == torch.int64 and fitted.ndim == 1
        if not whole or bool(((fitted < 0) | (fitted >= n_classes)).any()):
            raise ValueError(f"bank/columns.{FITTED} is not one class per row")


def _per_class(meta: dict[str, Any]) -> Iterator[tuple[str, list[Any] | None]]:
    """Iterate over the lists of the JSON part with one entry per class of a fit."""
    for where, part_of in (("", meta), ("of_fit ", meta.get("of_fit") or {})):
        of_views = (part_of.get("views") or {}).get("classes")
        found: dict[str, Any] = {where: part_of.get("class_correction"), f"{where}views ": of_views}
        for whose, correction in found.items():
            for part in ("shift", "scale", "bias", "wanted") if correction else ():
                yield f"{whose}class_correction.{part}", correction[part]


def _are_shares(values: Tensor) -> bool:
    total = values.double().sum(-1)
    return bool((values >= 0).all()) and bool(((total - 1).abs() < _TOLERANCE).all())


def check_features(kind: str, encoder: TableEncoder, arrays: Arrays) -> None:
    """Raise ValueError if the arrays of a feature map do not fit the columns."""
    codes = np.zeros((1, len(encoder.categorical)), int)
    encoder, one_row = encoder.without_texts(Encoded(np.zeros((1, len(encoder.numeric))), codes))
    n_numbers = len(encoder.numeric)
    width = encoder.dense(one_row).shape[1]
    expected: dict[str, tuple[int | None, ...]] = {
        "standard": {},
        "quantile": {"quantiles": (None, n_numbers)},
        "raw": {"scale": (n_numbers,)},
        "whitened": {"mean": (width,), "rotation": (width, None)},
    }[kind]  # type: ignore[assignment]
    if set(arrays) != set(expected):
        raise ValueError(f"it has the arrays {sorted(arrays)}; {kind!r} has {sorted(expected)}")
    for name, shape in expected.items():
        array = arrays[name]
        if array.dtype != np.float64 or len(array.shape) != len(shape) or not array.shape[-1]:
            raise ValueError(f"{name} is {array.dtype} of shape {array.shape}")
        if any(side not in (None, size) for side, size in zip(shape, array.shape, strict=True)):
            raise ValueError(f"{name} has shape {array.shape}; the columns ask for {shape}")
    if kind == "quantile" and (np.diff(arrays["quantiles"], axis=0) < 0).any():
        raise ValueError("quantiles do not ascend")


def unpack_features(
    meta: dict[str, Any], encoder: TableEncoder, tensors: dict[str, Tensor]
) -> FeatureSpace:
    """Rebuild a feature map; ValueError if its arrays do not fit the columns."""
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    check_features(meta["kind"], encoder, arrays)
    return FeatureSpace.from_state(meta, arrays)


def pack_table(models: ModelsOfTable, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Store the spaces of a table that were made without labels; returns their JSON."""
    arrays = {f"encoder/{name}": array for name, array in models.encoder.arrays().items()}
    features, of_features = models.features.to_state()
    arrays |= {f"features/{name}": array for name, array in of_features.items()}
    tensors |= {name: torch.from_numpy(array) for name, array in arrays.items()}
    texts = None if models.texts is None else pack_space(models.texts, "texts/", tensors)
    return {"encoder": models.encoder.to_json(), "features": features, "texts": texts}


def unpack_encoder(folder: Folder) -> TableEncoder:
    """Rebuild the encoder of a table; equal ones of several targets are one object."""
    with part_of_folder("encoder"):
        meta = folder.meta["encoder"]
        arrays = {name: one.numpy() for name, one in under(folder.tensors, "encoder/").items()}

        def digest() -> str:
            found = sha256(json.dumps(meta, sort_keys=True).encode())
            for name in sorted(arrays):
                found.update(name.encode() + np.ascontiguousarray(arrays[name]).data)
            return found.hexdigest()

        return once(digest, (), lambda: TableEncoder.from_json(meta, arrays))


def unpack_table(folder: Folder, encoder: TableEncoder) -> tuple[FeatureSpace, StageSpace | None]:
    """Rebuild the label-free spaces of a table: "features" and "text"."""
    meta, tensors = folder.meta, folder.tensors
    with part_of_folder("features"):
        features = unpack_features(meta["features"], encoder, under(tensors, "features/"))
    described = meta.get("texts")
    texts = None if described is None else unpack_space(described, "texts/", tensors)
    if texts is not None and len(texts.encoder.columns) != encoder.n_components:
        raise InvalidPartError(f"texts: {len(texts.encoder.columns)} components")
    return features, texts


def pack_space(space: StageSpace, prefix: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Store a key space of features under names with a prefix; returns its JSON."""
    kind, arrays = space.features.to_state()
    tensors |= {prefix + part: torch.from_numpy(a) for part, a in arrays.items()}
    return {"encoder": space.encoder.to_json(), "features": kind}


def unpack_space(parts: dict[str, Any], prefix: str, tensors: dict[str, Tensor]) -> StageSpace:
    """Rebuild a key space from the result of `pack_space`."""
    with part_of_folder(prefix.rstrip("/")):
        encoder = TableEncoder.from_json(parts["encoder"])
        return StageSpace(
            encoder, unpack_features(parts["features"], encoder, under(tensors, prefix))
        )


def pack_candidate(
    candidate: Candidate, tensors: dict[str, Tensor], blobs: dict[str, bytes]
) -> dict[str, Any]:
    """Store the models of a base's candidate in `tensors` or `blobs`; returns its JSON."""
    kind = kind_of(candidate.folds[0]) or "skops"
    for number, model in enumerate(candidate.folds):
        name = f"base/{candidate.name}/{number}"
        if kind == "skops":
            blobs[name] = dump_model(model)
            continue
        arrays = model.to_arrays().items()
        tensors |= {f"{name}/{part}": torch.from_numpy(np.asarray(a)) for part, a in arrays}
    described = {"name": candidate.name, "view": candidate.view, "kind": kind}
    return described | {"n_models": len(candidate.folds)}


def unpack_models(
    folder: Folder,
    described: dict[str, Any],
    trusted: Sequence[str],
    check: Callable[[Any], None] = lambda _: None,
) -> list[Any]:
    """Rebuild the models of a candidate from the result of `pack_candidate`; `check` each."""
    models: list[Any] = []
    for number in range(described["n_models"]):
        name = f"base/{described['name']}/{number}"
        with part_of_folder(name):
            if described["kind"] == "skops":
                models.append(load_model(folder.blobs[name], trusted))
            else:
                found = under(folder.tensors, f"{name}/").items()
                arrays = {part: tensor.numpy() for part, tensor in found}
                models.append(from_arrays(described["kind"], arrays))
            check(models[-1])
    return models


def check_classes(model: Any, n_classes: int) -> None:
    """Raise ValueError if a classifier has classes outside 0 to `n_classes` - 1."""
    classes = np.asarray(model.classes_)
    if classes.dtype.kind not in "iu" or classes.min() < 0 or classes.max() >= n_classes:
        raise ValueError(f"its classes are not positions from 0 to {n_classes - 1}")


def filled(make: Callable[[], Network], tensors: dict[str, Tensor]) -> Network:
    """Build a network in eval mode and load stored weights.

    Shapes are first compared on the meta device, as forged settings may need too much memory.
    ValueError if names, shapes or types of the weights do not fit the settings.
    """
    with torch.device("meta"):
        described = {name: (t.shape, t.dtype) for name, t in make().state_dict().items()}
    stored = {name: (t.shape, t.dtype) for name, t in tensors.items()}
    if described != stored:
        odd = sorted({*described.items()} ^ {*stored.items()}, key=str)
        raise ValueError(f"its weights do not fit its settings, first {odd[0][0]!r}")
    network = make()
    network.load_state_dict(tensors)
    return network.eval()
