"""Features of images from a frozen encoder: extracted in chunks, pooled, kept on disk."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from nearwise.data.contexts import Context
from nearwise.data.images.pixels import as_images, as_unit_floats
from nearwise.functional.devices import choose_device
from nearwise.memory.computed import read_or_compute
from nearwise.probes.encoders import Encoder, checked_tokens, digest_of, fingerprint_of
from nearwise.training import Augmentation
from nearwise.training.augment import crop_and_flip

Pool = Literal["mean", "max", "flatten", "cls"]
POOLS: tuple[Pool, ...] = get_args(Pool)


def pool_tokens(tokens: Tensor, how: Pool) -> Tensor:
    """One vector per image from its tokens.

    Parameters
    ----------
    tokens : Tensor of shape (B, L, D)
    how : {"mean", "max", "flatten", "cls"}
        "mean" and "max" over tokens give (B, D), "flatten" gives (B, L D), "cls" the first token.

    Raises
    ------
    ValueError
        If `how` is none of these.
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
    """One random view of each image, the same whatever batch the image comes in.

    `rows` (number of each image), `view` and `seed` decide the draw; without an `augmentation` an
    eighth of the side, at least 1, is padding, and images flip. Raises ValueError if it asks for
    more than crops and flips.
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
    """The pieces of one extraction in a folder (None keeps nothing), and how many were computed."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.computed = 0

    @classmethod
    def of(cls, cache: str | os.PathLike[str] | None, named: dict[str, Any]) -> Self:
        """Pieces in the folder of `cache` that is named by a hash of all that decides them."""
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
        """Give a piece, from its folder or computed and written there.

        Warns UserWarning if a stored piece is damaged: it is computed and written again. If it
        cannot be written: it is returned all the same.
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


@dataclass(frozen=True, eq=False)
class FeatureSet:
    """Features of images, their labels, and which images they are.

    Parameters
    ----------
    X : ndarray of shape (n, D) or (n, L, D)
        Finite features, one vector per row, or tokens.
    y : ndarray of shape (n,), optional
        Labels.
    index : int64 ndarray of shape (n,), optional
        Number of each row's image; views of an image share it. Default 0..n-1.
    meta : dict
        How the features were made: pool, context, draw, views, tokens (L), token_dim (D),
        ordered, parameters (of the encoder).

    Raises
    ------
    ValueError
        If X, y and index differ in length, or features are NaN or infinite; the rows are named.
    """

    X: NDArray[Any]
    y: NDArray[Any] | None = None
    index: NDArray[np.int64] | None = None
    meta: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.X.ndim not in (2, 3):
            raise ValueError(f"X has shape {self.X.shape}. Pass (n, D) features or (n, L, D).")
        if self.index is None:
            object.__setattr__(self, "index", np.arange(len(self.X), dtype=np.int64))
        for name, values in (("y", self.y), ("index", self.index)):
            if values is not None and len(values) != len(self.X):
                raise ValueError(
                    f"{name} has {len(values)} rows and X has {len(self.X)}. Pass one per row of X."
                )
        assert self.index is not None  # set above
        refuse_not_finite(self.X, numbers=self.index)

    def __len__(self) -> int:
        return len(self.X)

    def take(self, rows: ArrayLike) -> "FeatureSet":
        """Return the features of some rows, int or bool positions, in that order."""
        at = np.asarray(rows)
        y = None if self.y is None else self.y[at]
        assert self.index is not None  # set in __post_init__
        return replace(self, X=self.X[at], y=y, index=self.index[at])


def refuse_not_finite(
    X: NDArray[Any], name: str = "features", *, numbers: NDArray[np.int64] | None = None
) -> None:
    """Raise a ValueError with the `numbers` of the rows of `X` that hold NaN or infinity."""
    flat = X.reshape(len(X), -1)
    # a sum is finite where every term is, but for overflow; rows are looked at only when it is not
    if np.isfinite(flat.sum(dtype=np.float64)):
        return
    bad = np.flatnonzero(~np.isfinite(flat).all(axis=1))
    if len(bad):
        called = bad if numbers is None else numbers[bad]
        named = ", ".join(map(str, called[:5])) + (", ..." if len(bad) > 5 else "")
        raise ValueError(
            f"{len(bad)} of {len(X)} rows of {name} hold NaN or infinity: rows {named}. Repair the "
            "encoder, or leave these rows out."
        )


def extract_features(
    encoder: Encoder,
    images: ArrayLike | Tensor,
    labels: ArrayLike | None = None,
    *,
    pool: Pool | None = "mean",
    context: Context | str | None = None,
    draw: int = 0,
    rows: ArrayLike | None = None,
    batch_size: int = 256,
    device: torch.device | str = "cpu",
    dtype: FeatureType = "float32",
    precision: Precision = "float32",
    views: int = 1,
    augmentation: Augmentation | None = None,
    seed: int = 0,
    cache: str | os.PathLike[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> FeatureSet:
    """Encode images once and keep what probes read.

    The encoder runs in eval mode without gradient; modules are moved to `device`. What one image
    gives depends on neither batch size nor order (but for a context "shared per batch").

    Parameters
    ----------
    encoder : Encoder
    images : array or Tensor of shape (n, C, H, W), (n, H, W, C) or (n, H, W)
        uint8, or floats in [0, 1].
    labels : array of shape (n,), optional
    pool : {"mean", "max", "flatten", "cls"} or None, default="mean"
        None keeps the tokens, (n, L, D).
    context : Context or str, optional
        Which pixels are seen, such as "full" (default) or "0.2".
    draw : int, default=0
        Another draw of the context.
    rows : int64 array of shape (n,), optional
        Number of each image in its data set, from which its context and views are drawn; default
        0..n-1.
    batch_size : int, default=256
    device : torch.device or str, default="cpu"
    dtype : {"float32", "float16"}, default="float32"
        Of the features that are kept.
    precision : {"float32", "bfloat16"}, default="float32"
        Of the encoder, through autocast.
    views : int, default=1
        The image itself, and so many less one of its random crops and flips, one after the other:
        all images, then their second views. For training rows of a probe, never for test rows.
    augmentation : Augmentation, optional
        `crop_padding` and `flip` of the further views; an eighth of the side, and flips, by
        default.
    seed : int, default=0
        Of the further views.
    cache : path, optional
        Folder where features are kept, found again by the content they were made from: images,
        encoder, context and settings. What a killed run had finished is not computed again.
    progress : callable (done, all), optional
        Called with the numbers of rows, after each piece.

    Returns
    -------
    features : FeatureSet
        Of ``views * n`` rows.

    Raises
    ------
    ValueError
        If images or labels do not fit, an option is unknown, the encoder returns another shape
        than it announces, or features are NaN or infinite.
    """
    x = as_images(images)
    numbers = np.arange(len(x)) if rows is None else np.asarray(rows, dtype=np.int64)
    y = None if labels is None else np.asarray(labels)
    for name, values in (("labels", y), ("rows", numbers)):
        if values is not None and values.shape != (len(x),):
            raise ValueError(
                f"{name} have shape {values.shape} for {len(x)} images. Pass one each."
            )
    _check_options(encoder, pool, dtype, precision, batch_size, views)
    seen = Context.parse(context) if isinstance(context, str) else context or Context()
    job = _Job(
        encoder,
        x,
        torch.from_numpy(numbers),
        pool,
        seen,
        draw,
        batch_size,
        choose_device(device),
        dtype,
        precision,
        augmentation,
        seed,
    )
    shards = FeatureShards.of(cache, job.named(views))
    with _placed(encoder, job.device):
        parts = []
        for view in range(views):
            for start in range(0, len(x), job.shard_rows):
                stop = min(start + job.shard_rows, len(x))
                name = f"{view}-{start}-{stop}"
                parts.append(shards.stored(name, lambda: job.encode(view, start, stop)))  # noqa: B023
                if progress is not None:
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
    """One extraction: from rows to features."""

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
        """Rows of a piece: whole batches, so that a context shared per batch does not notice."""
        return max(1, 2048 // self.batch_size) * self.batch_size

    def named(self, views: int) -> dict[str, Any]:
        """All that decides the features, for the cache's hash."""
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

    def encode(self, view: int, start: int, stop: int) -> NDArray[Any]:
        """Features of rows `start` to `stop`, in one view."""
        parts = []
        for first in range(start, stop, self.batch_size):
            at = slice(first, min(first + self.batch_size, stop))
            images, rows = self.images[at], self.rows[at]
            if view:
                images = changed_views(images, rows, view, self.augmentation, self.seed)
            x = as_unit_floats(images.to(self.device))
            n_points = x.shape[2] * x.shape[3]
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
        return torch.cat(parts).numpy()

    def _refuse_blind(self, tokens: Tensor, x: Tensor, context: Tensor) -> None:
        """Refuse an encoder that gives the same whatever it is shown."""
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
        """Tokens of an image, as far as the features or the encoder tell."""
        if self.pool is None:
            return int(X.shape[1])
        if self.pool == "flatten":
            return int(X.shape[1]) // self.encoder.token_dim
        return self.encoder.num_tokens


def count_parameters(encoder: Encoder) -> int:
    """Count an encoder's parameters; 0 for one that is no module."""
    return sum(p.numel() for p in getattr(encoder, "parameters", lambda: [])())


def refuse_cls(encoder: Encoder, pool: str | None) -> None:
    """Refuse the pool "cls" where no token stands for the whole image."""
    if pool == "cls" and not getattr(encoder, "has_cls", False):
        raise ValueError(
            f'{type(encoder).__name__} has no token of the whole image for pool="cls". Use "mean".'
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


@contextmanager
def _placed(encoder: Encoder, device: torch.device) -> Iterator[None]:
    """Put the encoder on the device and in eval mode, without gradient; its former mode after."""
    module = encoder if isinstance(encoder, nn.Module) else None
    was_training = module is not None and module.training
    move = getattr(encoder, "to", None)
    if callable(move):
        move(device)
    if module is not None:
        module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        if module is not None:
            module.train(was_training)
