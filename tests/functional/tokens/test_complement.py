"""Keys that a query has not chosen, sampled so that each is stood for once."""

import pytest
import torch

from nearwise.functional.tokens.complement import stratified_sample


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


@pytest.mark.parametrize("n_samples", [3, 40])
def test_the_sum_over_a_sample_is_the_sum_over_all_others_in_the_mean(n_samples):
    made = torch.Generator().manual_seed(0)
    numbers = torch.randn(23, generator=made, dtype=torch.float64)
    chosen = torch.tensor([5, 0, 17, -1]).expand(6000, 4)
    at, counts = stratified_sample(chosen, 23, n_samples, generator=made)
    sums = (counts * numbers[at]).sum(-1)
    others = numbers.sum() - numbers[[5, 0, 17]].sum()
    error = sums.std() / len(sums) ** 0.5
    assert abs(sums.mean() - others) < 4 * error + 1e-9
