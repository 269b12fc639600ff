"""Gradients of `knn_attention`, and what is kept for them."""

import pytest
import torch

from nearwise.functional import attention_implementation, knn_attention
from nearwise.functional.tokens import attend
from tests.functional.tokens.cases import IMPLEMENTATIONS, METRICS, random_tokens

each_implementation = pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
each_metric = pytest.mark.parametrize("metric", METRICS)
OPTIONS = [
    {},
    {"is_causal": True},
    {"include_self": "always", "candidates": torch.tensor([0, 2, 5, 6])},
    {"include_self": "never"},
    {"scale": 2.5},
]


@each_implementation
@each_metric
@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(o) or "plain")
def test_gradients_equal_finite_differences(implementation, metric, options):
    tokens = [x.requires_grad_() for x in random_tokens((1, 2, 7, 3))]

    def call(query, key, value):
        found = attend(query, key, value, 3, metric=metric, **options)
        return found.output, found.weights

    with attention_implementation(implementation):
        # Entry by entry once for each metric, along random directions with the options.
        assert torch.autograd.gradcheck(call, tokens, fast_mode=bool(options))


@each_implementation
def test_gradients_reach_a_floating_mask_and_pass_dropout(implementation):
    tokens = [x.requires_grad_() for x in random_tokens((2, 2, 6, 3))]
    bias = random_tokens((2, 6, 6), seed=4)[0].requires_grad_()

    def call(query, key, value, mask):
        generator = torch.Generator().manual_seed(0)
        return knn_attention(
            query, key, value, 3, attn_mask=mask, dropout_p=0.4, generator=generator
        )

    with attention_implementation(implementation):
        assert torch.autograd.gradcheck(call, (*tokens, bias))


@each_implementation
@each_metric
def test_gradients_have_gradients(implementation, metric):
    tokens = [x.requires_grad_() for x in random_tokens((1, 2, 7, 3))]
    bias = random_tokens((1, 7, 7), seed=4)[0][0].requires_grad_()
    padding = torch.zeros(1, 7, dtype=torch.bool)
    padding[0, 2] = True
    masks = {"key_padding_mask": padding, "is_causal": True, "dropout_p": 0.3}

    def call(query, key, value, mask):
        generator = torch.Generator().manual_seed(0)
        options = {"metric": metric, "attn_mask": mask, "generator": generator, **masks}
        found = attend(query, key, value, 3, **options)
        return found.output, found.weights

    with attention_implementation(implementation):
        assert torch.autograd.gradgradcheck(call, (*tokens, bias))


@each_implementation
@each_metric
def test_cross_attention_has_gradients(implementation, metric):
    tokens = [x.requires_grad_() for x in random_tokens((2, 1, 3, 4), n_keys=8, value_width=2)]
    with attention_implementation(implementation):
        assert torch.autograd.gradcheck(
            lambda *x: knn_attention(*x, 5, metric=metric), tokens, fast_mode=True
        )


@each_implementation
def test_the_distance_of_a_token_to_itself_has_gradient_zero_not_nan(implementation):
    x = random_tokens((1, 1, 6, 4))[0].requires_grad_()
    with attention_implementation(implementation):
        knn_attention(x, x, x.detach(), 3, metric="euclidean").square().sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@each_metric
def test_gradients_of_both_implementations_agree_in_lower_precision(dtype, metric):
    grads = []
    for implementation in IMPLEMENTATIONS:
        tokens = [x.requires_grad_() for x in random_tokens((2, 2, 30, 8), dtype=dtype)]
        with attention_implementation(implementation):
            knn_attention(*tokens, 5, metric=metric).float().square().sum().backward()
        grads.append([x.grad.float() for x in tokens])
    close = {torch.float16: 2e-2, torch.bfloat16: 2e-1, torch.float32: 1e-4}[dtype]
    for plain, compiled in zip(*grads, strict=True):
        torch.testing.assert_close(plain, compiled, atol=close, rtol=close)


@pytest.mark.parametrize("metric", ["matmul", "euclidean"])
def test_what_is_kept_for_the_backward_pass_grows_with_n_times_k(metric):
    def kept(n_tokens, n_neighbors):
        query, key, value = (x.requires_grad_() for x in random_tokens((1, 2, n_tokens, 8)))
        own = {x.data_ptr() for x in (query, key, value)}
        sizes = []

        def pack(x):
            if x.data_ptr() not in own:
                sizes.append(x.numel())
            return x

        with (
            attention_implementation("cpu"),
            torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x),
        ):
            knn_attention(query, key, value, n_neighbors, metric=metric)
        return sum(sizes)

    assert kept(128, 4) == 2 * 2 * 128 * 4  # an index and a weight a slot
    assert kept(512, 4) == 4 * kept(128, 4)
    assert kept(128, 8) == 2 * kept(128, 4)
