"""Every setting of the published layers gives what its description says, gradients too."""

from itertools import product

import pytest
import torch
from nearwise_lab.nn import load_reference_layer
from nearwise_lab.nn.reference import reference_state

from lab.tests.nn.test_reference import FIXTURES, load, part
from lab.tests.reference import published_layers as published

DIM, N_TOKENS = 24, 17
# Rotary angles have single precision.
CLOSE, CLOSE_GRADS = {"atol": 1e-5, "rtol": 1e-5}, {"atol": 1e-4, "rtol": 1e-4}
CONVNN = {"d_hidden": DIM, "num_heads": 3, "attention_dropout": 0.1, "K": 3, "seq_length": N_TOKENS}
PADDING, N_SAMPLES = 2, 8
SAMPLING = {
    "all": {"sampling_type": "all", "num_samples": -1, "sample_padding": 0},
    "random": {"sampling_type": "random", "num_samples": N_SAMPLES, "sample_padding": PADDING},
    "spatial": {"sampling_type": "spatial", "num_samples": N_SAMPLES, "sample_padding": PADDING},
}


def drawn(arguments, n_tokens=N_TOKENS):
    """Candidates of a setting; the random ones from one seed."""
    kind, n_samples = arguments.get("sampling_type"), arguments.get("num_samples")
    if kind == "random":
        torch.manual_seed(4)
        return torch.randperm(n_tokens)[:n_samples]
    if kind == "spatial":
        padding = arguments["sample_padding"]
        return torch.linspace(padding, n_tokens - padding - 1, n_samples).long()
    return None


def check(name, arguments, n_tokens=N_TOKENS, **defaults):
    """Compare output and all gradients, with candidates given and drawn.

    `defaults` are told to the description alone.
    """
    short, arguments = arguments, {**arguments, **defaults}
    weights = published.random_weights(name, arguments)
    generator = torch.Generator().manual_seed(2)
    x, cotangent = torch.randn(2, 2, n_tokens, DIM, generator=generator, dtype=torch.float64)
    candidates = drawn(arguments, n_tokens)

    leaves = {key: weight.clone().requires_grad_() for key, weight in weights.items()}
    tokens = x.clone().requires_grad_()
    expected = published.LAYERS[name](leaves, tokens, arguments, candidates)
    (expected * cotangent).sum().backward()
    grads = {key: torch.zeros_like(y) if y.grad is None else y.grad for key, y in leaves.items()}

    layer = load_reference_layer(name, short, weights, legacy_layout=True)
    given = x.clone().requires_grad_()
    output = layer(given) if candidates is None else layer(given, candidates=candidates)
    (output * cotangent).sum().backward()
    torch.testing.assert_close(output, expected, **CLOSE)
    torch.testing.assert_close(given.grad, tokens.grad, **CLOSE_GRADS)
    parameters = dict(layer.named_parameters())
    renamed = reference_state(name, grads)
    assert {key for key in renamed if key in parameters} == set(parameters)
    for key, parameter in parameters.items():
        mine = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        torch.testing.assert_close(mine, renamed[key], **CLOSE_GRADS)
    if candidates is not None:
        torch.manual_seed(4)
        torch.testing.assert_close(layer(x), expected, **CLOSE)


@pytest.mark.parametrize(
    "path", [p for p in FIXTURES if "natten" not in p.stem], ids=lambda path: path.stem
)
def test_the_description_gives_what_was_recorded(path):
    meta, recorded = load(path)
    candidates = recorded.get("rand_idx", recorded.get("spat_idx"))
    arguments = {**meta["kwargs"]}
    layer, weights = published.LAYERS[meta["layer"]], part(recorded, "sd.")
    output = layer(weights, recorded["input"], arguments, candidates)
    torch.testing.assert_close(output, recorded["output"], atol=1e-5, rtol=1e-5)
    shapes = {key: tuple(x.shape) for key, x in weights.items() if "inv_freq" not in key}
    assert published.weight_shapes(meta["layer"], arguments) == shapes


MEASURES = ("matmul", "cosine", "euclidean")


@pytest.mark.parametrize("softmax", [True, False], ids=["softmax", "raw"])
@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize(
    ("num_heads", "measure"),
    [
        *((3, measure) for measure in MEASURES),
        (1, "matmul"),
        *(pytest.param(1, measure, marks=pytest.mark.slow) for measure in MEASURES[1:]),
    ],
)
def test_convnn(num_heads, measure, sampling, softmax):
    arguments = {
        **CONVNN,
        **SAMPLING[sampling],
        "num_heads": num_heads,
        "magnitude_type": measure,
        "softmax_topk_val": softmax,
    }
    for kind, coordinates in product(("standard", "depthwise-separable"), (False, True)):
        more = {"convolution_type": kind, "coordinate_encoding": coordinates}
        check("MultiHeadConvNNAttention", {**arguments, **more})
    check("MultiHeadConvNNAttention", {**arguments, "convolution_type": "depthwise"})


