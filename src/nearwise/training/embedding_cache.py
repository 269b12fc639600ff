"""Keys on disk, found again by the content that they were computed from."""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from nearwise.memory.computed import read_or_compute
from nearwise.nn import NeighborNetwork
from nearwise.training.encode import (
    BackboneFeatures,
    Precision,
    encode,
    encode_backbone,
    encode_stages,
)
from nearwise.training.rows import TrainingRows

KIND = "nearwise-embeddings"
FORMAT_VERSION = 1
_KEYS, _VECTORS = "keys", "backbone vectors"
_OF_PROJECTION = ("dim", "projection_norm", "normalize", "frozen")


def cached_encode(
    network: NeighborNetwork,
    rows: TrainingRows,
    folder: str | os.PathLike[str],
    *,
    precision: Precision = "float32",
) -> Tensor:
    """Keys of rows, from `folder` where they are there already.

    Parameters
    ----------
    network : NeighborNetwork
    rows : TrainingRows
        On the network's device; labels and ids do not matter.
    folder : path
        Each combination of weights, rows and settings has a folder of its own in it, named by
        their hash, so keys of other weights are never taken.
    precision : {"float32", "bfloat16"}, default="float32"
        As for `encode`.

    Returns
    -------
    keys : float32 Tensor of shape (n, dim), on the device of the rows.

    Warns
    -----
    UserWarning
        If a stored entry is damaged: it is computed and written again. If it cannot be written:
        the keys are computed and returned all the same.
    """

    def compute() -> dict[str, Tensor]:
        return {_KEYS: encode(network, rows, precision=precision)}

    name = _content_hash(network, rows, {"what": _KEYS, "precision": precision})
    return _stored(Path(folder) / name, compute, rows.x_num.device)[_KEYS]


def cached_stages(
    network: NeighborNetwork,
    rows: TrainingRows,
    folder: str | os.PathLike[str],
    *,
    precision: Precision = "float32",
) -> dict[str, Tensor]:
    """Features of images at each depth, as `encode_stages`, from `folder` as `cached_encode`."""

    def compute() -> dict[str, Tensor]:
        return encode_stages(network, rows, precision=precision)

    name = _content_hash(network, rows, {"what": "stages", "precision": precision})
    return _stored(Path(folder) / name, compute, rows.x_num.device)


def cached_backbone(
    network: NeighborNetwork,
    rows: TrainingRows,
    folder: str | os.PathLike[str],
    *,
    precision: Precision = "float32",
) -> BackboneFeatures:
    """Give what `encode_backbone` makes of images, from `folder` as `cached_encode`.

    The projection and the head have no part in it: all networks over one frozen backbone share
    what is stored.
    """

    def compute() -> dict[str, Tensor]:
        features = encode_backbone(network, rows, precision=precision)
        return {_VECTORS: features.vectors, **features.stages}

    name = _content_hash(
        network, rows, {"what": _VECTORS, "precision": precision}, without="trunk.projection."
    )
    tensors = dict(_stored(Path(folder) / name, compute, rows.x_num.device))
    return BackboneFeatures(tensors.pop(_VECTORS), tensors)


def _stored(
    path: Path, compute: Callable[[], dict[str, Tensor]], device: torch.device
) -> dict[str, Tensor]:
    found = read_or_compute(path, compute, kind=KIND, version=FORMAT_VERSION, what="embeddings")
    return {name: tensor.to(device) for name, tensor in found.items()}


def _content_hash(
    network: NeighborNetwork,
    rows: TrainingRows,
    settings: dict[str, str],
    without: str | None = None,
) -> str:
    """Hash of all that decides a result; `without` names the weights that have no part in it."""
    config, weights = network.embedder.config, network.embedder.state_dict()
    if without is not None:
        config = {name: value for name, value in config.items() if name not in _OF_PROJECTION}
        weights = {name: part for name, part in weights.items() if not name.startswith(without)}
    digest = hashlib.sha256(json.dumps([config, settings], sort_keys=True).encode())
    named = {**weights, "rows/x_num": rows.x_num, "rows/x_cat": rows.x_cat}
    for name, tensor in named.items():
        digest.update(name.encode())
        if tensor is not None:
            digest.update(str((tuple(tensor.shape), tensor.dtype)).encode())
            digest.update(tensor.detach().cpu().contiguous().numpy().data)
    return digest.hexdigest()[:32]
