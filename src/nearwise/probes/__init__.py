"""What frozen features hold: encoders, feature sets, and probes that read them."""

from nearwise.probes.attention import AttentionProbe
from nearwise.probes.base import Probe
from nearwise.probes.catalog import PROBES, make_probe
from nearwise.probes.features.encoder import Encoder
from nearwise.probes.features.encoders import (
    FunctionEncoder,
    Patches,
    Pixels,
    RandomInit,
    SparsePoints,
)
from nearwise.probes.features.extract import FeatureSet, extract_features
from nearwise.probes.features.opening import open_encoder
from nearwise.probes.features.pooling import pool_tokens
from nearwise.probes.features.pretrained import (
    EmbedderEncoder,
    TransformersEncoder,
    VisionTransformerEncoder,
    load_encoder,
)
from nearwise.probes.features.stored import StoredFeatures
from nearwise.probes.knn import KNNProbe
from nearwise.probes.linear import LinearProbe
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
