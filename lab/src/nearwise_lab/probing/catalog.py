"""Probes by name, as in `evaluate` and the command line."""

from collections.abc import Iterable
from typing import Any

from sklearn.base import clone

from nearwise.names import did_you_mean
from nearwise.probes import (
    AttentionProbe,
    KNNProbe,
    LinearProbe,
    MLPProbe,
    TransformerProbe,
)
from nearwise.probes.base import Probe

PROBES: dict[str, tuple[type[Probe], dict[str, Any]]] = {
    "knn": (KNNProbe, {"n_neighbors": "val"}),
    "knn-20": (KNNProbe, {}),
    "knn-euclidean": (KNNProbe, {"n_neighbors": "val", "metric": "euclidean"}),
    "knn-distance": (KNNProbe, {"n_neighbors": "val", "weights": "distance"}),
    "knn-softmax": (KNNProbe, {"weights": "softmax"}),
    "knn-val": (KNNProbe, {"weights": "softmax", "n_neighbors": "val", "temperature": "val"}),
    "attention": (AttentionProbe, {}),
    "attention-features": (AttentionProbe, {"keys": "features"}),
    "linear": (LinearProbe, {}),
    "mlp": (MLPProbe, {}),
    "transformer": (TransformerProbe, {}),
    "transformer-small": (TransformerProbe, {"d_model": 64, "batch_size": 32}),
    "attentive-pooling": (TransformerProbe, {"num_layers": 0, "pooling": "attention"}),
}
"""Each a class and its options."""


def check_probe_names(names: Iterable[str]) -> None:
    """Check the names of probes; the error suggests the nearest name."""
    for name in names:
        if name not in PROBES:
            hint = did_you_mean(name, PROBES)
            raise ValueError(f"Unknown probe {name!r}.{hint} Known: {', '.join(PROBES)}.")


def make_probe(
    probe: str | Probe, *, seed: int = 0, device: str = "cpu", ordered: bool = True
) -> Probe:
    """Make an unfitted probe.

    Parameters
    ----------
    probe : str or Probe
        One of `PROBES`; or a probe of your own, which is cloned, and gets the seed where it has
        none.
    seed : int, default=0
    device : str, default="cpu"
    ordered : bool, default=True
        Whether the order of the tokens that it shall read means something: they then get a
        position embedding.

    Raises
    ------
    ValueError
        If the name is not known.
    """
    if isinstance(probe, Probe):
        own = clone(probe)
        if own.get_params().get("random_state", seed) is None:
            own.set_params(random_state=seed)
        return own
    check_probe_names([probe])
    kind, options = PROBES[probe]
    if kind is TransformerProbe:
        options = {**options, "positions": ordered}
    return kind(**options, device=device, random_state=seed)
