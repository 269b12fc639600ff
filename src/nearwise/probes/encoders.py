"""The protocol by which any representation is probed, and encoders without weights."""

import hashlib
import inspect
import json
from collections.abc import Callable
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
    ``trained_on``, digests of the images it was trained on (`nearwise.data.images.pixels`).
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


_UNSEEN = 0.0


class Pixels:
    """The image itself: one token a pixel, row-major, of its colours.

    Pixels outside the context are black, so that token i is the same place in every image.

    Parameters
    ----------
    image_size : (int, int)
        Height and width.
    channels : int
    """

    ordered = True

    def __init__(self, image_size: tuple[int, int], channels: int) -> None:
        self.image_size, self.channels = image_size, channels
        self.token_dim, self.num_tokens = channels, image_size[0] * image_size[1]

    def encode(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """Colours (B, H W, C) of images (B, C, H, W)."""
        return seen_only(x, context).flatten(2).transpose(1, 2)

    def fingerprint(self) -> str:
        """Name the encoder; it holds nothing else."""
        return "pixels"


class Patches:
    """Square patches: one token a patch, row-major, of all its pixels.

    Pixels outside the context are black.

    Parameters
    ----------
    size : int
        Side of a patch; must divide both sides of the image.
    image_size : (int, int)
        Height and width.
    channels : int
    """

    ordered = True

    def __init__(self, size: int, image_size: tuple[int, int], channels: int) -> None:
        height, width = image_size
        if size < 1 or height % size or width % size:
            raise ValueError(
                f"Patches of size {size} do not fill images of {height} x {width}. Take a size "
                "that divides both sides."
            )
        self.size, self.image_size = size, image_size
        self.token_dim = channels * size * size
        self.num_tokens = (height // size) * (width // size)

    def encode(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """Patches (B, H W / size^2, C size^2) of images (B, C, H, W)."""
        unfolded = nn.functional.unfold(
            seen_only(x, context), kernel_size=self.size, stride=self.size
        )
        return unfolded.transpose(1, 2)

    def fingerprint(self) -> str:
        """Name the encoder and its size."""
        return f"patches:{self.size}"


class SparsePoints:
    """The pixels seen, as a set: one token a point, of its place and colours.

    The order of the points means nothing: the place is in the token, and a probe learns no
    position embedding for them.

    Parameters
    ----------
    image_size : (int, int)
        Height and width.
    channels : int
    features : nn.Module, optional
        From (y, x) in [-1, 1], shape (n, 2), to features (n, F), such as Fourier features; they
        replace the bare coordinates.
    """

    ordered = False
    num_tokens = None

    def __init__(
        self, image_size: tuple[int, int], channels: int, features: nn.Module | None = None
    ) -> None:
        self.image_size, self.features = image_size, features
        grid = torch.cartesian_prod(*(torch.linspace(-1, 1, side) for side in image_size))
        with torch.no_grad():
            self._places = grid.flip(1) if features is None else features(grid)
        self.token_dim = channels + self._places.shape[1]

    def encode(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """Points (B, n, 2 + C) as (x, y, colours), or (B, n, F + C); n is H W without context."""
        colors = x.flatten(2).transpose(1, 2)
        places = self._places.to(x).expand(len(x), -1, -1)
        tokens = torch.cat([places, colors], dim=2)
        if context is None:
            return tokens
        return tokens.gather(1, context[:, :, None].expand(-1, -1, tokens.shape[2]))

    def fingerprint(self) -> str:
        """Name the encoder, with the weights of its features."""
        return "points" if self.features is None else f"points:{module_fingerprint(self.features)}"


class RandomInit:
    """An encoder as it is before any training: what its architecture alone gives.

    Parameters
    ----------
    make : callable () -> Encoder
        Builds the encoder; torch is seeded around it, and left as it was.
    seed : int, default=0
    """

    def __init__(self, make: Callable[[], Encoder], seed: int = 0) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.encoder = make()
        self.seed = seed
        self.token_dim, self.num_tokens = self.encoder.token_dim, self.encoder.num_tokens
        self.ordered = getattr(self.encoder, "ordered", True)
        self.has_cls = getattr(self.encoder, "has_cls", False)

    def to(self, device: torch.device | str) -> "RandomInit":
        """Move the encoder where it is a module."""
        if isinstance(self.encoder, nn.Module):
            self.encoder.to(device).eval()
        return self

    def encode(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """Tokens of the untrained encoder."""
        return self.encoder.encode(x, context)

    def parameters(self) -> Any:
        """Weights of the encoder, none where it is no module."""
        return self.encoder.parameters() if isinstance(self.encoder, nn.Module) else iter(())

    def fingerprint(self) -> str:
        """Hash of the weights that were drawn."""
        if isinstance(self.encoder, nn.Module):
            return f"random:{module_fingerprint(self.encoder)}"
        return f"random:{self.seed}:{type(self.encoder).__qualname__}"


class FunctionEncoder:
    """A plain function of images as an encoder.

    Parameters
    ----------
    function : callable
        Takes float images (B, C, H, W) in [0, 1], and a keyword ``context`` where it knows one.
        Returns tokens (B, L, D) or one vector an image (B, D), as a Tensor. A module is run in
        eval mode, on the device of the images.
    example : Tensor of shape (B, C, H, W)
        A few images, from which the number and width of its tokens are read.
    ordered : bool, default=True
        Whether token i means the same in every image.
    has_cls : bool, default=False
        Whether the first token stands for the whole image.

    Raises
    ------
    ValueError
        If the function returns neither (B, L, D) nor (B, D).
    """

    def __init__(
        self,
        function: Callable[..., Tensor],
        example: Tensor,
        *,
        ordered: bool = True,
        has_cls: bool = False,
    ) -> None:
        self.function, self.ordered, self.has_cls = function, ordered, has_cls
        self._takes_context = _takes_context(function)
        if isinstance(function, nn.Module):
            function.eval()
        with torch.no_grad():
            tokens = self._called(example)
        self.num_tokens: int | None = int(tokens.shape[1])
        self.token_dim = int(tokens.shape[2])

    def _called(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        options = {"context": context} if self._takes_context and context is not None else {}
        try:
            tokens = self.function(x, **options)
        except Exception as error:
            name = getattr(self.function, "__name__", type(self.function).__name__)
            raise ValueError(
                f"The encoder {name} raised {type(error).__name__}: {error}. It was given images "
                f"of shape {tuple(x.shape)} in [0, 1]."
            ) from error
        if not isinstance(tokens, Tensor) or tokens.ndim not in (2, 3) or len(tokens) != len(x):
            seen = tuple(tokens.shape) if isinstance(tokens, Tensor) else type(tokens).__name__
            raise ValueError(
                f"The function returned {seen} for {len(x)} images. Return a Tensor of shape "
                "(B, L, D), or (B, D) for one vector an image."
            )
        return tokens[:, None] if tokens.ndim == 2 else tokens

    def encode(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """Tokens (B, L, D); where the function knows no context, unseen pixels are black."""
        if context is not None and not self._takes_context:
            x, context = seen_only(x, context), None
        return self._called(x, context)

    def to(self, device: torch.device | str) -> "FunctionEncoder":
        """Move the function where it is a module."""
        if isinstance(self.function, nn.Module):
            self.function.to(device).eval()
        return self

    def parameters(self) -> Any:
        """Weights of the function, none where it is no module."""
        return self.function.parameters() if isinstance(self.function, nn.Module) else iter(())


def seen_only(x: Tensor, context: Tensor | None) -> Tensor:
    """Images (B, C, H, W) whose pixels outside the context (B, n) are black."""
    if context is None:
        return x
    seen = torch.zeros(len(x), x.shape[2] * x.shape[3], dtype=torch.bool, device=x.device)
    seen.scatter_(1, context, True)
    return torch.where(seen.view(len(x), 1, *x.shape[2:]), x, torch.full_like(x, _UNSEEN))


def _takes_context(function: Callable[..., Any]) -> bool:
    target = function.forward if isinstance(function, nn.Module) else function
    try:
        return "context" in inspect.signature(target).parameters
    except (TypeError, ValueError):  # builtins say nothing about their arguments
        return False
