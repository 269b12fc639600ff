"""Geometry of features: neighborhoods, directions and distances before any probe.

Numpy arrays or torch tensors in, floats out; tensors stay on their device. A row is never its own
neighbor: it is left out by its position.
"""

from nearwise_lab.geometry.describe import describe_geometry
from nearwise_lab.geometry.dimension import intrinsic_dimension
from nearwise_lab.geometry.directions import (
    alignment,
    anisotropy,
    class_alignment,
    effective_rank,
    uniformity,
)
from nearwise_lab.geometry.likeness import cka
from nearwise_lab.geometry.neighborhoods import (
    Hubness,
    hubness,
    neighbor_overlap,
    purity,
    purity_curve,
    silhouette,
    trustworthiness,
)

__all__ = [
    "Hubness",
    "alignment",
    "anisotropy",
    "cka",
    "class_alignment",
    "describe_geometry",
    "effective_rank",
    "hubness",
    "intrinsic_dimension",
    "neighbor_overlap",
    "purity",
    "purity_curve",
    "silhouette",
    "trustworthiness",
    "uniformity",
]
