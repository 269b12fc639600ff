"""Probes of frozen features: encoders, feature sets, and classifiers."""

from nearwise.probes.attention import AttentionProbe
from nearwise.probes.base import Probe
from nearwise.probes.encoders import Encoder, FunctionEncoder, TransformersEncoder
from nearwise.probes.feature_set import FeatureSet
from nearwise.probes.features import extract_features, pool_tokens
from nearwise.probes.knn import KNNProbe
from nearwise.probes.linear import LinearProbe
from nearwise.probes.transformer import MLPProbe, TransformerProbe

__all__ = [
    "AttentionProbe",
    "Encoder",
    "FeatureSet",
    "FunctionEncoder",
    "KNNProbe",
    "LinearProbe",
    "MLPProbe",
    "Probe",
    "TransformerProbe",
    "TransformersEncoder",
    "extract_features",
    "pool_tokens",
]
