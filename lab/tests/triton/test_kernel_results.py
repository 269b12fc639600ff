"""The Triton kernels equal the slow reference, and their gradients those of the plain operations.

On a GPU: ``pytest lab/tests/triton --device cuda``. Without one, under Triton's interpreter:
``TRITON_INTERPRET=1 pytest lab/tests/triton``; `test_kernels.py` does so in another process.
"""

import os

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if not (INTERPRETED or torch.cuda.is_available()):
    pytest.skip("needs a CUDA device or TRITON_INTERPRET=1", allow_module_level=True)

from nearwise_lab.triton import launch  # noqa: E402

from nearwise.functional import attention_implementation, knn_attention  # noqa: E402
from nearwise.functional.tokens import attend, fused  # noqa: E402
from nearwise.functional.tokens.self_test import ShapeClass, differences, small_problem  # noqa: E402
from nearwise.nn import KNNAttention  # noqa: E402
from tests.functional.tokens.cases import (  # noqa: E402
    METRICS,
    TOLERANCE,
    expected,
    lattice_tokens,
)
from tests.functional.tokens.cases import random_tokens as draw_tokens  # noqa: E402

# Nothing here may run in plain operations unnoticed.
pytestmark = pytest.mark.filterwarnings("error:k-NN attention runs in plain:RuntimeWarning")
DEVICE = "cpu"
DTYPES = (torch.float16, torch.bfloat16, torch.float32)


@pytest.fixture(autouse=True)
def _on_the_device(device, monkeypatch):
    if device == "cpu" and not INTERPRETED:
        pytest.skip("on a CPU the kernels need TRITON_INTERPRET=1; see --device")
    monkeypatch.setitem(globals(), "DEVICE", device)


each_metric = pytest.mark.parametrize("metric", METRICS)
# For the kernels "cosine" is a product too, of vectors at unit length.
each_score = pytest.mark.parametrize("metric", ["matmul", "euclidean"])
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def random_tokens(*args, dtype=torch.float32, **options):
    return draw_tokens(*args, dtype=dtype, **options)


def moved(options):
    return {k: v.to(DEVICE) if isinstance(v, torch.Tensor) else v for k, v in options.items()}


def assert_as_expected(query, key, value, n_neighbors, **options):
    """Compare the kernels with the slow reference: who, with which weights, what."""
    with attention_implementation("triton"):
        tokens = (x.to(DEVICE) for x in (query, key, value))
        found = [x.cpu() for x in attend(*tokens, n_neighbors, **moved(options))]
    output, indices, weights = expected(query, key, value, n_neighbors, **options)
    assert (found[1] == indices).all()
    close = {"atol": TOLERANCE[query.dtype], "rtol": TOLERANCE[query.dtype]}
    torch.testing.assert_close(found[2].double(), weights, **close)
    torch.testing.assert_close(found[0].double(), output, **close)
    assert found[0].dtype == found[2].dtype == query.dtype


def gradients(implementation, tokens, n_neighbors, **options):
    """Gradients of a function of outputs and weights, in the dtype of the tokens."""
    inputs = [x.detach().to(DEVICE).requires_grad_() for x in tokens]
    with attention_implementation(implementation):
        found = attend(*inputs, n_neighbors, **moved(options))
    loss = found.output.float().square().sum() + found.weights.float().square().sum()
    loss.backward()
    return [x.grad.float().cpu() for x in inputs]


def assert_same_gradients(tokens, n_neighbors, close=1e-4, **options):
    plain, ours = (gradients(name, tokens, n_neighbors, **options) for name in ("plain", "triton"))
    for one, other in zip(ours, plain, strict=True):
        assert one.isfinite().all()
        torch.testing.assert_close(one, other, atol=close, rtol=close)


@each_metric
@each_dtype
@pytest.mark.parametrize("make", [random_tokens, lattice_tokens])
def test_they_equal_the_slow_reference(metric, dtype, make):
    assert_as_expected(*make((1, 2, 13, 4), dtype=dtype), 4, metric=metric)


@pytest.mark.parametrize("n_neighbors", [1, 17, pytest.param(35, marks=pytest.mark.slow)])
@pytest.mark.parametrize("make", [random_tokens, lattice_tokens])
def test_any_number_of_neighbors_over_several_tiles(n_neighbors, make):
    assert_as_expected(*make((1, 1, 35, 4), dtype=torch.float32), n_neighbors)


def test_rows_of_equal_scores_are_taken_in_the_order_of_their_index_across_tiles():
    tokens = torch.tensor([1.0, -1.0, 1.0, 1.0]).expand(1, 1, 70, 4).to(DEVICE)
    with attention_implementation("triton"):
        found = attend(tokens, tokens, tokens, 7)
    assert (found.indices.cpu() == torch.arange(7)).all()


