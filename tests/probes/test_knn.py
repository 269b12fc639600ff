"""KNNProbe and LinearProbe against independent ones."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import StandardScaler

from nearwise.probes import KNNProbe, LinearProbe
from tests.probes.cases import blobs
from tests.reference.dino_knn import dino_votes

SKLEARN = {"cosine": "cosine", "euclidean": "euclidean"}


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
@pytest.mark.parametrize("weights", ["uniform", "distance"])
@pytest.mark.parametrize("k", [1, 7, 200])
def test_knn_votes_as_scikit_learn_does(metric, weights, k):
    X, y = blobs(200)
    query = np.concatenate([blobs(60, seed=1)[0], X[:5]])  # rows at distance 0 among them
    ours = KNNProbe(k, weights=weights, metric=metric).fit(X, y)
    theirs = KNeighborsClassifier(k, weights=weights, metric=SKLEARN[metric], algorithm="brute")
    if metric == "cosine" and weights == "distance":
        query = query[:60]  # scikit-learn's cosine of equal rows is 1e-8, ours is 0
    proba = theirs.fit(X.astype(np.float64), y).predict_proba(query.astype(np.float64))
    assert np.allclose(ours.predict_proba(query), proba, atol=1e-5)


@pytest.mark.parametrize(("k", "t"), [(1, 0.07), (10, 1.0), (20, 0.07), (200, 0.07)])
def test_predictions_are_those_of_dino_s_protocol(k, t):
    X, y = blobs(300, width=16, n_classes=6, spread=2.0)
    query = blobs(250, width=16, n_classes=6, seed=1, spread=2.0)[0]
    classes, codes = np.unique(y, return_inverse=True)
    votes = dino_votes(X, codes, query, n_classes=6, n_neighbors=k, temperature=t)
    probe = KNNProbe(k, weights="softmax", temperature=t).fit(X, y)
    assert np.array_equal(probe.predict(query), classes[votes.argmax(axis=1)])
    shares = votes / votes.sum(axis=1, keepdims=True)
    assert np.allclose(probe.predict_proba(query), shares, atol=1e-5)


def test_leave_one_out_never_sees_its_own_label():
    X, y = blobs(60)
    X = np.repeat(X, 2, axis=0)  # exact copies must not let a row find itself
    y = np.repeat(y, 2)
    before = KNNProbe(5).fit(X, y).predict_proba()
    changed = y.copy()
    changed[10] = "cow" if y[10] != "cow" else "ant"
    assert np.array_equal(KNNProbe(5).fit(X, changed).predict_proba()[10], before[10])
    _, positions = KNNProbe(5).fit(X, y).kneighbors()
    assert not (positions == np.arange(120)[:, None]).any()


def brier_loop(proba, codes):
    """Brier score as a loop over rows and classes."""
    rows = zip(proba, codes, strict=True)
    return np.mean([sum((p - (c == code)) ** 2 for c, p in enumerate(row)) for row, code in rows])


def test_choices_are_made_by_brier_score_on_validation_rows_or_by_leave_one_out():
    X, y = blobs(300, spread=2.5)
    held = blobs(100, seed=1, spread=2.5)
    probe = KNNProbe("val", weights="softmax", temperature="val").fit(X, y, validation=held)
    chosen = probe.choice_["n_neighbors"]
    scores = {}
    for k in (5, 10, 20, 50, 100, 200):
        for t in (0.01, 0.07, 0.5):
            one = KNNProbe(k, weights="softmax", temperature=t).fit(X, y)
            proba = one.predict_proba(held[0])
            codes = np.searchsorted(one.classes_, held[1])
            scores[k, t] = brier_loop(proba, codes)
    assert probe.choice_["brier"] <= min(scores.values()) + 1e-9
    assert chosen in (5, 10, 20, 50, 100, 200)
    own = KNNProbe("val").fit(X, y)
    proba = KNNProbe(own.choice_["n_neighbors"]).fit(X, y).predict_proba()
    score = brier_loop(proba, np.searchsorted(own.classes_, y))
    assert own.choice_["brier"] == pytest.approx(score)  # leave-one-out
    assert KNNProbe("val").fit(X[:4], y[:4]).choice_["n_neighbors"] == 3


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("C", [0.01, 1.0])
def test_linear_is_logistic_regression_at_the_same_c(n_classes, C):
    X, y = blobs(150, n_classes=n_classes, spread=2.0)
    X *= np.linspace(0.1, 30, X.shape[1], dtype=np.float32)
    query = blobs(40, seed=1, n_classes=n_classes)[0]
    scaler = StandardScaler().fit(X)
    theirs = LogisticRegression(C=C, tol=1e-8, max_iter=5000).fit(scaler.transform(X), y)
    ours = LinearProbe(C=C, tol=1e-8).fit(X, y)
    wanted = theirs.predict_proba(scaler.transform(query))
    assert np.allclose(ours.predict_proba(query), wanted, atol=1e-4)


def test_c_is_chosen_on_validation_rows_and_kept():
    X, y = blobs(60, width=40, spread=3.0)
    held = blobs(200, seed=1, width=40, spread=3.0)
    probe = LinearProbe().fit(X, y, validation=held)
    codes = np.searchsorted(probe.classes_, held[1])

    def nll(C):
        proba = LinearProbe(C=C).fit(X, y).predict_proba(held[0])
        return -np.log(proba[np.arange(200), codes]).mean()

    assert probe.choice_["C"] in [c for c, _ in probe.choice_["tried"]]
    assert abs(nll(probe.choice_["C"]) - probe.choice_["nll"]) < 1e-3
    assert probe.choice_["nll"] <= min(nll(C) for C in (1e-5, 1e-2, 1e2)) + 1e-3


@pytest.mark.parametrize("make", [lambda v: KNNProbe(v), lambda v: LinearProbe(v)])
def test_a_refit_is_a_fit_of_all_rows_with_what_was_chosen_without_them(make):
    X, y = blobs(120, spread=2.5)
    held = blobs(60, seed=1, spread=2.5)
    plain = make("val").fit(X, y, validation=held)
    again = make("val").fit(X, y, validation=held, refit=True)
    assert again.choice_ == plain.choice_
    value = next(iter(plain.choice_.values()))  # k, or C
    whole = make(value).fit(np.concatenate([X, held[0]]), np.concatenate([y, held[1]]))
    query = blobs(40, seed=2)[0]
    assert np.array_equal(again.predict_proba(query), whole.predict_proba(query))
    assert not np.array_equal(again.predict_proba(query), plain.predict_proba(query))


def test_constant_and_huge_features_do_no_harm():
    X, y = blobs(100)
    X[:, 0], X[:, 1] = 7.0, X[:, 1] * 1e6
    proba = LinearProbe(C=1.0).fit(X, y).predict_proba(X)
    assert np.isfinite(proba).all() and np.allclose(proba.sum(1), 1)


@pytest.mark.parametrize("probe", [KNNProbe(3), LinearProbe(C=1.0)])
def test_bad_rows_are_refused(probe):
    X, y = blobs(30)
    bad = X.copy()
    bad[[4, 9], 2] = np.nan
    with pytest.raises(ValueError, match="2 of 30 rows of X hold NaN or infinity: rows 4, 9"):
        clone(probe).fit(bad, y)
    fitted = clone(probe).fit(X, y)
    with pytest.raises(ValueError, match="has 5 features"):
        fitted.predict(X[:, :5])
    if isinstance(probe, LinearProbe):
        with pytest.raises(ValueError, match="LinearProbe needs rows"):
            fitted.predict_proba()
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        clone(probe).fit(X, y[:-1])
    with pytest.raises(ValueError, match="one class"):
        clone(probe).fit(X, np.full(30, "a"))
    with pytest.raises(ValueError, match="features"):
        clone(probe).fit(X, y, validation=(X[:, :2], y))
    with pytest.raises(ValueError, match="labels that no training row has, first 'zebra'"):
        clone(probe).fit(X, y, validation=(X[:2], ["ant", "zebra"]))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_neighbors": 99}, "n_neighbors=99 exceeds the 30 training rows"),
        *(({"n_neighbors": k}, "neither a positive integer") for k in (None, 2.5, 0, True, "many")),
        ({"weights": "rank"}, "weights='rank' is not one of"),
        ({"metric": "l1"}, "metric='l1' is not one of"),
        ({"temperature": 0.0}, "temperature=0.0 is neither positive"),
    ],
)
def test_settings_of_knn_are_checked(settings, message):
    with pytest.raises(ValueError, match=message):
        KNNProbe(**{"n_neighbors": 3, **settings}).fit(*blobs(30))
