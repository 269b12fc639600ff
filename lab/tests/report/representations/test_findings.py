"""Verdicts follow from the records, and only from what intervals show."""

import numpy as np
import pytest
from nearwise_lab.experiments.representations import Cell, Comparison
from nearwise_lab.experiments.representations.kept import right_rows
from nearwise_lab.report.representations import judge_all
from nearwise_lab.report.representations.findings import sparse_wins_when_sparse
from nearwise_lab.report.representations.tables import context_words

from lab.tests.report.representations.cases import comparison, flat


def verdicts(rates, **options):
    return {h.name: h.verdict for h in judge_all(comparison(rates, **options))}


def test_nothing_is_shown_where_nothing_differs():
    found = verdicts(flat())
    assert set(found.values()) == {"not shown"}
    assert list(found) == [
        "the question, full", "the question, 0.2", "H1, full", "H1, 0.2", "H2, 0.2", "H3, full",
        "H3, 0.2",
    ]  # fmt: skip


def test_the_studys_pattern_is_found_where_it_is_there():
    rates = flat() | {(a, "knn"): 0.85 for a in ("sparse", "full+nce", "sparse+nce")}
    rates |= {("full", p): 0.85 for p in ("linear", "transformer")}
    rates |= {("full", "knn"): 0.7}
    assert verdicts(rates)["the question, full"] == "supported"


def test_the_opposite_pattern_contradicts_it():
    rates = flat() | {("full", "knn"): 0.9}
    assert verdicts(rates)["the question, full"] == "contradicted"


@pytest.mark.parametrize(
    ("near", "deep", "verdict"),
    [(0.85, 0.7, "supported"), (0.85, 0.85, "contradicted"), (0.55, 0.7, "contradicted"),
     (0.7, 0.7, "not shown")],
)  # fmt: skip
def test_h1_needs_knn_to_gain_and_the_transformer_not_to(near, deep, verdict):
    rates = flat()
    for arm in ("full+nce", "sparse+nce"):
        rates |= {(arm, "knn"): near, (arm, "transformer"): deep}
    assert verdicts(rates)["H1, full"] == verdict


def test_one_arm_of_two_is_support_in_part():
    assert verdicts(flat() | {("full+nce", "knn"): 0.85})["H1, full"] == "supported in part"


def test_h2_is_of_the_sparse_context_only():
    rates = flat() | {("sparse", p, "0.2"): 0.85 for p in ("knn", "attention", "linear")}
    found = verdicts(rates)
    assert found["H2, 0.2"] == "supported in part"
    assert "H2, full" not in found
    assert verdicts(rates | {("sparse", "transformer", "0.2"): 0.85})["H2, 0.2"] == "supported"


def test_h3_says_what_share_of_the_gap_is_closed():
    rates = flat() | {(a, "linear"): 0.9 for a in ("full", "sparse")}
    rates |= {(a, "attention"): 0.8 for a in ("full", "sparse")}
    found = {h.name: h for h in judge_all(comparison(rates))}["H3, full"]
    assert found.verdict == "supported"
    assert "attention closes" in found.words and "% of the gap" in found.words


def test_h3_without_a_gap_claims_nothing():
    rates = flat() | {(a, "attention"): 0.8 for a in ("full", "sparse")}
    found = {h.name: h for h in judge_all(comparison(rates))}["H3, full"]
    assert found.verdict == "not shown" and "no gap to close" in found.words


@pytest.mark.parametrize(
    ("context", "words"),
    [("full", "full"), ("0.2", "20 %, per image"), ("0.05:fixed", "5 %, one layout"),
     ("0.2:batch@3", "20 %, per batch, seed 3"), ("full@2", "full")],
)  # fmt: skip
def test_every_context_has_its_words(context, words):
    assert context_words(context) == words
    claim = sparse_wins_when_sparse(Comparison([], right_rows), context).claim
    assert (
        "whole image seen" in claim or f"a share of {float(words.split()[0]) / 100:g} of" in claim
    )


def test_what_was_not_measured_is_said_so():
    some = comparison(flat())
    without = [r for r in some.records if r["probe"] != "transformer"]
    found = {h.name: h for h in judge_all(Comparison(without, some.right))}
    assert found["H1, full"].verdict == "not measured"
    assert found["the question, full"].verdict == "not shown"  # the linear probe is there
    assert found["H1, full"].words.endswith("under knn and transformer.")
    pixels = [r for r in some.records if r["encoder"] == "pixels"]
    for hypothesis in judge_all(Comparison(pixels, some.right)):
        assert hypothesis.verdict == "not measured"
        assert hypothesis.words.startswith("Needs ") and hypothesis.words.endswith(".")


def test_a_probe_at_chance_decides_nothing_and_is_named():
    rates = flat() | {(a, "transformer"): 0.02 for a in ("sparse", "full", "full+nce")}
    some = comparison(rates)
    assert some.at_chance(Cell("full", "transformer", "full"))
    assert not some.at_chance(Cell("full", "knn", "full"))
    found = {h.name: h for h in judge_all(some)}
    lost = "At chance, no verdict: the transformer probe on sparse, full and full+nce."
    assert found["H1, full"].verdict == "not judged"
    assert found["H1, full"].words == lost
    assert found["H2, 0.2"].words.endswith(lost)
    assert all("transformer" not in e.what for e in found["H2, 0.2"].evidence)
    assert found["the question, full"].verdict == "not shown"  # the linear probe is there


def test_encoders_that_err_on_the_same_rows_are_not_known_to_be_equal():
    records = [
        {"part": "main", "encoder": e, "probe": "knn", "pool": "mean", "context": "full",
         "draw": 0, "seed": 0}
        for e in ("full", "sparse")
    ]  # fmt: skip
    right = np.arange(100) % 3 > 0
    places = Cell("sparse", "knn", "full"), Cell("full", "knn", "full")
    found = Comparison(records, lambda r: right).difference(*places)
    assert found.mean == 0 and found.low < -0.02 and found.high > 0.02


def test_differences_pair_the_seeds_that_both_have():
    some = comparison(flat() | {("sparse", "knn"): 0.9})
    kept = [r for r in some.records if (r["encoder"], r["seed"]) != ("full", 2)]
    found = Comparison(kept, some.right).difference(
        Cell("sparse", "knn", "0.2"), Cell("full", "knn", "0.2")
    )
    assert found is not None and found.n == 2 and found.verdict == "higher"
    assert found.mean == pytest.approx(0.2, abs=0.03)


def test_a_place_that_nobody_measured_has_no_difference():
    some = comparison(flat())
    assert some.difference(Cell("vit", "knn", "full"), Cell("full", "knn", "full")) is None


def test_draws_are_averaged_before_seeds():
    some = comparison(flat(), seeds=(0,), draws=(0, 1))
    place = Cell("full", "knn", "0.2")
    runs = some.runs(place)
    assert list(runs) == [(0, 0), (0, 1)]
    assert some.values(place)[0] == pytest.approx(np.mean([r.mean() for r in runs.values()]))


def test_a_probe_with_fewer_draws_is_compared_on_those_it_has():
    some = comparison(flat() | {("full", "linear"): 0.8}, seeds=(0,))
    kept = [r for r in some.records if r["probe"] != "linear" or r["draw"] == 0]
    places = Cell("full", "linear", "0.2"), Cell("full", "knn", "0.2")
    found = Comparison(kept, some.right).difference(*places)
    rows = [some.runs(place)[0, 0] for place in places]
    assert found is not None and found.mean == pytest.approx((rows[0] - rows[1]).mean())
