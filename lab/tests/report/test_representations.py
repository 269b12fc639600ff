"""Verdicts and report of representations follow from the records, and only from intervals."""

import csv
import json
from dataclasses import replace

import numpy as np
import pytest
from nearwise_lab.experiments.representations import Cell, Comparison, save_comparison
from nearwise_lab.probing.measures import packed
from nearwise_lab.report import render_report
from nearwise_lab.report.representations import (
    Tables,
    context_words,
    judge_all,
    representations_document,
)
from nearwise_lab.report.writers import (
    FORMATS,
    document_html,
    document_markdown,
    write_document,
)

from lab.tests.report.cases import comparison, everything, flat
from lab.tests.report.pages import check_page

LEARNED = ("linear", "transformer")


def judged(rates, **options):
    return {f.claim.key: f for f in judge_all(comparison(rates, **options))}


def verdict(rates, key):
    return judged(rates)[key].verdict


def test_nothing_is_shown_where_nothing_differs():
    found = judged(flat())
    assert {f.verdict for f in found.values()} == {"no difference"}
    assert list(found) == [
        "the question, full", "the question, 0.2", "H1, full", "H1, 0.2", "H2, 0.2", "H3, full",
        "H3, 0.2",
    ]  # fmt: skip


def test_the_studys_pattern_is_found_where_it_is_there_and_its_opposite_contradicts_it():
    rates = flat() | {(a, "knn"): 0.85 for a in ("sparse", "full+nce", "sparse+nce")}
    rates |= {("full", p): 0.85 for p in LEARNED} | {("full", "knn"): 0.7}
    assert verdict(rates, "the question, full") == "validated"
    even = rates | {("full", p): 0.7 for p in LEARNED}  # k-NN favors them, and no probe the other
    assert verdict(even, "the question, full") == "no difference"
    assert verdict(flat() | {("full", "knn"): 0.9}, "the question, full") == "not validated"


@pytest.mark.parametrize(
    ("near", "deep", "expected"),
    [(0.85, 0.7, "validated"), (0.85, 0.85, "not validated"), (0.55, 0.7, "not validated"),
     (0.7, 0.7, "no difference"), (0.7, 0.85, "no difference")],
)  # fmt: skip
def test_h1_needs_knn_to_gain_and_the_transformer_not_to(near, deep, expected):
    rates = flat()
    for arm in ("full+nce", "sparse+nce"):
        rates |= {(arm, "knn"): near, (arm, "transformer"): deep}
    assert verdict(rates, "H1, full") == expected


def test_one_arm_of_two_validates_in_part():
    assert verdict(flat() | {("full+nce", "knn"): 0.85}, "H1, full") == "validated in part"


def test_h2_is_of_the_sparse_context_only():
    rates = flat() | {("sparse", p, "0.2"): 0.85 for p in ("knn", "attention", "linear")}
    found = judged(rates)
    assert found["H2, 0.2"].verdict == "validated in part"
    assert "H2, full" not in found
    assert verdict(rates | {("sparse", "transformer", "0.2"): 0.85}, "H2, 0.2") == "validated"


def test_h3_says_what_share_of_the_gap_is_closed():
    closed = flat() | {(a, "attention"): 0.8 for a in ("full", "sparse")}
    found = judged(closed | {(a, "linear"): 0.9 for a in ("full", "sparse")})["H3, full"]
    assert found.verdict == "validated"
    assert "attention closes" in found.words and "% of the gap" in found.words
    without = judged(closed)["H3, full"]
    assert without.verdict == "no difference" and "no gap to close" in without.words


@pytest.mark.parametrize(
    ("context", "words"),
    [("full", "full"), ("0.2", "20 %, per image"), ("0.05:fixed", "5 %, one layout"),
     ("0.2:batch@3", "20 %, per batch, seed 3"), ("full@2", "full")],
)  # fmt: skip
def test_every_context_has_its_words(context, words):
    assert context_words(context) == words


def test_what_was_not_measured_is_said_so():
    some = comparison(flat())
    without = [r for r in some.records if r["probe"] != "transformer"]
    found = {f.claim.key: f for f in judge_all(Comparison(without))}
    assert found["H1, full"].verdict == "not measured"
    assert found["H1, full"].words.endswith("under knn and transformer.")
    assert found["the question, full"].verdict == "no difference"  # the linear probe is there
    pixels = [r for r in some.records if r["encoder"] == "pixels"]
    document = representations_document(Comparison(pixels))
    assert {c["verdict"] for c in document.claims} == {"not measured"}
    assert all(c["words"].startswith("Needs ") for c in document.claims)


def test_a_probe_at_chance_decides_nothing_and_is_named():
    rates = flat() | {(a, "transformer"): 0.02 for a in ("sparse", "full", "full+nce")}
    some = comparison(rates)
    assert some.at_chance(Cell("full", "transformer", "full"))
    assert not some.at_chance(Cell("full", "knn", "full"))
    found = {f.claim.key: f for f in judge_all(some)}
    lost = "at chance, no verdict: transformer on sparse, full, full+nce"
    assert found["H1, full"].verdict == "not judged"
    assert found["H1, full"].words == lost
    assert found["H2, 0.2"].words.endswith(lost)
    assert all("transformer" not in e.what for e in found["H2, 0.2"].evidence)
    assert found["the question, full"].verdict == "no difference"  # the linear probe is there


