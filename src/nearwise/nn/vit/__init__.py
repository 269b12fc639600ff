"""Vision transformers with any token layer."""

from nearwise.nn.vit.model import VisionTransformer

__all__ = ["VisionTransformer"]
