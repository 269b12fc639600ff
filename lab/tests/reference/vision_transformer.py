"""The vision transformer of the published ConvNN code, as plain functions."""

import math

import torch
import torch.nn.functional as F


def positions(n_tokens, dim):
    """Sine and cosine table (N, dim), entry by entry."""
    table = torch.zeros(n_tokens, dim)
    for at in range(n_tokens):
        for pair in range(0, dim, 2):
            angle = at / 10000 ** (pair / dim)
            table[at, pair], table[at, pair + 1] = math.sin(angle), math.cos(angle)
    return table


def vision_transformer(state, images, *, num_layers, patch_size, attend):
    """Logits of images (B, C, H, W) from that code's weights.

    `attend` takes the weights of an attention layer and tokens.
    """

    def linear(name, x):
        return F.linear(x, state[f"{name}.weight"], state.get(f"{name}.bias"))

    def norm(name, x):
        return F.layer_norm(x, x.shape[-1:], state[f"{name}.weight"], state[f"{name}.bias"])

    name = "patch_embedding.linear_projection"
    patches = F.conv2d(images, state[f"{name}.weight"], state[f"{name}.bias"], stride=patch_size)
    x = norm("patch_embedding.norm", patches.flatten(2).transpose(1, 2))
    prefix = state["positional_encoding.cls_tokens"].expand(len(x), -1, -1)
    x = torch.cat([prefix, x], dim=1)
    x = x + positions(x.shape[1], x.shape[2])
    for i in range(num_layers):
        block = f"transformer_encoder.{i}"
        y = norm(f"{block}.norm1", x)
        inside = f"{block}.attention."
        weights = {key.removeprefix(inside): w for key, w in state.items() if inside in key}
        x = x + attend(weights, y)
        y = linear(f"{block}.mlp.0", norm(f"{block}.norm2", x))
        x = x + linear(f"{block}.mlp.3", F.gelu(y))
    return linear("classifier", x[:, 0])


def random_weights(*, dim=24, mlp=48, num_layers=2, patch_size=8, n_classes=10, attention=None):
    """Weights by that code's names; `attention` gives the shapes of an attention layer's."""
    attention = attention or {f"W_{part}.weight": (dim, dim) for part in "qkvo"}
    shapes = {
        "patch_embedding.linear_projection.weight": (dim, 3, patch_size, patch_size),
        "patch_embedding.linear_projection.bias": (dim,),
        "patch_embedding.norm.weight": (dim,),
        "patch_embedding.norm.bias": (dim,),
        "positional_encoding.cls_tokens": (1, 1, dim),
        "positional_encoding.pe": (1, 17, dim),
        "classifier.weight": (n_classes, dim),
        "classifier.bias": (n_classes,),
    }
    for i in range(num_layers):
        block = f"transformer_encoder.{i}"
        shapes |= {f"{block}.attention.{name}": shape for name, shape in attention.items()}
        for name in ("norm1", "norm2"):
            shapes |= {f"{block}.{name}.weight": (dim,), f"{block}.{name}.bias": (dim,)}
        shapes |= {f"{block}.mlp.0.weight": (mlp, dim), f"{block}.mlp.0.bias": (mlp,)}
        shapes |= {f"{block}.mlp.3.weight": (dim, mlp), f"{block}.mlp.3.bias": (dim,)}
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.randn(shape, generator=generator) / max(1, math.prod(shape[1:])) ** 0.5
        for name, shape in shapes.items()
    }
