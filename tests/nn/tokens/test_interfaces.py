"""The layers behind the interfaces of others: timm's blocks, torch's attention, export."""

import copy

import pytest
import torch
from torch import nn

from nearwise.functional import attention_implementation
from nearwise.nn import KNNAttention, KNNMultiheadAttention
from tests.nn.tokens.cases import DIM, HEADS, N_TOKENS, tokens

CLOSE = {"atol": 2e-5, "rtol": 2e-5}


def multihead(**options):
    torch.manual_seed(0)
    return KNNMultiheadAttention(DIM, HEADS, 5, batch_first=True, **options)


def test_a_block_of_timm_makes_every_layer(layer_case):
    of_timm = ("qkv_bias", "qk_norm")
    options = {name: x for name, x in layer_case.options.items() if name not in of_timm}
    layer = layer_case.layer(
        DIM,
        num_heads=HEADS,
        qkv_bias=True,
        qk_norm=True,
        proj_bias=True,
        attn_drop=0.0,
        proj_drop=0.0,
        norm_layer=nn.LayerNorm,
        attn_head_dim=None,
        dim_out=None,
        scale_norm=False,
        gated=False,
        device="cpu",
        dtype=torch.float32,
        **options,
    )
    assert layer(tokens()).shape == (2, N_TOKENS, DIM)


def test_weights_have_the_names_of_timms_attention():
    layer = KNNAttention(DIM, HEADS, n_neighbors=N_TOKENS, qkv_bias=True, qk_norm=True)
    shapes = {name: tuple(x.shape) for name, x in layer.state_dict().items()}
    width = DIM // HEADS
    assert shapes == {
        "qkv.weight": (3 * DIM, DIM),
        "qkv.bias": (3 * DIM,),
        "q_norm.weight": (width,),
        "q_norm.bias": (width,),
        "k_norm.weight": (width,),
        "k_norm.bias": (width,),
        "proj.weight": (DIM, DIM),
        "proj.bias": (DIM,),
    }


@pytest.mark.parametrize("implementation", ["plain", "cpu"])
def test_gradients_of_torchs_interface_equal_finite_differences(implementation):
    layer = multihead().double()
    query, key = tokens(1, 6, dtype=torch.float64), tokens(1, 9, seed=1, dtype=torch.float64)
    inputs = (query.requires_grad_(), key.requires_grad_())
    with attention_implementation(implementation):
        assert torch.autograd.gradcheck(lambda q, k: layer(q, k, k)[0], inputs, fast_mode=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_torchs_interface_takes_any_dtype(dtype):
    layer, x = multihead().eval(), tokens()
    expected, weights = layer(x, x, x)
    layer = layer.to(dtype)
    output, lower = layer(x.to(dtype), x.to(dtype), x.to(dtype))
    assert output.dtype == lower.dtype == dtype
    torch.testing.assert_close(
        lower.sum(-1).double(), torch.ones(2, N_TOKENS).double(), atol=2e-2, rtol=0
    )
    if dtype == torch.float64:
        torch.testing.assert_close(output.float(), expected, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(lower.float(), weights, atol=1e-4, rtol=1e-4)


def test_torchs_interface_compiles_into_one_graph_and_exports():
    torch.compiler.reset()
    layer, x = multihead().eval(), tokens()
    expected = layer(x, x, x, need_weights=False)[0]
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, x, x, need_weights=False)[0], expected, **CLOSE)
    exported = torch.export.export(layer, (x, x, x), {"need_weights": False}).module()
    torch.testing.assert_close(exported(x, x, x, need_weights=False)[0], expected, **CLOSE)


def test_torchs_interface_is_deterministic_in_evaluation_and_copies():
    layer, x = multihead(dropout=0.5), tokens()
    assert not torch.equal(layer(x, x, x)[0], layer(x, x, x)[0])
    layer.eval()
    assert torch.equal(layer(x, x, x)[0], layer(x, x, x)[0])
    assert torch.equal(copy.deepcopy(layer)(x, x, x)[0], layer(x, x, x)[0])


def test_what_does_not_fit_is_refused_when_the_layer_runs():
    x = tokens()
    for call, message in (
        (lambda: KNNAttention(DIM, HEADS, n_neighbors=0), "n_neighbors=0 must be an integer"),
        (lambda: KNNAttention(DIM, HEADS, n_neighbors=2.5), "n_neighbors=2.5 must be an integer"),
        (lambda: KNNAttention(DIM, HEADS, metric="dot"), "metric='dot' is not one of matmul"),
        (lambda: KNNAttention(DIM, HEADS, include_self="x"), "include_self='x' is not one of"),
        (lambda: KNNAttention(DIM, HEADS, sampling="random"), "sampling='random' must be a Sampl"),
        (lambda: KNNAttention(DIM, HEADS).neighbors(x[0]), r"must be of shape \(batch, N, 24\)"),
        (lambda: KNNAttention(DIM, HEADS, head_dim=0), "head_dim=0 must be an integer of at"),
        (lambda: KNNAttention(DIM, HEADS, head_dim=-2), "head_dim=-2 must be an integer of at"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
