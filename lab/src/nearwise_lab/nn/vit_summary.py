"""What a vision transformer consists of: parameters and FLOPs, part by part."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from nearwise_lab.nn.flops import FlopCount, count_flops
from nearwise_lab.nn.vit import VisionTransformer


@dataclass(frozen=True)
class PartSummary:
    """One part of a model.

    Attributes
    ----------
    name : str
    parameters : int
    flops : mapping of str to int
        By kind, of one image; a multiply-add is two. See `nearwise_lab.nn.count_flops`.
    """

    name: str
    parameters: int
    flops: Mapping[str, int]

    @property
    def total(self) -> int:
        """FLOPs of all kinds."""
        return sum(self.flops.values())


@dataclass(frozen=True)
class ModelSummary:
    """The parts of a model, which add up to `whole`.

    Attributes
    ----------
    parts : tuple of PartSummary
        Patches with positions and prefix tokens; attention, MLP and norms of all layers; the
        head with the last norm and pooling.
    whole : PartSummary
    n_tokens : int
        Tokens that attend to each other.
    trainable : int
        Parameters that learn.
    """

    parts: tuple[PartSummary, ...]
    whole: PartSummary
    n_tokens: int
    trainable: int


def summarize(model: VisionTransformer, *, training: bool = False) -> ModelSummary:
    """Count parameters and FLOPs of a vision transformer for one image.

    Parameters
    ----------
    model : VisionTransformer
        On a CPU.
    training : bool, default=False
        Whether to count as in training: with sampled candidates, and with dropout.

    Returns
    -------
    summary : ModelSummary

    Examples
    --------
    >>> model = VisionTransformer(image_size=32, patch_size=8, n_classes=10, dim=24, depth=2)
    >>> summary = summarize(model)
    >>> [part.name for part in summary.parts]
    ['patches', 'attention', 'MLP', 'norms and branches', 'head']
    """
    image = torch.zeros(1, model.in_channels, *model.image_size)
    count = count_flops(model, image, training=training)
    depth = range(len(model.blocks))
    names = {
        "patches": ["patch_embed", "positions"],
        "attention": [f"blocks.{i}.attn" for i in depth],
        "MLP": [f"blocks.{i}.mlp" for i in depth],
    }
    parts = [_part(model, count, title, modules) for title, modules in names.items()]
    blocks = _part(model, count, "", ["blocks"])
    parts.append(_less("norms and branches", blocks, parts[1:]))
    whole = _part(model, count, "whole", [""])
    if model.prefix_tokens is not None:
        first = parts[0]
        parts[0] = PartSummary(
            first.name, first.parameters + model.prefix_tokens.numel(), first.flops
        )
    parts.append(_less("head", whole, parts))
    learning = sum(p.numel() for p in model.parameters() if p.requires_grad)
    n_tokens = model.num_prefix_tokens + model.grid_size[0] * model.grid_size[1]
    return ModelSummary(tuple(parts), whole, n_tokens, learning)


def _part(model: nn.Module, count: FlopCount, title: str, modules: list[str]) -> PartSummary:
    parameters = {p for name in modules for p in model.get_submodule(name).parameters()}
    kinds = [count.of(name) for name in modules]
    summed = {kind: sum(one[kind] for one in kinds) for kind in kinds[0]}
    return PartSummary(title, sum(p.numel() for p in parameters), summed)


def _less(title: str, whole: PartSummary, parts: list[PartSummary]) -> PartSummary:
    """Make a part of what is left of the whole."""
    left = {kind: n - sum(part.flops[kind] for part in parts) for kind, n in whole.flops.items()}
    return PartSummary(title, whole.parameters - sum(part.parameters for part in parts), left)
