"""All measures of one feature set in one call."""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nearwise_lab.geometry.directions import anisotropy, class_alignment, effective_rank, uniformity
from nearwise_lab.geometry.neighborhoods import (
    hubness,
    intrinsic_dimension,
    purity_curve,
    silhouette,
)
from nearwise_lab.geometry.rows import Rows, as_labels, as_rows

CURVE = (1, 2, 5, 10, 20, 50, 100, 200)  # those above the rows left are left out


def describe_geometry(
    X: Rows,
    y: npt.ArrayLike | Tensor,
    *,
    n_neighbors: int = 20,
    max_rows: int = 5000,
    random_state: int = 0,
) -> dict[str, float | dict[int, float]]:
    """Measure one feature set with every measure of this module that needs no second one.

    Purity, hubness and silhouette are by cosine, the dimension is Euclidean.

    Parameters
    ----------
    X : array-like or Tensor of shape (n_rows, n_features)
        Finite features, no row all zeros.
    y : integer array-like of shape (n_rows,)
        Class positions.
    n_neighbors : int, default=20
        Of purity and of `hubness`.
    max_rows : int, default=5000
        Above it a random sample is measured: some measures use all pairs.
    random_state : int, default=0
        Of the sample.

    Returns
    -------
    measures : dict
        n, purity, purity_curve (k to purity), hub_skewness, antihubs, intrinsic_dimension,
        class_alignment, uniformity, anisotropy, effective_rank, silhouette.
    """
    rows = as_rows(X, least=4)
    labels = as_labels(y, len(rows))
    if len(rows) > max_rows:
        chosen = np.sort(np.random.default_rng(random_state).permutation(len(rows))[:max_rows])
        rows, labels = rows[torch.from_numpy(chosen).to(rows.device)], labels[chosen]
    sizes = sorted({k for k in (*CURVE, n_neighbors) if k < len(rows)})
    if n_neighbors not in sizes:
        raise ValueError(
            f"n_neighbors={n_neighbors} exceeds the {len(rows) - 1} other rows. Lower it."
        )
    purities = dict(zip(sizes, purity_curve(rows, labels, sizes).tolist(), strict=True))
    hubs = hubness(rows, n_neighbors)
    return {
        "n": len(rows),
        "purity": purities[n_neighbors],
        "purity_curve": purities,
        "hub_skewness": hubs.skewness,
        "antihubs": hubs.antihubs,
        "intrinsic_dimension": intrinsic_dimension(rows),
        "class_alignment": class_alignment(rows, labels),
        "uniformity": uniformity(rows),
        "anisotropy": anisotropy(rows),
        "effective_rank": effective_rank(rows),
        "silhouette": silhouette(rows, labels),
    }
