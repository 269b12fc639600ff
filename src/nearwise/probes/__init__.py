"""What frozen features hold: encoders, feature sets, and probes that read them."""

from nearwise.probes.attention import AttentionProbe
from nearwise.probes.base import Probe
from nearwise.probes.catalog import PROBES, make_probe
from nearwise.probes.encoder import Encoder
from nearwise.probes.encoders import FunctionEncoder, Patches, Pixels, RandomInit, SparsePoints
from nearwise.probes.evaluate import evaluate
from nearwise.probes.features import FeatureSet, extract_features
from nearwise.probes.knn import KNNProbe
from nearwise.probes.linear import LinearProbe
from nearwise.probes.opening import open_encoder
from nearwise.probes.paired import paired_differences
from nearwise.probes.pooling import pool_tokens
from nearwise.probes.pretrained import (
    EmbedderEncoder,
    TransformersEncoder,
    VisionTransformerEncoder,
    load_encoder,
)
from nearwise.probes.probe_data import LabeledImages, ProbeData, probe_data, without_seen
from nearwise.probes.records import read_records
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
    "LabeledImages",
    "LinearProbe",
    "MLPProbe",
    "Patches",
    "Pixels",
    "Probe",
    "ProbeData",
    "RandomInit",
    "SparsePoints",
    "StoredFeatures",
    "TransformerProbe",
    "TransformersEncoder",
    "VisionTransformerEncoder",
    "evaluate",
    "extract_features",
    "load_encoder",
    "make_probe",
    "open_encoder",
    "paired_differences",
    "pool_tokens",
    "probe_data",
    "read_records",
    "without_seen",
]
