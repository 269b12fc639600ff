"""One contract of masks for every layer, held against torch's own attention.

Every layer stands here with at least as many neighbors as there are tokens, so that it is dense
attention, with its masks, whatever they forbid: the reference is `scaled_dot_product_attention`
under one boolean or floating mask put together here, with zeros for a token that may attend to
nothing.
"""

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from nearwise.functional import attention_implementation, knn_attention
from nearwise.memory import TokenMemory
from nearwise.nn import KNNAttention, MemoryAttention, Sampling
from tests.nn.tokens.cases import SelfAttention

DIM, HEADS = 12, 3
MANY = 50  # neighbors: more than there are tokens


def made(layer, dtype, **options):
    torch.manual_seed(1)
    return layer(DIM, HEADS, qkv_bias=True, dtype=dtype, **options)


LAYERS = {
    "KNNAttention": lambda n, dtype: made(KNNAttention, dtype, n_neighbors=MANY),
    "KNNAttention, sampled": lambda n, dtype: made(
        KNNAttention, dtype, n_neighbors=MANY, sampling=Sampling("line", n or -1)
    ),
    "MemoryAttention": lambda n, dtype: made(MemoryAttention, dtype, n_neighbors=MANY),
    "KNNMultiheadAttention": lambda n, dtype: SelfAttention(DIM, HEADS, MANY, dtype=dtype),
    "knn_attention": lambda n, dtype: None,
}


def masks(batch, n, dtype):
    """Masks by their kind and the layers' arguments; True in `attn_mask` where one may attend."""
    generator = torch.Generator().manual_seed(5)
    some = torch.rand(n, n, generator=generator) < 0.6
    each = torch.rand(batch, HEADS, n, n, generator=generator) < 0.6
    padding = torch.rand(batch, n, generator=generator) < 0.3
    bias = torch.randn(n, n, generator=generator, dtype=torch.float64).to(dtype)
    forbidden = torch.zeros(n, n, dtype=dtype).masked_fill(~some, -torch.inf)
    # As some write "masked": where all keys have it, they are alike.
    lowest = torch.zeros(n, n, dtype=dtype).masked_fill(~some, torch.finfo(dtype).min)
    lowest[: n // 3] = torch.finfo(dtype).min
    some[: n // 2], each[:, 1, : n // 2] = False, False  # rows that may attend to nothing
    padding[:1] = True  # and a whole item
    return {
        "none": {},
        "causal": {"is_causal": True},
        "boolean": {"attn_mask": some},
        "boolean per head": {"attn_mask": each},
        "floating": {"attn_mask": bias},
        "floating, forbidding": {"attn_mask": forbidden + bias},
        "floating, lowest": {"attn_mask": lowest},
        "padding": {"key_padding_mask": padding},
        "padding, causal": {"key_padding_mask": padding, "is_causal": True},
        "padding, boolean": {"key_padding_mask": padding, "attn_mask": some},
        "all": {"key_padding_mask": padding, "attn_mask": forbidden, "is_causal": True},
    }


KINDS = list(masks(2, 9, torch.float32))


def torchs(query, key, value, attn_mask=None, key_padding_mask=None, is_causal=False):
    """Attend as torch does under one mask; a token that may attend to nothing gets zeros."""
    batch, heads, n, _ = query.shape
    allowed = torch.ones(batch, heads, n, n, dtype=torch.bool)
    added = torch.zeros(batch, heads, n, n, dtype=query.dtype)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        allowed = allowed & attn_mask
    elif attn_mask is not None:
        added = added + attn_mask
        allowed = allowed & ~torch.isneginf(added)
    if key_padding_mask is not None:
        allowed = allowed & ~key_padding_mask[:, None, None]
    if is_causal:
        allowed = allowed & torch.ones(n, n, dtype=torch.bool).tril()
    is_empty = ~allowed.any(-1, keepdim=True)
    added = added.masked_fill(~allowed & ~is_empty, -torch.inf).masked_fill(is_empty, 0.0)
    attended = F.scaled_dot_product_attention(query, key, value, attn_mask=added)
    return attended.masked_fill(is_empty, 0.0)


def call_of(layer, x, given):
    """Let a layer attend under masks."""
    if layer is None:
        heads = x.unflatten(-1, (HEADS, -1)).transpose(1, 2)
        return knn_attention(heads, heads, heads, MANY, **given)
    if isinstance(layer, MemoryAttention):
        return layer(x, memory=TokenMemory(HEADS), remember=False, **given)
    return layer(x, **given)


def expected_of(layer, x, given):
    """What torch gives for the same weights."""
    if layer is None:
        return torchs(*(x.unflatten(-1, (HEADS, -1)).transpose(1, 2),) * 3, **given)
    if isinstance(layer, SelfAttention):
        torchs_layer = layer.layer
        weight, bias = torchs_layer.in_proj_weight, torchs_layer.in_proj_bias
        out = torchs_layer.out_proj
    else:
        weight, bias, out = layer.qkv.weight, layer.qkv.bias, layer.proj
    heads = [
        part.unflatten(-1, (HEADS, -1)).transpose(1, 2)
        for part in F.linear(x, weight, bias).chunk(3, dim=-1)
    ]
    return out(torchs(*heads, **given).transpose(1, 2).flatten(2))


@pytest.fixture(params=LAYERS)
def make(request):
    """What makes a layer for a number of tokens and a dtype."""
    return LAYERS[request.param]


@pytest.fixture
def _exact():
    # torch's fused attention loses gradients where all scores of a row are the lowest number.
    with sdpa_kernel(SDPBackend.MATH):
        yield


@pytest.mark.usefixtures("_exact")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(2, 9), (1, 1), (0, 9), (2, 0)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_masks_mean_what_they_mean_in_torch(make, kind, shape, dtype):
    batch, n = shape
    layer, given = make(n, dtype), masks(batch, n, dtype)[kind]
    torch.manual_seed(2)
    x = torch.randn(batch, n, DIM, dtype=dtype, requires_grad=True)
    expected = with_gradient(expected_of(layer, x, given), x)
    close = {torch.float64: 1e-10, torch.float32: 2e-5, torch.bfloat16: 0.1}[dtype]
    for implementation in ("auto", "plain"):
        with attention_implementation(implementation):
            found = with_gradient(call_of(layer, x, given), x)
        torch.testing.assert_close(found, expected, atol=close, rtol=close)


def with_gradient(output, x):
    return output, *torch.autograd.grad(output.square().sum(), x)
