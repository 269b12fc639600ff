"""Attention over nearest neighbors: calibrated probabilities, with the neighbors behind them.

The names below are imported on first use, so that ``import nearwise`` (and the command line's
``--help``) does not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nearwise.classifier import AttnKNNClassifier as AttnKNNClassifier
    from nearwise.memory import MemoryBank as MemoryBank
    from nearwise.nn import NeighborAttention as NeighborAttention

__version__ = "0.1.0"

_HOMES = {
    "AttnKNNClassifier": "nearwise.classifier",
    "MemoryBank": "nearwise.memory",
    "NeighborAttention": "nearwise.nn",
}

__all__ = ["AttnKNNClassifier", "MemoryBank", "NeighborAttention", "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'nearwise' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
