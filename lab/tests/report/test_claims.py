"""Every verdict is reachable, and an interval that holds 0 says none."""

import math
from dataclasses import replace

import pytest
from nearwise_lab.comparisons import PairedDifference, paired_difference
from nearwise_lab.experiments import read_records
from nearwise_lab.experiments.places import Place
from nearwise_lab.report.claims import Claim, compared, judge, tally, valued
from nearwise_lab.report.study import Study
from nearwise_lab.report.study_claims import CLAIMS, judge_claims
from nearwise_lab.report.study_report import study_document
from nearwise_lab.results.measures import MEASURES

from lab.tests.report.records import EXPLAINED, full_study, row

ACCURACY, ECE, AURC = (next(m for m in MEASURES if m.key == k) for k in ("accuracy", "ece", "aurc"))


def found(mean, low, high, n=3, method="t"):
    return PairedDifference(mean, low, high, n, 0.95, method)


def judged(evidence, low=0.0, high=math.inf):
    return judge(Claim("c", "It is so.", lambda: evidence, low, high))


UP, DOWN, WIDE = (0.02, 0.01, 0.03), (-0.02, -0.03, -0.01), (0.02, -0.01, 0.05)
UNKNOWN = (0.02, -math.inf, math.inf)


@pytest.mark.parametrize(
    ("measure", "margin", "ends", "verdict"),
    [
        (ACCURACY, 0.0, UP, "validated"), (ACCURACY, 0.0, DOWN, "not validated"),
        (ECE, 0.0, DOWN, "validated"), (ECE, 0.0, UP, "not validated"),
        (ACCURACY, 0.0, WIDE, "no difference"), (ACCURACY, 0.0, (0.02, 0.0, 0.05), "no difference"),
        (ACCURACY, 0.0, UNKNOWN, "not judged"),
        # at most the margin worse: the whole interval decides
        (ACCURACY, 0.01, (-0.004, -0.008, 0.001), "validated"),
        (ACCURACY, 0.01, (-0.004, -0.008, -0.001), "validated"),
        (ACCURACY, 0.01, UP, "validated"), (ACCURACY, 0.01, (-0.01, -0.03, 0.01), "inconclusive"),
        (ACCURACY, 0.01, (-0.004, -0.01, 0.001), "inconclusive"),  # the bound is not within it
        (ACCURACY, 0.01, UNKNOWN, "not judged"), (ACCURACY, 0.01, DOWN, "not validated"),
        (ACCURACY, 0.01, (-0.012, -0.02, -0.004), "not validated"),
        (ECE, 0.01, (0.03, 0.02, 0.04), "not validated"), (ECE, 0.01, DOWN, "validated"),
    ],
)  # fmt: skip
def test_a_difference_is_judged_by_its_whole_interval(measure, margin, ends, verdict):
    assert judged(compared(found(*ends), measure), -margin).verdict == verdict
    assert judged(compared(None, measure), -margin).verdict == "not measured"


@pytest.mark.parametrize(
    ("values", "interval", "verdict"),
    [
        ([0.1, 0.11, 0.12], None, "validated"), ([0.1, 0.5, 0.9], None, "not validated"),
        ([0.1], None, "not judged"), ([], None, "not measured"),
        ([0.1], (0.05, 0.15), "validated"), ([0.1], (0.05, 0.25), "not validated"),
    ],
)  # fmt: skip
def test_a_range_must_hold_the_whole_interval(values, interval, verdict):
    assert judged(valued(values, interval), 0.0, 0.2).verdict == verdict


def test_amounts_are_shown_in_the_unit_of_their_measure():
    (shown,) = compared(found(-0.002, -0.003, -0.001), AURC)
    assert shown.amount == "-2.0 [-3.0, -1.0]"
    assert valued([1.0, 1.2], digits=2, unit="times")[0].amount.endswith("times")


def test_several_comparisons_are_pooled_and_a_cap_holds():
    up, none, down = (found(m, m - 0.01, m + 0.01) for m in (0.02, 0.0, -0.02))
    both = [*compared(up, ACCURACY, "one"), *compared(none, ACCURACY, "other")]
    assert judged(both).verdict == "validated in part"
    assert judged(both).words == (
        "one: +0.0200 [+0.0100, +0.0300], validated; "
        "other: +0.0000 [-0.0100, +0.0100], no difference"
    )
    worse = [*compared(down, ACCURACY), *compared(none, ACCURACY)]
    assert judged(worse).verdict == "not validated"
    assert judged(compared(up, ACCURACY, cap="no difference")).verdict == "no difference"
    assert judged("nobody asked").words == "nobody asked"


def claims(records, preset="v0.5"):
    return judge_claims(Study(records), "toys", preset)


def fixed(method, accuracies, eces=(0.1, 0.1, 0.1), **more):
    return [
        replace(row(method, seed, **more), accuracy=right, ece=error)
        for seed, (right, error) in enumerate(zip(accuracies, eces, strict=True))
    ]


