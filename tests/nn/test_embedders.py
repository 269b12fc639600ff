"""Embedders: keys of any table, unknown categories, MixUp between inputs and key."""

import math

import pytest
import torch

from nearwise.nn import Embedder, PLRLiteEmbedding, TableEmbedder

NUMBERS, CODES = torch.randn(6, 3), torch.tensor([[0, 4], [1, 0], [2, 2], [0, 0], [1, 1], [2, 3]])


@pytest.mark.parametrize("numeric_embedding", ["plr-lite", None])
@pytest.mark.parametrize("trunk", ["linear", "mlp"])
@pytest.mark.parametrize(("n_numeric", "cardinalities"), [(3, ()), (0, (3, 5)), (3, (3, 5))])
@pytest.mark.parametrize("normalize", [False, True])
def test_table_embedder_gives_a_key_a_row(
    numeric_embedding, trunk, n_numeric, cardinalities, normalize
):
    embedder = TableEmbedder(
        n_numeric, cardinalities, numeric_embedding, trunk=trunk, dim=4, normalize=normalize
    )
    numbers = NUMBERS[:, :n_numeric]
    codes = CODES if cardinalities else None
    key = embedder.eval()(numbers, codes)
    assert key.shape == (6, 4)
    assert torch.isfinite(key).all()
    if normalize:
        torch.testing.assert_close(key.norm(dim=1), torch.ones(6))


def test_tables_that_cannot_be_embedded_are_refused():
    with pytest.raises(ValueError, match="at least one"):
        TableEmbedder(0)
    with pytest.raises(ValueError, match="must be \"plr-lite\" or None, got 'pbld'"):
        TableEmbedder(3, numeric_embedding="pbld")


def test_unknown_category_starts_neutral():
    embedder = TableEmbedder(0, (4,), dim=2)
    assert torch.equal(embedder.embed(torch.zeros(1, 0), torch.tensor([[0]])), torch.zeros(1, 8))


def test_code_outside_its_column_is_refused_and_never_read_from_the_next_column():
    embedder = TableEmbedder(0, (3, 5), dim=2)
    with pytest.raises(ValueError, match="Code unknown categories as 0"):
        embedder(torch.zeros(1, 0), torch.tensor([[3, 0]]))
    with pytest.raises(ValueError, match=r"x_cat must have shape \(1, 2\), got None"):
        embedder(torch.zeros(1, 0))


def test_columns_have_categories_of_their_own():
    embedder = TableEmbedder(0, (3, 3), dim=4)
    first = embedder.embed(torch.zeros(1, 0), torch.tensor([[1, 2]]))
    second = embedder.embed(torch.zeros(1, 0), torch.tensor([[2, 1]]))
    assert not torch.equal(first[:, :8], second[:, 8:])


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize(
    "embedder", [TableEmbedder(3, (3, 5), None, dim=4), Embedder(3, True, {})], ids=["table", "any"]
)
def test_mixed_inputs_lie_between_the_two_rows(embedder, share):
    partner = torch.tensor([5, 4, 3, 2, 1, 0])
    mixed = embedder.embed_mixed(NUMBERS, CODES, partner, torch.full((6, 1), share))
    plain = embedder.embed(NUMBERS, CODES)
    torch.testing.assert_close(mixed, share * plain + (1 - share) * plain[partner])


def test_the_plain_embedder_passes_ready_embeddings_through():
    assert torch.equal(Embedder(3, False, {})(NUMBERS), NUMBERS)
    unit = Embedder(3, True, {})(NUMBERS)
    torch.testing.assert_close(unit.norm(dim=1), torch.ones(6))


# Numeric embeddings


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


def test_sizes_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match=r"\(n_rows, 3\), got \(7, 2\)"):
        PLRLiteEmbedding(3)(torch.zeros(7, 2))
    with pytest.raises(ValueError, match="n_features must be at least 1, got 0"):
        PLRLiteEmbedding(0)
