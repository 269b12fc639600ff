"""Features of a frozen encoder: extraction in chunks, pooling, disk cache."""

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from nearwise.data.contexts import Context
from nearwise.data.images.pixels import as_images
from nearwise.functional.devices import choose_device
from nearwise.memory.computed import read_or_compute
from nearwise.probes.encoders import (
    Encoder,
    FunctionEncoder,
    as_batch,
    checked_tokens,
    device_of,
    digest_of,
    evaluating,
    fingerprint_of,
    is_encoder,
    module_of,
)
from nearwise.probes.feature_set import FeatureSet
from nearwise.progress_bar import late_bar
from nearwise.training import Augmentation
from nearwise.training.augment import crop_and_flip

Pool = Literal["mean", "max", "flatten", "cls"]
POOLS: tuple[Pool, ...] = get_args(Pool)


def pool_tokens(tokens: Tensor, how: Pool) -> Tensor:
    """Pool the tokens of each image into one vector.

    Parameters
    ----------
    tokens : Tensor of shape (B, L, D)
    how : {"mean", "max", "flatten", "cls"}
        "mean" and "max" over tokens give (B, D), "flatten" gives (B, L D), "cls" the first token.

    Raises
    ------
    ValueError
        If `how` is unknown.
    """
    if how == "mean":
        return tokens.mean(dim=1)
    if how == "max":
        return tokens.amax(dim=1)
    if how == "flatten":
        return tokens.flatten(1)
    if how == "cls":
        return tokens[:, 0]
    raise ValueError(f"pool={how!r} is not known. Use one of {', '.join(POOLS)}, or None.")


