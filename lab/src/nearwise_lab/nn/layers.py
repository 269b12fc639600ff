"""Token layers by name: the library's, the lab's, and the published command line's."""

from collections.abc import Callable

from torch import nn

from nearwise.names import did_you_mean
from nearwise.nn.tokens.knn import KNNAttention
from nearwise_lab.nn.branching import BranchingAttention, BranchingConv, TokenConvolution
from nearwise_lab.nn.convnn import ConvNNAttention
from nearwise_lab.nn.dense import KvtAttention, MultiHeadAttention, SparseAttention
from nearwise_lab.nn.local import LocalAttention
from nearwise_lab.nn.neighborhood import NeighborhoodAttention1D, NeighborhoodAttention2D

LayerFactory = Callable[..., nn.Module]

_LAYERS: tuple[type[nn.Module], ...] = (
    MultiHeadAttention, KNNAttention, KvtAttention, ConvNNAttention, NeighborhoodAttention1D,
    NeighborhoodAttention2D, LocalAttention, SparseAttention, BranchingAttention, BranchingConv,
    TokenConvolution,
)  # fmt: skip
TOKEN_LAYERS: dict[str, LayerFactory] = {layer.__name__: layer for layer in _LAYERS}
# Names of the published command line.
LAYER_ALIASES = {
    "Attention": "MultiHeadAttention",
    "BranchAttention": "BranchingAttention",
    "BranchConv": "BranchingConv",
    "NeighborhoodAttention": "NeighborhoodAttention1D",
}


def token_layer(layer: str | LayerFactory) -> LayerFactory:
    """Return the class of a token layer.

    Parameters
    ----------
    layer : str or callable
        A name, or what makes a layer from ``dim``, ``num_heads`` and options. The published
        README's "MultiHeadConvNNAttention" is the same as "ConvNNAttention", and so with others.

    Raises
    ------
    ValueError
        If the name is not known; it suggests the nearest.
    """
    if not isinstance(layer, str):
        return layer
    for name in (layer, layer.removeprefix("MultiHead")):
        known = TOKEN_LAYERS.get(LAYER_ALIASES.get(name, name))
        if known is not None:
            return known
    hint = did_you_mean(layer, (*TOKEN_LAYERS, *LAYER_ALIASES))
    raise ValueError(f"Layer {layer!r} is not known.{hint} There are {', '.join(TOKEN_LAYERS)}.")
