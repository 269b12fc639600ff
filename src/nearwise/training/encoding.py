"""Keys, head predictions and votes of many rows, in chunks and without gradient; disk cache."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from nearwise.memory.computed import read_or_compute
from nearwise.nn import Embedder, ImageEmbedder, NeighborNetwork, neighbor_vote
from nearwise.training.checkpoint import content_hash
from nearwise.training.rows import TrainingRows
from nearwise.training.settings import Precision
from nearwise.warn import warn_user

T = TypeVar("T")
_DTYPES = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}

KIND = "nearwise-embeddings"
FORMAT_VERSION = 1
_VECTORS = "backbone vectors"
_OF_PROJECTION = ("dim", "projection_norm", "normalize", "frozen")
_CHUNK = 8192
# Small chunks of images stay in a processor's cache; an accelerator needs large ones.
_CPU_PIXELS = 2**18
_DEVICE_PIXELS = 2**22


@contextmanager
def evaluating(network: NeighborNetwork) -> Iterator[None]:
    """Use eval mode without gradient in the context, then restore the former mode."""
    was_training = network.training
    network.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        network.train(was_training)


def autocast(device: torch.device, precision: Precision) -> torch.autocast:
    """Return an autocast context for `precision`."""
    dtype = _DTYPES[precision]
    return torch.autocast(device.type, dtype, enabled=dtype is not None)


def encode(
    network: NeighborNetwork,
    rows: TrainingRows,
    *,
    chunk_size: int | None = None,
    precision: Precision = "float32",
) -> Tensor:
    """Return keys of rows on the network's device, float32 of shape (n, dim), in eval mode.

    Encodes `chunk_size` rows at a time, by default 8192 rows, or images with 2**18 pixels on a CPU
    and 2**22 on an accelerator; if memory is short, chunks are halved with a warning. The embedder
    computes in `precision`, through autocast.
    """
    with evaluating(network), autocast(rows.x_num.device, precision):
        return encode_in_pieces(network.embedder, rows, chunk_size)


class BackboneFeatures(NamedTuple):
    """Output of one pass of a backbone over n images.

    `vectors` (n, width) are for `keys_of_features`; `stages` holds a float32 Tensor (n, width of
    that depth) per depth, first to last, averaged over the image, by the names of
    `Backbone.vector_and_stages`.
    """

    vectors: Tensor
    stages: dict[str, Tensor]


def encode_backbone(network: NeighborNetwork, rows: TrainingRows) -> BackboneFeatures:
    """Return vectors and features at each depth of images, in eval mode, from one pass.

    ValueError if the network has no `ImageEmbedder`.
    """
    embedder = _image_embedder(network)
    with evaluating(network):
        parts = in_chunks(
            lambda start, stop: embedder.vector_and_stages(rows.x_num[start:stop]),
            len(rows),
            rows_at_once(embedder, rows),
        )
    stages = {name: torch.cat([part[1][name] for part in parts]) for name in parts[0][1]}
    return BackboneFeatures(torch.cat([part[0] for part in parts]), stages)


def keys_of_features(
    network: NeighborNetwork, features: BackboneFeatures, rows: TrainingRows
) -> Tensor:
    """Return keys of `rows`, equal to those of `encode`, from the backbone's output."""
    embedder = _image_embedder(network)
    with evaluating(network):
        # In the pieces of `encode`: products of other sizes round differently.
        pieces = features.vectors.split(rows_at_once(embedder, rows))
        return torch.cat([embedder.key_of_vector(piece) for piece in pieces])


def _image_embedder(network: NeighborNetwork) -> ImageEmbedder:
    embedder = network.embedder
    if not isinstance(embedder, ImageEmbedder):
        raise ValueError(
            f"Only an ImageEmbedder has stages; this network has a {type(embedder).__name__}."
        )
    return embedder


