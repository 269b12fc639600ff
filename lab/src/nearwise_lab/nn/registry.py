"""Token layers by name."""

from collections.abc import Callable, Mapping

from torch import nn

from nearwise.names import did_you_mean
from nearwise.nn.tokens.knn import KNNAttention
from nearwise_lab.nn.convnn import ConvNNAttention
from nearwise_lab.nn.dense import MultiHeadAttention
from nearwise_lab.nn.kvt import KvtAttention
from nearwise_lab.nn.neighborhood import NeighborhoodAttention1D, NeighborhoodAttention2D

LayerFactory = Callable[..., nn.Module]

TOKEN_LAYERS: dict[str, LayerFactory] = {
    "MultiHeadAttention": MultiHeadAttention,
    "KNNAttention": KNNAttention,
    "KvtAttention": KvtAttention,
    "ConvNNAttention": ConvNNAttention,
    "NeighborhoodAttention1D": NeighborhoodAttention1D,
    "NeighborhoodAttention2D": NeighborhoodAttention2D,
}


def token_layer(
    layer: str | LayerFactory, known: Mapping[str, LayerFactory] = TOKEN_LAYERS
) -> LayerFactory:
    """Return the class of a token layer.

    Parameters
    ----------
    layer : str or callable
        A name, or what makes a layer from ``dim``, ``num_heads`` and options.
    known : mapping of str to callable
        Layers by name; by default those of the library.

    Raises
    ------
    ValueError
        If the name is not known; it suggests the nearest.
    """
    if not isinstance(layer, str):
        return layer
    if layer not in known:
        own = layer.removeprefix("MultiHead")  # as the published README has it
        hint = did_you_mean(own if own in known else layer, known)
        raise ValueError(f"Layer {layer!r} is not known.{hint} There are {', '.join(known)}.")
    return known[layer]
