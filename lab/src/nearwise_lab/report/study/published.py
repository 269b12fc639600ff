"""What the original study reported, on CIFAR-10; the only place where numbers are typed."""

from typing import NamedTuple

SOURCE = "the study's own report, CIFAR-10 at full size, one run a version"
DATASET = "cifar10"


class Reported(NamedTuple):
    """One reported row.

    Attributes
    ----------
    presets : tuple of str
        Versions that the row was reported for.
    method : str
        As methods are called in the records.
    accuracy : float
        In [0, 1].
    nll : float
        Nats a row, clipped at 1e-9.
    ece : float
        In [0, 1], 15 equal-width bins.
    """

    presets: tuple[str, ...]
    method: str
    accuracy: float
    nll: float
    ece: float


_EARLY = ("v0.1", "v0.2", "v0.3")
REPORTED: tuple[Reported, ...] = (
    Reported(_EARLY, "uniform", 0.8861, 1.021, 0.0165),
    Reported(_EARLY, "distance", 0.8862, 1.018, 0.0347),
    Reported(_EARLY, "attention", 0.8854, 1.025, 0.0329),
    Reported(("v0.4",), "uniform", 0.8969, 0.964, 0.0243),
    Reported(("v0.4",), "distance", 0.8970, 0.964, 0.0566),
    Reported(("v0.4",), "attention", 0.8970, 0.964, 0.0578),
    Reported(("v0.4",), "cnn", 0.9494, 0.258, 0.0718),
    Reported(("v0.5",), "uniform", 0.8682, 2.053, 0.1297),
    Reported(("v0.5",), "distance", 0.8685, 2.054, 0.1099),
    Reported(("v0.5",), "attention", 0.8685, 2.054, 0.1300),
    Reported(("v0.5",), "attention+tta", 0.8720, 0.967, 0.0283),
    Reported(("v0.5",), "attention+k-ensemble", 0.8683, 2.047, 0.1299),
    Reported(("v0.5",), "cnn", 0.9512, 0.242, 0.0685),
    Reported(("v0.6",), "uniform", 0.8557, 2.028, 0.1336),
    Reported(("v0.6",), "distance", 0.8555, 2.028, 0.1169),
    Reported(("v0.6",), "attention", 0.8548, 2.058, 0.1359),
    Reported(("v0.6",), "attention+tta", 0.8554, 0.931, 0.0379),
    Reported(("v0.6",), "cnn", 0.9497, 0.247, 0.0726),
)

# What it reported on the other experiments, by experiment.
SAID: dict[str, str] = {
    "k-sweep": (
        "The study (v0.5, CIFAR-10) reported accuracies from 0.8680 to 0.8686 for every method and "
        "every k from 1 to 50."
    ),
    "label-noise": (
        "The study (v0.4, CIFAR-10, wrong labels in the memory alone) reported accuracy falling "
        "from 0.897 to 0.892 at 30 % symmetric noise, for every method."
    ),
    "long-tail": (
        "The study (v0.4, CIFAR-10, rows taken from the memory alone) reported accuracies from "
        "0.887 to 0.888 at ratio 0.01."
    ),
    "efficiency": (
        "The study (50,000 x 256 keys, k = 10, an Apple M4 Max) reported, in ms per query: flat L2 "
        "0.034, inner product 0.027, HNSW 0.051 and 41 s to build it; attention under 0.5."
    ),
}
