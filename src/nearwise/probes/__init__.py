"""What frozen features hold: encoders, feature sets, and probes that read them."""

from nearwise.probes.attention import AttentionProbe
from nearwise.probes.base import Probe
from nearwise.probes.catalog import PROBES, make_probe
from nearwise.probes.encoders import (
    Encoder,
    FunctionEncoder,
    Patches,
    Pixels,
    RandomInit,
    SparsePoints,
)
from nearwise.probes.features import FeatureSet, extract_features, pool_tokens
from nearwise.probes.knn import KNNProbe
from nearwise.probes.linear import LinearProbe
from nearwise.probes.pretrained import (
    EmbedderEncoder,
    TransformersEncoder,
    VisionTransformerEncoder,
    load_encoder,
    open_encoder,
)
from nearwise.probes.stored import StoredFeatures
from nearwise.probes.transformer import MLPProbe, TransformerProbe

__all__ = [
    "PROBES",
    "AttentionProbe",
    "EmbedderEncoder",
    "Encoder",
    "FeatureSet",
    "FunctionEncoder",
    "KNNProbe",
    "LinearProbe",
    "MLPProbe",
    "Patches",
    "Pixels",
    "Probe",
    "RandomInit",
    "SparsePoints",
    "StoredFeatures",
    "TransformerProbe",
    "TransformersEncoder",
    "VisionTransformerEncoder",
    "extract_features",
    "load_encoder",
    "make_probe",
    "open_encoder",
    "pool_tokens",
]