@pytest.mark.parametrize(("width", "value_width"), [(1, 3), (24, 5), (128, 100)])
@each_score
def test_any_head_dimension_forward_and_backward(width, value_width, metric):
    tokens = random_tokens((1, 1, 5, width), n_keys=7, value_width=value_width)
    assert_as_expected(*tokens, 3, metric=metric, scale=1 / width**0.5)
    assert_same_gradients(tokens, 3, metric=metric, scale=1 / width**0.5)


@pytest.mark.parametrize(
    ("include_self", "is_causal"),
    [("candidate", True), ("never", True), ("never", False)],
)
@each_score
def test_a_token_itself_is_a_candidate_or_never(include_self, is_causal, metric):
    options = {"include_self": include_self, "is_causal": is_causal, "metric": metric}
    assert_as_expected(*random_tokens((1, 1, 40, 4)), 4, **options)
    assert_as_expected(*lattice_tokens((1, 2, 11, 4), dtype=torch.float32), 4, **options)
    assert_same_gradients(random_tokens((1, 1, 7, 4)), 4, **options)


def padding():
    padded = torch.zeros(2, 9, dtype=torch.bool)
    padded[0, 2:5] = padded[1, -1] = True
    return padded


@pytest.mark.parametrize(
    "masks",
    [
        {"key_padding_mask": padding()},
        {"key_padding_mask": padding()[0]},
        {"key_padding_mask": torch.arange(9) < 3, "is_causal": True},
        {"key_padding_mask": padding(), "include_self": "never", "is_causal": True},
    ],
    ids=["of each", "of all", "left, causal", "not itself, causal"],
)
@each_score
def test_padding(masks, metric):
    assert_as_expected(*random_tokens((2, 3, 9, 4)), 2, metric=metric, **masks)


@each_dtype
def test_they_pass_the_check_of_first_use(dtype):
    shape = ShapeClass(dtype=dtype, value_dtype=dtype, euclidean=True, is_causal=True)
    problem = small_problem(shape._replace(has_padding=True), DEVICE)
    assert differences(problem, launch.attend, launch.backward) == ""


def test_slots_that_a_mask_leaves_empty_are_marked():
    tokens = [x.to(DEVICE) for x in random_tokens((1, 1, 6, 4))]
    with attention_implementation("triton"):
        found = attend(*tokens, 4, is_causal=True)
    assert (found.indices[0, 0, 1] >= 0).tolist() == [True, True, False, False]
    torch.testing.assert_close(found.weights.sum(-1).cpu(), torch.ones(1, 1, 6))


def test_queries_without_any_key_get_zeros_and_gradients_of_zero():
    masks = {"key_padding_mask": torch.arange(6) < 2, "is_causal": True}
    tokens = random_tokens((1, 1, 6, 4))
    assert_as_expected(*tokens, 4, **masks)
    for metric in ("matmul", "euclidean"):
        assert_same_gradients(tokens, 4, metric=metric, **masks)
    with attention_implementation("triton"):
        for empty in (torch.zeros(0, 2, 5, 4), torch.zeros(2, 2, 0, 4)):
            found = attend(*(empty.to(DEVICE),) * 3, 3)
            assert found.output.shape == empty.shape


@each_score
@each_dtype
def test_gradients_equal_those_of_the_plain_operations(metric, dtype):
    close = {torch.float16: 2e-2, torch.bfloat16: 2e-1, torch.float32: 1e-4}[dtype]
    tokens = random_tokens((1, 2, 6, 8), dtype=dtype)
    assert_same_gradients(tokens, 5, close=close, metric=metric)


def test_more_slots_than_a_step_holds_have_gradients():
    assert_same_gradients(random_tokens((1, 1, 20, 8)), 19, close=1e-3)


def test_hubs_get_the_gradients_of_all_that_selected_them():
    query, key, value = random_tokens((1, 1, 12, 8))
    key[0, 0, 7] = query[0, 0].mean(0) * 50  # nearest of nearly all
    assert_same_gradients((query, key, value), 3, close=1e-3)


def test_deterministic_algorithms_take_plain_gradients():
    tokens = random_tokens((1, 1, 12, 8))
    torch.use_deterministic_algorithms(True)
    try:
        once, again = (gradients("triton", tokens, 3) for _ in range(2))
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True))
    for one, other in zip(once, gradients("triton", tokens, 3), strict=True):
        torch.testing.assert_close(one, other)


def test_the_distance_of_a_token_to_itself_has_gradient_zero_not_nan():
    x = random_tokens((1, 1, 6, 4))[0]
    assert_same_gradients((x, x, x), 3, metric="euclidean")


