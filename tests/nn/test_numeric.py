"""Numeric embeddings: shapes, formulas, and bins from quantiles."""

import math

import pytest
import torch

from nearwise.nn import PBLDEmbedding, PiecewiseLinearEncoding, PLRLiteEmbedding

ALL = {
    "plr-lite": lambda: PLRLiteEmbedding(3, dim=5),
    "pbld": lambda: PBLDEmbedding(3, dim=5),
    "piecewise": lambda: PiecewiseLinearEncoding(3, n_bins=5).fit(torch.randn(50, 3)),
}


@pytest.mark.parametrize("make", ALL.values(), ids=ALL)
def test_each_number_becomes_a_vector_of_its_own(make):
    module, x = make(), torch.randn(7, 3)
    changed = x.clone()
    changed[:, 1] += 1
    before, after = module(x), module(changed)
    assert before.shape == (7, 3, 5)
    assert torch.equal(before[:, [0, 2]], after[:, [0, 2]])
    assert not torch.equal(before[:, 1], after[:, 1])


@pytest.mark.parametrize("make", ALL.values(), ids=ALL)
def test_wrong_number_of_columns_is_named(make):
    with pytest.raises(ValueError, match=r"\(n_rows, 3\), got \(7, 2\)"):
        make()(torch.zeros(7, 2))


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


def test_pbld_formula_keeps_the_raw_value_first():
    module = PBLDEmbedding(2, dim=4, n_frequencies=3)
    x = torch.randn(5, 2)
    assert torch.equal(module(x)[:, :, 0], x)
    for f in range(2):
        waves = torch.cos(2 * math.pi * x[:, f : f + 1] * module.frequencies[f] + module.phase[f])
        expected = waves @ module.weight[f] + module.bias[f]
        torch.testing.assert_close(module(x)[:, f, 1:], expected)


def test_piecewise_encoding_counts_the_bins_a_number_has_passed():
    x = torch.tensor([[0.0], [1.0], [2.0], [4.0], [8.0]])
    encoding = PiecewiseLinearEncoding(1, n_bins=4).fit(x)
    seen = encoding(torch.tensor([[-1.0], [0.0], [1.5], [8.0], [12.0]]))[:, 0]
    expected = [[-1, 0, 0, 0], [0, 0, 0, 0], [1, 0.5, 0, 0], [1, 1, 1, 1], [1, 1, 1, 2]]
    torch.testing.assert_close(seen, torch.tensor(expected, dtype=torch.float32))


def test_piecewise_encoding_of_repeated_and_constant_columns():
    x = torch.tensor([[0.0, 3.0]] * 90 + [[1.0, 3.0]] * 10)
    seen = PiecewiseLinearEncoding(2, n_bins=10).fit(x)(torch.tensor([[0.5, 3.0], [0.5, 9.0]]))
    assert torch.isfinite(seen).all()
    assert torch.equal(seen[:, 1], torch.zeros(2, 10))
    assert (seen[:, 0].sum(dim=1) > 0).all()


def test_piecewise_encoding_is_monotone():
    encoding = PiecewiseLinearEncoding(1, n_bins=8).fit(torch.randn(200, 1))
    seen = encoding(torch.linspace(-5, 5, 101).unsqueeze(1))[:, 0]
    assert (seen.diff(dim=0) >= 0).all()


def test_piecewise_encoding_needs_its_bins_and_nothing_is_learned():
    encoding = PiecewiseLinearEncoding(1)
    with pytest.raises(RuntimeError, match="Call fit"):
        encoding(torch.zeros(1, 1))
    with pytest.raises(ValueError, match="finite"):
        encoding.fit(torch.tensor([[math.nan]]))
    assert not list(encoding.parameters())


def test_piecewise_bins_survive_a_state_dict():
    fitted = PiecewiseLinearEncoding(2, n_bins=4).fit(torch.randn(30, 2))
    copy = PiecewiseLinearEncoding(2, n_bins=4)
    copy.load_state_dict(fitted.state_dict())
    x = torch.randn(5, 2)
    assert torch.equal(copy(x), fitted(x))


def test_sizes_below_one_are_named():
    with pytest.raises(ValueError, match="n_features must be at least 1, got 0"):
        PLRLiteEmbedding(0)
