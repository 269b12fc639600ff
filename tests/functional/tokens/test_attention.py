"""`knn_attention`: plain and compiled equal the slow reference, whatever the arguments."""

import itertools
import math

import pytest
import torch

from nearwise.functional import attention_implementation, knn_attention
from nearwise.functional.tokens import attend
from tests.functional.tokens.cases import (
    IMPLEMENTATIONS,
    METRICS,
    TOLERANCE,
    assert_as_expected,
    expected,
    lattice_tokens,
    random_tokens,
)

each_implementation = pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
each_metric = pytest.mark.parametrize("metric", METRICS)
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@each_implementation
@each_metric
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("make", [random_tokens, lattice_tokens])
def test_it_equals_the_slow_reference(implementation, metric, dtype, make):
    tokens = make((2, 3, 13, 4), dtype=dtype)
    assert_as_expected(implementation, *tokens, 5, metric=metric)


@each_implementation
@pytest.mark.parametrize("n_neighbors", [1, 2, 16, 17])
@pytest.mark.parametrize("lead", [(), (2,), (2, 1), (1, 3)])
def test_any_number_of_neighbors_and_leading_dimensions(implementation, n_neighbors, lead):
    assert_as_expected(implementation, *lattice_tokens((*lead, 17, 4)), n_neighbors)


@pytest.mark.parametrize(
    ("make", "n_neighbors"), [(random_tokens, 1), (random_tokens, 40), (lattice_tokens, 9)]
)
def test_more_tokens_than_a_row_of_lanes(make, n_neighbors):
    tokens = make((1, 1, 531, 4))
    wanted = expected(*tokens, n_neighbors)  # once: the reference is slow
    for implementation in IMPLEMENTATIONS:
        assert_as_expected(implementation, *tokens, n_neighbors, wanted=wanted)


@each_implementation
@each_metric
@pytest.mark.parametrize(("n_queries", "n_keys"), [(3, 29), (29, 3), (1, 7)])
def test_cross_attention(implementation, metric, n_queries, n_keys):
    tokens = random_tokens((2, 2, n_queries, 6), n_keys=n_keys, value_width=5)
    assert_as_expected(implementation, *tokens, 3, metric=metric, scale=0.3)


@each_implementation
@pytest.mark.parametrize(
    ("include_self", "is_causal"),  # causal and never: the first token has nobody
    list(itertools.product(("candidate", "always", "never"), (False, True))),
)
@pytest.mark.parametrize("make", [random_tokens, lattice_tokens])
def test_a_token_itself_is_a_candidate_always_or_never(
    implementation, include_self, make, is_causal
):
    options = {"include_self": include_self, "is_causal": is_causal}
    assert_as_expected(implementation, *make((2, 2, 11, 4)), 4, **options)


@each_implementation
@each_metric
@pytest.mark.parametrize("include_self", ["candidate", "always", "never"])
@pytest.mark.parametrize("per_item", [False, True])
@pytest.mark.parametrize("is_causal", [False, True])
def test_only_candidates_are_attended(implementation, metric, include_self, per_item, is_causal):
    generator = torch.Generator().manual_seed(3)
    drawn = torch.stack([torch.randperm(15, generator=generator)[:6] for _ in range(2)])
    candidates = drawn if per_item else drawn[0]
    for tokens in (random_tokens((2, 2, 15, 4)), lattice_tokens((2, 2, 15, 4))):
        assert_as_expected(
            implementation,
            *tokens,
            4,
            metric=metric,
            include_self=include_self,
            candidates=candidates,
            is_causal=is_causal,
            attn_mask=torch.randn(15, 15, generator=generator).double(),
        )


def masks():
    generator = torch.Generator().manual_seed(5)
    allowed = torch.rand(2, 1, 9, 9, generator=generator) < 0.6
    allowed = allowed | torch.eye(9, dtype=torch.bool)
    yield "bool", {"attn_mask": allowed}
    yield "bool of one row", {"attn_mask": torch.arange(9) > 3}
    bias = torch.randn(3, 9, 9, generator=generator).double()
    yield "float", {"attn_mask": bias}
    yield "float with holes", {"attn_mask": bias.masked_fill(~allowed[0], -torch.inf)}
    padding = torch.zeros(2, 9, dtype=torch.bool)
    padding[0, 2:5] = padding[1, -1] = True
    yield "padding", {"key_padding_mask": padding}
    yield "padding for all", {"key_padding_mask": padding[0]}
    yield "left padding, causal", {"key_padding_mask": torch.arange(9) < 3, "is_causal": True}
    yield "all at once", {"key_padding_mask": padding[1], "attn_mask": bias, "is_causal": True}