def changed_views(
    images: Tensor, rows: Tensor, view: int, augmentation: Augmentation | None, seed: int
) -> Tensor:
    """Return one random view of each image, independent of the batch.

    `rows` (number of each image), `view` and `seed` determine the draw. The default `augmentation`
    has a padding of an eighth of the side, at least 1, and flips. Raises ValueError if it has
    other changes than crops and flips.
    """
    if augmentation is None:
        padding = max(1, images.shape[2] // 8)
        augmentation = Augmentation.model_validate({"crop_padding": padding, "flip": True})
    known = {"crop_padding": augmentation.crop_padding, "flip": augmentation.flip}
    if augmentation != Augmentation.model_validate(known):
        raise ValueError(f"Views of features are crops and flips only; got {augmentation!r}.")
    steps = 2 * augmentation.crop_padding + 1
    draws = torch.from_numpy(
        np.stack([np.random.default_rng([seed, view, int(row)]).random(3) for row in rows])
    )
    top, left = ((draws[:, i] * steps).long() for i in (0, 1))
    flipped = (draws[:, 2] < 0.5) & bool(augmentation.flip)
    device = images.device
    return crop_and_flip(
        images, augmentation.crop_padding, top.to(device), left.to(device), flipped.to(device)
    )


KIND = "nearwise-features"
FORMAT_VERSION = 1
_X = "features"


class FeatureShards:
    """Chunks of one extraction in a folder (None: no cache), with a count of computed ones."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.computed = 0

    @classmethod
    def of(cls, cache: str | os.PathLike[str] | None, named: dict[str, Any]) -> Self:
        """Return the chunks in the subfolder of `cache` named by a hash of all inputs."""
        if cache is None:
            return cls(None)
        facts = {
            "encoder": fingerprint_of(named["encoder"], named["images"]),
            "images": digest_of(named["images"]),
            "rows": digest_of(named["rows"]),
            "settings": named["settings"],
            "version": FORMAT_VERSION,
        }
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
        return cls(Path(cache) / digest[:32])

    def stored(self, name: str, compute: Callable[[], NDArray[Any]]) -> NDArray[Any]:
        """Return a chunk from its folder, or compute it and write it there.

        A damaged chunk is computed and written again, with a UserWarning. A chunk that cannot be
        written is still returned, with a UserWarning.
        """
        if self.folder is None:
            self.computed += 1
            return compute()

        def counted() -> dict[str, NDArray[Any]]:
            self.computed += 1
            return {_X: compute()}

        path = self.folder / name
        found = read_or_compute(path, counted, kind=KIND, version=FORMAT_VERSION, what="features")
        return np.asarray(found[_X].numpy())


FeatureType = Literal["float32", "float16"]
Precision = Literal["float32", "bfloat16"]
_DTYPES = {"float32": torch.float32, "float16": torch.float16}


def extract_features(
    encoder: Encoder | Callable[..., Any],
    images: ArrayLike | Tensor,
    labels: ArrayLike | None = None,
    *,
    pool: Pool | None = "mean",
    context: Context | str | None = None,
    draw: int = 0,
    rows: ArrayLike | None = None,
    batch_size: int = 256,
    device: torch.device | str | None = None,
    dtype: FeatureType = "float32",
    precision: Precision = "float32",
    views: int = 1,
    augmentation: Augmentation | None = None,
    seed: int = 0,
    cache: str | os.PathLike[str] | None = None,
    progress: Callable[[int, int], None] | bool = True,
) -> FeatureSet:
    """Encode images by a frozen encoder and return their features.

    The encoder runs without gradient and in eval mode; each of its modules has its former mode
    afterwards. The features of an image depend on neither batch size nor order (except for a
    context of the kind "per-batch").

    Parameters
    ----------
    encoder : Encoder, nn.Module, model of transformers, or callable
        Encoder of the images. A module or function takes a batch and returns tokens (B, L, D) or
        one vector per row (B, D). Of a transformers model `last_hidden_state` is used, a map (B, D,
        H, W) row by row, and pooled by `pool`; for another field pass a function such as ``lambda
        x: model(x).pooler_output``. Modules inside a function keep their mode; for a method
        (``model.encode``) its module is used.
    images : array or Tensor of shape (n, C, H, W), (n, H, W, C) or (n, H, W)
        Images as uint8, or floats in [0, 1]. A module or function gets uint8 images as float32
        (B, C, H, W) in [0, 1]. Other input (n, ...), such as normalised pixels, vectors or token
        ids, is passed unchanged, floats as float32; with `views` or a `context` its shape must be
        (n, C, H, W).
    labels : array of shape (n,), optional
    pool : {"mean", "max", "flatten", "cls"} or None, default="mean"
        Pooling of the tokens. None keeps the tokens, (n, L, D). "cls" takes the first token, for
        encoders with `has_cls` or a parameter named cls_token or class_embedding.
    context : Context or str, optional
        Visible pixels, such as "full" (default) or "0.2".
    draw : int, default=0
        Number of the draw of the context.
    rows : int64 array of shape (n,), optional
        Number of each image in its data set, which seeds its context and views; default 0..n-1.
    batch_size : int, default=256
    device : torch.device or str, optional
        Device of the encoder; a module is moved there. Default: the device of its weights, or "cpu"
        without weights.
    dtype : {"float32", "float16"}, default="float32"
        Dtype of the features.
    precision : {"float32", "bfloat16"}, default="float32"
        Precision of the encoder, through autocast.
    views : int, default=1
        Number of views per image: the image itself, then random crops and flips. The order is all
        images, then all second views. For training rows of a probe, never for test rows.
    augmentation : Augmentation, optional
        Settings `crop_padding` and `flip` of the further views. Default: an eighth of the side,
        and flips.
    seed : int, default=0
        Seed of the further views.
    cache : path, optional
        Folder of a feature cache, keyed by the content of images, encoder, context and settings.
        Finished chunks of a killed run are not computed again.
    progress : callable (done, all) or bool, default=True
        Progress callback or bar. A callable gets the numbers of rows after each chunk of about
        2,048. True shows a bar on a terminal after one second; False shows nothing.

    Returns
    -------
    features : FeatureSet
        Features of ``views * n`` rows.

    Raises
    ------
    ValueError
        If images or labels do not fit, an option is unknown, or features are NaN or infinite; if
        the encoder raises or returns another shape than it announces (the message has both).

    Examples
    --------
    >>> from torch import nn
    >>> module = nn.Sequential(nn.Flatten(), nn.Linear(64, 5))
    >>> extract_features(module, np.zeros((3, 8, 8), np.uint8)).X.shape
    (3, 5)
    """
    seen = Context.parse(context) if isinstance(context, str) else context or Context()
    x = _batches_of(encoder, images, plain=seen.kind == "full" and views == 1)
    numbers = np.arange(len(x)) if rows is None else np.asarray(rows, dtype=np.int64)
    y = None if labels is None else np.asarray(labels)
    for name, values in (("labels", y), ("rows", numbers)):
        if values is not None and values.shape != (len(x),):
            raise ValueError(
                f"{name} have shape {values.shape} for {len(x)} images. Pass one each."
            )
    chosen = device_of(encoder) if device is None else choose_device(device)
    encoder = FunctionEncoder.of(encoder, as_batch(x[:2]).to(chosen))
    if device is not None and callable(move := getattr(encoder, "to", None)):
        move(chosen)
    _check_options(encoder, pool, dtype, precision, batch_size, views)
    job = _Job(
        encoder,
        x,
        torch.from_numpy(numbers),
        pool,
        seen,
        draw,
        batch_size,
        chosen,
        dtype,
        precision,
        augmentation,
        seed,
    )
    bar = late_bar("extracting features", views * len(x), shown=progress is True)
    with evaluating(module_of(encoder)), torch.no_grad(), bar as report:
        shards = FeatureShards.of(cache, job.named(views))
        parts = []
        for view in range(views):
            for start in range(0, len(x), job.shard_rows):
                stop = min(start + job.shard_rows, len(x))
                name = f"{view}-{start}-{stop}"
                parts.append(shards.stored(name, lambda: job.encode(view, start, stop, report)))  # noqa: B023
                report(view * len(x) + stop)
                if callable(progress):
                    progress(view * len(x) + stop, views * len(x))
    X = np.concatenate(parts)
    meta = {
        "pool": pool,
        "context": str(seen),
        "draw": draw,
        "views": views,
        "tokens": job.n_tokens(X),
        "token_dim": encoder.token_dim,
        "ordered": bool(getattr(encoder, "ordered", True)),
        "parameters": count_parameters(encoder),
    }
    y_all = None if y is None else np.tile(y, views)
    return FeatureSet(X, y_all, np.tile(numbers, views), meta)


@dataclass(frozen=True)
class _Job:
    """One extraction of features from rows."""

    encoder: Encoder
    images: Tensor
    rows: Tensor
    pool: Pool | None
    context: Context
    draw: int
    batch_size: int
    device: torch.device
    dtype: FeatureType
    precision: Precision
    augmentation: Augmentation | None
    seed: int

    @property
    def shard_rows(self) -> int:
        """Number of rows per chunk: whole batches, for contexts shared per batch."""
        return max(1, 2048 // self.batch_size) * self.batch_size

    def named(self, views: int) -> dict[str, Any]:
        """Return all inputs that determine the features, for the cache's hash."""
        per_batch = self.context.kind == "per-batch"
        return {
            "encoder": self.encoder,
            "images": self.images,
            "rows": self.rows,
            "settings": {
                "pool": self.pool,
                "context": str(self.context),
                "draw": self.draw,
                "dtype": self.dtype,
                "precision": self.precision,
                "batch_size": self.batch_size if per_batch else None,
                "shard_rows": self.shard_rows,
                "seed": self.seed if views > 1 else None,
                "augmentation": repr(self.augmentation) if views > 1 else None,
            },
        }

    def encode(
        self, view: int, start: int, stop: int, report: Callable[[int], None]
    ) -> NDArray[Any]:
        """Features of rows `start` to `stop`, in one view; `report` gets the rows done so far."""
        parts = []
        for first in range(start, stop, self.batch_size):
            at = slice(first, min(first + self.batch_size, stop))
            images, rows = self.images[at], self.rows[at]
            if view:
                images = changed_views(images, rows, view, self.augmentation, self.seed)
            x = as_batch(images.to(self.device))
            n_points = x.shape[2:].numel()
            context = self.context.indices(n_points, rows.to(self.device), self.draw)
            with torch.autocast(
                self.device.type, torch.bfloat16, enabled=self.precision == "bfloat16"
            ):
                tokens = self.encoder.encode(x, context)
                if context is not None and start == first == 0:
                    self._refuse_blind(tokens, x, context)
            tokens = checked_tokens(self.encoder, tokens, len(x), seen_all=context is None).float()
            pooled = tokens if self.pool is None else pool_tokens(tokens, self.pool)
            parts.append(pooled.to(_DTYPES[self.dtype]).cpu())
            report(view * len(self.images) + at.stop)
        return torch.cat(parts).numpy()

    def _refuse_blind(self, tokens: Tensor, x: Tensor, context: Tensor) -> None:
        """Raise ValueError for an encoder that ignores the context."""
        if context.shape[1] == x.shape[2] * x.shape[3]:
            return
        whole = self.encoder.encode(x)
        if tokens.shape == whole.shape and torch.equal(tokens, whole):
            raise ValueError(
                f"{type(self.encoder).__name__} gives the same tokens from the context "
                f"{self.context} as from the whole image: it takes a context and does not use it. "
                "Let encode hide the other pixels, or leave contexts out."
            )

    def n_tokens(self, X: NDArray[Any]) -> int | None:
        """Return the number of tokens of an image, or None if unknown."""
        if self.pool is None:
            return int(X.shape[1])
        if self.pool == "flatten":
            return int(X.shape[1]) // self.encoder.token_dim
        return self.encoder.num_tokens


def _batches_of(encoder: Any, images: ArrayLike | Tensor, *, plain: bool) -> Tensor:
    """Return the input rows: images for an encoder, any array for a module or function."""
    x = images if isinstance(images, Tensor) else np.asarray(images)
    if is_encoder(encoder) or x.dtype in (torch.uint8, np.uint8):
        return as_images(x)
    if not isinstance(x, Tensor):
        if x.dtype.kind not in "biuf":
            raise ValueError(f"images have dtype {x.dtype}. Pass an array of numbers, (n, ...).")
        x = torch.from_numpy(np.ascontiguousarray(x))
    if x.ndim < 2 or not x.numel():
        raise ValueError(f"images have shape {tuple(x.shape)}. Pass at least one row, (n, ...).")
    if plain:
        return x
    if x.ndim != 4 or x.shape[1] not in (1, 3):
        raise ValueError(
            f"images have shape {tuple(x.shape)}. A module or function gets floats as they lie, so "
            "that views and contexts of them need the shape (n, C, H, W), with C of 1 or 3."
        )
    return as_images(x)


def count_parameters(encoder: Encoder) -> int:
    """Return the number of an encoder's parameters; 0 for a function."""
    return sum(p.numel() for p in getattr(encoder, "parameters", lambda: [])())


def refuse_cls(encoder: Encoder, pool: str | None) -> None:
    """Raise ValueError for the pool "cls" without a token of the whole image."""
    if pool == "cls" and not getattr(encoder, "has_cls", False):
        raise ValueError(
            f'{type(encoder).__name__} has no token of the whole image for pool="cls". Use "mean", '
            "or say FunctionEncoder(..., has_cls=True) where the first token of a module is one."
        )


def _check_options(
    encoder: Encoder, pool: Pool | None, dtype: str, precision: str, batch_size: int, views: int
) -> None:
    if pool is not None and pool not in POOLS:
        raise ValueError(f"pool={pool!r} is not known. Use one of {', '.join(POOLS)}, or None.")
    refuse_cls(encoder, pool)
    if dtype not in _DTYPES or precision not in get_args(Precision):
        raise ValueError(
            f"dtype={dtype!r} must be float32 or float16 and precision={precision!r} float32 or "
            "bfloat16."
        )
    if batch_size < 1 or views < 1:
        raise ValueError(f"batch_size={batch_size} and views={views} must be at least 1.")
