"""The k-NN attention of KVT."""

import math
from typing import Unpack

from nearwise.nn.tokens.base import BlockOptions
from nearwise.nn.tokens.knn import KNNAttention


class KvtAttention(KNNAttention):
    """The k-NN attention of KVT: the k largest dot products of a token, any other left out.

    Parameters
    ----------
    dim, num_heads, **block
        Width of a token, heads (8 by default), and what every layer takes: see `BlockOptions`.
    n_neighbors : int, default=100
    qk_scale : float, optional
        Factor of the dot products; default ``head_dim ** -0.5``.

    References
    ----------
    Wang et al., "KVT: k-NN Attention for Boosting Vision Transformers", ECCV 2022.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        *,
        n_neighbors: int = 100,
        qk_scale: float | None = None,
        **block: Unpack[BlockOptions],
    ) -> None:
        super().__init__(dim, num_heads, n_neighbors=n_neighbors, **block)
        if qk_scale is not None:
            if not 0 < qk_scale < math.inf:
                raise ValueError(f"qk_scale={qk_scale} must be positive and finite.")
            self.scale = qk_scale
