"""The token layers of the lab in the settings that every check runs through."""

from nearwise_lab.nn.branching import BranchingAttention, BranchingConv
from nearwise_lab.nn.convnn import ConvNNAttention
from nearwise_lab.nn.dense import KvtAttention, MultiHeadAttention, SparseAttention
from nearwise_lab.nn.local import LocalAttention
from nearwise_lab.nn.neighborhood import NeighborhoodAttention1D, NeighborhoodAttention2D

from tests.nn.tokens.cases import K5, Case

W4 = {"window_size": 4}
RAW = {**K5, "weighting": "raw", "metric": "cosine", "convolution": "standard"}
EUCLIDEAN = {**K5, "metric": "euclidean", "convolution": "depthwise-separable"}
RANDOM = {"n_neighbors": 3, "sampling": "random", "num_samples": 8, "convolution": "standard"}
LINE = {
    "n_neighbors": 3, "sampling": "line", "num_samples": 8, "coordinates": True,
    "convolution": "standard", "weighting": "raw", "metric": "euclidean",
}  # fmt: skip
GRID = {
    "n_neighbors": 3, "sampling": "grid", "num_samples": 3, "num_prefix_tokens": 1,
    "coordinates": True,
}  # fmt: skip
LOCAL = {
    **W4, "qk_rmsnorm": True, "use_xpos": True, "prenorm": True, "gate_values": True,
    "exact_window": False,
}  # fmt: skip
SQUARE = {"kernel_size": 3, "num_prefix_tokens": 1}
# What a convolution is not: of an order, under all masks.
BOTH_WAYS = {"causal": False, "masked": False}

CASES = [
    Case("attention", MultiHeadAttention, {}, equivariant=True),
    Case("attention-norm", MultiHeadAttention, {"qk_norm": True, "qkv_bias": True}, True),
    Case("kvt", KvtAttention, K5, equivariant=True),
    Case("convnn", ConvNNAttention, K5, equivariant=True),
    Case("convnn-raw", ConvNNAttention, RAW, equivariant=True),
    Case("convnn-euclidean", ConvNNAttention, EUCLIDEAN, equivariant=True),
    Case("convnn-random", ConvNNAttention, RANDOM, equivariant=True, causal=False),
    Case("convnn-spatial", ConvNNAttention, LINE, causal=False),
    Case("convnn-grid", ConvNNAttention, GRID, causal=False),
    Case("local", LocalAttention, W4),
    Case("local-all", LocalAttention, LOCAL),
    Case("local-causal", LocalAttention, {**W4, "causal": True}),
    Case("natten-1d", NeighborhoodAttention1D, {"kernel_size": 5, "dilation": 2, "stride": 2}),
    Case("natten-1d-causal", NeighborhoodAttention1D, {"kernel_size": 5, "causal": True}),
    Case("natten-2d", NeighborhoodAttention2D, SQUARE, causal=False, takes_grids=True),
    Case("sparse-all", SparseAttention, {"mode": "all"}, equivariant=True),
    Case("sparse-local", SparseAttention, {"mode": "local", "context": 5}),
    Case("sparse-strided", SparseAttention, {"mode": "strided", "context": 4}),
    Case("branching-attention", BranchingAttention, K5, equivariant=True),
    Case("branching-attention-0", BranchingAttention, {**K5, "branch_ratio": 0}, True),
    Case("branching-attention-1", BranchingAttention, {**K5, "branch_ratio": 1}, True),
    Case("branching-conv", BranchingConv, {**K5, "branch_ratio": 0.3}, **BOTH_WAYS),
    Case("branching-conv-0", BranchingConv, {"branch_ratio": 0}, drops=False, **BOTH_WAYS),
]
