"""Vision transformers with any token layer."""

from nearwise.nn.vit.model import VisionTransformer
from nearwise.nn.vit.reference import load_reference_vit

__all__ = ["VisionTransformer", "load_reference_vit"]
