"""Numeric embeddings: shapes, formula and gradients."""

import math

import pytest
import torch

from nearwise.nn import PLRLiteEmbedding


def test_each_number_becomes_a_vector_of_its_own():
    module, x = PLRLiteEmbedding(3, dim=5), torch.randn(7, 3)
    changed = x.clone()
    changed[:, 1] += 1
    before, after = module(x), module(changed)
    assert before.shape == (7, 3, 5)
    assert torch.equal(before[:, [0, 2]], after[:, [0, 2]])
    assert not torch.equal(before[:, 1], after[:, 1])


def test_wrong_number_of_columns_is_named():
    with pytest.raises(ValueError, match=r"\(n_rows, 3\), got \(7, 2\)"):
        PLRLiteEmbedding(3)(torch.zeros(7, 2))


def test_plr_lite_formula():
    module = PLRLiteEmbedding(2, dim=4, n_frequencies=3, frequency_scale=1.0)
    x = torch.randn(5, 2)
    for b in range(5):
        for f in range(2):
            angle = [2 * math.pi * c * x[b, f].item() for c in module.frequencies[f].tolist()]
            waves = torch.tensor([math.sin(a) for a in angle] + [math.cos(a) for a in angle])
            expected = torch.relu(module.linear(waves))
            torch.testing.assert_close(module(x)[b, f], expected, rtol=1e-4, atol=1e-5)


def test_plr_lite_gradients_are_those_of_finite_differences():
    module = PLRLiteEmbedding(2, dim=4, n_frequencies=3, frequency_scale=1.0).double()
    x = torch.randn(5, 2, dtype=torch.float64, requires_grad=True)

    def embed(x, frequencies):
        given = {"frequencies": frequencies}
        return torch.func.functional_call(module, given, (x,))

    frequencies = module.frequencies.detach().requires_grad_()
    assert torch.autograd.gradcheck(embed, (x, frequencies))


def test_sizes_below_one_are_named():
    with pytest.raises(ValueError, match="n_features must be at least 1, got 0"):
        PLRLiteEmbedding(0)
