"""Time and memory of the attention layers over tokens, compared on this machine."""

from nearwise_lab.experiments.token_layers.choices import (
    BASELINE,
    LayerChoice,
    LayerShape,
    layer_choices,
)
from nearwise_lab.experiments.token_layers.measuring import LayerTime, peak_memory, time_layers

__all__ = [
    "BASELINE",
    "LayerChoice",
    "LayerShape",
    "LayerTime",
    "layer_choices",
    "peak_memory",
    "time_layers",
]
