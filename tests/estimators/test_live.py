"""A saved model's changes survive: written before they are seen, made again on loading."""

import contextlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import time
from functools import partial

import numpy as np
import pandas as pd
import pytest

from nearwise.estimators import AttnKNNClassifier, AttnKNNRegressor, LiveModel
from nearwise.estimators.opening import load_any
from nearwise.estimators.storage.persistence import changes_of
from nearwise.memory import JOURNAL, Change, Journal, StoreError
from nearwise.memory.store import MANIFEST
from tests.estimators.cases import attn_knn, blobs, reopened, same, together
from tests.store.folders import saved_pair, small_table


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Folders of a model of arrays, one of a table with a base, and two that predict numbers."""
    root, (X, y) = saved_pair(tmp_path_factory.mktemp("live")), blobs()
    for name, estimator in (("numbers", "auto"), ("numbers alone", None)):
        model = AttnKNNRegressor(preset="instant", estimator=estimator, random_state=0)
        model.fit(X, X[:, 0] + y).save(root / name)
    return root


@pytest.fixture
def folder(made, tmp_path):
    return shutil.copytree(made / "arrays", tmp_path / "m")


@pytest.fixture(params=["arrays", "numbers"])
def either(request, made, tmp_path):
    """A folder of a classifier, or of a regressor."""
    return shutil.copytree(made / request.param, tmp_path / "m")


def answers(model):
    rows = model._fitted.rows
    of_numbers = isinstance(model, AttnKNNRegressor)
    return model.predict_quantiles(rows) if of_numbers else model.predict_proba(rows)


def same_model(one, other):
    return (
        type(one) is type(other)
        and one.folder_parts.own_meta(one._fitted) == other.folder_parts.own_meta(other._fitted)
        and same(answers(one), answers(other))
        and one.memory_.ids.tolist() == other.memory_.ids.tolist()
        and same(one._fitted.labels_at(), other._fitted.labels_at())
        and one._bound == other._bound
    )


def change_arrays(live):
    X, _ = blobs(12, seed=5)
    live.add(X[:6], np.array([0, 1, 2, 0, 1, 7]), sample_weight=np.arange(1.0, 7.0))
    live.relabel([3, 4], [7, 2])
    live.remove([0, 90, 91])
    live.undo(3)
    live.undo(2)
    live.model.set_params(settings__capacity=60, settings__eviction="age")
    live.add(X[6:], [0] * 6)
    live.remove([live.model.memory_.ids[0]])


def change_table(live):
    X, _ = small_table(8, seed=5)
    X["town"] = ["Rome", None, "Oslo", "Paris", "Lima", "Lima", "Rome", ""]
    live.add(X.iloc[:5].reset_index(drop=True), ["yes", "no", "maybe", "no", "yes"])
    live.remove([1, 2])
    live.undo(2)
    live.relabel([5], ["maybe"])
    live.add(X.iloc[5:], pd.Series(["yes"] * 3, dtype="category"))


@pytest.mark.parametrize("kind", ["arrays", "table", "numbers", "numbers alone"])
def test_a_loaded_model_is_the_one_that_was_changed(made, tmp_path, kind):
    folder = shutil.copytree(made / kind, tmp_path / "m")
    with LiveModel(folder) as live:
        change_table(live) if kind == "table" else change_arrays(live)
        assert live.version == len(live.history()) > 4
        assert same_model(load_any(folder), live.model)
        files = {name for name in os.listdir(folder) if not name.startswith(JOURNAL)}
        assert files == set(os.listdir(made / kind))  # the folder itself was not written again
        live.compact()
        assert same_model(load_any(folder), live.model)
        live.add(live.model._fitted.rows[:2], live.model._fitted.labels_at()[[0, 0]])
        assert same_model(load_any(folder), live.model)


def test_a_live_change_is_that_of_the_classifier(made, tmp_path):
    X, _ = small_table(6, seed=5)
    X["town"] = ["Rome", "Oslo", None, "Paris", "Lima", "Rome"]
    mine = AttnKNNClassifier.load(made / "table")
    mine.add(X, ["yes", "no"] * 3)
    mine.relabel([2], ["yes"])
    live = LiveModel(shutil.copytree(made / "table", tmp_path / "m"))
    live.add(X, ["yes", "no"] * 3)
    live.relabel([2], ["yes"])
    assert same(answers(live.model), answers(mine))


def test_columns_keep_what_they_hold_in_the_journal():
    from nearwise.estimators.storage.journaling import pack_table, unpack_table

    rows = pd.DataFrame(
        {
            "whole": [1, 2],
            "gaps": pd.array([1, None], dtype="Int64"),
            "objects": pd.Series([3, None], dtype=object),
            "text": ["a", None],
            "grade": pd.Categorical(["x", "y"], categories=["y", "x", "z"], ordered=True),
            "day": pd.to_datetime(["2026-01-01", None]),
            "yes": [True, False],
        }
    )
    back = unpack_table(pack_table(rows), 2)
    pd.testing.assert_frame_equal(back, rows)
    assert type(back["objects"][0]) is int
    for array in (np.random.default_rng(0).random((3, 4)), np.zeros((2, 8, 8, 3), np.uint8)):
        assert same(unpack_table(pack_table(array), len(array)), array)


def test_a_change_that_cannot_be_written_is_not_seen(either, monkeypatch):
    live = LiveModel(either)
    live.remove([0])
    before = answers(live.model)

    def full(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr(Journal, "append", full)
    with pytest.raises(OSError, match="space"):
        live.remove([1])
    assert live.version == 1 and same(answers(live.model), before)
    monkeypatch.undo()
    assert live.remove([1]).version == 2
    assert same_model(load_any(either), live.model)


def test_what_was_changed_past_the_journal_is_refused_before_it_does_harm(either):
    live = LiveModel(either)
    X, _ = blobs(6, seed=5)
    live.model.add(X, [0] * 6)
    other = LiveModel(either)
    other.model.set_params(n_neighbors=3)
    for change in (lambda: live.remove([0]), lambda: live.add(X, [0] * 6), live.compact,
                   lambda: other.remove([0])):  # fmt: skip
        with pytest.raises(ValueError, match=r"changed by its own methods.*Nothing was written"):
            change()
    assert len(load_any(either).memory_) == 90


def lose(journal, folder):
    for file in folder.glob(f"{JOURNAL}*"):
        file.unlink()


def empty(journal, folder):
    lose(journal, folder)
    journal.touch()


def put_back(journal, folder):
    lose(journal, folder)
    shutil.copy(folder.parent / "before", journal)


def of_another_model(journal, folder):
    lose(journal, folder)
    with Journal(folder.parent) as other:
        other.append("b" * 16, 0, Change(1, "remove", (0,), {"forget_classes": False}))
    shutil.copy(folder.parent / JOURNAL, journal)


LOSSES = {
    "missing": lose,
    "empty": empty,
    "an older one put back": put_back,
    "of another model": of_another_model,
}


@pytest.fixture(params=LOSSES)
def bereft(request, folder):
    """A folder whose journal has lost changes, and a model that was open when that happened."""
    with LiveModel(folder) as live:
        live.remove([0])
        live.close()
        shutil.copy(folder / JOURNAL, folder.parent / "before")
        live.remove([1])
        live.compact()
        live.remove([2])
        live.close()
        LOSSES[request.param](folder / JOURNAL, folder)
        yield folder, live


def test_a_journal_that_has_lost_changes_is_not_one_without_changes(bereft):
    folder, live = bereft
    for read in (AttnKNNClassifier.load, LiveModel, changes_of):
        with pytest.raises(StoreError, match=r"lacks changes.*--accept-lost-changes") as caught:
            read(folder)
        assert caught.value.reason == "torn"
    before = answers(live.model)
    for change in (lambda: live.remove([3]), live.catch_up, live.history, live.compact):
        with pytest.raises(StoreError, match="lacks changes"):
            change()
    assert live.version == 3 and same(answers(live.model), before)
    with pytest.raises(StoreError, match="lacks changes"):
        live.model.save(folder)


def test_a_model_may_be_saved_over_one_whose_journal_is_lost(bereft):
    folder, live = bereft
    live.model.save(folder, overwrite=True)
    with LiveModel(folder) as again:
        assert again.version == 0 and again.history() == [] and len(again.model.memory_) == 87
        assert again.remove([3]).version == 1
    assert len(AttnKNNClassifier.load(folder).memory_) == 86


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize(
    ("change", "nth"), [("remove", 1), ("remove", 2), ("compact", 1), ("compact", 2)]
)
def test_a_kill_between_a_journal_and_its_note_leaves_a_folder_that_opens(
    folder, change, nth, moment
):
    if change == "compact":
        with LiveModel(folder) as live:
            live.remove([0])
    child = os.fork()
    if child == 0:
        replace, calls = os.replace, []

        def killed(source, target):
            calls.append(target)
            if len(calls) == nth and moment == "before":
                os._exit(9)
            replace(source, target)
            if len(calls) == nth:
                os._exit(9)

        os.replace = killed
        live = LiveModel(folder)
        live.remove([0]) if change == "remove" else live.compact()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    with LiveModel(folder) as live:
        assert live.version == len(live.history()) == (change == "compact")
        live.remove([1])
        live.compact()
    with LiveModel(folder) as live:
        assert len(live.model.memory_) == 89 - (change == "compact") and live.n_pending == 0


def test_a_folder_of_before_journals_were_noted_opens_without_one(folder):
    with LiveModel(folder) as live:
        live.remove([0])
    manifest = json.loads((folder / MANIFEST).read_text())
    del manifest["journal"]
    (folder / MANIFEST).write_text(json.dumps(manifest))
    assert len(AttnKNNClassifier.load(folder).memory_) == 89
    lose(folder / JOURNAL, folder)
    assert len(AttnKNNClassifier.load(folder).memory_) == 90


def test_a_link_may_be_turned_to_another_model(made, tmp_path, monkeypatch):
    for name in ("v1", "v2"):
        shutil.copytree(made / "arrays", tmp_path / name)
    LiveModel(tmp_path / "v2").remove([0, 1])
    current = tmp_path / "current"
    current.symlink_to("v1")
    monkeypatch.chdir(tmp_path)
    live = LiveModel("current")
    monkeypatch.chdir("/")
    current.unlink()
    current.symlink_to("v2")
    assert live.catch_up() == 1 and len(live.model.memory_) == 88


def test_a_link_that_led_astray_for_a_while_does_no_harm(made, tmp_path):
    real = shutil.copytree(made / "arrays", tmp_path / "real")
    (tmp_path / "empty").mkdir()
    link = tmp_path / "link"
    link.symlink_to(real)
    live = LiveModel(link)
    live.remove([0])
    link.unlink()
    link.symlink_to(tmp_path / "empty")
    with pytest.raises(StoreError):
        live.remove([1])
    assert live.version == 1
    link.unlink()
    link.symlink_to(real)
    assert live.remove([1]).version == 2
    assert [change.version for change in live.history()] == [1, 2]


def test_a_model_fitted_anew_starts_a_lineage(folder):
    LiveModel(folder).remove([0], key="k")
    model = AttnKNNClassifier.load(folder)
    model.fit(*blobs(60, seed=9))
    LiveModel(folder).remove([1])
    with pytest.raises(StoreError, match="has had 1 change"):
        model.save(folder)
    model.save(folder, overwrite=True)
    live = LiveModel(folder)
    assert live.version == 0 and live.history() == [] and len(live.model.memory_) == 60
    again = AttnKNNClassifier.load(folder)
    again.fit(*blobs(70, seed=9)).save(folder)
    assert live.catch_up() == 0 and len(live.model.memory_) == 70


def test_a_damaged_journal_does_not_outlive_its_model(folder):
    live = LiveModel(folder)
    live.remove([0])
    live.close()
    (folder / JOURNAL).write_bytes(b"damaged" * 999)
    with pytest.raises(StoreError, match="damaged"):
        AttnKNNClassifier.load(folder)
    assert (
        len(
            reopened(
                attn_knn(estimator=None, random_state=0).fit(*blobs(60, seed=9)), folder
            ).memory_
        )
        == 60
    )


@pytest.mark.parametrize("key", [np.str_("a"), "b"])
def test_a_key_is_text_and_nothing_else(folder, key):
    live = LiveModel(folder)
    assert live.remove([0], key=key).key == key
    with pytest.raises(TypeError, match=r"key=17 must be a str"):
        live.remove([1], key=17)
    assert len(AttnKNNClassifier.load(folder).memory_) == 89


def test_threads_of_one_process_take_turns(either):
    live = LiveModel(either)
    X, _ = blobs(40, seed=5)

    def work(start):
        for i in range(start, start + 10):
            change = live.add(X[i : i + 1], [0])
            if i % 3 == 0:
                live.remove(change.ids)
            live.history(), live.catch_up(), live.model.predict(X[:1])
        live.compact(keep_removed=True)

    together(*(partial(work, start) for start in range(0, 40, 10)))
    assert live.version == 40 + 14 and len(live.model.memory_) == 90 + 40 - 14
    assert same_model(load_any(either), live.model)


# --- keys, history and undo ---------------------------------------------------------------------


def test_undo_gives_back_labels_rows_and_predictions(either):
    live = LiveModel(either)
    X, _ = blobs(6, seed=5)
    before = answers(live.model)
    live.add(X, [0] * 6)
    live.undo(1)
    assert same(answers(live.model), before)
    live.relabel([3, 7], [2, 2])
    live.undo(3)
    assert same(answers(live.model), before)
    removed, label = live.model._fitted.remembered([5]), live.model._fitted.labels_at([5])
    live.remove([5])
    back = live.undo(5)
    position = live.model.memory_.positions(list(back.ids)).tolist()
    assert live.model._fitted.remembered(position) == removed and back.ids > (90,)
    assert live.model._fitted.labels_at(position) == label
    with pytest.raises(ValueError, match="Change 5 was undone by change 6"):
        live.undo(5)
    live.undo(6)  # and once more away
    assert len(live.model.memory_) == 89
    live.undo(5)  # and once more there
    assert len(live.model.memory_) == 90
    live.remove([8, 8])
    live.undo(9)
    assert len(live.model.memory_) == 90
    live.relabel([9], [1])
    live.relabel([9], [2])
    with pytest.raises(ValueError, match="have been relabelled since"):
        live.undo(11)
    with pytest.raises(KeyError, match="There is no change 99"):
        live.undo(99)
    kinds = [change.kind for change in live.history()]
    assert kinds[:8] == ["add", "remove", "relabel", "relabel", "remove", "add", "remove", "add"]


def test_undo_says_what_it_cannot_bring_back(either):
    live = LiveModel(either)
    X, _ = blobs(6, seed=5)
    live.add(X, [0] * 6)
    live.remove([90])
    with pytest.raises(
        ValueError, match=r"Change 1 \(add\) cannot be undone: .* no longer remembers 90"
    ):
        live.undo(1)
    live.compact(keep_removed=True)
    assert live.n_pending == 0
    live.undo(2)
    live.remove([91])
    assert live.n_pending == 2
    live.compact()
    with pytest.raises(ValueError, match="compacted since, which forgets removed rows for good"):
        live.undo(4)
    assert live.version == 4 and live.n_pending == 0


def test_undo_removes_what_a_capacity_has_left_of_an_addition(either, tmp_path):
    model = load_any(either)
    model.set_params(settings__capacity=model.fitted_.n_remembered)
    model.save(tmp_path / "full")
    live = LiveModel(tmp_path / "full")
    X, _ = blobs(40, seed=5)
    added = live.add(X, [0] * 40)
    left = set(added.ids) - set(added.details["evicted"])
    assert 0 < len(left) < 40
    n_rows = live.model.fitted_.n_remembered
    assert set(live.undo(1).ids) == left
    assert live.model.fitted_.n_remembered == n_rows - len(left)


# --- several processes --------------------------------------------------------------------------


def test_saving_does_not_undo_what_others_have_changed(either):
    mine = load_any(either)
    LiveModel(either).remove([0])
    with pytest.raises(StoreError, match=r"has had 1 change since it was loaded.*Load it again"):
        mine.save(either)
    assert len(load_any(either).memory_) == 89
    mine.save(either, overwrite=True)
    assert len(load_any(either).memory_) == 90
    mine.remove([5])
    assert len(reopened(mine, either).memory_) == 89


def test_a_crash_between_the_folder_and_its_journal_doubles_nothing(either, monkeypatch):
    live = LiveModel(either)
    X, _ = blobs(6, seed=5)
    live.add(X, [0] * 6)
    live.remove([0])

    def crash(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(Journal, "fold", crash)
    with pytest.raises(KeyboardInterrupt):
        live.compact()
    monkeypatch.undo()
    again = LiveModel(either)
    assert again.version == 2 and same_model(again.model, live.model)
    assert again.remove([1]).version == 3
    assert same_model(load_any(either), again.model)
    again.compact()
    assert len(again.history()) == 3


def test_a_journal_without_its_folder_is_refused(folder, tmp_path):
    old = shutil.copytree(folder, tmp_path / "old")
    live = LiveModel(folder)
    live.remove([0])
    live.compact()
    live.remove([1])
    live.close()
    shutil.copy(folder / JOURNAL, old / JOURNAL)  # an older folder with a newer journal
    with pytest.raises(StoreError, match=r"older than its journal.*Restore both"):
        AttnKNNClassifier.load(old)


@pytest.mark.parametrize("kills", [6, pytest.param(250, marks=pytest.mark.slow)])
def test_kill_9_loses_nothing_that_was_acknowledged(either, tmp_path, kills):
    """Two processes write, are killed at random moments, and every answer is still true."""
    context, draws = multiprocessing.get_context("fork"), random.Random(0)
    log = tmp_path / "log"
    log.touch()
    for number in range(kills):
        known = log.stat().st_size
        writers = [context.Process(target=_write, args=(either, log, n)) for n in range(2)]
        for writer in writers:
            writer.start()
        begin = time.monotonic()
        while number % 2 and log.stat().st_size == known and time.monotonic() < begin + 60:
            time.sleep(0.01)  # every other time a change is acknowledged first
        time.sleep(draws.uniform(0.0, 0.4))
        for writer in writers:
            os.kill(writer.pid, signal.SIGKILL)
            writer.join()
    acknowledged = {}
    for line in log.read_text().splitlines():
        with contextlib.suppress(json.JSONDecodeError):  # the last line of a killed process
            key, version, ids = json.loads(line)
            assert acknowledged.setdefault(key, (version, tuple(ids))) == (version, tuple(ids))
    live = LiveModel(either)
    history = live.history()
    assert len(acknowledged) >= kills // 2
    assert [change.version for change in history] == list(range(1, len(history) + 1))
    there = {change.key: (change.version, change.ids) for change in history}
    assert acknowledged.items() <= there.items()
    added = [i for change in history if change.kind == "add" for i in change.ids]
    assert len(set(added)) == len(added)
    removed = {i for change in history if change.kind == "remove" for i in change.ids}
    assert set(live.model.memory_.ids.tolist()) == (set(range(90)) | set(added)) - removed


def _write(folder, log, number):
    """Add and remove rows until killed; a line in the log is an acknowledged change."""
    live, draws = LiveModel(folder), random.Random(os.getpid())
    X, _ = blobs(30, seed=7 + number)
    handle = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    while True:
        key = f"{os.getpid()}-{draws.random()}"
        row = draws.randrange(30)
        change = live.add(X[row : row + 1], [row % 3], key=key)
        os.write(handle, json.dumps([key, change.version, change.ids]).encode() + b"\n")
        if draws.random() < 0.5:
            gone = live.remove(change.ids, key=f"{key}-")
            os.write(handle, json.dumps([f"{key}-", gone.version, gone.ids]).encode() + b"\n")
        if draws.random() < 0.05:
            live.compact()