def rows_at_once(embedder: Embedder, rows: TrainingRows) -> int:
    """Default number of rows per chunk."""
    if not isinstance(embedder, ImageEmbedder):
        return _CHUNK
    height, width = embedder.image_size
    pixels = _CPU_PIXELS if rows.x_num.device.type == "cpu" else _DEVICE_PIXELS
    return max(1, pixels // (height * width))


def in_chunks(encoder: Callable[[int, int], T], n_rows: int, size: int) -> list[T]:
    """Return ``encoder(start, stop)`` for chunks of `size` rows, halved if memory is short.

    Without rows there is one empty chunk.
    """
    results: list[T] = []
    start, first_size = 0, size
    while start < n_rows or not results:
        try:
            results.append(encoder(start, min(start + size, n_rows)))
        except (RuntimeError, MemoryError) as error:
            if size == 1 or not is_out_of_memory(error):
                raise
            size = max(1, min(size, n_rows) // 2)
            release_memory()
            continue
        start += size
    if size != first_size:
        warn_user(f"Out of memory while encoding {first_size} rows at a time; went on with {size}.")
    return results


def encode_in_pieces(
    embedder: Embedder, rows: TrainingRows, chunk_size: int | None = None
) -> Tensor:
    """Return keys of rows, float32 of shape (n, dim), in the present mode and precision."""

    def encode_piece(start: int, stop: int) -> Tensor:
        x_cat = None if rows.x_cat is None else rows.x_cat[start:stop]
        keys: Tensor = embedder(rows.x_num[start:stop], x_cat)
        return keys.float()

    size = chunk_size or rows_at_once(embedder, rows)
    return torch.cat(in_chunks(encode_piece, len(rows), size))


def predict_head(
    network: NeighborNetwork, rows: TrainingRows, *, keys: Tensor | None = None
) -> Tensor:
    """Return log-probabilities (n, n_classes) of the linear head, in eval mode.

    `keys` of the rows are computed if not given. ValueError without a head.
    """
    if network.head is None:
        raise ValueError("This network has no linear head. Build it with head=True.")
    keys = encode(network, rows) if keys is None else keys
    with evaluating(network):
        return torch.log_softmax(network.head(keys), dim=1)


def predict_neighbors(
    network: NeighborNetwork,
    queries: TrainingRows,
    memory: TrainingRows,
    *,
    query_keys: Tensor | None = None,
    memory_keys: Tensor | None = None,
) -> Tensor:
    """Return the softmax-weighted vote of all memory rows, own row left out by id.

    Parameters
    ----------
    network : NeighborNetwork
    queries, memory : TrainingRows
        Memory rows with the id of a query are left out for it.
    query_keys, memory_keys : Tensor, optional
        Precomputed keys.

    Returns
    -------
    proba : Tensor of shape (n_queries, n_classes), rows sum to 1.
    """
    return neighbor_vote(
        encode(network, queries) if query_keys is None else query_keys,
        encode(network, memory) if memory_keys is None else memory_keys,
        network.scale,
        memory.labels,
        network.n_classes,
        query_ids=queries.row_ids,
        key_ids=memory.row_ids,
        similarity=network.similarity,
        candidate_weight=memory.sample_weight,
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` means that a device, or the machine, is out of memory."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    # MPS and the CPU's allocator raise plain RuntimeErrors.
    words = ("out of memory", "DefaultCPUAllocator", "not enough memory")
    return isinstance(error, RuntimeError) and any(word in str(error) for word in words)


def release_memory() -> None:
    """Release cached blocks of the accelerator for smaller pieces."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    elif torch.backends.mps.is_available():
        torch.mps.empty_cache()


def cached_backbone(
    network: NeighborNetwork, rows: TrainingRows, folder: str | os.PathLike[str]
) -> BackboneFeatures:
    """Return the result of `encode_backbone`, from a cache in `folder` if possible.

    Each combination of backbone weights and images has its own subfolder, named by their hash;
    projection, head, labels and ids are not part of the hash. A UserWarning reports a damaged
    entry, which is computed and written again, and an entry that cannot be written.
    """

    def compute() -> dict[str, Tensor]:
        features = encode_backbone(network, rows)
        return {_VECTORS: features.vectors, **features.stages}

    config = {k: v for k, v in network.embedder.config.items() if k not in _OF_PROJECTION}
    state = network.embedder.state_dict()
    weights = {k: v for k, v in state.items() if not k.startswith("trunk.projection.")}
    settings = [config, {"what": _VECTORS, "precision": "float32"}]
    named = {**weights, "rows/x_num": rows.x_num, "rows/x_cat": rows.x_cat}
    path = Path(folder) / content_hash(settings, named)[:32]
    found = read_or_compute(path, compute, kind=KIND, version=FORMAT_VERSION, what="embeddings")
    tensors = {name: tensor.to(rows.x_num.device) for name, tensor in found.items()}
    return BackboneFeatures(tensors.pop(_VECTORS), tensors)
