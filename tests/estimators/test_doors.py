"""A change is the same by every door: a classifier, a live model, and one with a store."""

import shutil

import numpy as np
import pandas as pd
import pytest
import torch

from nearwise.estimators import AttnKNNClassifier, LiveModel, move_memory
from nearwise.memory import JOURNAL, StoreError, locked_folder
from tests.estimators.cases import blobs, fitted, same
from tests.memory.stores.servers import require

ROWS = blobs()[0]
X, Y = blobs(6, seed=5)


@pytest.fixture(scope="module")
def copied(tmp_path_factory):
    """Give a copy of a model's folder, with its memory or with a store of it."""
    made = tmp_path_factory.mktemp("doors")

    def copy(kind, target):
        if kind == "store":
            require("lance", "faiss")
        if not (made / kind).exists():
            fitted().save(made / kind) if kind == "journal" else move_memory(fitted(), made / kind)
        return shutil.copytree(made / kind, target)

    return copy


@pytest.fixture(params=["journal", "store"])
def live(request, copied, tmp_path):
    with LiveModel(copied(request.param, tmp_path / "m")) as opened:
        yield opened


@pytest.fixture(params=["model", "journal", "store"])
def door(request, copied, tmp_path):
    if request.param == "model":
        yield fitted()
    else:
        with LiveModel(copied(request.param, tmp_path / "m")) as opened:
            yield opened


def state(door):
    model = getattr(door, "model", door)
    proba = model.predict_proba(ROWS).tolist()
    return proba, model.classes_.tolist(), model.fitted_.n_remembered, getattr(door, "version", 0)


