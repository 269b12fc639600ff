"""Sampled attention to all keys: unbiased where it says so, exact where nothing is open."""

import math

import pytest
import torch
import torch.nn.functional as F
from nearwise_lab.nn import lazy_gumbel_attention
from nearwise_lab.nn.tail import tail_corrected_attention

from nearwise.functional import knn_attention
from nearwise.functional.tokens.complement import stratified_sample

N, M, D, K = 3, 23, 4, 5
RUNS = 6000
ESTIMATORS = [tail_corrected_attention, lazy_gumbel_attention]


def tokens(seed=0, n=N, m=M, lead=(1,), spread=1.5):
    made = torch.Generator().manual_seed(seed)
    shapes = ((*lead, n, D), (*lead, m, D), (*lead, m, 2))
    q, k, v = (torch.randn(s, generator=made, dtype=torch.float64) for s in shapes)
    return spread * q, k, v


def scores_of(q, k, metric):
    if metric == "euclidean":
        return -torch.cdist(q, k)
    if metric == "cosine":
        return F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT
    return q @ k.mT / math.sqrt(q.shape[-1])


def sums(q, k, v, metric="matmul", mask=None):
    """Sum of exp(score) v and sum of exp(score), over all keys."""
    scores = scores_of(q, k, metric)
    w = (scores if mask is None else scores + mask).exp()
    return w @ v, w.sum(-1)


def exact(q, k, v, metric="matmul", mask=None):
    numerator, normalizer = sums(q, k, v, metric, mask)
    return numerator / normalizer[..., None]


def repeated(parts):
    """The same tokens RUNS times in a batch: as many independent estimates in one call."""
    return [x.expand(RUNS, -1, -1).clone().requires_grad_() for x in parts]


def refuse_bias(estimates, truth):
    """Fail where the mean of the estimates (RUNS, ...) is off by more than chance allows."""
    mean, error = estimates.mean(0), estimates.std(0) / math.sqrt(len(estimates))
    z = (mean - truth) / error.clamp_min(1e-12)
    assert error.max() > 1e-6  # something was left to chance
    assert z.abs().max() < 4.5
    assert z.square().mean().sqrt() < 1.5


def gradients(output, slope, inputs):
    return torch.autograd.grad((output * slope).sum(), inputs)


@pytest.mark.parametrize("metric", ["matmul", "cosine", "euclidean"])
@pytest.mark.parametrize("chosen", ["nearest", "any"])
def test_numerator_and_normalizer_are_unbiased_with_their_gradients(metric, chosen):
    parts = tokens()
    q, k, v = repeated(parts)
    given = None if chosen == "nearest" else torch.tensor([3, 0, 22, 7, -1]).expand(RUNS, N, K)
    made = torch.Generator().manual_seed(1)
    found = tail_corrected_attention(q, k, v, K, 4, metric=metric, neighbors=given, generator=made)
    normalizer = found.log_normalizer.exp()
    numerator = found.output * normalizer[..., None]
    slope = torch.tensor([0.7, -1.2], dtype=torch.float64)
    leaves = [x.requires_grad_() for x in tokens()]
    a, z = sums(*leaves, metric)
    refuse_bias(numerator.detach(), a[0].detach())
    refuse_bias(normalizer.detach(), z[0].detach())
    mine = gradients(numerator @ slope + normalizer, 1.0, (q, k, v))
    for own, true in zip(mine, gradients(a @ slope + z, 1.0, leaves), strict=True):
        refuse_bias(own, true[0])


@pytest.mark.parametrize("metric", ["matmul", "cosine", "euclidean"])
def test_lazy_gumbel_sampling_is_unbiased_with_its_gradients(metric):
    parts = tokens(2)
    q, k, v = repeated(parts)
    made = torch.Generator().manual_seed(3)
    found = lazy_gumbel_attention(q, k, v, K, 3, metric=metric, generator=made)
    leaves = [x.requires_grad_() for x in tokens(2)]
    truth = exact(*leaves, metric)
    refuse_bias(found.output.detach(), truth[0].detach())
    slope = torch.tensor([1.0, -0.5], dtype=torch.float64)
    mine = gradients(found.output, slope, (q, k, v))
    for own, true in zip(mine, gradients(truth, slope, leaves), strict=True):
        refuse_bias(own, true[0])


def test_a_race_is_won_with_the_probabilities_of_the_softmax():
    q, k, _ = tokens(4)
    identity = torch.eye(M, dtype=torch.float64)[None]
    parts = (q, k, identity)
    made = torch.Generator().manual_seed(5)
    found = lazy_gumbel_attention(*repeated(parts), 2, 2, generator=made)
    proba = torch.softmax(scores_of(q, k, "matmul"), dim=-1)[0]
    refuse_bias(found.output.detach(), proba)
    assert torch.allclose(found.output.sum(-1), torch.ones(()).double())