def test_attention_over_uniform_is_paired_by_seed():
    records = fixed("uniform", [0.80, 0.85, 0.90]) + fixed("attention", [0.82, 0.871, 0.919])
    finding = claims(records)["attention-uniform-accuracy"]
    expected = paired_difference([0.82, 0.871, 0.919], [0.80, 0.85, 0.90])
    assert finding.verdict == "validated"
    (e,) = finding.evidence
    assert (e.estimate, e.low, e.high) == pytest.approx(
        (expected.mean, expected.low, expected.high)
    )
    assert (e.n, e.over) == (3, "seeds")


def test_the_corrected_method_is_judged_by_weights_of_the_same_neighbors(tmp_path):
    here = {"experiment": "weights", "preset": "v1", "condition": "with=base", "folder": tmp_path}
    records = [
        row(method, seed, skill, **here)
        for seed in (0, 1, 2)
        for method, skill in (("uniform", 1.0), ("distance", 3.0), ("attention", 3.0))
    ]
    # the main experiment of "v1" compares with plain neighbors in the network's keys
    records += fixed("uniform", [0.9, 0.9, 0.91], preset="v1")
    records += fixed("attention", [0.5, 0.5, 0.51], preset="v1")
    found = judge_claims(Study(records, tmp_path), "toys", "v1")
    assert found["attention-uniform-nll"].verdict == "validated"
    assert found["attention-distance-nll"].verdict == "no difference"
    assert found["attention-tuned-nll"].verdict == "not measured"
    assert found["classifier-uniform-accuracy"].verdict == "not validated"
    assert claims(records)["classifier-uniform-accuracy"].verdict == "not measured"


def test_differences_of_weightings_are_those_of_the_table_and_of_the_claims(tmp_path):
    here = {"experiment": "weights", "preset": "v1", "condition": "with=base", "folder": tmp_path}
    skills = {"uniform": 1.0, "distance": 1.5, "attention": 3.0, "classifier": 3.1}
    records = [
        row(method, seed, skill + 0.4 * seed, **here)
        for seed in (0, 1, 2)
        for method, skill in skills.items()
    ]
    study = Study(records, tmp_path)
    document, shown = study_document(study), study.part("toys", Place("weights", "v1", "with=base"))
    exported = [r for r in document.numbers if r["kind"] == "difference"]
    found = {(r["reference"], r["measure"]): r for r in exported}
    measures = ("accuracy", "nll", "brier", "ece", "aurc")
    assert set(found) == {(o, m) for o in ("uniform", "distance") for m in measures}
    for (reference, key), difference in found.items():
        over_rows = shown.paired_over_rows("toys", "attention", reference, key)
        expected = over_rows.as_dict()
        for name in ("mean", "low", "high", "n", "verdict"):
            assert difference[name] == expected[name]
        assert over_rows.n == 3
    claim = next(c for c in document.claims if c["claim"] == "attention-uniform-nll")
    for name, of_claim in (("mean", "estimate"), ("low", "low"), ("high", "high")):
        assert found["uniform", "nll"][name] == claim[of_claim]


def test_nothing_in_the_records_is_not_measured():
    found = claims(fixed("uniform", [0.8, 0.8, 0.8]))
    assert {key: f.verdict for key, f in found.items()} == {c.key: "not measured" for c in CLAIMS}


@pytest.mark.parametrize(
    ("attention", "tta", "verdict"),
    [
        ((0.2, 0.21, 0.2), (0.05, 0.06, 0.04), "validated"),
        ((0.1, 0.11, 0.1), (0.05, 0.06, 0.04), "not validated"),  # attention alone repairs it
        ((0.2, 0.21, 0.2), (0.3, 0.31, 0.32), "not validated"),
        ((0.2, 0.21, 0.2), (0.1, 0.3, 0.2), "no difference"),
    ],
)
def test_tta_alone_repairs_calibration_only_where_attention_does_not(attention, tta, verdict):
    eces = {"uniform": (0.2, 0.2, 0.205), "attention": attention, "attention+tta": tta}
    records = [r for method, of_method in eces.items() for r in fixed(method, [0.8] * 3, of_method)]
    assert claims(records)["tta-repairs"].verdict == verdict


@pytest.mark.parametrize(
    ("purity", "eces", "verdict"),
    [
        (0.98, (0.19, 0.2, 0.21), "validated"),
        (0.82, (0.19, 0.2, 0.21), "not validated"),  # no purer than answers are right
        (0.98, (0.02, 0.03, 0.02), "not validated"),  # the confidence knows of the errors
    ],
)
def test_the_collapse_needs_both_of_its_signs(purity, eces, verdict):
    details = EXPLAINED | {"memory_purity": purity}
    records = fixed("attention", [0.8, 0.81, 0.79], eces, details=details)
    assert claims(records)["collapse"].verdict == verdict


def test_an_accurate_model_is_not_called_collapsed():
    details = EXPLAINED | {"memory_purity": 0.999}
    records = fixed("attention", [0.98, 0.985, 0.98], (0.015, 0.015, 0.02), details=details)
    found = claims(records)["collapse"]
    assert found.verdict == "not judged"
    assert "a good memory is as pure" in found.words


