"""The plain implementation: in tiles of queries, what it selects among all at once."""

import itertools

import pytest
import torch

from nearwise.functional import attention_implementation
from nearwise.functional.tokens import attend, implementation, plain
from tests.functional.tokens.cases import METRICS, assert_as_expected, lattice_tokens, random_tokens

SHAPE = (3, 2, 11, 4)
ALL_AT_ONCE = 3 * 2 * 11 * 11
# A single query, some queries, one head, one batch item and a half, everything.
TILES = [1, 37, 150, 370, ALL_AT_ONCE]
MASK = torch.randn(3, 2, 11, 11, generator=torch.Generator().manual_seed(3)).double()
OPTIONS = {
    "nothing": {},
    "causal": {"is_causal": True},
    "always": {"include_self": "always", "is_causal": True},
    "never": {"include_self": "never", "is_causal": True},
    "mask": {"attn_mask": MASK.masked_fill(MASK > 1, -torch.inf)},
    "padding": {"key_padding_mask": torch.arange(11) < torch.tensor([[2], [0], [11]])},
    "candidates": {
        "candidates": torch.tensor([[0, 2, 3, 9], [1, 4, 5, 6], [7, 8, 9, 10]]),
        "include_self": "always",
    },
}


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("name", OPTIONS)
def test_tiles_select_what_the_loop_does(name, tile, monkeypatch):
    monkeypatch.setattr(plain, "_TILE", tile)
    for dtype, metric in itertools.product((torch.float32, torch.float64), METRICS):
        tokens = lattice_tokens(SHAPE, dtype=dtype)
        assert_as_expected("plain", *tokens, 4, metric=metric, **OPTIONS[name])
    assert_as_expected("plain", *random_tokens(SHAPE), 4, **OPTIONS[name])


@pytest.mark.parametrize("name", OPTIONS)
def test_gradients_through_tiles_are_those_of_the_compiled_loops(name, monkeypatch):
    monkeypatch.setattr(plain, "_TILE", 37)
    grads = []
    for by in ("plain", "cpu"):
        inputs = [x.requires_grad_() for x in random_tokens(SHAPE)]
        with attention_implementation(by):
            attend(*inputs, 4, metric="euclidean", **OPTIONS[name]).output.square().sum().backward()
        grads.append([x.grad for x in inputs])
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize(("batch", "heads", "n_queries", "n_keys"), [(1, 1, 300, 90), (7, 3, 5, 8)])
@pytest.mark.parametrize("tile", [50, 500, 10_000])
def test_no_more_scores_live_at_once_than_documented(
    batch, heads, n_queries, n_keys, tile, monkeypatch
):
    seen, scores_of = [], plain._all_scores
    monkeypatch.setattr(plain, "_TILE", tile)
    monkeypatch.setattr(plain, "_all_scores", lambda t: seen.append(scores_of(t)) or seen[-1])
    tokens = random_tokens((batch, heads, n_queries, 4), n_keys=n_keys, dtype=torch.float32)
    with attention_implementation("plain"):
        attend(*tokens, 3)
    assert max(x.numel() for x in seen) <= max(tile, n_keys)
    assert sum(x.numel() for x in seen) == batch * heads * n_queries * n_keys


def test_numbers_order_scores_as_a_stable_sort_does():
    special = torch.tensor([torch.nan, -torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 1e-45, -1e-45])
    scores = special[torch.randint(0, 8, (200, 40))]
    scores[100:] = torch.randn(100, 40).round(decimals=1)
    expected = scores.sort(dim=-1, descending=True, stable=True).indices
    for n in (1, 7, 40):
        assert torch.equal(plain._first_by_number(scores, n), expected[:, :n])


def test_the_choice_is_compiled_loops_on_a_cpu_and_plain_torch_elsewhere():
    assert implementation.implementation_for(torch.empty(1)) == "cpu"
    elsewhere = torch.empty(1, device="meta")
    assert implementation.implementation_for(elsewhere) == "plain"


@pytest.mark.slow
def test_compiled_for_any_number_of_tokens_it_stays_one_graph(monkeypatch):
    torch.compiler.reset()
    monkeypatch.setattr(plain, "_TILE", 50)
    compiled = torch.compile(
        lambda *x: attend(*x, 3), fullgraph=True, dynamic=True, backend="aot_eager"
    )
    for n_tokens in (12, 19):
        tokens = random_tokens((2, 2, n_tokens, 4))
        with attention_implementation("plain"):
            torch.testing.assert_close(compiled(*tokens), attend(*tokens, 3))
