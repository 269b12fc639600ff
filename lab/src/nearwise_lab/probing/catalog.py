"""Probes by name, as in `evaluate` and the command line."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nearwise.names import did_you_mean
from nearwise.probes.attention import AttentionProbe
from nearwise.probes.base import Probe
from nearwise.probes.knn import KNNProbe
from nearwise.probes.linear import LinearProbe
from nearwise.probes.transformer import MLPProbe, TransformerProbe

Maker = Callable[[int, str, Mapping[str, Any]], Probe]


def _knn(**options: Any) -> Maker:
    return lambda seed, device, meta: KNNProbe(device=device, random_state=seed, **options)


def _attention(**options: Any) -> Maker:
    return lambda seed, device, meta: AttentionProbe(device=device, random_state=seed, **options)


def _linear(seed: int, device: str, meta: Mapping[str, Any]) -> Probe:
    return LinearProbe(device=device, random_state=seed)


def _mlp(seed: int, device: str, meta: Mapping[str, Any]) -> Probe:
    return MLPProbe(device=device, random_state=seed)


def _transformer(**options: Any) -> Maker:
    def make(seed: int, device: str, meta: Mapping[str, Any]) -> Probe:
        ordered = bool(meta.get("ordered", True))
        return TransformerProbe(positions=ordered, device=device, random_state=seed, **options)

    return make


PROBES: dict[str, Maker] = {
    "knn": _knn(n_neighbors="val"),
    "knn-20": _knn(),
    "knn-euclidean": _knn(n_neighbors="val", metric="euclidean"),
    "knn-distance": _knn(n_neighbors="val", weights="distance"),
    "knn-softmax": _knn(weights="softmax"),
    "knn-val": _knn(weights="softmax", n_neighbors="val", temperature="val"),
    "attention": _attention(),
    "attention-features": _attention(keys="features"),
    "linear": _linear,
    "mlp": _mlp,
    "transformer": _transformer(),
    "transformer-small": _transformer(d_model=64, batch_size=32),
    "attentive-pooling": _transformer(num_layers=0, pooling="attention"),
}
"""Each takes a seed, a device and what is known of the features."""


def check_probe_names(names: Sequence[str]) -> None:
    """Refuse a name that no probe has, with the nearest that one has."""
    for name in names:
        if name not in PROBES:
            hint = did_you_mean(name, PROBES)
            raise ValueError(f"Unknown probe {name!r}.{hint} Known: {', '.join(PROBES)}.")


def make_probe(
    name: str, *, seed: int = 0, device: str = "cpu", meta: Mapping[str, Any] | None = None
) -> Probe:
    """Make an unfitted probe.

    Parameters
    ----------
    name : str
        One of `PROBES`.
    seed : int, default=0
    device : str, default="cpu"
    meta : mapping, optional
        Of the `FeatureSet` it shall read: tokens in an order that means something get a position
        embedding.

    Raises
    ------
    ValueError
        If the name is not known.
    """
    check_probe_names([name])
    return PROBES[name](seed, device, meta or {})
