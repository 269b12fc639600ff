"""`knn_attention` under torch.compile, torch.export and the checks of torch.library."""

import shutil

import pytest
import torch
from torch import nn

from nearwise.functional import attention_implementation, knn_attention
from nearwise.functional.tokens import fused
from nearwise.functional.tokens.problem import make_problem
from tests.functional.tokens.cases import IMPLEMENTATIONS, METRICS, lattice_tokens, random_tokens
from tests.reference.onnx_export import onnx_outputs

BACKENDS = ["aot_eager"]
if shutil.which("g++"):
    BACKENDS.append(pytest.param("inductor", marks=pytest.mark.slow))  # it calls a C++ compiler


class Attention(nn.Module):
    """The function as a module, as exporters want it."""

    def __init__(self, **options):
        super().__init__()
        self.options = options

    def forward(self, query, key, value):
        return knn_attention(query, key, value, 3, **self.options)


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch.compiler.reset()


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(
    ("metric", "options"),
    [
        ("matmul", {"is_causal": True}),
        pytest.param("matmul", {}, marks=pytest.mark.slow),
        pytest.param("cosine", {"include_self": "always"}, marks=pytest.mark.slow),
        ("euclidean", {"include_self": "never"}),
    ],
)
def test_it_compiles_into_one_graph(implementation, metric, options):
    tokens = random_tokens((2, 2, 12, 8), dtype=torch.float32)
    compiled = torch.compile(
        lambda *x: knn_attention(*x, 3, metric=metric, **options),
        fullgraph=True,
        backend="aot_eager",
    )
    grads = []
    for call in (compiled, lambda *x: knn_attention(*x, 3, metric=metric, **options)):
        with attention_implementation(implementation):
            inputs = [x.clone().requires_grad_() for x in tokens]
            output = call(*inputs)
            output.square().sum().backward()
            grads.append([output.detach(), *(x.grad for x in inputs)])
    for ours, eager in zip(*grads, strict=True):
        torch.testing.assert_close(ours, eager, atol=1e-5, rtol=1e-5)


def collecting(graphs):
    """A compiler that runs graphs as they are, and keeps them."""

    def backend(graph, _):
        graphs.append(graph)
        return graph

    return backend


def calls(graph, operator):
    return operator.default in [node.target for node in graph.graph.nodes]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_mask_and_candidates_compile_too(backend):
    tokens = random_tokens((2, 2, 12, 8), dtype=torch.float32)
    mask, candidates = torch.rand(12, 12) < 0.9, torch.tensor([1, 2, 3, 5, 8])
    mask[:, 3] = True

    def call(query, key, value):
        return knn_attention(query, key, value, 3, attn_mask=mask, candidates=candidates)

    compiled = torch.compile(call, fullgraph=True, backend=backend)
    torch.testing.assert_close(compiled(*tokens), call(*tokens))


def test_forcing_another_implementation_compiles_anew():
    tokens, graphs = random_tokens((1, 1, 12, 8), dtype=torch.float32), []
    compiled = torch.compile(Attention(), fullgraph=True, backend=collecting(graphs))
    for implementation in ("cpu", "plain", "cpu"):
        with attention_implementation(implementation):
            compiled(*tokens)
    ops = torch.ops.nearwise
    assert [calls(graph, ops.knn_attention) for graph in graphs] == [True, False]
    assert [calls(graph, ops.nearest_keys) for graph in graphs] == [False, True]


@pytest.mark.parametrize("metric", METRICS)
def test_an_exported_program_gives_the_same(metric):
    tokens = random_tokens((2, 2, 12, 8), dtype=torch.float32)
    module = Attention(metric=metric)
    exported = torch.export.export(module, tuple(tokens)).module()
    torch.testing.assert_close(exported(*tokens), module(*tokens), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "metric", [pytest.param(m, marks=() if m == "cosine" else pytest.mark.slow) for m in METRICS]
)
def test_an_onnx_model_gives_the_same(metric, tmp_path):
    tokens = lattice_tokens((2, 2, 12, 4), dtype=torch.float32)
    module = Attention(metric=metric, include_self="always").eval()
    (output,) = onnx_outputs(module, tuple(tokens), tmp_path / "attention.onnx")
    torch.testing.assert_close(output, module(*tokens))


@pytest.mark.parametrize(
    ("metric", "with_more"),
    [
        ("matmul", False),
        ("euclidean", True),
        pytest.param("matmul", True, marks=pytest.mark.slow),
        pytest.param("euclidean", False, marks=pytest.mark.slow),
    ],
)
def test_the_operators_keep_the_promises_of_torch_library(metric, with_more):
    query, key, value = (x.requires_grad_() for x in random_tokens((1, 2, 6, 4)))
    more = {}
    if with_more:
        more = {"attn_mask": torch.zeros(6, 6), "candidates": torch.arange(5), "dropout_p": 0.2}
    t = make_problem(
        query.detach().requires_grad_(),
        key.detach().requires_grad_(),
        value.detach().requires_grad_(),
        3,
        metric=metric,
        scale=None,
        key_padding_mask=None,
        is_causal=False,
        include_self="candidate",
        generator=None,
        **{"attn_mask": None, "candidates": None, "dropout_p": 0.0, **more},
    )
    inputs = (t.query, t.key, t.value, 3, t.euclidean, t.scale, t.bias, t.padding)
    inputs += (t.is_causal, t.include_self, t.candidates, t.keep)
    torch.library.opcheck(fused._forward, inputs)
    output, indices, weights = fused._forward(*inputs)
    backward = (t.query, t.key, t.value, t.euclidean, t.scale, t.keep, indices, weights)
    detached = [x.detach() if isinstance(x, torch.Tensor) else x for x in backward]
    torch.library.opcheck(
        fused._backward, (*detached, torch.ones_like(output), torch.ones_like(weights))
    )
