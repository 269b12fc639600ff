"""Encoder: the one small protocol by which any representation is probed."""

import hashlib
import json
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from nearwise.data.images.pixels import as_unit_floats

_PROBED_IMAGES = 16  # whose tokens tell two functions apart


@runtime_checkable
class Encoder(Protocol):
    """Turns images into tokens.

    Four more attributes are read where an encoder has them: ``ordered`` (default True), whether
    token i means the same in every image; ``has_cls`` (default False), whether the first token
    stands for the whole image; ``fingerprint()``, a text that changes with what the encoder gives;
    ``trained_on``, digests of the images it was trained on (`nearwise.data.images.seen`).
    """

    @property
    def token_dim(self) -> int:
        """Width of a token."""
        ...

    @property
    def num_tokens(self) -> int | None:
        """Tokens of an image seen in full; None where that depends on image or context."""
        ...

    def encode(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """Tokens of images.

        Parameters
        ----------
        x : float Tensor of shape (B, C, H, W)
            In [0, 1]; an encoder that wants another range normalises inside.
        context : int64 Tensor of shape (B, n), optional
            Row-major positions of the pixels that may be seen; None shows all.

        Returns
        -------
        tokens : Tensor of shape (B, L, D)
        """
        ...


def checked_tokens(encoder: Encoder, tokens: Any, n_images: int, *, seen_all: bool) -> Tensor:
    """Refuse what is not (B, L, token_dim), with `num_tokens` tokens where all was seen."""
    name = type(encoder).__name__
    if not isinstance(tokens, Tensor):
        raise ValueError(f"{name}.encode returned a {type(tokens).__name__}. Return a Tensor.")
    wanted = f"({n_images}, {encoder.num_tokens or 'L'}, {encoder.token_dim})"
    fits = tokens.ndim == 3 and len(tokens) == n_images and tokens.shape[2] == encoder.token_dim
    if fits and seen_all and encoder.num_tokens is not None:
        fits = tokens.shape[1] == encoder.num_tokens
    if not fits or tokens.shape[1] == 0:
        raise ValueError(
            f"{name}.encode returned shape {tuple(tokens.shape)} for {n_images} images, and "
            f"{wanted} was announced. Return (B, L, D) tokens, or correct token_dim and num_tokens."
        )
    return tokens


def fingerprint_of(encoder: Encoder, images: Tensor) -> str:
    """Text that changes with what the encoder gives.

    Its own ``fingerprint()`` where it has one; a module's class, settings and weights; else the
    tokens of the first 16 images.
    """
    own = getattr(encoder, "fingerprint", None)
    if callable(own):
        return str(own())
    if isinstance(encoder, nn.Module):
        return module_fingerprint(encoder)
    device = next(iter(getattr(encoder, "parameters", lambda: [])()), images).device
    with torch.no_grad():
        tokens = encoder.encode(as_unit_floats(images[:_PROBED_IMAGES].to(device)))
    return f"{type(encoder).__qualname__}:{digest_of(tokens)}"


def module_fingerprint(module: nn.Module, settings: Any = None) -> str:
    """Hash of a module's class, `settings` (or its ``config``) and every weight and buffer."""
    settings = getattr(module, "config", None) if settings is None else settings
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode())
    digest.update(repr(module).encode())
    for name, tensor in module.state_dict().items():
        digest.update(name.encode())
        digest.update(digest_of(tensor).encode())
    return f"{type(module).__qualname__}:{digest.hexdigest()[:32]}"


def digest_of(tensor: Tensor) -> str:
    """Hash of a tensor's shape, dtype and content."""
    digest = hashlib.sha256(str((tuple(tensor.shape), tensor.dtype)).encode())
    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    digest.update(flat.numpy().data)
    return digest.hexdigest()[:32]
