"""Token layers by name: the library's, the lab's own, and those of the published command line."""

from nearwise_lab.nn.branching import BranchingAttention, BranchingConv, TokenConvolution
from nearwise_lab.nn.local import LocalAttention
from nearwise_lab.nn.registry import TOKEN_LAYERS, LayerFactory
from nearwise_lab.nn.registry import token_layer as layer_among
from nearwise_lab.nn.sparse import SparseAttention

ALL_LAYERS: dict[str, LayerFactory] = {
    **TOKEN_LAYERS,
    "LocalAttention": LocalAttention,
    "SparseAttention": SparseAttention,
    "BranchingAttention": BranchingAttention,
    "BranchingConv": BranchingConv,
    "TokenConvolution": TokenConvolution,
}
# Names of the published command line.
LAYER_ALIASES = {
    "Attention": "MultiHeadAttention",
    "BranchAttention": "BranchingAttention",
    "BranchConv": "BranchingConv",
    "NeighborhoodAttention": "NeighborhoodAttention1D",
}


def token_layer(layer: str) -> LayerFactory:
    """Return the class of a layer; ValueError for a name that none has, with the nearest."""
    by_alias = {alias: ALL_LAYERS[name] for alias, name in LAYER_ALIASES.items()}
    return layer_among(layer, {**ALL_LAYERS, **by_alias})
