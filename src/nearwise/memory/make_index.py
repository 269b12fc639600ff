"""Indexes by name."""

from typing import get_args

import torch

from nearwise.functional import Metric
from nearwise.memory.cell_index import CellIndex
from nearwise.memory.index import BaseIndex, ExactIndex, IndexName

INDEX_NAMES: tuple[IndexName, ...] = get_args(IndexName)
# From this number of rows on, "auto" is approximate.
AUTO_EXACT_BELOW = 100_000


def make_index(
    name: IndexName = "auto",
    metric: Metric = "euclidean",
    n_rows: int | None = None,
    *,
    device: torch.device | None = None,
) -> BaseIndex:
    """Make an index by name.

    Parameters
    ----------
    name : {"auto", "exact", "faiss-flat-l2", "faiss-flat-ip", "hnsw", "ivf-flat"}, default="auto"
        "auto" is "exact" below 100,000 rows and for "manhattan", else "ivf-flat", an approximate
        index (see `CellIndex`). All but "exact" hold a second, float32 copy of the
        rows on the CPU; "faiss-..." and "hnsw" need the extra "faiss".
    metric : {"euclidean", "sqeuclidean", "cosine", "inner_product", "manhattan"}
        "euclidean" by default. "exact" supports all, "hnsw" and "ivf-flat" all but "manhattan",
        "faiss-flat-l2" the first two, "faiss-flat-ip" the next two.
    n_rows : int, optional
        Expected number of rows; "auto" needs it.
    device : torch.device, optional
        Device of "exact", see `ExactIndex`; if it is given, "auto" is "exact" at every
        size. The others search on the CPU.

    Returns
    -------
    index : NeighborIndex
        Empty; call `fit`.

    Raises
    ------
    ValueError
        If a name is unknown, the index does not support the metric, or "auto" lacks `n_rows`.
    ImportError
        If faiss is needed and not installed.
    """
    if name not in INDEX_NAMES:
        raise ValueError(f"index={name!r} is not known. Use one of {', '.join(INDEX_NAMES)}.")
    if name == "auto":
        if n_rows is None:
            raise ValueError('index="auto" needs n_rows to choose by. Pass the number of rows.')
        few = n_rows < AUTO_EXACT_BELOW
        name = "exact" if few or device is not None or metric == "manhattan" else "ivf-flat"
    if name == "exact":
        return ExactIndex(metric, device=device)
    if name == "ivf-flat":
        return CellIndex(metric)
    from nearwise.memory import faiss_index

    return faiss_index.FAISS_INDEXES[name](metric)