REFUSED = {
    "too few labels": (lambda m: m.add(X, [0]), "6 rows but y has 1 labels"),
    "a missing label": (lambda m: m.add(X, [0, 1, np.nan, 0, 0, 0]), "missing labels in 1 of 6"),
    "no labels": (lambda m: m.add(X), "requires y"),
    "views that are no list": (lambda m: m.add(X, [0] * 6, views=X), "views must be a list"),
    "a missing column": (lambda m: m.add(X[:, :3], [0] * 6), "3 features"),
    "infinity": (lambda m: m.add(X * np.inf, [0] * 6), "contains infinity"),
    "labels of another kind": (lambda m: m.add(X, ["new"] * 6), "are text .* classes are numbers"),
    "a negative weight": (lambda m: m.add(X, [0] * 6, sample_weight=[-1] * 6), "weight"),
    "an unknown id": (lambda m: m.remove([999]), "not among the 90 rows|999"),
    "nearly all rows": (lambda m: m.remove(range(89)), "leaves|fewer than 2"),
    "all rows of a class": (lambda m: m.remove(range(0, 90, 3)), "no row of the class"),
    "an unknown label": (lambda m: m.relabel([0], [9]), "not among the classes"),
    "labels of fewer rows": (lambda m: m.relabel([0, 1], [1]), "2"),
    "an unknown id to relabel": (lambda m: m.relabel([999], [1]), "not among the 90 rows|999"),
    "a class relabelled": (lambda m: m.relabel(range(0, 90, 3), [1] * 30), "no row of the class"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_refused_change_leaves_no_trace(door, case):
    change, message = REFUSED[case]
    before = state(door)
    with pytest.raises(ValueError, match=message):
        change(door)
    assert state(door) == before
    if isinstance(door, LiveModel):
        assert door.history() == [] and not (door.folder / JOURNAL).exists()


IDS = [
    (["a"], r"\['a'\]"),
    (np.array(["r1", "r2"]), r"\['r1', 'r2'\]"),
    ([None], r"\[None\]"),
    ([0.5], r"0\.5"),
    ([float("nan")], "nan"),
    (np.zeros(90, dtype=bool), "bool"),
    ([[1, 2]], ""),
    ({1, 2}, ""),
]


@pytest.mark.parametrize(("ids", "seen"), IDS, ids=lambda one: str(one)[:20])
def test_ids_that_are_no_whole_numbers_are_shown_and_change_nothing(door, ids, seen):
    before = state(door)
    changes = [door.remove, lambda ids: door.relabel(ids, [0] * len(ids))]
    for change in changes if isinstance(door, AttnKNNClassifier) else [*changes, door.keep]:
        with pytest.raises(ValueError, match=rf"ids .*{seen}"):
            change(ids)
    assert state(door) == before


def test_ids_may_be_arrays_tensors_and_series_in_any_order(door):
    door.remove(torch.tensor([0]))
    door.remove(np.array([1]))
    ids = pd.Series([7, 9], index=[5, 6])
    door.relabel(ids, pd.Series([1, 1]))
    door.remove(ids)
    assert state(door)[2] == 86
    if isinstance(door, LiveModel):
        assert [change.ids for change in door.history()] == [(0,), (1,), (7, 9), (7, 9)]


def test_a_request_sent_twice_under_one_key_is_one_change(live):
    requests = [
        lambda: live.add(X, [0] * 6, key="a"),
        lambda: live.relabel([1], [2], key="b"),
        lambda: live.remove([0], key="c"),
        lambda: live.undo(3, key="d"),
    ]
    for number, request in enumerate(requests, 1):
        first = request()
        assert first.version == number
        again = request()
        assert (again.version, again.ids, again.key) == (first.version, first.ids, first.key)
    live.compact()
    with LiveModel(live.folder) as other:
        assert other.remove([0], key="c").version == 3 and other.version == 4
        with pytest.raises(ValueError, match=r"key 'c' was used by another request, change 3 \(re"):
            other.remove([1], key="c")


def test_processes_take_turns_and_see_each_other(live):
    with LiveModel(live.folder) as other, LiveModel(live.folder) as reader:
        assert live.add(X[:2], Y[:2]).ids == (90, 91)
        assert other.version == 0
        assert other.add(X[2:], Y[2:]).version == 2  # from the newest version on
        assert live.catch_up() == 2
        other.compact()
        assert live.remove([90]).version == 3 and reader.version == 0
        assert reader.catch_up() == other.catch_up() == 3
        assert state(other) == state(reader) == state(live)
        assert [change.version for change in reader.history()] == [1, 2, 3]


def test_a_change_waits_no_longer_than_it_may(live):
    place = live.folder / "rows" / "head"
    with LiveModel(live.folder, wait=0.2) as hasty:
        with (
            locked_folder(place if place.exists() else live.folder),
            pytest.raises(BlockingIOError, match=r"another process is changing .*0\.2 s"),
        ):
            hasty.remove([0])
        assert hasty.remove([0]).version == 1


def test_an_older_copy_put_back_is_taken_as_it_is(live, tmp_path):
    live.add(X[:1], Y[:1])
    live.close()
    shutil.copytree(live.folder, tmp_path / "copy")
    live.add(X[1:2], Y[1:2])
    live.close()
    shutil.rmtree(live.folder)
    shutil.copytree(tmp_path / "copy", live.folder)
    with pytest.warns(UserWarning, match="put back|it was replaced by an older one"):
        assert live.catch_up() == 1
    assert state(live)[2:] == (91, 1) and live.add(X[2:3], Y[2:3]).version == 2
    assert state(AttnKNNClassifier.load(live.folder))[:3] == state(live)[:3]


def test_ids_of_a_former_model_are_not_taken_for_those_of_the_new_one(live):
    live.remove([0, 1])
    other = fitted(*blobs(60, seed=9))
    if (live.folder / "rows").exists():
        shutil.rmtree(live.folder)
        move_memory(other, live.folder)
    else:
        other.save(live.folder)
    with pytest.raises(StoreError, match="has replaced the one"):
        live.remove([5])
    assert live.version == 0 and live.history() == []
    assert same(live.model.predict_proba(ROWS), other.predict_proba(ROWS))
    assert live.remove([5]).version == 1  # now that it was told
    assert AttnKNNClassifier.load(live.folder).fitted_.n_remembered == 59
