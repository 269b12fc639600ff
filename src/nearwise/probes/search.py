"""Where probes look for neighbors."""

from typing import Literal

from torch import Tensor

from nearwise.functional import Metric
from nearwise.functional.devices import choose_device
from nearwise.memory import IndexName, NeighborIndex, make_index

ProbeMetric = Literal["cosine", "l2"]
METRICS: dict[str, Metric] = {"cosine": "cosine", "l2": "euclidean"}


def make_probe_index(
    keys: Tensor, metric: ProbeMetric, index: IndexName, device: str
) -> NeighborIndex:
    """Index of a probe's training features, on its device."""
    chosen = choose_device(device)
    made = make_index(
        index, METRICS[metric], len(keys), device=None if chosen.type == "cpu" else chosen
    )
    return made.fit(keys)
