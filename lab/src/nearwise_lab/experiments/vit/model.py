"""The model that settings describe, and what it costs."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nearwise.nn import Sampling
from nearwise_lab.experiments.vit.learner import PixelScale
from nearwise_lab.experiments.vit.settings import RECIPES, VitSettings
from nearwise_lab.nn import count_flops
from nearwise_lab.nn.layers import token_layer
from nearwise_lab.nn.vit import VisionTransformer


def build_vit(
    settings: VitSettings, image_size: int, channels: int, n_classes: int
) -> VisionTransformer:
    """Build the model of `settings`, its weights drawn from the seed, and try it on one image.

    Parameters
    ----------
    settings : VitSettings
    image_size : int
        Side of an image in pixels.
    channels, n_classes : int

    Raises
    ------
    ValueError
        If patches do not fill the image, heads do not divide the width, or the layer needs
        a wider neighborhood or more samples than there are tokens.
    """
    try:
        return _tried_model(settings, image_size, channels, n_classes)
    except ValueError as error:
        is_k = "Neighborhood" in settings.layer_name  # other layers have a kernel size of their own
        hints = [
            f" The setting for {own} is {name}."
            for own, name in (("kernel_size", "K"),) * is_k + (("dim", "d_hidden"),)
            if f"{own}=" in str(error)
        ]
        raise ValueError(f"{error}{''.join(hints)}") from error


def _tried_model(
    settings: VitSettings, image_size: int, channels: int, n_classes: int
) -> VisionTransformer:
    model = VisionTransformer(
        image_size=image_size,
        patch_size=settings.patch_size,
        in_channels=channels,
        n_classes=n_classes,
        dim=settings.d_hidden,
        depth=settings.num_layers,
        num_heads=settings.num_heads,
        mlp_dim=settings.d_mlp,
        layer=token_layer(settings.layer),
        layer_options=layer_options(settings, image_size),
        pooling=settings.pooling,
        num_registers=settings.num_registers,
        positions=settings.positions,
        patch_norm=settings.patch_norm,
        final_norm=settings.final_norm,
        init=settings.init,
        dropout=settings.dropout,
        attn_drop=settings.attention_dropout,
        drop_path=settings.drop_path,
        random_state=settings.seed,
    )
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        # In train mode samples are drawn: too few tokens show here, not in the middle of training.
        model(torch.zeros(1, channels, image_size, image_size))
    return model


def rebuilt(
    settings: VitSettings, state: Mapping[str, Tensor], meta: Mapping[str, Any]
) -> tuple[VisionTransformer, PixelScale]:
    """Build a trained model again, in eval mode, and what its images are scaled by.

    Parameters
    ----------
    settings : VitSettings
    state, meta : mapping
        As `load_model` gives them.
    """
    model = build_vit(settings, meta["image_size"], meta["channels"], len(meta["classes"]))
    model.load_state_dict(dict(state))
    scale = PixelScale(tuple(meta["mean"]), tuple(meta["std"]), meta["image_size"])
    return model.eval(), scale


def layer_options(settings: VitSettings, image_size: int) -> dict[str, Any]:
    """Options of the attention layer, by its own names, from the published ones."""
    options = _options_by_layer(settings, image_size)
    if settings.layer_name != "TokenConvolution":  # its projections have biases in any case
        options["proj_bias"] = settings.proj_bias
    return options


def _options_by_layer(settings: VitSettings, image_size: int) -> dict[str, Any]:
    name, s = settings.layer_name, settings
    is_local = s.class_token == "local" and _has_prefix(s)
    no_prefix = {"num_prefix_tokens": 0} if is_local else {}
    width = {"head_dim": 64} if s.recipe == "published" else {}  # of any token, as there
    sampling = {
        "sampling": s.sampling_type,
        "num_samples": s.num_samples,
        "sample_padding": s.sample_padding,
        "sample_in_eval": s.sample_in_eval,
    }
    convnn = {
        "n_neighbors": s.K,
        "metric": s.magnitude_type,
        "convolution": s.convolution_type,
        "weighting": "softmax" if s.softmax_topk_val else "raw",
        "coordinates": "1d" if s.coordinate_encoding else "none",
        **sampling,
    }
    if name == "KNNAttention":
        rule: Any = {
            "kind": s.sampling_type,
            "num_samples": s.num_samples,
            "padding": s.sample_padding,
            "sample_in_eval": s.sample_in_eval,
            "num_prefix_tokens": s.num_registers + (s.pooling == "token"),
            **no_prefix,
            "grid_size": (image_size // s.patch_size,) * 2,
        }
        return {
            "n_neighbors": s.K,
            "metric": s.magnitude_type,
            "include_self": s.include_self,
            "learned_temperature": s.learned_temperature,
            "null_neighbor": s.null_neighbor,
            "sampling": None if s.sampling_type == "all" else Sampling(**rule),
        }
    by_name: dict[str, dict[str, Any]] = {
        "ConvNNAttention": {**convnn, **no_prefix},
        "BranchingAttention": {**convnn, "branch_ratio": s.branch_ratio},
        "BranchingConv": {
            **convnn,
            "branch_ratio": s.branch_ratio,
            "kernel_size": s.kernel_size,
        },
        "KvtAttention": {"n_neighbors": s.K},
        "LocalAttention": {"window_size": s.window_size, **width},
        "NeighborhoodAttention1D": {"kernel_size": s.K, **no_prefix},
        "NeighborhoodAttention2D": {"kernel_size": s.K},
        "SparseAttention": {"mode": s.sparse_mode, "context": s.sparse_context_window},
        "TokenConvolution": {"kernel_size": s.kernel_size, "proj_drop": s.attention_dropout},
    }
    return by_name.get(name, {})


def _has_prefix(settings: VitSettings) -> bool:
    """Whether there are tokens before the patches that the layer can treat otherwise.

    A grid has no place for them as tokens of the line.
    """
    at_front = settings.num_registers + (settings.pooling == "token") > 0
    samples = settings.layer_name in ("KNNAttention", "ConvNNAttention")
    treats = samples and settings.sampling_type in ("random", "line")
    return at_front and (treats or settings.layer_name == "NeighborhoodAttention1D")


_SAMPLING = {"sampling_type", "num_samples", "sample_padding", "sample_in_eval"}
_KNN = {"K", "magnitude_type", *_SAMPLING}
_CONVNN = {*_KNN, "convolution_type", "softmax_topk_val", "coordinate_encoding"}
# Settings of the attention that count for a layer; the others count for none.
_OF_LAYER: dict[str, set[str]] = {
    "KNNAttention": {*_KNN, "include_self", "learned_temperature", "null_neighbor"},
    "ConvNNAttention": _CONVNN,
    "BranchingAttention": {*_CONVNN, "branch_ratio"},
    "BranchingConv": {*_CONVNN, "branch_ratio", "kernel_size"},
    "KvtAttention": {"K"},
    "LocalAttention": {"window_size"},
    "NeighborhoodAttention1D": {"K"},
    "NeighborhoodAttention2D": {"K"},
    "SparseAttention": {"sparse_mode", "sparse_context_window"},
    "TokenConvolution": {"kernel_size"},
}


def idle_settings(settings: VitSettings) -> list[str]:
    """Name the settings that were given and change nothing, with this layer and sampling_type."""
    counting = set(_OF_LAYER.get(settings.layer_name, ()))
    if settings.sampling_type == "all":
        counting -= _SAMPLING - {"sampling_type"}
    if _has_prefix(settings):
        counting.add("class_token")
    known = set().union(*_OF_LAYER.values(), {"class_token"})
    given = settings.model_fields_set - set(RECIPES[settings.recipe])
    return sorted((given & known) - counting)


class Cost(NamedTuple):
    """Size of a model, and FLOPs of a forward pass of one image in 1e9 (a multiply-add is two)."""

    parameters: int
    trainable: int
    tokens: int
    gflops: float


def cost_of(model: VisionTransformer) -> Cost:
    """Count parameters, tokens and FLOPs of a model on the CPU."""
    sizes = [(p.numel(), p.requires_grad) for p in model.parameters()]
    tokens = model.num_prefix_tokens + model.grid_size[0] * model.grid_size[1]
    counted = count_flops(model, torch.zeros(1, model.in_channels, *model.image_size))
    return Cost(
        sum(n for n, _ in sizes),
        sum(n for n, learns in sizes if learns),
        tokens,
        counted.total / 1e9,
    )
