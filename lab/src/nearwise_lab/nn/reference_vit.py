"""Vision transformers of the published ConvNN code, from its arguments and weights."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from nearwise_lab.nn.reference import (
    build_reference_layer,
    known_layer,
    load_weights,
    reference_state,
)
from nearwise_lab.nn.reference_layers import by_beginning
from nearwise_lab.nn.vit import VisionTransformer

_NEEDED = ("img_size", "patch_size", "num_layers", "num_heads", "d_hidden", "d_mlp", "num_classes")
# Arguments of the layers that its command line calls otherwise.
_FLAGS = {
    **dict.fromkeys(("dim", "embed_dim"), "d_hidden"),
    **dict.fromkeys(("attn_drop", "dropout"), "attention_dropout"),
    "heads": "num_heads",
    "topk": "K",
    "attn_mode": "sparse_mode",
    "local_attn_ctx": "sparse_context_window",
}
_NEIGHBORHOOD_FLAGS = {**_FLAGS, "kernel_size": "K", "proj_drop": "attention_dropout"}
_PARTS = {
    "patch_embedding.linear_projection.": "patch_embed.proj.",
    "patch_embedding.norm.": "patch_embed.norm.",
    "positional_encoding.cls_tokens": "prefix_tokens",
    "classifier.": "head.",
}
_BLOCK_PARTS = {"mlp.0.": "mlp.fc1.", "mlp.3.": "mlp.fc2."}


def load_reference_vit(
    arguments: Mapping[str, Any],
    state_dict: Mapping[str, Any],
    *,
    legacy_layout: bool = True,
) -> VisionTransformer:
    """Build a vision transformer of the published ConvNN code with its weights.

    Parameters
    ----------
    arguments : mapping
        Its command-line arguments by name, and ``img_size`` (channels, height, width) and
        ``num_classes``; others than those of the model are ignored.
    state_dict : mapping
        Its weights, by their names there; prefixes of torch.compile and DDP are taken off.
    legacy_layout : bool, default=True
        See `load_reference_layer`.

    Returns
    -------
    model : VisionTransformer
        In evaluation mode.

    Raises
    ------
    ValueError
        If an argument is missing, or weights do not fit.

    References
    ----------
    github.com/mingikang31/Convolutional-Nearest-Neighbor-Attention at 0bb6614 (MIT).
    """
    a = {"layer": "Attention", "attention_dropout": 0.0, "K": 9, "qkv_bias": False, **arguments}
    if missing := [name for name in _NEEDED if name not in a]:
        raise ValueError(f"arguments lacks {', '.join(missing)}.")
    layer, (channels, height, width) = a["layer"], a["img_size"]

    def build(dim: int, num_heads: int) -> nn.Module:
        return build_reference_layer(layer, layer_arguments(a), legacy_layout=legacy_layout)

    with torch.random.fork_rng(devices=[]):
        model = VisionTransformer(
            image_size=(height, width),
            patch_size=a["patch_size"],
            in_channels=channels,
            n_classes=a["num_classes"],
            dim=a["d_hidden"],
            depth=a["num_layers"],
            num_heads=a["num_heads"],
            mlp_dim=a["d_mlp"],
            layer=build,
            positions="sincos",
            patch_norm=True,
            final_norm=False,
            dropout=a.get("dropout", 0.0),
        )
    state = {
        key.removeprefix("_orig_mod.").removeprefix("module."): torch.as_tensor(value)
        for key, value in state_dict.items()
    }
    load_weights(model, _renamed(state, layer, a["num_layers"]), "this vision transformer")
    return model.eval()


def layer_arguments(a: Mapping[str, Any]) -> dict[str, Any]:
    """Select the arguments of one attention layer from the whole model's arguments."""
    flags = _NEIGHBORHOOD_FLAGS if "Neighborhood" in a["layer"] else _FLAGS
    names = {name: flags.get(name, name) for name in known_layer(a["layer"]).arguments}
    return {name: a[flag] for name, flag in names.items() if flag in a}


def _renamed(state: dict[str, Tensor], layer: str, depth: int) -> dict[str, Tensor]:
    """Rename all weights of a published model to this library's names."""
    state.pop("positional_encoding.pe", None)  # follows from the sizes
    names = {
        f"transformer_encoder.{i}.{theirs}": f"blocks.{i}.{own}"
        for i in range(depth)
        for theirs, own in _BLOCK_PARTS.items()
    }
    ours = by_beginning(state, {**_PARTS, **names, "transformer_encoder.": "blocks."})
    for i in range(depth):
        inside = f"blocks.{i}.attention."
        part = {key.removeprefix(inside): ours.pop(key) for key in list(ours) if inside in key}
        renamed = reference_state(layer, part)
        ours |= {f"blocks.{i}.attn.{key}": value for key, value in renamed.items()}
    return ours
