"""Geometry of features: neighborhoods, directions and distances before any probe.

Numpy arrays or torch tensors in, floats out; tensors stay on their device. A row is never its own
neighbor: it is left out by its position.
"""

from nearwise_lab.geometry.describe import describe_geometry

__all__ = ["describe_geometry"]