def test_encoders_that_err_on_the_same_rows_are_not_known_to_be_equal():
    correct = packed(np.arange(100) % 3 > 0)
    records = [
        {"part": "main", "encoder": e, "probe": "knn", "pool": "mean", "context": "full",
         "draw": 0, "seed": 0, "correct": correct, "n": 100}
        for e in ("full", "sparse")
    ]  # fmt: skip
    places = Cell("sparse", "knn", "full"), Cell("full", "knn", "full")
    found = Comparison(records).difference(*places)
    assert found.mean == 0 and found.low < -0.02 and found.high > 0.02


def test_differences_pair_the_seeds_that_both_have():
    some = comparison(flat() | {("sparse", "knn"): 0.9})
    kept = [r for r in some.records if (r["encoder"], r["seed"]) != ("full", 2)]
    places = Cell("sparse", "knn", "0.2"), Cell("full", "knn", "0.2")
    found = Comparison(kept).difference(*places)
    assert found is not None and found.n == 2 and found.verdict == "higher"
    assert found.mean == pytest.approx(0.2, abs=0.03)
    assert some.difference(Cell("vit", "knn", "full"), places[1]) is None


def test_a_probe_with_fewer_draws_is_compared_on_those_it_has():
    some = comparison(flat() | {("full", "linear"): 0.8}, seeds=(0,))
    kept = [r for r in some.records if r["probe"] != "linear" or r["draw"] == 0]
    places = Cell("full", "linear", "0.2"), Cell("full", "knn", "0.2")
    found = Comparison(kept).difference(*places)
    rates = [some.at(place)[0]["accuracy"] for place in places]
    assert found is not None and found.mean == pytest.approx(rates[0] - rates[1])


def test_captions_count_the_draws_of_what_they_stand_over():
    every = comparison(flat(), **everything())
    heavy = ("attention", "transformer")
    found = replace(
        every, records=[r for r in every.records if r["probe"] not in heavy or r["draw"] == 0]
    )
    made = Tables(found)
    tables = [made.accuracy("0.2"), made.of_probe("0.2", "attention"), made.of_probe("0.2", "knn"),
              made.geometry("0.2")]  # fmt: skip
    endings = [table.caption.split(", ", 1)[1] for table in tables]
    assert "3 draws (knn, linear), 1 draw (attention, transformer) of the context" in endings[0]
    for ending, draws in zip(endings[1:], ("1 draw", "3 draws", "1 draw"), strict=True):
        assert f"{draws} of the context each" in ending
    assert "draw" not in made.accuracy("full").caption


def test_one_seed_shows_intervals_over_rows_only_and_names_are_escaped():
    some = comparison(flat(), seeds=(0,), draws=(0,))
    records = [{**r, "encoder": "<b>&" if r["encoder"] == "random" else r["encoder"]}
               for r in some.records]  # fmt: skip
    document = representations_document(Comparison(records))
    text = document_markdown(document)
    assert "One seed (0)" in text and "±" not in text.split("## How this")[0]
    page = document_html(document)
    assert "<b>&" not in page and "&lt;b&gt;&amp;" in page


def test_an_empty_comparison_and_unknown_formats_are_refused(tmp_path):
    save_comparison(Comparison([]), tmp_path)
    with pytest.raises(ValueError, match="no finished rows"):
        render_report(tmp_path)
    with pytest.raises(ValueError, match="Known: pdf, html"):
        render_report(tmp_path, formats=["docx"])


@pytest.mark.slow
def test_the_report_is_whole_and_its_numbers_are_the_records(tmp_path):
    rates = flat() | {("sparse", p, "0.2"): 0.9 for p in ("knn", "attention", "linear")}
    document = representations_document(comparison(rates, **everything()))
    page = write_document(document, tmp_path, FORMATS)
    names = {p.name for p in tmp_path.iterdir()}
    forms = {f"{'report' if f in ('html', 'pdf') else 'results'}.{f}" for f in FORMATS[:-1]}
    assert names == {*forms, "figures"}
    text = page.read_text(encoding="utf-8")
    check_page(text)
    for words in (
        "Bars of accuracy", "Learning curves", "Maps of the features",
        "Test images and their reconstructions", "Purity against", "Effect of the protocol on knn",
    ):  # fmt: skip
        assert words in text, words
    rows = list(csv.DictReader((tmp_path / "results.csv").open(encoding="utf-8")))
    wanted = {"part": "main", "encoder": "sparse", "probe": "linear", "context": "0.2",
              "measure": "accuracy"}  # fmt: skip
    (row,) = [r for r in rows if wanted.items() <= r.items()]
    assert float(row["mean"]) > 0.85 and (row["seeds"], row["draws"]) == ("3", "3")
    assert f"{float(row['mean']):.3f}" in (tmp_path / "results.md").read_text(encoding="utf-8")
    stored = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    h2 = next(c for c in stored["claims"] if c["claim"] == "H2, 0.2")
    assert h2["verdict"] == "validated in part" and h2["evidence"][0]["low"] > 0
