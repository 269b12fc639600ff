"""Neural fields: Perceiver autoencoders of images."""

from nearwise_lab.nn.field.config import (
    PRESETS,
    FieldFile,
    PerceiverConfig,
    describe_model,
    perceiver_config,
)
from nearwise_lab.nn.field.layers import (
    GaussianFourierFeatures,
    coordinate_grid,
    sample_images,
)
from nearwise_lab.nn.field.model import PerceiverAutoencoder, make_perceiver

__all__ = [
    "PRESETS",
    "FieldFile",
    "GaussianFourierFeatures",
    "PerceiverAutoencoder",
    "PerceiverConfig",
    "coordinate_grid",
    "describe_model",
    "make_perceiver",
    "perceiver_config",
    "sample_images",
]