@pytest.mark.parametrize(("share", "verdict"), [(0.2, "validated"), (0.06, "not validated")])
def test_the_leak_is_attention_on_oneself_beyond_an_even_share(share, verdict):
    details = EXPLAINED | {"self_weight": share, "self_weight_error": 0.001, "even_share": 0.0625}
    records = fixed("attention", [0.8], (0.1,), details=details)
    found = claims(records)["leak"]
    assert (found.verdict, found.evidence[0].over) == (verdict, "training rows")
    assert found.evidence[0].estimate == pytest.approx(share / 0.0625)


@pytest.mark.parametrize(
    ("last", "verdict"), [([0.799, 0.8, 0.801], "validated"), ([0.7, 0.71, 0.7], "not validated")]
)
def test_k_and_noise_are_judged_against_a_margin(last, verdict):
    first = [0.8, 0.801, 0.802]
    records = []
    for condition, values in (("k=1", first), ("k=50", last)):
        records += fixed("attention", values, experiment="k-sweep", condition=condition)
    for noise, values in ((0.0, first), (0.3, last)):
        where = {"experiment": "label-noise", "condition": "where=memory", "noise": noise}
        records += fixed("attention", values, **where)
    found = claims(records)
    assert found["k-does-not-matter"].verdict == verdict
    assert found["noise-memory-symmetric"].verdict == verdict
    assert found["noise-everywhere-symmetric"].verdict == "not measured"


@pytest.mark.parametrize("reference", ["uniform", "distance-tuned"])
def test_calibration_under_wrong_labels_is_judged_beside_k_nn(reference):
    records = []
    for noise in (0.0, 0.3):
        where = {"experiment": "label-noise", "condition": "where=everywhere", "noise": noise}
        records += fixed("attention", [0.88, 0.89, 0.9], (0.25, 0.26, 0.26), **where)
        records += fixed(reference, [0.87, 0.88, 0.89], (0.11, 0.12, 0.11), **where)
    found = claims(records)
    name = {"uniform": "uniform", "distance-tuned": "tuned"}[reference]
    assert found[f"noise-over-{name}-accuracy"].verdict == "validated"
    assert found[f"noise-over-{name}-ece"].verdict == "not validated"


def test_a_single_seed_is_judged_over_its_test_rows(tmp_path):
    folder = full_study(tmp_path / "one", seeds=(0,))
    found = judge_claims(Study(read_records(folder), folder), "toys", "v0.5")
    assert found["attention-uniform-nll"].verdict == "validated"
    assert found["attention-uniform-nll"].evidence[0].over == "test rows"
    without = judge_claims(Study(read_records(folder)), "toys", "v0.5")
    assert without["attention-uniform-nll"].verdict == "not judged"


def test_the_collapse_of_a_single_seed_is_judged_over_its_test_rows(tmp_path):
    records = [row("attention", 0, 0.5, tmp_path, details=EXPLAINED)]
    found = judge_claims(Study(records, tmp_path), "toys", "v0.5")["collapse"]
    error = 1 - records[0].accuracy
    (e,) = found.evidence
    assert e.estimate == pytest.approx(EXPLAINED["memory_purity"] - 1 + error)
    assert (found.verdict, e.over) == ("not validated", "test rows")  # unsure of its errors
    assert e.low < e.estimate < e.high


def test_what_one_seed_measured_but_cannot_judge_says_so():
    records = [row(m, predict_us_per_row=t) for m, t in (("uniform", 10.0), ("attention", 15.0))]
    cost = claims(records)["little-compute"]
    words = "1.50 times uniform's; one seed gives no interval"
    assert (cost.verdict, cost.words) == ("not judged", words)


def test_search_and_weights_are_judged_without_the_encoding_that_methods_share():
    times = {"uniform": (10.0, 11.0, 10.0), "attention": (35.0, 36.0, 35.0)}
    records = [
        row(method, seed, predict_us_per_row=5000.0 + time,
            details={"search_and_weigh_us_per_row": time})
        for method, own in times.items() for seed, time in enumerate(own)
    ]  # fmt: skip
    cost = claims(records)["little-compute"]
    assert cost.verdict == "not validated"
    assert cost.evidence[0].estimate == pytest.approx((3.5 + 36 / 11 + 3.5) / 3)


@pytest.mark.parametrize(
    ("accuracy", "epochs", "note"),
    [
        (0.9, 30, ""),
        (0.9, 1, "cnn+temperature was trained for one epoch"),
        (0.35, 30, "cnn+temperature is at chance, 0.350: it was not trained"),
    ],
)
def test_a_bound_that_was_not_trained_gives_no_verdict(accuracy, epochs, note):
    details = {"epochs": epochs, "chance": 1 / 3}
    bound = fixed("cnn+temperature", [accuracy] * 3, details=details)
    records = fixed("attention", [0.95, 0.951, 0.952]) + bound
    for key in ("attention-bound-accuracy", "attention-head-accuracy"):
        found = claims(records)[key]
        assert found.verdict == ("not judged" if note else "validated")
        assert note in found.words


def test_verdicts_are_counted_in_one_order():
    assert tally(["not measured", "validated", "inconclusive", "validated"]) == (
        "2 validated, 1 inconclusive, 1 not measured"
    )
