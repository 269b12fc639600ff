"""Parameters and FLOPs of a vision transformer, part by part."""

import math
from typing import NamedTuple

import torch

from nearwise_lab.nn.flops import FLOP_KINDS, count_flops
from nearwise_lab.nn.vit import VisionTransformer


class PartSummary(NamedTuple):
    """One part of a model: parameters, and FLOPs of one image by kind (see `count_flops`)."""

    name: str
    parameters: int
    flops: dict[str, int]

    @property
    def total(self) -> int:
        """FLOPs of all kinds."""
        return sum(self.flops.values())


class ModelSummary(NamedTuple):
    """Counts of a model's parts, with their sum `whole`.

    Patches with positions and prefix tokens; attention, MLP and norms of all layers; the head with
    the last norm and pooling. `n_tokens` attend to each other; `trainable` parameters learn.
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

    Examples
    --------
    >>> model = VisionTransformer(image_size=32, patch_size=8, n_classes=10, dim=24, depth=2)
    >>> summary = summarize(model)
    >>> [part.name for part in summary.parts]
    ['patches', 'attention', 'MLP', 'norms and branches', 'head']
    """
    image = torch.zeros(1, model.in_channels, *model.image_size)
    count = count_flops(model, image, training=training)

    def part(title: str, *modules: str, more: int = 0) -> PartSummary:
        parameters = {p for name in modules for p in model.get_submodule(name).parameters()}
        kinds = [count.of(name) for name in modules]
        flops: dict[str, int] = {kind: sum(x[kind] for x in kinds) for kind in FLOP_KINDS}
        return PartSummary(title, sum(p.numel() for p in parameters) + more, flops)

    def rest(title: str, whole: PartSummary, *parts: PartSummary) -> PartSummary:
        flops = {kind: n - sum(x.flops[kind] for x in parts) for kind, n in whole.flops.items()}
        return PartSummary(title, whole.parameters - sum(x.parameters for x in parts), flops)

    prefix = 0 if model.prefix_tokens is None else model.prefix_tokens.numel()
    patches = part("patches", "patch_embed", "positions", more=prefix)
    attention, mlp = (
        part(title, *(f"blocks.{i}.{name}" for i in range(len(model.blocks))))
        for title, name in (("attention", "attn"), ("MLP", "mlp"))
    )
    whole, blocks = part("whole", ""), part("", "blocks")
    norms = rest("norms and branches", blocks, attention, mlp)
    parts = (patches, attention, mlp, norms, rest("head", whole, patches, blocks))
    learning = sum(p.numel() for p in model.parameters() if p.requires_grad)
    n_tokens = model.num_prefix_tokens + math.prod(model.grid_size)
    return ModelSummary(parts, whole, n_tokens, learning)
