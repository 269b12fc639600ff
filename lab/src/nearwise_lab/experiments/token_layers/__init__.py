"""Time and memory of the attention layers over tokens, side by side on the machine at hand."""

from nearwise_lab.experiments.token_layers.choices import (
    BASELINE,
    LayerChoice,
    LayerShape,
    layer_choices,
    pick_layers,
)
from nearwise_lab.experiments.token_layers.memory import (
    MemoryPoint,
    growth,
    memory_curve,
    peak_memory,
)
from nearwise_lab.experiments.token_layers.timing import LayerTime, time_layers

__all__ = [
    "BASELINE",
    "LayerChoice",
    "LayerShape",
    "LayerTime",
    "MemoryPoint",
    "growth",
    "layer_choices",
    "memory_curve",
    "peak_memory",
    "pick_layers",
    "time_layers",
]
