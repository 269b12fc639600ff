"""k-NN attention for the models of Hugging Face transformers."""

from typing import Any

from torch import Tensor, nn

from nearwise.functional.tokens import knn_attention
from nearwise.functional.tokens.problem import TokenMetric, check_n_neighbors


def transformers_attention(n_neighbors: int = 9, *, metric: TokenMetric = "matmul") -> str:
    """Register k-NN attention with transformers and return the name to ask for it.

    Parameters
    ----------
    n_neighbors : int, default=9
        Keys a query attends to, in each head; all where there are fewer.
    metric : {"matmul", "cosine", "l2"}, default="matmul"

    Returns
    -------
    name : str
        For ``attn_implementation=`` of any model that uses transformers' attention interface.

    Raises
    ------
    ImportError
        Without transformers.
    ValueError
        If `n_neighbors` is not positive.

    Examples
    --------
    >>> import torch
    >>> from transformers import ViTConfig, ViTModel
    >>> config = ViTConfig(image_size=32, patch_size=8, hidden_size=24, num_hidden_layers=1,
    ...                    num_attention_heads=3, intermediate_size=48)
    >>> model = ViTModel._from_config(config, attn_implementation=transformers_attention(5))
    >>> model(torch.randn(1, 3, 32, 32)).last_hidden_state.shape
    torch.Size([1, 17, 24])
    """
    check_n_neighbors(n_neighbors)
    try:
        from transformers import AttentionInterface
        from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
    except ImportError as error:
        raise ImportError(
            'Models of transformers need the extra "vision": pip install nearwise[vision]'
        ) from error

    def forward(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        dropout: float = 0.0,
        is_causal: bool | None = None,
        **_: Any,
    ) -> tuple[Tensor, None]:
        """Attend (B, H, N, D) as transformers wants it: (B, N, H, D) and no weights."""
        groups = query.shape[1] // key.shape[1]
        if groups > 1:  # several query heads share a key head
            key, value = (x.repeat_interleave(groups, dim=1) for x in (key, value))
        if attention_mask is not None:
            attention_mask = attention_mask[..., : key.shape[2]]
        causal = getattr(module, "is_causal", False) if is_causal is None else is_causal
        causal = causal and attention_mask is None and query.shape[2] == key.shape[2]
        output = knn_attention(
            query,
            key,
            value,
            min(n_neighbors, key.shape[2]),
            metric=metric,
            scale=scaling if metric == "matmul" else None,
            attn_mask=attention_mask,
            is_causal=causal,
            dropout_p=dropout,
        )
        return output.transpose(1, 2).contiguous(), None

    name = f"nearwise_knn_{metric}_{n_neighbors}"
    AttentionInterface.register(name, forward)
    # The masks of scaled dot-product attention: boolean, True where a query may attend.
    AttentionMaskInterface.register(name, sdpa_mask)
    return name
