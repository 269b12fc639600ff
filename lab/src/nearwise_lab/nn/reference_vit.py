"""Vision transformers of the published ConvNN code, from its arguments and weights."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from nearwise_lab.nn.reference import build_reference_layer, load_weights, reference_state
from nearwise_lab.nn.vit import VisionTransformer

# Arguments of its command line that its layers take, by layer.
_CONVNN = (
    "K",
    "sampling_type",
    "num_samples",
    "sample_padding",
    "magnitude_type",
    "coordinate_encoding",
    "convolution_type",
    "softmax_topk_val",
)
_PARTS = {
    "patch_embedding.linear_projection": "patch_embed.proj",
    "patch_embedding.norm": "patch_embed.norm",
    "classifier": "head",
}
_BLOCK_PARTS = {"norm1": "norm1", "norm2": "norm2", "mlp.0": "mlp.fc1", "mlp.3": "mlp.fc2"}


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
    a = dict(arguments)
    missing = [
        name
        for name in ("img_size", "patch_size", "num_layers", "num_heads", "d_hidden", "d_mlp")
        if name not in a
    ]
    if missing or "num_classes" not in a:
        raise ValueError(f"arguments lacks {', '.join(missing) or 'num_classes'}.")
    layer = a.get("layer", "Attention")
    channels, height, width = a["img_size"]

    def build(dim: int, num_heads: int) -> nn.Module:
        options = layer_arguments({**a, "d_hidden": dim, "num_heads": num_heads})
        return build_reference_layer(layer, options, legacy_layout=legacy_layout)

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
    state = {_bare(key): torch.as_tensor(value) for key, value in state_dict.items()}
    load_weights(model, _renamed(state, layer, a["num_layers"]), "this vision transformer")
    return model.eval()


def layer_arguments(a: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of one attention layer from those of the whole model."""
    layer, rate = a.get("layer", "Attention"), a.get("attention_dropout", 0.0)
    heads = {"d_hidden": a["d_hidden"], "num_heads": a["num_heads"], "attention_dropout": rate}
    names: tuple[str, ...] = {
        "ConvNNAttention": _CONVNN,
        "BranchAttention": (*_CONVNN, "branch_ratio"),
        "BranchConv": (*_CONVNN, "branch_ratio", "kernel_size"),
    }.get(layer, ())
    if layer == "KvtAttention":
        return {
            "dim": a["d_hidden"],
            "num_heads": a["num_heads"],
            "attn_drop": rate,
            "topk": a["K"],
        }
    if layer == "LocalAttention":
        return {"dim": a["d_hidden"], "heads": a["num_heads"], "dropout": rate}
    if layer == "NeighborhoodAttention":
        return {
            "embed_dim": a["d_hidden"],
            "num_heads": a["num_heads"],
            "kernel_size": a["K"],
            "proj_drop": rate,
            "qkv_bias": False,
        }
    if layer == "SparseAttention":
        return {
            **heads,
            "attn_mode": a.get("sparse_mode", "all"),
            "local_attn_ctx": a.get("sparse_context_window"),
        }
    return {**heads, **{name: a[name] for name in names if name in a}}


def _bare(key: str) -> str:
    for prefix in ("_orig_mod.", "module."):
        key = key.removeprefix(prefix)
    return key


def _renamed(state: dict[str, Tensor], layer: str, depth: int) -> dict[str, Tensor]:
    """Rename all weights of a model of the published code to those of ours."""
    ours: dict[str, Tensor] = {}
    attention: list[dict[str, Tensor]] = [{} for _ in range(depth)]
    for key, value in state.items():
        if key == "positional_encoding.pe":  # follows from the sizes
            continue
        if key == "positional_encoding.cls_tokens":
            ours["prefix_tokens"] = value
        elif key.startswith("transformer_encoder."):
            _, number, rest = key.split(".", 2)
            if rest.startswith("attention.") and int(number) < depth:
                attention[int(number)][rest.removeprefix("attention.")] = value
            else:
                ours[f"blocks.{number}.{_replaced(rest, _BLOCK_PARTS)}"] = value
        else:
            ours[_replaced(key, _PARTS)] = value
    for i, part in enumerate(attention):
        renamed = reference_state(layer, part)
        ours |= {f"blocks.{i}.attn.{key}": value for key, value in renamed.items()}
    return ours


def _replaced(key: str, names: Mapping[str, str]) -> str:
    for theirs, ours in names.items():
        if key.startswith(theirs + "."):
            return ours + key.removeprefix(theirs)
    return key
