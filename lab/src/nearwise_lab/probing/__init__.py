"""The protocol of `nearwise probe`: encoders and probes compared on the same rows."""

from nearwise_lab.probing.catalog import PROBES, make_probe
from nearwise_lab.probing.data import LabeledImages, ProbeData, probe_data, without_seen
from nearwise_lab.probing.encoders import (
    EmbedderEncoder,
    Patches,
    PhotographEncoder,
    Pixels,
    RandomInit,
    SparsePoints,
    VisionTransformerEncoder,
)
from nearwise_lab.probing.opening import open_encoder
from nearwise_lab.probing.paired import paired_differences
from nearwise_lab.probing.protocol import evaluate
from nearwise_lab.probing.stored import StoredFeatures

__all__ = [
    "PROBES",
    "EmbedderEncoder",
    "LabeledImages",
    "Patches",
    "PhotographEncoder",
    "Pixels",
    "ProbeData",
    "RandomInit",
    "SparsePoints",
    "StoredFeatures",
    "VisionTransformerEncoder",
    "evaluate",
    "make_probe",
    "open_encoder",
    "paired_differences",
    "probe_data",
    "without_seen",
]
