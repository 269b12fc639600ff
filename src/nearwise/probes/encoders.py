"""Encoder protocol of probes; encoders from functions and transformers models."""

import hashlib
import inspect
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, Self, cast, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nearwise.data.images.pixels import as_unit_floats
from nearwise.nn.backbones import pretrained_backbone

_PROBED_IMAGES = 16  # images for the fingerprint of a function
_CLASS_TOKENS = ("cls_token", "class_embedding", "class_token")  # transformers, torchvision


@runtime_checkable
class Encoder(Protocol):
    """Protocol of encoders: map images to tokens.

    Four optional attributes: ``ordered`` (default True), whether token i means the same in every
    image; ``has_cls`` (default False), whether the first token represents the whole image;
    ``fingerprint()``, a text that changes with the output of the encoder; ``trained_on``, digests
    of its training images (used by nearwise-lab).
    """

    @property
    def token_dim(self) -> int:
        """Width of a token."""
        ...

    @property
    def num_tokens(self) -> int | None:
        """Number of tokens of a full image; None if it depends on image or context."""
        ...

    def encode(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """Return the tokens of images.

        Parameters
        ----------
        x : float Tensor of shape (B, C, H, W)
            Images in [0, 1]; an encoder with another range normalises them itself.
        context : int64 Tensor of shape (B, n), optional
            Row-major positions of the visible pixels; None for all.

        Returns
        -------
        tokens : Tensor of shape (B, L, D)
        """
        ...


def is_encoder(source: Any) -> bool:
    """Whether an object has all required attributes of `Encoder`."""
    return all(hasattr(source, name) for name in ("token_dim", "num_tokens", "encode"))


def checked_tokens(encoder: Encoder, tokens: Any, n_images: int, *, seen_all: bool) -> Tensor:
    """Raise ValueError unless tokens are (B, L, token_dim), with `num_tokens` for full images."""
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
    """Return a text that changes with the output of an encoder.

    Computed by its own ``fingerprint()`` if it has one, else from class, settings and weights of a
    module, else from the tokens of the first 16 images.
    """
    own = getattr(encoder, "fingerprint", None)
    if callable(own):
        return str(own())
    if isinstance(encoder, nn.Module):
        return module_fingerprint(encoder)
    probed = images[:_PROBED_IMAGES].to(device_of(encoder, images.device))
    with torch.no_grad():
        tokens = encoder.encode(as_batch(probed))
    return f"{type(encoder).__qualname__}:{digest_of(tokens)}"


def module_fingerprint(module: nn.Module, settings: Any = None) -> str:
    """Return a hash of a module's class, `settings` (or ``config``), weights and buffers."""
    settings = getattr(module, "config", None) if settings is None else settings
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode())
    digest.update(repr(module).encode())
    for name, tensor in module.state_dict().items():
        digest.update(name.encode())
        digest.update(digest_of(tensor).encode())
    return f"{type(module).__qualname__}:{digest.hexdigest()[:32]}"


def digest_of(tensor: Tensor) -> str:
    """Return a hash of a tensor's shape, dtype and content."""
    digest = hashlib.sha256(str((tuple(tensor.shape), tensor.dtype)).encode())
    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    digest.update(flat.numpy().data)
    return digest.hexdigest()[:32]


def as_batch(x: Tensor) -> Tensor:
    """Return uint8 images and floats as float32, images in [0, 1]; other integers unchanged."""
    return as_unit_floats(x) if x.dtype == torch.uint8 or x.is_floating_point() else x


def module_of(encoder: Any) -> nn.Module | None:
    """Return the module of an encoder, function or bound method, or None."""
    encoder = encoder.function if isinstance(encoder, FunctionEncoder) else encoder
    owner = encoder if isinstance(encoder, nn.Module) else getattr(encoder, "__self__", None)
    return owner if isinstance(owner, nn.Module) else None


def device_of(encoder: Any, default: torch.device | str = "cpu") -> torch.device:
    """Return the device of an encoder's weights; the default if it has none."""
    weights = getattr(module_of(encoder) or encoder, "parameters", lambda: ())()
    return next((weight.device for weight in weights), torch.device(default))


