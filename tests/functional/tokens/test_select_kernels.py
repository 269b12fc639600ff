"""The best columns of a row are those of a stable sort, whatever the row looks like."""

import numpy as np
import pytest
import torch

from nearwise.functional import attention_implementation
from nearwise.functional.tokens import attend
from nearwise.functional.tokens.kernels.rows import LANES


def selected(row, n_wanted):
    """Columns that are selected, and their weights, where scores are given as keys of width 1."""
    scores = torch.from_numpy(row)
    allowed = ~scores.isneginf()
    key = scores.where(allowed, 0)[None, None, :, None]
    query = torch.ones(1, 1, 1, 1, dtype=scores.dtype)
    with attention_implementation("cpu"):
        found = attend(query, key, key, n_wanted, scale=1.0, attn_mask=allowed)
    return found.indices.flatten().numpy(), found.weights.flatten().numpy()


def rows(n_columns, dtype):
    generator = np.random.default_rng(n_columns)
    scores = generator.normal(size=n_columns)
    yield "normal", scores.astype(dtype)
    yield "many ties", scores.round().astype(dtype)
    yield "all the same", np.zeros(n_columns, dtype)
    yield "ascending", np.arange(n_columns, dtype=dtype)
    yield "descending", -np.arange(n_columns, dtype=dtype)
    yield "infinite", np.where(generator.random(n_columns) < 0.1, np.inf, scores).astype(dtype)
    yield "most forbidden", np.where(np.arange(n_columns) % 7, -np.inf, scores).astype(dtype)
    yield "all forbidden", np.full(n_columns, -np.inf, dtype)
    alone = np.full(n_columns, -1.0, dtype)
    alone[::LANES] = scores[::LANES]  # the best of all in one lane
    yield "one lane", alone


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n_columns", [1, 15, 16, 63, 64, 197, 700])
def test_the_best_columns_are_those_of_a_stable_sort(n_columns, dtype):
    for name, row in rows(n_columns, dtype):
        for n_wanted in {1, min(9, n_columns), min(32, n_columns), n_columns}:
            columns, weights = selected(row, n_wanted)
            expected = np.argsort(-row, kind="stable")[:n_wanted]
            expected = np.where(row[expected] > -np.inf, expected, -1)
            np.testing.assert_array_equal(columns, expected, err_msg=f"{name}, {n_wanted}")
            kept = row[expected[expected >= 0]]
            if np.isfinite(kept).all():
                powers = np.exp(kept - kept[:1])
                shares = np.pad(powers / powers.sum(), (0, n_wanted - len(kept)))
                np.testing.assert_allclose(
                    weights, shares, atol=1e-7, err_msg=f"{name}, {n_wanted}"
                )


@pytest.mark.parametrize("place", [0, 20, 196])
@pytest.mark.parametrize("ties", [False, True])
def test_nan_comes_first_and_spoils_the_weights(place, ties):
    row = np.random.default_rng(0).normal(size=197).astype(np.float32)
    row = np.zeros_like(row) if ties else row
    row[place] = np.nan
    columns, weights = selected(row, 5)
    assert columns[0] == place
    assert (columns >= 0).all()
    assert np.isnan(weights).all()


def test_weights_are_powers_of_e_to_the_last_digits():
    row = np.linspace(0, -100, 197, dtype=np.float32)
    _, weights = selected(row, 197)
    exact = np.exp(row.astype(np.float64))
    np.testing.assert_allclose(weights, exact / exact.sum(), rtol=1e-6, atol=2e-38)
