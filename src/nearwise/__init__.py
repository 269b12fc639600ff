"""Attention over nearest neighbors: calibrated probabilities, with the neighbors behind them.

The names below are imported on first use, so that ``import nearwise`` (and the command line's
``--help``) does not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nearwise.estimators import AttnKNNClassifier as AttnKNNClassifier
    from nearwise.estimators import AttnKNNRegressor as AttnKNNRegressor
    from nearwise.estimators import LiveModel as LiveModel
    from nearwise.estimators import review as review
    from nearwise.functional import knn_attention as knn_attention
    from nearwise.functional import set_attention_implementation as set_attention_implementation
    from nearwise.memory import MemoryBank as MemoryBank
    from nearwise.memory import TokenMemory as TokenMemory
    from nearwise.nn import KNNAttention as KNNAttention
    from nearwise.nn import KNNMultiheadAttention as KNNMultiheadAttention
    from nearwise.nn import MemoryAttention as MemoryAttention
    from nearwise.probes import AttentionProbe as AttentionProbe
    from nearwise.probes import KNNProbe as KNNProbe
    from nearwise.probes import LinearProbe as LinearProbe
    from nearwise.probes import TransformerProbe as TransformerProbe
    from nearwise.probes import extract_features as extract_features

__version__ = "0.1.0"

_ESTIMATORS = {
    "AttnKNNClassifier": "nearwise.estimators",
    "AttnKNNRegressor": "nearwise.estimators",
    "LiveModel": "nearwise.estimators",
    "MemoryBank": "nearwise.memory",
    "review": "nearwise.estimators",
}
_LAYERS = {
    "KNNAttention": "nearwise.nn",
    "KNNMultiheadAttention": "nearwise.nn",
    "MemoryAttention": "nearwise.nn",
    "TokenMemory": "nearwise.memory",
    "knn_attention": "nearwise.functional",
    "set_attention_implementation": "nearwise.functional",
}
_REPRESENTATIONS = {
    "extract_features": "nearwise.probes",
    "KNNProbe": "nearwise.probes",
    "LinearProbe": "nearwise.probes",
    "AttentionProbe": "nearwise.probes",
    "TransformerProbe": "nearwise.probes",
}
_HOMES = _ESTIMATORS | _LAYERS | _REPRESENTATIONS

__all__ = [*_HOMES, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'nearwise' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
