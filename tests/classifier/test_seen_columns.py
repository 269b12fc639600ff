"""A head that sees columns: they come, go, travel and are forgotten with the rows they are of."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save_file

from nearwise import AttnKNNClassifier
from nearwise.classifier import move_memory
from nearwise.classifier.model.memory_views import COLUMNS
from nearwise.memory import StoreError
from nearwise.nn import PretrainedNeighborHead, pretrained_head
from nearwise.nn.remembered_columns import MOST_COLUMNS
from tests.classifier.cases import blobs, quietly, same, table
from tests.store.folders import edited


@pytest.fixture(autouse=True)
def _sees_columns(tmp_path, monkeypatch):
    """Let the package's head see columns, by weights that were drawn at random."""
    plain = PretrainedNeighborHead.load()
    torch.manual_seed(0)
    head = PretrainedNeighborHead(**plain.config | {"columns": 8})
    head.load_state_dict(plain.state_dict(), strict=False)
    metadata = {"version": pretrained_head.VERSION, "config": json.dumps(head.config)}
    save_file(head.state_dict(), tmp_path / "head.safetensors", metadata=metadata)
    monkeypatch.setattr(pretrained_head, "WEIGHTS", tmp_path / "head.safetensors")
    pretrained_head.shared_head.cache_clear()
    yield
    pretrained_head.shared_head.cache_clear()


def fitted(X, y, **parameters):
    options = {"preset": "instant", "estimator": None, "random_state": 0} | parameters
    with quietly():
        return AttnKNNClassifier(**options).fit(X, y)


def with_gaps(n):
    X, y = table(n)
    X = X.copy()
    X.iloc[::7, 0] = np.nan
    return X, y


def test_what_is_removed_is_forgotten_to_the_bit():
    X, y = with_gaps(120)
    gone, kept = np.arange(0, 120, 9), np.setdiff1d(np.arange(120), np.arange(0, 120, 9))
    model, fresh = fitted(X, y), fitted(X.iloc[kept], np.asarray(y)[kept])
    model.remove(gone)
    assert same(model.predict_proba(X), fresh.predict_proba(X))
    assert same(model.predict_proba(None), fresh.predict_proba(None))


def test_a_row_is_predicted_as_if_its_label_were_unknown():
    X, y = blobs(150)
    other = y.copy()
    other[10] = (y[10] + 1) % 3
    models = [fitted(X, labels, settings={"calibration": None}) for labels in (y, other)]
    left_out = [model.predict_proba(None)[10] for model in models]
    assert np.abs(left_out[0] - left_out[1]).max() < 1e-6


def test_a_remembered_row_is_seen_as_a_new_one_among_the_others():
    X, y = with_gaps(90)
    model = fitted(X, y, settings={"calibration": None})
    predictor = model.fitted_.predictor
    by_id = predictor.retrieve_remembered(torch.tensor([4])).spaces[0].columns
    rows = model.fitted_.encoded(X.iloc[[4]], [])
    as_new = predictor.retrieval(predictor.row_models(rows[0]))
    torch.testing.assert_close(by_id.query, as_new.spaces[0].columns.query)


@pytest.mark.parametrize("estimator", ["auto", None])
def test_a_saved_model_predicts_the_same_after_changes(estimator, tmp_path):
    X, y = with_gaps(150)
    model = fitted(X[:120], y[:120], estimator=estimator)
    ids = model.add(X[120:], y[120:])
    model.remove(ids[:3])
    model.save(tmp_path / "m")
    read = AttnKNNClassifier.load(tmp_path / "m")
    assert same(read.predict_proba(X), model.predict_proba(X))
    with quietly():
        for one in (read, model):
            one.add(X[:2], y[:2])
    assert same(read.predict_proba(X), model.predict_proba(X))


def test_a_memory_in_a_store_gives_the_same_predictions(tmp_path):
    X, y = with_gaps(120)
    model = fitted(X[:100], y[:100])
    move_memory(model, tmp_path / "m")
    stored = AttnKNNClassifier.load(tmp_path / "m")
    assert np.abs(stored.predict_proba(X) - model.predict_proba(X)).max() < 1e-6


