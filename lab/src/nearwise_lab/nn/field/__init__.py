"""Neural fields: Perceiver autoencoders of images."""

from nearwise_lab.nn.field.config import PRESETS, PerceiverConfig, describe_model, find_models
from nearwise_lab.nn.field.layers import coordinate_grid, sample_images
from nearwise_lab.nn.field.model import PerceiverAutoencoder, make_perceiver

__all__ = [
    "PRESETS",
    "PerceiverAutoencoder",
    "PerceiverConfig",
    "coordinate_grid",
    "describe_model",
    "find_models",
    "make_perceiver",
    "sample_images",
]
