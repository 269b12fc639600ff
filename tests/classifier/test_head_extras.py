"""Optional terms and parts of the head are kept only where they lower the held-out NLL."""

import pytest

from nearwise.classifier import AttnKNNClassifier
from nearwise.classifier.fit.head_extras import choose_extras
from nearwise.training import HeadConfig
from tests.classifier.cases import CHEAP, blobs, fitted, same, sums_to_one

OFFER = {"ece_weight": 1.0, "brier_weight": 0.5, "clusters": "label"}


def test_each_extra_is_tried_beside_those_kept_so_far():
    tried = []

    def nll(config):
        tried.append(config.extras)
        return {"ece_weight": 0.5, "brier_weight": 0.3, "clusters": 0.31}[config.extras[-1]]

    kept, report = choose_extras(HeadConfig(**OFFER), 0.4, 100, nll)
    assert tried == [["ece_weight"], ["brier_weight"], ["brier_weight", "clusters"]]
    assert kept == HeadConfig(brier_weight=0.5)
    assert report == {
        "ece_weight": {"nll": 0.5, "without": 0.4, "kept": False},
        "brier_weight": {"nll": 0.3, "without": 0.4, "kept": True},
        "clusters": {"nll": 0.31, "without": 0.3, "kept": False},
    }


def test_an_extra_has_to_win_more_than_chance():
    kept, report = choose_extras(HeadConfig(brier_weight=1.0), 0.4, 100, lambda _: 0.395)
    assert not kept.extras and not report["brier_weight"]["kept"]


def test_extras_that_are_not_kept_leave_the_fit_as_it_was(monkeypatch):
    X, y = blobs()
    plain = fitted(X, y)
    monkeypatch.setattr(
        "nearwise.classifier.fit.head_fitting.choose_extras",
        lambda wanted, *_: (wanted.without_extras(), {}),
    )
    offered = AttnKNNClassifier(**{**CHEAP, "head_params": {"epochs": 3, **OFFER, "bilinear": 2}})
    assert same(offered.fit(X, y).predict_proba(X), plain.predict_proba(X))


def test_what_is_kept_is_what_predicts_and_stands_in_the_choice():
    X, y = blobs()
    offered = fitted(X, y, head_params={"epochs": 8, **OFFER})
    report = offered.choice_["head_extras"]
    assert list(report) == ["ece_weight", "brier_weight", "clusters"]
    kept = {name: OFFER[name] for name in report if report[name]["kept"]}
    forced = fitted(X, y, head_params={"epochs": 8, "keep": "always", **kept})
    assert same(forced.predict_proba(X), offered.predict_proba(X))
    for entry in report.values():
        assert entry["kept"] == (entry["nll"] < entry["without"] - 1 / 90)


@pytest.mark.parametrize(
    "extra",
    [{"ece_weight": 2.0}, {"brier_weight": 1.0}, {"temperature": True}, {"clusters": "band"},
     {"bilinear": 2}, {"k_temperature": True}],
    ids=str,
)  # fmt: skip
def test_each_extra_changes_the_fit_where_it_is_forced(extra):
    X, y = blobs()
    sizes = {"k_ensemble": (3, 9)}
    plain = fitted(X, y, **sizes)
    forced = fitted(X, y, head_params={"epochs": 3, "keep": "always", **extra}, **sizes)
    proba = forced.predict_proba(X)
    assert sums_to_one(proba) and not same(proba, plain.predict_proba(X))
    assert forced.history_[-1]["held_out_nll"] is not None
