"""`save` opens what it has written before the old model goes, and never undoes others' changes."""

import pytest

from nearwise.estimators import AttnKNNClassifier
from nearwise.estimators.model.array_models import Forest
from nearwise.estimators.storage import stored_parts
from nearwise.memory import StoreError
from tests.estimators.cases import CHEAP, OwnLogistic, attn_knn, blobs, reopened, same
from tests.store.folders import copied


def test_a_model_that_would_not_open_is_not_saved(based_folder, tmp_path, monkeypatch):
    folder = copied(based_folder, tmp_path / "m")
    model = AttnKNNClassifier.load(folder)
    before = model.predict_proba(model._fitted.rows)
    stored = Forest.to_arrays

    def forget_a_part(self):
        return {name: array for name, array in stored(self).items() if name != "leaf_share"}

    monkeypatch.setattr(Forest, "to_arrays", forget_a_part)
    model.add(model._fitted.rows[:3], ["no", "no", "yes"])
    with pytest.raises(StoreError, match="base/extra-trees/0: 'leaf_share' is missing"):
        model.save(folder)
    with pytest.raises(StoreError, match="leaf_share"):
        model.save(tmp_path / "new")
    assert not (tmp_path / "new").exists()
    monkeypatch.undo()
    old = AttnKNNClassifier.load(folder)
    assert same(old.predict_proba(old._fitted.rows), before)
    assert len(reopened(model, folder).memory_) == len(model.memory_) == len(before) + 3


def test_a_part_that_would_come_back_otherwise_is_not_saved(based_folder, tmp_path, monkeypatch):
    model = AttnKNNClassifier.load(based_folder)
    read = stored_parts.from_arrays

    def lose_precision(kind, arrays):
        rounded = {name: arrays[name].round() for name in arrays if name == "threshold"}
        return read(kind, arrays | rounded)

    monkeypatch.setattr(stored_parts, "from_arrays", lose_precision)
    with pytest.raises(StoreError, match="base/extra-trees/0/threshold comes back otherwise"):
        model.save(tmp_path / "m")
    assert not (tmp_path / "m").exists()


class Forgetful(OwnLogistic):
    """A base that does not keep all that it has learned."""

    def __getstate__(self):
        state = super().__getstate__()
        return state | {"coef_": state["coef_"].round()} if "coef_" in state else state


def test_a_base_that_would_predict_otherwise_is_not_saved(tmp_path):
    X, y = blobs()
    model = attn_knn(**{**CHEAP, "estimator": Forgetful()}).fit(X, y)
    with pytest.raises(StoreError, match="its base predicts otherwise"):
        model.save(tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_changes_of_another_process_are_not_undone(plain_folder, tmp_path):
    folder = copied(plain_folder, tmp_path / "m")
    mine, theirs = AttnKNNClassifier.load(folder), AttnKNNClassifier.load(folder)
    X, y = blobs()
    theirs.add(X[:10], y[:10])
    theirs.save(folder)
    mine.add(X[10:20], y[10:20])
    with pytest.raises(StoreError, match=r"written since it was loaded.*Load it again") as caught:
        mine.save(folder)
    assert caught.value.reason == "changed"
    assert len(AttnKNNClassifier.load(folder).memory_) == 100
    mine.save(tmp_path / "other")  # what was learned is not lost
    again = AttnKNNClassifier.load(folder)
    again.add(X[10:20], y[10:20])
    assert len(reopened(again, folder).memory_) == 110
    mine.save(folder, overwrite=True)
    assert len(AttnKNNClassifier.load(folder).memory_) == 100


def test_saving_on_and_on_is_no_change_by_others(plain_folder, tmp_path, monkeypatch):
    folder = copied(plain_folder, tmp_path / "m")
    monkeypatch.chdir(tmp_path)
    model = AttnKNNClassifier.load("m")
    X, y = blobs()
    for rows in range(3):
        model.add(X[rows : rows + 1], y[rows : rows + 1])
        model.save(folder)  # the same folder by another name
    model.save(tmp_path / "n")
    model.save(tmp_path / "n")
    assert len(AttnKNNClassifier.load("m").memory_) == 93


def test_a_base_that_only_opens_where_it_is_trusted_is_saved_with_a_warning(tmp_path):
    X, y = blobs()
    model = attn_knn(**{**CHEAP, "estimator": OwnLogistic()}).fit(X, y)
    with pytest.warns(UserWarning, match=r"load\(.*trusted=\['.*OwnLogistic'\]\)") as caught:
        model.save(tmp_path / "m")
    call = str(caught[0].message).partition("Open it with ")[2].rstrip(".")
    again = eval(call, {"AttnKNNClassifier": AttnKNNClassifier})  # the advice is a line of Python
    assert same(again.predict_proba(X), model.predict_proba(X))