def test_further_training_leaves_what_reads_columns_as_it_is():
    X, y = with_gaps(200)
    model = fitted(X, y, preset="default", estimator="auto")
    head, shared = model.fitted_.predictor.head, pretrained_head.shared_head()
    for learned, given in zip(head.columns.parameters(), shared.columns.parameters(), strict=True):
        assert torch.equal(learned, given)
    assert np.isfinite(model.predict_proba(X)).all()


def test_what_columns_say_reaches_the_prediction():
    X, y = blobs(90)
    model = fitted(X, y)
    before = model.predict_proba(X)
    with torch.no_grad():
        model.fitted_.predictor.head.columns.out.weight.mul_(3)
    assert np.abs(model.predict_proba(X) - before).max() > 1e-3


@pytest.mark.parametrize(("n_columns", "n_seen"), [(5, 5), (40, MOST_COLUMNS), (64, None)])
def test_many_columns_are_not_all_seen_and_those_of_embeddings_never(n_columns, n_seen):
    X, y = blobs(120, n_features=n_columns)
    kept = fitted(X, y).fitted_.bank.columns.get(COLUMNS)
    assert (None if kept is None else kept.shape[1]) == n_seen


@pytest.mark.parametrize("fault", ["tensor gone", "one too few", "no such column", "list gone"])
def test_a_folder_whose_columns_do_not_fit_is_refused(fault, tmp_path):
    X, y = blobs(90)
    fitted(X, y).save(tmp_path / "m")
    name = f"bank/columns.{COLUMNS}"
    change = {
        "tensor gone": {"tensors": lambda tensors: tensors.pop(name)},
        "one too few": {"tensors": lambda all_: all_.update({name: all_[name][:, 1:].clone()})},
        "no such column": {"meta": lambda meta: meta["columns"].__setitem__(-1, 99)},
        "list gone": {"meta": lambda meta: meta.update(columns=None)},
    }[fault]
    edited(tmp_path / "m", tmp_path / "torn", **change)
    with pytest.raises(StoreError, match="columns"):
        AttnKNNClassifier.load(tmp_path / "torn")


def test_rows_that_are_added_are_seen_by_the_columns_of_the_fit():
    X, y = blobs(90, n_features=40)
    frame = pd.DataFrame(X).rename(columns=str)
    model = fitted(frame[:80], y[:80])
    model.add(frame[80:], y[80:])
    seen = model.fitted_.predictor.row_models.seen
    kept = model.fitted_.bank.columns[COLUMNS]
    torch.testing.assert_close(kept, torch.from_numpy(X[:, seen]).float())


def test_an_explanation_says_in_which_columns_the_head_compared_a_neighbor():
    X, y = with_gaps(120)
    model = fitted(X, y)
    for explanation in model.explain(X[:4], n_neighbors=5):
        for one in explanation.neighbors:
            assert {column.name for column in one.columns} == set(X.columns)
            shares = [column.attention for column in one.columns]
            assert shares == sorted(shares, reverse=True)
            assert sum(shares) == pytest.approx(1, abs=1e-4)
            assert one.columns[0].name in one.in_words()
        itself = explanation.neighbors[0]
        if itself.distance == 0:
            assert all(column.near for column in itself.columns)
            assert "far" not in itself.in_words()
    record = explanation.to_dict()["neighbors"][0]
    assert record["columns"][0].keys() == {"name", "attention", "near"}
    assert "the head found it" in explanation._repr_html_()


def test_the_neighbor_that_differs_most_in_a_column_is_far_there_and_the_one_least_near():
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.normal(size=(40, 3)), columns=["first", "other", "third"])
    model = fitted(X, np.arange(40) % 2)
    query = X.iloc[[7]]
    (explanation,) = model.explain(query, n_neighbors=None)
    ranks = X.rank() / len(X)
    for name in X:
        apart = {one.id: abs(ranks[name][one.id] - ranks[name][7]) for one in explanation.neighbors}
        near = {
            one.id: {column.name: column.near for column in one.columns}[name]
            for one in explanation.neighbors
        }
        assert near[min(apart, key=apart.get)]
        assert not near[max(apart, key=apart.get)]