@contextmanager
def evaluating(module: nn.Module | None) -> Iterator[None]:
    """Set a module to eval mode within the context, then restore the modes of all its parts."""
    modes = {} if module is None else {part: part.training for part in module.modules()}
    if module is None or not any(modes.values()):
        yield
        return
    module.eval()
    try:
        yield
    finally:
        module.train(modes[module])
        for part, mode in modes.items():  # parts may differ from the whole, such as frozen layers
            part.training = mode


_UNSEEN = 0.0


class FunctionEncoder:
    """Encoder from a function of images, or a module.

    Parameters
    ----------
    function : callable
        Takes float images (B, C, H, W) in [0, 1], and optionally a keyword ``context``. Returns
        tokens (B, L, D) or one vector per image (B, D), as a Tensor, or the output of a
        transformers model, with `last_hidden_state`. A module, or the module of a bound method,
        runs in eval mode and has its former mode afterwards.
    example : Tensor of shape (B, C, H, W)
        A few images to determine number and width of the tokens.
    ordered : bool, default=True
        Whether token i means the same in every image.
    has_cls : bool, optional
        Whether the first token represents the whole image. Default: whether a module has a
        parameter named cls_token or class_embedding.

    Raises
    ------
    ValueError
        If the function raises, or returns neither (B, L, D) nor (B, D).
    """

    def __init__(
        self,
        function: Callable[..., Tensor],
        example: Tensor,
        *,
        ordered: bool = True,
        has_cls: bool | None = None,
    ) -> None:
        self.function, self.ordered = function, ordered
        self.has_cls = has_class_token(module_of(function)) if has_cls is None else has_cls
        self._takes_context = _takes_context(function)
        with torch.no_grad():
            tokens = self._called(example.to(device_of(function, example.device)))
        self.num_tokens: int | None = int(tokens.shape[1])
        self.token_dim = int(tokens.shape[2])

    @classmethod
    def of(cls, source: Any, example: Tensor) -> Encoder:
        """Return an encoder unchanged, and wrap any other callable."""
        if is_encoder(source):
            return cast(Encoder, source)
        if hasattr(source, "encode") or not callable(source):
            raise ValueError(
                f"{type(source).__name__} is not an encoder. Pass an encoder (with token_dim, "
                "num_tokens and encode), a module or function of a batch (of a module that has "
                "encode alone, that method), or a model of transformers."
            )
        return cls(source, example)

    def _called(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        options = {"context": context} if self._takes_context and context is not None else {}
        name = getattr(self.function, "__name__", type(self.function).__name__)
        try:
            with evaluating(module_of(self.function)):
                output = self.function(x, **options)
        except Exception as error:
            raise ValueError(
                f"The encoder {name} raised {type(error).__name__}: {error}. It was given a batch "
                f"of shape {tuple(x.shape)} and dtype {x.dtype}."
            ) from error
        tokens = _last_hidden(output)
        if not isinstance(tokens, Tensor) or tokens.ndim not in (2, 3) or len(tokens) != len(x):
            raise ValueError(
                f"The encoder {name} returned {_described(tokens)} for a batch of shape "
                f"{tuple(x.shape)}. Return a Tensor of shape (B, L, D), or (B, D) for one vector "
                "per row. A map (B, D, H, W) becomes tokens by .flatten(2).transpose(1, 2)."
            )
        return tokens[:, None] if tokens.ndim == 2 else tokens

    def encode(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """Return tokens (B, L, D); hidden pixels are black if the function has no context."""
        if context is not None and not self._takes_context:
            x, context = seen_only(x, context), None
        return self._called(x, context)

    def to(self, device: torch.device | str) -> Self:
        """Move the module, if the function is a module or a method of one."""
        if (module := module_of(self)) is not None:
            module.to(device)
        return self

    def parameters(self) -> Any:
        """Return the weights of the module; empty for a plain function."""
        module = module_of(self)
        return iter(()) if module is None else module.parameters()


def has_class_token(module: nn.Module | None) -> bool:
    """Whether a module has a learned token of the whole image, by parameter names."""
    named = () if module is None else module.named_parameters()
    return any(name.rpartition(".")[2] in _CLASS_TOKENS for name, _ in named)


def _last_hidden(output: Any) -> Any:
    """Return the tokens of a transformers output, a map row by row; other outputs unchanged."""
    last = getattr(output, "last_hidden_state", None)
    if not isinstance(last, Tensor):
        return output
    return last.flatten(2).transpose(1, 2) if last.ndim == 4 else last


def _described(output: Any) -> str:
    if isinstance(output, Tensor):
        return f"shape {tuple(output.shape)}"
    fields = f" of {', '.join(map(str, output))}" if isinstance(output, dict) else ""
    return f"a {type(output).__name__}{fields}"


class TransformersEncoder(nn.Module):
    """A transformers vision model: its last tokens, or the map of a residual network.

    Pixels are resized and normalised inside, according to the model's files.

    Parameters
    ----------
    source : str
        A name on the hub, NAME or NAME@REVISION, or the path of a folder.
    image_size : (int, int), optional
        Height and width of the model's input; default its own.

    Attributes
    ----------
    has_cls : bool
        Whether the first token represents the whole image.

    Raises
    ------
    ValueError
        If no vision model can be loaded.
    ImportError
        If the extra "vision" is not installed.
    """

    ordered = True
    mean: Tensor
    std: Tensor

    def __init__(self, source: str, image_size: tuple[int, int] | None = None) -> None:
        super().__init__()
        self.backbone, self._spec = pretrained_backbone(source, image_size)
        self.config = self._spec.to_dict()
        for name, values in (("mean", self._spec.mean), ("std", self._spec.std)):
            column = torch.tensor(values or (0.0 if name == "mean" else 1.0,)).reshape(-1, 1, 1)
            self.register_buffer(name, column)
        self.requires_grad_(False).eval()
        example = torch.zeros(1, self._spec.channels, *self._spec.image_size)
        with torch.no_grad():
            tokens = self.backbone.tokens(example)
        self.num_tokens: int | None = int(tokens.shape[1])
        self.token_dim = int(tokens.shape[2])
        self.has_cls = has_class_token(self.backbone)

    def encode(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """Return tokens of images in [0, 1]; pixels outside the context are black."""
        x = in_channels(seen_only(x, context), self._spec.channels)
        if x.shape[-2:] != self._spec.image_size:
            x = F.interpolate(
                x,
                size=self._spec.image_size,
                mode=self._spec.resample,
                align_corners=False,
                antialias=True,
            )
        return self.backbone.tokens((x - self.mean) / self.std)

    def fingerprint(self) -> str:
        """Return a hash of settings and weights."""
        return module_fingerprint(self)


def seen_only(x: Tensor, context: Tensor | None) -> Tensor:
    """Return images (B, C, H, W) with black pixels outside the context (B, n)."""
    if context is None:
        return x
    seen = torch.zeros(len(x), x.shape[2] * x.shape[3], dtype=torch.bool, device=x.device)
    seen.scatter_(1, context, True)
    return torch.where(seen.view(len(x), 1, *x.shape[2:]), x, torch.full_like(x, _UNSEEN))


def in_channels(x: Tensor, channels: int) -> Tensor:
    """Return images (B, C, H, W) with the channels of a model; grey ones are repeated.

    Raises ValueError for colour images and a model of grey ones.
    """
    if x.shape[1] not in (1, channels):
        raise ValueError(
            f"The model takes {channels} channels and the images have {x.shape[1]}. Convert them, "
            "or take another model."
        )
    return x.expand(-1, channels, -1, -1)


def _takes_context(function: Callable[..., Any]) -> bool:
    target = function.forward if isinstance(function, nn.Module) else function
    try:
        return "context" in inspect.signature(target).parameters
    except (TypeError, ValueError):  # builtins do not declare their arguments
        return False
