"""The model of given settings, and its cost."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from nearwise.nn import Sampling
from nearwise_lab.experiments.vit.settings import RECIPES, VitSettings
from nearwise_lab.nn.layers import token_layer
from nearwise_lab.nn.pixel_scale import PixelScale
from nearwise_lab.nn.vit import VisionTransformer
from nearwise_lab.nn.vit_summary import summarize

# The settings that are options of each layer, by its own names; the others count for none.
_SAMPLING = {
    "sampling": "sampling_type",
    "num_samples": "num_samples",
    "sample_padding": "sample_padding",
    "sample_in_eval": "sample_in_eval",
}
_KNN = {"n_neighbors": "K", "metric": "magnitude_type", **_SAMPLING}
_CONVNN = {
    **_KNN,
    "convolution": "convolution_type",
    "weighting": "softmax_topk_val",
    "coordinates": "coordinate_encoding",
}
_KNN_ALONE = ("include_self", "learned_temperature", "null_neighbor")
_BRANCHES = {**_CONVNN, "branch_ratio": "branch_ratio"}
LAYER_SETTINGS: dict[str, dict[str, str]] = {
    "MultiHeadAttention": {},
    "KNNAttention": {**_KNN, **{name: name for name in _KNN_ALONE}},
    "ConvNNAttention": _CONVNN,
    "BranchingAttention": _BRANCHES,
    "BranchingConv": {**_BRANCHES, "kernel_size": "kernel_size"},
    "KvtAttention": {"n_neighbors": "K"},
    "LocalAttention": {"window_size": "window_size"},
    "NeighborhoodAttention1D": {"kernel_size": "K"},
    "NeighborhoodAttention2D": {"kernel_size": "K"},
    "SparseAttention": {"mode": "sparse_mode", "context": "sparse_context_window"},
    "TokenConvolution": {"kernel_size": "kernel_size"},
}
_OF_MODEL = {
    "pooling", "num_registers", "positions", "patch_norm", "final_norm", "init", "drop_path",
}  # fmt: skip


def build_vit(
    settings: VitSettings, image_size: int, channels: int, n_classes: int
) -> VisionTransformer:
    """Build the model of `settings`, its weights drawn from the seed, and try it on one image.

    Raises ValueError if patches do not fill the image, of `image_size` pixels a side, heads do not
    divide the width, or the layer needs a wider neighborhood or more samples than there are tokens.
    """
    s = settings
    try:
        model = VisionTransformer(
            image_size=image_size,
            patch_size=s.patch_size,
            in_channels=channels,
            n_classes=n_classes,
            dim=s.d_hidden,
            depth=s.num_layers,
            num_heads=s.num_heads,
            mlp_dim=s.d_mlp,
            layer=token_layer(s.layer),
            layer_options=layer_options(s, image_size),
            dropout=s.dropout,
            attn_drop=s.attention_dropout,
            random_state=s.seed,
            **s.model_dump(include=_OF_MODEL),
        )
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            # In train mode samples are drawn: too few tokens show here, not amid training.
            model(torch.zeros(1, channels, image_size, image_size))
    except ValueError as error:
        is_k = "Neighborhood" in s.layer_name  # other layers have a kernel size of their own
        names = {"dim": "d_hidden"} | ({"kernel_size": "K"} if is_k else {})
        hints = [f" The setting for {x} is {names[x]}." for x in names if f"{x}=" in str(error)]
        raise ValueError(f"{error}{''.join(hints)}") from error
    return model


def rebuilt(
    settings: VitSettings, state: Mapping[str, Tensor], meta: Mapping[str, Any]
) -> tuple[VisionTransformer, PixelScale]:
    """Build a model again that `load_model` gave, in eval mode, and the scale of its images."""
    model = build_vit(settings, meta["image_size"], meta["channels"], len(meta["classes"]))
    model.load_state_dict(dict(state))
    scale = PixelScale(tuple(meta["mean"]), tuple(meta["std"]), meta["image_size"])
    return model.eval(), scale


def layer_options(settings: VitSettings, image_size: int) -> dict[str, Any]:
    """Options of the attention layer, by its own names, from the published ones."""
    s, name = settings, settings.layer_name
    given = {ours: getattr(s, theirs) for ours, theirs in LAYER_SETTINGS.get(name, {}).items()}
    if "weighting" in given:
        given["weighting"] = "softmax" if s.softmax_topk_val else "raw"
    if name == "TokenConvolution":  # its projections have biases in any case
        return {**given, "proj_drop": s.attention_dropout}
    given["proj_bias"] = s.proj_bias
    if name == "LocalAttention" and s.recipe == "published":
        given["head_dim"] = 64  # of any token, as there
    n_prefix = 0 if _is_local(s) else _prefix(s)
    if name == "KNNAttention":
        kind, n_samples, padding, in_eval = (given.pop(option) for option in _SAMPLING)
        grid = (image_size // s.patch_size,) * 2
        rule = Sampling(kind, n_samples, padding, n_prefix, grid, in_eval)
        given["sampling"] = None if kind == "all" else rule
    elif _is_local(s):
        given["num_prefix_tokens"] = n_prefix
    return given


def _prefix(settings: VitSettings) -> int:
    """Count the tokens before the patches."""
    return settings.num_registers + (settings.pooling == "token")


def _has_prefix(settings: VitSettings) -> bool:
    """Whether there are tokens before the patches that the layer can treat otherwise.

    A grid has no place for them as tokens of the line.
    """
    samples = settings.layer_name in ("KNNAttention", "ConvNNAttention")
    treats = samples and settings.sampling_type in ("random", "line")
    return _prefix(settings) > 0 and (treats or settings.layer_name == "NeighborhoodAttention1D")


def _is_local(settings: VitSettings) -> bool:
    return settings.class_token == "local" and _has_prefix(settings)


def idle_settings(settings: VitSettings) -> list[str]:
    """Name the settings that were given and change nothing, with this layer and sampling_type."""
    counting = set(LAYER_SETTINGS.get(settings.layer_name, {}).values())
    if settings.sampling_type == "all":
        counting -= {*_SAMPLING.values()} - {"sampling_type"}
    if _has_prefix(settings):
        counting.add("class_token")
    known = {"class_token"}.union(*(names.values() for names in LAYER_SETTINGS.values()))
    given = settings.model_fields_set - set(RECIPES[settings.recipe])
    return sorted((given & known) - counting)


def cost_of(model: VisionTransformer) -> dict[str, Any]:
    """Count parameters, trainable ones, tokens, and GFLOPs of one image's forward pass."""
    summary = summarize(model)
    return {
        "parameters": summary.whole.parameters,
        "trainable": summary.trainable,
        "tokens": summary.n_tokens,
        "gflops": summary.whole.total / 1e9,
    }