@pytest.mark.parametrize(
    ("sampling", "k", "n_samples", "padding"),
    [
        ("all", 1, -1, 0),
        ("all", 17, -1, 0),
        ("random", 1, 4, 0),  # the token itself alone
        ("random", 18, 17, 0),
        ("random", 9, 40, 0),  # more than there are: all, in random order
        ("random", 9, -1, 0),  # one token is left out
        ("spatial", 9, 8, 0),
        ("spatial", 18, 17, 0),
        ("spatial", 5, 25, 0),  # some twice
        ("spatial", 3, 5, 6),
        ("spatial", 3, 4, 10),  # backwards
    ],
)
def test_convnn_at_its_edges(sampling, k, n_samples, padding):
    chosen = {"sampling_type": sampling, "num_samples": n_samples, "sample_padding": padding}
    arguments = {**CONVNN, **chosen, "K": k, "magnitude_type": "matmul"}
    for kind, softmax in product(("standard", "depthwise"), (True, False)):
        more = {"convolution_type": kind, "softmax_topk_val": softmax}
        check("MultiHeadConvNNAttention", {**arguments, **more})


def test_defaults_are_those_of_the_constructors():
    short = {**CONVNN, **SAMPLING["spatial"], "magnitude_type": "cosine", "num_heads": 2}
    kind = {"coordinate_encoding": False, "convolution_type": "depthwise"}
    check("MultiHeadConvNNAttention", short, **kind, softmax_topk_val=True)
    check("MultiHeadBranchingAttention", short, **kind, branch_ratio=0.5)
    check("MultiHeadBranchingConv", {**short, "kernel_size": 5}, **kind, branch_ratio=0.5)
    heads = {"d_hidden": DIM, "num_heads": 3, "attention_dropout": 0.0}
    check("MultiHeadSparseAttention", heads, attn_mode="all", local_attn_ctx=None)
    check("MultiHeadKvtAttention", {"dim": DIM}, n_tokens=120, num_heads=8, topk=100)
    wide = {"window_size": 128, "dim_head": 64, "heads": 8}
    check("MultiHeadLocalAttention", {"dim": DIM}, n_tokens=197, **wide)


@pytest.mark.parametrize("num_heads", [1, 3])
@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize("ratio", [0, 0.25, 0.5, 0.75, 1])
def test_branches(ratio, sampling, num_heads):
    arguments = {
        **CONVNN,
        **SAMPLING[sampling],
        "num_heads": num_heads,
        "magnitude_type": "euclidean",
        "branch_ratio": ratio,
    }
    for kind, coordinates in (("depthwise", False), ("standard", True)):
        more = {"convolution_type": kind, "coordinate_encoding": coordinates}
        for kernel_size in (1, 4, 9):
            more["kernel_size"] = kernel_size
            check("MultiHeadBranchingConv", {**arguments, **more})
        if ratio not in (0, 1):
            del more["kernel_size"]
            check("MultiHeadBranchingAttention", {**arguments, **more})


@pytest.mark.parametrize("kernel_size", [1, 2, 3, 8, 18])
@pytest.mark.parametrize("num_heads", [1, 3, 24])
def test_convolutions_along_the_tokens(num_heads, kernel_size):
    heads = {"d_hidden": DIM, "num_heads": num_heads, "kernel_size": kernel_size}
    check("MultiHeadConv1dAttention", heads)
    check("MultiHeadConv1dAttention", heads, n_tokens=5)


@pytest.mark.parametrize("num_heads", [1, 3, 8])
def test_full_and_kvt_attention(num_heads):
    heads = {"d_hidden": DIM, "num_heads": num_heads, "attention_dropout": 0.1}
    check("MultiHeadAttention", heads)
    kvt = {"dim": DIM, "num_heads": num_heads, "attn_drop": 0.1, "proj_drop": 0.2}
    for topk, bias, scale in product((1, 9, 17), (False, True), (None, 0.3)):
        more = {"topk": topk, "qkv_bias": bias, "qk_scale": scale}
        check("MultiHeadKvtAttention", {**kvt, **more})


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("exact", [None, True, False])
@pytest.mark.parametrize("window", [2, 4, 17, 32])
def test_local_attention(window, exact, causal):
    plain = {"dim": DIM, "window_size": window, "dim_head": 6, "heads": 3}
    plain |= {"causal": causal, "exact_windowsize": exact}
    for more in (
        {},
        {"prenorm": True, "gate_values_per_head": True},
        {"qk_rmsnorm": True},
        {"qk_rmsnorm": True, "qk_scale": 3, "use_xpos": True, "xpos_scale_base": 5},
        {"use_xpos": True, "dropout": 0.3},
    ):
        check("MultiHeadLocalAttention", {**plain, **more})
    check("MultiHeadLocalAttention", plain, n_tokens=16)


@pytest.mark.parametrize("mode", ["all", "local", "strided"])
@pytest.mark.parametrize("context", [1, 2, 5, 16, 128])
def test_sparse_attention(context, mode):
    heads = {"d_hidden": DIM, "num_heads": 3, "attention_dropout": 0.0}
    check("MultiHeadSparseAttention", {**heads, "attn_mode": mode, "local_attn_ctx": context})