def test_near_duplicates_keep_their_distances():
    query = 100 + random_tokens((1, 1, 8, 16))[0] * 1e-2
    with attention_implementation("triton"):
        found = attend(*(query.to(DEVICE),) * 3, 8, metric="euclidean")
    distances = torch.cdist(query.double(), query.double())
    exact = torch.softmax(-distances, -1).gather(-1, found.indices.cpu().long())
    torch.testing.assert_close(found.weights.cpu(), exact.float(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_tokens_far_from_the_origin_find_the_same_neighbors(dtype):
    tokens = [(x + 100).to(dtype) for x in random_tokens((1, 2, 12, 6), n_keys=15)]
    assert_as_expected(*tokens, 3, metric="euclidean")


@each_metric
def test_scores_far_apart_stay_finite_in_half_precision(metric):
    tokens = [(x * 100).to(DEVICE) for x in random_tokens((1, 2, 12, 4), dtype=torch.float16)]
    with attention_implementation("triton"):
        found = attend(*tokens, 3, metric=metric, scale=1 / 0.07)
    assert found.output.isfinite().all()
    torch.testing.assert_close(found.weights.sum(-1).cpu(), torch.ones(1, 2, 12).half())


@each_score
def test_nan_in_a_query_comes_out_as_nan(metric):
    query, key, value = (x.to(DEVICE) for x in random_tokens((1, 1, 9, 4)))
    query[0, 0, 3, 1] = torch.nan
    padding = torch.zeros(1, 9, dtype=torch.bool, device=DEVICE)
    with attention_implementation("triton"):
        output = knn_attention(query, key, value, 3, metric=metric, key_padding_mask=padding)
    assert output[0, 0, 3].isnan().all()
    assert output[0, 0, [0, 1, 2, 4]].isfinite().all()


def test_tokens_need_not_lie_in_one_piece():
    whole = torch.randn(2, 10, 3, 2, 8, device=DEVICE)  # as a layer's projection gives them
    query, key, value = whole.permute(2, 0, 3, 1, 4)
    turned = value.mT.contiguous().mT
    with attention_implementation("triton"):
        found = knn_attention(query, key, turned, 3)
        again = knn_attention(*(x.contiguous() for x in (query, key, value)), 3)
    assert torch.equal(found, again)
    assert found.transpose(1, 2).is_contiguous()  # so that merging heads copies nothing


def test_what_is_kept_for_the_backward_pass_grows_with_n_times_k():
    query, key, value = (x.to(DEVICE).requires_grad_() for x in random_tokens((1, 2, 40, 8)))
    own, sizes = {x.data_ptr() for x in (query, key, value)}, []

    def pack(x):
        if x.data_ptr() not in own:
            sizes.append(x.numel())
        return x

    with (
        attention_implementation("triton"),
        torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x),
    ):
        knn_attention(query, key, value, 4)
    assert sum(sizes) == 2 * 2 * 40 * 4  # an index and a weight a slot


def test_a_layer_trains_on_them():
    layer = KNNAttention(8, 2, n_neighbors=3).to(DEVICE)
    x = torch.randn(2, 5, 8, device=DEVICE)
    grads = []
    for name in ("plain", "triton"):
        layer.zero_grad()
        with attention_implementation(name):
            layer(x).square().sum().backward()
        grads.append([p.grad.clone() for p in layer.parameters()])
    torch.testing.assert_close(*grads, atol=1e-4, rtol=1e-4)


@pytest.mark.slow
def test_they_compile_into_one_graph():
    def call(*tokens):
        return knn_attention(*tokens, 3, is_causal=True).square()

    grads = []
    for function in (call, torch.compile(call, fullgraph=True, backend="aot_eager")):
        inputs = [x.to(DEVICE).requires_grad_() for x in random_tokens((1, 1, 5, 4))]
        with attention_implementation("triton"):
            function(*inputs).sum().backward()
        grads.append([x.grad for x in inputs])
    torch.testing.assert_close(*grads)


@pytest.mark.slow
def test_the_operators_describe_their_results_rightly():
    tokens = [x.to(DEVICE).requires_grad_() for x in random_tokens((1, 1, 4, 2))]
    more = (None, None, False, "candidate", None, None, "triton")
    torch.library.opcheck(fused._forward, (*tokens, 3, False, 0.5, *more))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"has_bias": True}, "attn_mask"),
        ({"has_candidates": True}, "candidates"),
        ({"has_keep": True}, "dropout"),
        ({"include_self": "always"}, 'include_self="always"'),
        ({"n_neighbors": 300}, "at most 256 neighbors"),
        ({"width": 129}, "a width of at most 128"),
        ({"value_width": 129}, "a width of at most 128"),
        ({"dtype": torch.float64, "value_dtype": torch.float64}, "torch.float64"),
    ],
)
def test_what_the_kernels_do_not_take_is_named(change, why):
    assert why in launch.fault(small_problem(ShapeClass(**change), DEVICE))
    assert launch.fault(small_problem(ShapeClass(), DEVICE)) == ""
