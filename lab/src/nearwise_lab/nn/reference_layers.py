"""Construction of the layers of published code, and names of their weights.

MultiHead...: github.com/mingikang31/Convolutional-Nearest-Neighbor-Attention at 0bb6614 (MIT).
NeighborhoodAttention...: github.com/SHI-Labs/NATTEN (MIT).
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from nearwise_lab.nn.branching import BranchingAttention, BranchingConv, TokenConvolution
from nearwise_lab.nn.convnn import ConvNNAttention
from nearwise_lab.nn.dense import KvtAttention, MultiHeadAttention, SparseAttention
from nearwise_lab.nn.legacy import (
    LegacyBranchingAttention,
    LegacyBranchingConv,
    LegacyConvNNAttention,
    LegacyTokenConvolution,
)
from nearwise_lab.nn.local import LocalAttention
from nearwise_lab.nn.neighborhood import NeighborhoodAttention1D, NeighborhoodAttention2D

Arguments = dict[str, Any]
State = dict[str, Tensor]


class ReferenceLayer(NamedTuple):
    """Construction of one layer of published code, and names of its weights."""

    layer: Callable[..., nn.Module]  # makes ours from its width, its heads and options
    arguments: Arguments  # its own with their defaults, width and heads first; ...: none
    names: Mapping[str, str]  # options of ours by the names of its arguments
    rename: Callable[[State], State] = dict  # its weights to ours
    # Options that are no argument there, or other values; from arguments and legacy layout.
    options: Callable[[Arguments, bool], Arguments] = lambda _, __: {"proj_bias": False}
    legacy: Callable[..., nn.Module] | None = None  # what computes as that code, where it differs

    def build(self, given: Mapping[str, Any], legacy_layout: bool) -> nn.Module:
        """Build the layer from arguments by their names there."""
        a = {**self.arguments, **given}
        width, heads = (a[name] for name in list(a)[:2])
        own = {ours: a[theirs] for theirs, ours in self.names.items()}
        make = self.legacy if legacy_layout and self.legacy is not None else self.layer
        return make(width, heads, **{**own, **self.options(a, legacy_layout)})


def by_beginning(state: Mapping[str, Tensor], names: Mapping[str, str]) -> State:
    """Rename weights by prefix; `names` maps old prefixes to new ones."""
    found = {}
    for key, value in state.items():
        old = next((name for name in names if key.startswith(name)), "")
        found[names.get(old, "") + key.removeprefix(old)] = value
    return found


def _joined(*names: str) -> Callable[[State], State]:
    """Join separate projections of query, key and value, and rename that of the output."""

    def rename(state: State) -> State:
        state["qkv.weight"] = torch.cat([state.pop(f"{name}.weight") for name in names[:3]])
        state["proj.weight"] = state.pop(f"{names[3]}.weight")
        return state

    return rename


_attention_state = _joined("W_q", "W_k", "W_v", "W_o")


def _convnn_options(a: Arguments, legacy_layout: bool) -> Arguments:
    is_spatial = a["sampling_type"] == "spatial"
    return {
        "weighting": "softmax" if a["softmax_topk_val"] else "raw",
        "sampling": "line" if is_spatial else a["sampling_type"],
        "num_samples": int(a["num_samples"]),
        "sample_padding": int(a["sample_padding"]) if is_spatial else 0,
        "coordinates": a["coordinate_encoding"],
        "sample_in_eval": legacy_layout,
        "proj_bias": False,
    }


def _convnn_state(state: State) -> State:
    # There the rows, which search for neighbors, are called keys.
    state = _joined("W_k", "W_q", "W_v", "W_o")(state)
    if "conv.0.weight" in state:
        state["conv.weight"] = state.pop("conv.0.weight")
        state["conv.pointwise.weight"] = state.pop("conv.1.weight")[..., 0]
    return state


def _conv1d_state(state: State) -> State:
    for part in ("weight", "bias"):
        state[f"proj_in.{part}"] = state.pop(f"W_x.{part}")
        state[f"proj.{part}"] = state.pop(f"W_o.{part}")
    return state


def _branching_options(a: Arguments, legacy_layout: bool) -> Arguments:
    width = int(a["branch_ratio"] * a["d_hidden"])
    if width % a["num_heads"]:
        raise ValueError(
            f"branch_ratio={a['branch_ratio']} gives the ConvNN branch {width} of {a['d_hidden']} "
            f"channels, which num_heads={a['num_heads']} does not divide: no such layer exists in "
            "the published code."
        )
    return _convnn_options(a, legacy_layout)


def _branching_state(state: State) -> State:
    renamed: State = {}
    for branch, ours, rename in (
        ("convnn.", "convnn.", _convnn_state),
        ("conv1d.", "convolution.", _conv1d_state),
        ("attention.", "attention.", _attention_state),
    ):
        own = {key.removeprefix(branch): x for key, x in state.items() if key.startswith(branch)}
        try:
            renamed |= {ours + key: x for key, x in rename(own).items()} if own else {}
        except KeyError as error:
            raise KeyError(branch + error.args[0]) from None
    # With one branch that code makes a layer to join them too, but does not use it.
    if len({key.partition(".")[0] for key in renamed}) == 2:
        joint = {key: x for key, x in state.items() if key.startswith("pointwise_linear.")}
        renamed |= by_beginning(joint, {"pointwise_linear.": "pointwise."})
    return renamed


def _local_options(a: Arguments, legacy_layout: bool) -> Arguments:
    return {
        "exact_window": a["exact_windowsize"] is not False,
        # There queries carry the positions of the last window of keys.
        "rotary_offset": 0 if a["causal"] else a["window_size"],
        "proj_bias": False,
        "legacy_layout": legacy_layout,
    }


def _local_state(state: State) -> State:
    state.pop("attn_fn.rel_pos.inv_freq", None)  # follows from the width
    return by_beginning(state, {"to_qkv.": "qkv.", "to_out.": "proj.", "to_v_gate.0.": "gate."})


def _neighborhood(layer: type[NeighborhoodAttention1D]) -> ReferenceLayer:
    def make(dim: int, num_heads: int, *, qk_scale: float | None, **options: Any) -> nn.Module:
        if layer is NeighborhoodAttention1D:
            options = {k: x[0] if isinstance(x, list | tuple) else x for k, x in options.items()}
        built = layer(dim, num_heads, **options)
        if qk_scale:
            built.scale = qk_scale
        return built

    return ReferenceLayer(make, _NATTEN, _same(_NATTEN, is_causal="causal"), dict, lambda _, __: {})


def _same(arguments: Arguments, **others: str) -> dict[str, str]:
    """Names of arguments after width and heads: equal here and there, except `others`."""
    return {name: others.get(name, name) for name in list(arguments)[2:]}


_HEADS: Arguments = {"d_hidden": ..., "num_heads": ...}
_DENSE: Arguments = {**_HEADS, "attention_dropout": 0.0}
_CONVNN: Arguments = {
    **_DENSE, "K": ..., "sampling_type": "all", "num_samples": -1, "sample_padding": 0,
    "magnitude_type": "matmul", "seq_length": 197, "coordinate_encoding": False,
    "convolution_type": "depthwise", "softmax_topk_val": True,
}  # fmt: skip
_KVT: Arguments = {
    "dim": ..., "num_heads": 8, "qkv_bias": False, "qk_scale": None, "attn_drop": 0.0,
    "proj_drop": 0.0, "topk": 100,
}  # fmt: skip
_LOCAL: Arguments = {
    "dim": ..., "heads": 8, "window_size": 128, "dim_head": 64, "dropout": 0.0, "causal": False,
    "prenorm": False, "qk_rmsnorm": False, "qk_scale": 8, "use_xpos": False,
    "xpos_scale_base": None, "exact_windowsize": None, "gate_values_per_head": False,
}  # fmt: skip
_NATTEN: Arguments = {
    "embed_dim": ..., "num_heads": ..., "kernel_size": ..., "stride": 1, "dilation": 1,
    "is_causal": False, "qkv_bias": True, "qk_scale": None, "proj_drop": 0.0,
}  # fmt: skip
_DROP = {"attention_dropout": "attn_drop"}
_CONVNN_NAMES = {
    **_DROP, "K": "n_neighbors", "magnitude_type": "metric", "convolution_type": "convolution",
}  # fmt: skip
_KERNEL, _RATIO = {"kernel_size": "kernel_size"}, {"branch_ratio": "branch_ratio"}
_LOCAL_NAMES = _same(
    _LOCAL, dim_head="head_dim", dropout="attn_drop", gate_values_per_head="gate_values",
    exact_windowsize="exact_window",
)  # fmt: skip

REFERENCE_LAYERS = {
    "MultiHeadAttention": ReferenceLayer(MultiHeadAttention, _DENSE, _DROP, _attention_state),
    "MultiHeadConvNNAttention": ReferenceLayer(
        ConvNNAttention, _CONVNN, _CONVNN_NAMES, _convnn_state, _convnn_options,
        LegacyConvNNAttention,
    ),
    "MultiHeadConv1dAttention": ReferenceLayer(
        TokenConvolution, {**_HEADS, "kernel_size": ...}, _KERNEL, _conv1d_state,
        lambda _, __: {}, LegacyTokenConvolution,
    ),
    "MultiHeadBranchingConv": ReferenceLayer(
        BranchingConv, {**_CONVNN, "kernel_size": ..., "branch_ratio": 0.5},
        {**_CONVNN_NAMES, **_KERNEL, **_RATIO}, _branching_state, _branching_options,
        LegacyBranchingConv,
    ),
    "MultiHeadBranchingAttention": ReferenceLayer(
        BranchingAttention, {**_CONVNN, "branch_ratio": 0.5}, {**_CONVNN_NAMES, **_RATIO},
        _branching_state, _branching_options, LegacyBranchingAttention,
    ),
    "MultiHeadKvtAttention": ReferenceLayer(KvtAttention, _KVT, _same(_KVT, topk="n_neighbors")),
    "MultiHeadLocalAttention": ReferenceLayer(
        LocalAttention, _LOCAL, _LOCAL_NAMES, _local_state, _local_options
    ),
    "MultiHeadSparseAttention": ReferenceLayer(
        SparseAttention, {**_DENSE, "attn_mode": "all", "local_attn_ctx": None},
        {**_DROP, "attn_mode": "mode"}, _joined("q_proj", "k_proj", "v_proj", "out_proj"),
        lambda a, _: {"context": a["local_attn_ctx"] or 1, "proj_bias": False},
    ),
    "NeighborhoodAttention1D": _neighborhood(NeighborhoodAttention1D),
    "NeighborhoodAttention2D": _neighborhood(NeighborhoodAttention2D),
}  # fmt: skip
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