@each_implementation
@each_metric
@pytest.mark.parametrize(
    ("name", "mask"), list(masks()), ids=lambda x: x if isinstance(x, str) else ""
)
def test_masks(implementation, metric, name, mask):
    assert_as_expected(implementation, *random_tokens((2, 3, 9, 4)), 4, metric=metric, **mask)


@each_implementation
@pytest.mark.parametrize("metric", METRICS)
def test_scores_far_apart_stay_finite_in_half_precision(implementation, metric):
    tokens = [x * 100 for x in random_tokens((1, 2, 12, 4), dtype=torch.float16)]
    with attention_implementation(implementation):
        found = attend(*tokens, 3, metric=metric, scale=1 / 0.07)
    assert found.output.isfinite().all()
    torch.testing.assert_close(found.weights.sum(-1), torch.ones(1, 2, 12).half())


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("include_self", ["candidate", "always", "never"])
@pytest.mark.parametrize("spoiled", [0, 1], ids=["query", "key"])
def test_nan_spoils_the_same_rows_by_all_implementations(metric, include_self, spoiled):
    tokens = random_tokens((1, 1, 9, 4))
    tokens[spoiled][0, 0, 3, 1] = torch.nan
    rows = []
    for name in ("plain", "cpu"):
        with attention_implementation(name):
            output = knn_attention(*tokens, 3, metric=metric, include_self=include_self)
        rows.append(output[0, 0].isnan().any(-1).tolist())
    assert rows[0] == rows[1]
    sees_itself = include_self != "never"
    assert rows[0] == [(at == 3) if spoiled == 0 else (at != 3 or sees_itself) for at in range(9)]


def test_both_implementations_drop_the_same_weights_of_one_generator():
    tokens = random_tokens((2, 2, 20, 4))
    outputs = []
    for implementation in IMPLEMENTATIONS:
        with attention_implementation(implementation):
            generator = torch.Generator().manual_seed(1)
            outputs.append(knn_attention(*tokens, 6, dropout_p=0.5, generator=generator))
            again = knn_attention(*tokens, 6, dropout_p=0.5, generator=generator)
            assert not torch.equal(outputs[-1], again)
    torch.testing.assert_close(*outputs)


@each_implementation
def test_dropout_keeps_the_mean(implementation):
    query, key, _ = random_tokens((1, 1, 4000, 2))
    value = torch.ones(1, 1, 4000, 1).double()
    with attention_implementation(implementation):
        generator = torch.Generator().manual_seed(0)
        output = knn_attention(
            query, key[..., :50, :], value[..., :50, :], 5, dropout_p=0.3, generator=generator
        )
    assert abs(output.mean().item() - 1) < 0.02


@pytest.mark.parametrize("strided", ["query", "key", "value"])
def test_tensors_that_do_not_lie_in_one_piece(strided):
    tokens = dict(zip(("query", "key", "value"), random_tokens((2, 3, 8, 4)), strict=True))
    whole = knn_attention(**tokens, n_neighbors=3)
    tokens[strided] = tokens[strided].permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0)
    torch.testing.assert_close(knn_attention(**tokens, n_neighbors=3), whole)


def test_threads_do_not_change_the_result():
    tokens = random_tokens((4, 3, 300, 32), dtype=torch.float32)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = attend(*tokens, 9)
        torch.set_num_threads(2)
        two = attend(*tokens, 9)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert torch.equal(one.indices, two.indices)
    torch.testing.assert_close(one.output, two.output)


BAD = [
    ({"n_neighbors": 0}, "n_neighbors=0 must be an integer of at least 1"),
    ({"n_neighbors": 2.0}, "n_neighbors=2.0 must be an integer"),
    ({"metric": "manhattan"}, "metric='manhattan' is not one of matmul, cosine, euclidean"),
    ({"include_self": "maybe"}, "include_self='maybe' is not one of"),
    ({"scale": 0.0}, "scale=0.0 must be positive"),
    ({"scale": float("nan")}, "scale=nan must be positive"),
    ({"dropout_p": 1.0}, r"dropout_p=1.0 must lie in \[0, 1\)"),
    ({"attn_mask": torch.ones(7, 8).bool()}, r"\(7, 8\) cannot be broadcast to \(2, 3, 8, 8\)"),
    ({"attn_mask": torch.ones(8, 8).int()}, "attn_mask must be a tensor, boolean .* or floating"),
    ({"key_padding_mask": torch.zeros(2, 7).bool()}, r"of shape \(2, 8\); got"),
    ({"key_padding_mask": torch.zeros(2, 8)}, "key_padding_mask must be a tensor, boolean"),
    ({"candidates": torch.tensor([1, 8])}, "lie between 1 and 8, but the keys are 0 to 7"),
    ({"candidates": torch.tensor([-1, 2])}, "lie between -1 and 2"),
    ({"candidates": torch.tensor([2, 2])}, "names a key twice"),
    ({"candidates": torch.tensor([1.0, 2.0])}, "must be integer positions"),
    ({"candidates": torch.zeros(3, 2).long()}, "has 3 rows, but the batch has 2"),
]