@pytest.mark.parametrize("estimate", ESTIMATORS)
def test_masks_hold_and_leave_the_expectation_right(estimate):
    parts = tokens(6, n=M)
    added = torch.randn(M, M, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    added[:, 4] = -math.inf
    padding = torch.zeros(M, dtype=torch.bool)
    padding[9] = True
    forbidden = torch.zeros(M, M, dtype=torch.float64)
    forbidden = forbidden.masked_fill(torch.ones(M, M).triu(1).bool() | padding, -math.inf)
    runs = [x.expand(RUNS, -1, -1) for x in parts]
    options = {"attn_mask": added, "key_padding_mask": padding.expand(RUNS, M), "is_causal": True}
    made = torch.Generator().manual_seed(8)
    found = estimate(*runs, 4, 6, **options, generator=made)
    a, z = sums(*parts, mask=added + forbidden)
    rows = slice(12, None)  # earlier ones leave little to chance
    if estimate is tail_corrected_attention:
        refuse_bias(found.log_normalizer.exp()[:, rows], z[0, rows])
    else:
        refuse_bias(found.output[:, rows], (a / z[..., None])[0, rows])
    few = (forbidden[:, :] + added).isfinite().sum(-1) <= 4
    assert few.sum() >= 4
    assert torch.allclose(found.output[:, few], (a / z[..., None])[:, few].expand(RUNS, -1, -1))


@pytest.mark.parametrize("metric", ["matmul", "cosine", "euclidean"])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(
    ("estimate", "k", "n"),
    [
        (tail_corrected_attention, M, 3),
        (lazy_gumbel_attention, M, 2),
        (tail_corrected_attention, K, M - K),
        (tail_corrected_attention, 1, 3 * M),
    ],
)
def test_it_is_exact_where_all_keys_are_chosen_or_drawn(estimate, k, n, metric, is_causal):
    leaves = [x.requires_grad_() for x in tokens(9, n=M, lead=(2, 3))]
    mask = torch.zeros(M, M, dtype=torch.float64)
    mask = mask.masked_fill(torch.ones(M, M).triu(1).bool(), -math.inf) if is_causal else mask
    truth = exact(*leaves, metric, mask)
    own = estimate(*leaves, k, n, metric=metric, is_causal=is_causal).output
    assert torch.allclose(own, truth, atol=1e-12)
    slope = torch.randn(truth.shape, generator=torch.Generator().manual_seed(0)).double()
    pairs = zip(gradients(own, slope, leaves), gradients(truth, slope, leaves), strict=True)
    # The root in "euclidean" is measured directly here and by a matrix product in cdist.
    assert all(
        torch.allclose(a, b, atol=1e-6 if metric == "euclidean" else 1e-11) for a, b in pairs
    )


@pytest.mark.parametrize("estimate", ESTIMATORS)
def test_gradients_reach_a_floating_mask(estimate):
    leaves = tokens(20, n=M)
    mask = torch.randn(M, M, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mask.requires_grad_()
    own = estimate(*leaves, M, 2, attn_mask=mask).output
    truth = exact(*leaves, mask=mask)
    slope = torch.randn(truth.shape, generator=torch.Generator().manual_seed(1)).double()
    mine, true = (gradients(output, slope, (mask,))[0] for output in (own, truth))
    assert torch.allclose(mine, true, atol=1e-12)
    assert true.abs().max() > 0.01


def test_without_samples_it_is_knn_attention():
    q, k, v = tokens(10)
    own = tail_corrected_attention(q, k, v, K, 0).output
    assert torch.allclose(own, knn_attention(q, k, v, K))


def test_the_bias_of_the_ratio_falls_as_one_over_the_samples():
    parts = tokens(11, m=67, spread=0.5)
    runs = [x.expand(12 * RUNS, -1, -1) for x in parts]
    given = torch.arange(3).expand(12 * RUNS, N, 3)  # not the nearest: a bias that can be seen
    bias, spread = {}, {}
    for n in (4, 16):
        made = torch.Generator().manual_seed(12)
        found = tail_corrected_attention(*runs, 3, n, neighbors=given, generator=made).output
        bias[n] = (found.mean(0) - exact(*parts)[0]).norm()
        spread[n] = found.std(0).norm()
    assert bias[4] > 10 * spread[4] / math.sqrt(12 * RUNS)
    assert bias[16] < 0.4 * bias[4]
    assert spread[16] > 0.4 * spread[4]


def test_keys_looked_at_stay_within_the_bound():
    q, k, v = tokens(13, m=400)
    n_near, n_samples = 20, 50
    found = lazy_gumbel_attention(
        q, k, v, n_near, n_samples, generator=torch.Generator().manual_seed(14)
    )
    assert 0 < float(found.n_probes.double().mean()) / n_samples < (400 - n_near) / n_near


@pytest.mark.parametrize("estimate", ESTIMATORS)
def test_a_seed_repeats_the_draws_and_another_does_not(estimate):
    parts = tokens(15)
    outputs = [
        estimate(*parts, 2, 3, generator=torch.Generator().manual_seed(seed)).output
        for seed in (0, 0, 1)
    ]
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("estimate", ESTIMATORS)
def test_half_precision_goes_in_and_comes_out(estimate, dtype):
    leaves = [x.to(dtype).requires_grad_() for x in tokens(16, m=60)]
    made = torch.Generator().manual_seed(17)
    found = estimate(*leaves, 20, 400, generator=made).output
    found.sum().backward()
    assert found.dtype == dtype
    assert all(x.grad.dtype == dtype and x.grad.isfinite().all() for x in leaves)
    assert torch.allclose(found.double(), exact(*(x.detach().double() for x in leaves)), atol=0.1)


@pytest.mark.parametrize("n_samples", [1, 3, 7, 40])
def test_a_sample_stands_for_each_key_that_is_left_once(n_samples):
    chosen = torch.tensor([[5, 0, -1], [-1, -1, -1], [19, 18, 17], [1, 0, 2]])
    may_see = torch.tensor([20, 20, 20, 4])
    for seed in range(20):
        made = torch.Generator().manual_seed(seed)
        at, counts = stratified_sample(chosen, may_see, n_samples, generator=made)
        assert counts.sum(-1).tolist() == [18, 20, 17, 1]
        for row in range(4):
            drawn = at[row][counts[row] > 0].tolist()
            assert len(set(drawn)) == len(drawn)
            assert not set(drawn) & set(chosen[row].tolist())
            assert all(0 <= i < may_see[row] for i in drawn)


def test_the_middle_of_each_stretch_is_the_same_at_every_call():
    chosen = torch.tensor([[2, 9]])
    at, counts = stratified_sample(chosen, 12, 5, jitter=False)
    assert at.tolist() == [[1, 4, 6, 8, 11]]
    assert counts.tolist() == [[2, 2, 2, 2, 2]]


def test_what_does_not_fit_is_refused():
    q, k, v = tokens(18)
    with pytest.raises(ValueError, match="n_samples=1 must be at least 2"):
        lazy_gumbel_attention(q, k, v, K, 1)
    with pytest.raises(ValueError, match="n_samples=-1 must be at least 0"):
        tail_corrected_attention(q, k, v, K, -1)
    with pytest.raises(ValueError, match="n_neighbors=0 must be an integer of at least 1"):
        tail_corrected_attention(q, k, v, 0, 3)
    with pytest.raises(ValueError, match=r"of shape \(1, 3, 2\)"):
        tail_corrected_attention(q, k, v, 2, 3, neighbors=torch.zeros(1, N, 1).long())
    with pytest.raises(ValueError, match="names a key twice"):
        tail_corrected_attention(q, k, v, 2, 3, neighbors=torch.full((1, N, 2), 4))
    with pytest.raises(ValueError, match="one that the query may not see"):
        tail_corrected_attention(q, k, v, 2, 3, neighbors=torch.tensor([0, M]).expand(1, N, 2))
    with pytest.raises(ValueError, match="may not see"):
        own = torch.arange(1, M + 1).clamp_max(M - 1).view(1, M, 1)
        tail_corrected_attention(k, k, v, 1, 3, neighbors=own, is_causal=True)
    hidden = torch.ones(1, M).bool()
    hidden[0, -1] = False
    with pytest.raises(ValueError, match=r"chose or drew are masked, and others are not"):
        first = torch.tensor([0, 1]).expand(1, N, 2)
        tail_corrected_attention(q, k, v, 2, 0, neighbors=first, key_padding_mask=hidden)


def test_neighbors_that_are_all_masked_are_refused():
    q, k, v = tokens(21)
    with pytest.raises(ValueError, match="All neighbors of 3 of 3 queries"):
        lazy_gumbel_attention(q, k, v, 1, 2, neighbors=torch.full((1, N, 1), -1))


def test_a_set_that_is_not_nearest_is_refused_where_it_would_bias():
    q, k, v = tokens(19)
    farthest = scores_of(q, k, "matmul").argsort(-1)[..., :K]
    with pytest.raises(ValueError, match="outside neighbors scores"):
        lazy_gumbel_attention(q, k, v, K, 50, neighbors=farthest)
