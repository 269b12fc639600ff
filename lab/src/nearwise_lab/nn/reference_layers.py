"""How the layers of published code are built here, and how their weights are named.

MultiHead...: github.com/mingikang31/Convolutional-Nearest-Neighbor-Attention at 0bb6614 (MIT).
NeighborhoodAttention...: github.com/SHI-Labs/NATTEN (MIT).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nearwise_lab.nn.branching import BranchingAttention, BranchingConv, TokenConvolution
from nearwise_lab.nn.convnn import ConvNNAttention
from nearwise_lab.nn.dense import MultiHeadAttention
from nearwise_lab.nn.kvt import KvtAttention
from nearwise_lab.nn.legacy import (
    LegacyBranchingAttention,
    LegacyBranchingConv,
    LegacyConvNNAttention,
    LegacyTokenConvolution,
)
from nearwise_lab.nn.local import LocalAttention
from nearwise_lab.nn.neighborhood import NeighborhoodAttention1D, NeighborhoodAttention2D
from nearwise_lab.nn.sparse import SparseAttention

Arguments = dict[str, Any]
State = dict[str, Tensor]


@dataclass(frozen=True)
class ReferenceLayer:
    """How to build a layer of published code, and how its weights are named.

    Attributes
    ----------
    arguments : dict
        Names and defaults of its arguments; ``...`` for those without one.
    build : callable
        From arguments and whether to keep the legacy layout to a layer.
    rename : callable
        From its weights to ours.
    """

    arguments: Arguments
    build: Callable[[Arguments, bool], nn.Module]
    rename: Callable[[State], State]


def _attention(a: Arguments, _: bool) -> nn.Module:
    return MultiHeadAttention(
        a["d_hidden"], a["num_heads"], attn_drop=a["attention_dropout"], proj_bias=False
    )


def _joined(state: State, names: tuple[str, str, str], output: str) -> State:
    """Separate projections of query, key and value as one."""
    state["qkv.weight"] = torch.cat([state.pop(f"{name}.weight") for name in names])
    state["proj.weight"] = state.pop(f"{output}.weight")
    return state


def _attention_state(state: State) -> State:
    return _joined(state, ("W_q", "W_k", "W_v"), "W_o")


def _convnn_options(a: Arguments, legacy_layout: bool) -> Arguments:
    return {
        "n_neighbors": a["K"],
        "metric": a["magnitude_type"],
        "convolution": a["convolution_type"],
        "weighting": "softmax" if a["softmax_topk_val"] else "raw",
        "sampling": "line" if a["sampling_type"] == "spatial" else a["sampling_type"],
        "num_samples": int(a["num_samples"]),
        "sample_padding": int(a["sample_padding"]) if a["sampling_type"] == "spatial" else 0,
        "coordinates": "1d" if a["coordinate_encoding"] else "none",
        "sample_in_eval": legacy_layout,
        "attn_drop": a["attention_dropout"],
        "proj_bias": False,
    }


def _convnn(a: Arguments, legacy_layout: bool) -> nn.Module:
    layer = LegacyConvNNAttention if legacy_layout else ConvNNAttention
    return layer(a["d_hidden"], a["num_heads"], **_convnn_options(a, legacy_layout))


def _convnn_state(state: State) -> State:
    # There the rows, which search for neighbors, are called keys.
    state = _joined(state, ("W_k", "W_q", "W_v"), "W_o")
    if "conv.0.weight" in state:
        state["conv.weight"] = state.pop("conv.0.weight")
        state["conv.pointwise.weight"] = state.pop("conv.1.weight")[..., 0]
    return state


def _conv1d(a: Arguments, legacy_layout: bool) -> nn.Module:
    layer = LegacyTokenConvolution if legacy_layout else TokenConvolution
    return layer(a["d_hidden"], a["num_heads"], kernel_size=a["kernel_size"])


def _conv1d_state(state: State) -> State:
    for part in ("weight", "bias"):
        state[f"proj_in.{part}"] = state.pop(f"W_x.{part}")
        state[f"proj.{part}"] = state.pop(f"W_o.{part}")
    return state


def _branching_conv(a: Arguments, legacy_layout: bool) -> nn.Module:
    _check_split(a)
    layer = LegacyBranchingConv if legacy_layout else BranchingConv
    return layer(
        a["d_hidden"],
        a["num_heads"],
        branch_ratio=a["branch_ratio"],
        kernel_size=a["kernel_size"],
        **_convnn_options(a, legacy_layout),
    )


def _branching_attention(a: Arguments, legacy_layout: bool) -> nn.Module:
    _check_split(a)
    layer = LegacyBranchingAttention if legacy_layout else BranchingAttention
    return layer(
        a["d_hidden"],
        a["num_heads"],
        branch_ratio=a["branch_ratio"],
        **_convnn_options(a, legacy_layout),
    )


def _check_split(a: Arguments) -> None:
    width = int(a["branch_ratio"] * a["d_hidden"])
    if width % a["num_heads"]:
        raise ValueError(
            f"branch_ratio={a['branch_ratio']} gives the ConvNN branch {width} of {a['d_hidden']} "
            f"channels, which num_heads={a['num_heads']} does not divide: no such layer exists in "
            "the published code."
        )


def _branching_state(state: State) -> State:
    parts: dict[str, State] = {"convnn": {}, "conv1d": {}, "attention": {}, "pointwise_linear": {}}
    for key, value in state.items():
        branch, _, rest = key.partition(".")
        parts.setdefault(branch, {})[rest] = value
    renamed: State = {}
    for branch, ours, rename in (
        ("convnn", "convnn", _convnn_state),
        ("conv1d", "convolution", _conv1d_state),
        ("attention", "attention", _attention_state),
        ("pointwise_linear", "pointwise", dict),
    ):
        if not parts[branch]:
            continue
        try:
            renamed |= {f"{ours}.{key}": x for key, x in rename(parts[branch]).items()}
        except KeyError as error:
            raise KeyError(f"{branch}.{error.args[0]}") from None
    if not (parts["convnn"] and (parts["conv1d"] or parts["attention"])):
        # With one branch that code makes this layer, but does not use it.
        renamed = {key: x for key, x in renamed.items() if not key.startswith("pointwise.")}
    return renamed


def _kvt(a: Arguments, _: bool) -> nn.Module:
    return KvtAttention(
        a["dim"],
        a["num_heads"],
        n_neighbors=a["topk"],
        qk_scale=a["qk_scale"],
        qkv_bias=a["qkv_bias"],
        attn_drop=a["attn_drop"],
        proj_drop=a["proj_drop"],
        proj_bias=False,
    )


def _local(a: Arguments, legacy_layout: bool) -> nn.Module:
    exact = a["exact_windowsize"]
    return LocalAttention(
        a["dim"],
        a["heads"],
        head_dim=a["dim_head"],
        window_size=a["window_size"],
        causal=a["causal"],
        exact_window=True if exact is None else exact,
        # There queries carry the positions of the last window of keys.
        rotary_offset=0 if a["causal"] else a["window_size"],
        use_xpos=a["use_xpos"],
        xpos_scale_base=a["xpos_scale_base"],
        qk_rmsnorm=a["qk_rmsnorm"],
        qk_scale=a["qk_scale"],
        prenorm=a["prenorm"],
        gate_values=a["gate_values_per_head"],
        attn_drop=a["dropout"],
        proj_bias=False,
        legacy_layout=legacy_layout,
    )


def _local_state(state: State) -> State:
    names = {"to_qkv.": "qkv.", "to_out.": "proj.", "to_v_gate.0.": "gate."}
    renamed = {}
    for key, value in state.items():
        if key == "attn_fn.rel_pos.inv_freq":  # follows from the width
            continue
        old = next((name for name in names if key.startswith(name)), "")
        renamed[names.get(old, "") + key.removeprefix(old)] = value
    return renamed


def _neighborhood(
    a: Arguments, layer: type[NeighborhoodAttention1D | NeighborhoodAttention2D]
) -> nn.Module:
    def pair(size: Any) -> Any:
        return tuple(size) if isinstance(size, list) else size

    if layer is NeighborhoodAttention1D:
        a = {key: x[0] if isinstance(x, list | tuple) else x for key, x in a.items()}
    built = layer(
        a["embed_dim"],
        a["num_heads"],
        kernel_size=pair(a["kernel_size"]),
        stride=pair(a["stride"]),
        dilation=pair(a["dilation"]),
        causal=pair(a["is_causal"]),
        qkv_bias=a["qkv_bias"],
        proj_drop=a["proj_drop"],
    )
    if a["qk_scale"]:
        built.scale = a["qk_scale"]
    return built


def _sparse(a: Arguments, _: bool) -> nn.Module:
    return SparseAttention(
        a["d_hidden"],
        a["num_heads"],
        mode=a["attn_mode"],
        context=a["local_attn_ctx"] or 1,
        attn_drop=a["attention_dropout"],
        proj_bias=False,
    )


def _sparse_state(state: State) -> State:
    return _joined(state, ("q_proj", "k_proj", "v_proj"), "out_proj")


_HEADS: Arguments = {"d_hidden": ..., "num_heads": ...}
_CONVNN: Arguments = {
    **_HEADS,
    "attention_dropout": 0.0,
    "K": ...,
    "sampling_type": "all",
    "num_samples": -1,
    "sample_padding": 0,
    "magnitude_type": "matmul",
    "seq_length": 197,
    "coordinate_encoding": False,
    "convolution_type": "depthwise",
    "softmax_topk_val": True,
}
_NATTEN: Arguments = {
    "embed_dim": ...,
    "num_heads": ...,
    "kernel_size": ...,
    "stride": 1,
    "dilation": 1,
    "is_causal": False,
    "qkv_bias": True,
    "qk_scale": None,
    "proj_drop": 0.0,
}
REFERENCE_LAYERS = {
    "MultiHeadAttention": ReferenceLayer(
        {**_HEADS, "attention_dropout": 0.0}, _attention, _attention_state
    ),
    "MultiHeadConvNNAttention": ReferenceLayer(_CONVNN, _convnn, _convnn_state),
    "MultiHeadConv1dAttention": ReferenceLayer(
        {**_HEADS, "kernel_size": ...}, _conv1d, _conv1d_state
    ),
    "MultiHeadBranchingConv": ReferenceLayer(
        {**_CONVNN, "kernel_size": ..., "branch_ratio": 0.5}, _branching_conv, _branching_state
    ),
    "MultiHeadBranchingAttention": ReferenceLayer(
        {**_CONVNN, "branch_ratio": 0.5}, _branching_attention, _branching_state
    ),
    "MultiHeadKvtAttention": ReferenceLayer(
        {
            "dim": ...,
            "num_heads": 8,
            "qkv_bias": False,
            "qk_scale": None,
            "attn_drop": 0.0,
            "proj_drop": 0.0,
            "topk": 100,
        },
        _kvt,
        dict,
    ),
    "MultiHeadLocalAttention": ReferenceLayer(
        {
            "dim": ...,
            "window_size": 128,
            "dim_head": 64,
            "heads": 8,
            "dropout": 0.0,
            "causal": False,
            "prenorm": False,
            "qk_rmsnorm": False,
            "qk_scale": 8,
            "use_xpos": False,
            "xpos_scale_base": None,
            "exact_windowsize": None,
            "gate_values_per_head": False,
        },
        _local,
        _local_state,
    ),
    "MultiHeadSparseAttention": ReferenceLayer(
        {**_HEADS, "attention_dropout": 0.0, "attn_mode": "all", "local_attn_ctx": None},
        _sparse,
        _sparse_state,
    ),
    "NeighborhoodAttention1D": ReferenceLayer(
        _NATTEN, lambda a, _: _neighborhood(a, NeighborhoodAttention1D), dict
    ),
    "NeighborhoodAttention2D": ReferenceLayer(
        _NATTEN, lambda a, _: _neighborhood(a, NeighborhoodAttention2D), dict
    ),
}
SHORT_NAMES = {
    "Attention": "MultiHeadAttention",
    "ConvNNAttention": "MultiHeadConvNNAttention",
    "BranchConv": "MultiHeadBranchingConv",
    "BranchAttention": "MultiHeadBranchingAttention",
    "KvtAttention": "MultiHeadKvtAttention",
    "LocalAttention": "MultiHeadLocalAttention",
    "NeighborhoodAttention": "NeighborhoodAttention1D",
    "SparseAttention": "MultiHeadSparseAttention",
}