@pytest.mark.parametrize(("wrong", "message"), BAD)
def test_bad_arguments_are_refused(wrong, message):
    options = {"n_neighbors": 2, **wrong}
    with pytest.raises(ValueError, match=message):
        knn_attention(*random_tokens((2, 3, 8, 4), dtype=torch.float32), **options)


def test_bad_tokens_are_refused():
    query, key, value = random_tokens((2, 3, 8, 4), dtype=torch.float32)
    wrong = [
        (query, key[..., :3], value, "must agree"),
        (query, key, value[:, :, :5], "must agree"),
        (query[0], key, value, "must agree"),
        (query[0, 0, 0], key[0, 0, 0], value[0, 0, 0], "must agree"),
        (query, key[:1], value[:1], "must agree"),
        (query.double(), key, value, "share one floating dtype"),
        (query.long(), key.long(), value.long(), "share one floating dtype"),
        (query[..., :0], key[..., :0], value, "need a width of at least 1"),
    ]
    for *tokens, message in wrong:
        with pytest.raises(ValueError, match=message):
            knn_attention(*tokens, 1)
    for option in ({"is_causal": True}, {"include_self": "always"}, {"include_self": "never"}):
        with pytest.raises(ValueError, match="Leave it out for cross-attention"):
            knn_attention(query[:, :, :5], key, value, 1, **option)


# What a mask forbids reaches nothing, whatever it holds: two sequences packed into one.


N, FIRST = 9, 4  # tokens of both sequences, and of the first
BLOCKS = torch.block_diag(torch.ones(FIRST, FIRST), torch.ones(N - FIRST, N - FIRST)).bool()


def of_the_second(tokens, metric, mask):
    """Output, weights and gradients of the second sequence; the loss is about it alone."""
    leaves = [x.clone().requires_grad_() for x in tokens]
    found = attend(*leaves, 7, metric=metric, attn_mask=mask)
    output = found.output[:, :, FIRST:]
    (output.square().sum() + found.weights[:, :, FIRST:].square().sum()).backward()
    return [x[:, :, FIRST:] for x in (found.output, found.weights, *(x.grad for x in leaves))]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("is_float", [False, True])
def test_a_packed_sequence_is_not_touched_by_the_other(implementation, metric, value, is_float):
    tokens = random_tokens((1, 2, N, 5), dtype=torch.float32)
    spoilt = [x.clone() for x in tokens]
    for x in spoilt:
        x[:, :, 0] = value  # the row that empty slots would read
    mask = torch.zeros(N, N).masked_fill(~BLOCKS, -math.inf) if is_float else BLOCKS
    with attention_implementation(implementation):
        wanted = of_the_second(tokens, metric, mask)
        got = of_the_second(spoilt, metric, mask)
    for own, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(own, other)


# By default, on any device: ``pytest tests/functional/tokens --device cuda``.


PADDING = torch.arange(12) > 9
OPTIONS = [
    {},
    {"is_causal": True, "include_self": "always"},
    {"include_self": "never", "key_padding_mask": PADDING},
    {"attn_mask": torch.linspace(-1, 1, 144).view(12, 12)},
    {"candidates": torch.arange(0, 12, 2)},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options) or "none")
@pytest.mark.parametrize("metric", METRICS)
def test_it_equals_the_slow_reference_on_the_device(device, metric, options):
    tokens = random_tokens((2, 2, 12, 8), dtype=torch.float32)
    moved = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in options.items()}
    found = attend(*(x.to(device) for x in tokens), 4, metric=metric, **moved)
    output, indices, weights = expected(*tokens, 4, metric=metric, **options)
    assert (found.indices.cpu() == indices).all()
    close = TOLERANCE[torch.float32]
    torch.testing.assert_close(found.output.cpu().double(), output, atol=close, rtol=close)
    torch.testing.assert_close(found.weights.cpu().double(), weights, atol=close, rtol=close)


@pytest.mark.parametrize("metric", METRICS)
def test_its_gradients_on_the_device_are_those_in_double_precision(device, metric):
    grads = []
    for where, dtype in ((device, torch.float32), ("cpu", torch.float64)):
        inputs = [x.to(where, dtype).requires_grad_() for x in random_tokens((1, 2, 12, 8))]
        attend(*inputs, 4, metric=metric).output.square().sum().backward()
        grads.append([x.grad.cpu().double() for x in inputs])
    torch.testing.assert_close(*grads, atol=1e-4, rtol=1e-4)
