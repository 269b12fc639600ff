"""A model whose memory is in a store answers as one that holds its memory, and is changed there."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from nearwise import AttnKNNRegressor, review
from nearwise.cli.commands.verify import verified
from nearwise.estimators import AttnKNNClassifier, LiveModel, move_memory
from nearwise.estimators.stored import moving
from nearwise.estimators.stored.row_codec import RowCodec
from nearwise.memory import StoreError, UnknownIdError, read_folder, write_folder
from nearwise.memory.stores import bulk, disk, engine_of
from tests.estimators.cases import attn_knn, blobs, fit_once, table

pytest.importorskip("lance")

INSTANT = {"estimator": None, "preset": "instant", "random_state": 0}


def with_dates(n, seed=0):
    X, y = table(n, seed)
    X = X.drop(columns=["grade", "mixed"])  # which come back from files as text
    return X.assign(day=pd.Timestamp("2024-01-01") + pd.to_timedelta(np.arange(n), "D")), y


def noisy(n, seed=0):
    X, y = blobs(n, seed=seed)
    wrong = np.random.default_rng(seed).random(n) < 0.2
    return X, np.where(wrong, (y + 1) % 3, y)


CASES = {
    "no base": (attn_knn(**INSTANT), blobs),
    "a table with a base": (attn_knn(preset="instant", random_state=0), with_dates),
    "rows held out once": (
        attn_knn(estimator=None, cv=0.3, random_state=0, head={"epochs": 1}),
        blobs,
    ),
    "wrong labels": (attn_knn(estimator=None, label_noise="auto", random_state=0), noisy),
    "cosine": (attn_knn(**INSTANT, metric="cosine"), blobs),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """For every case a model and the folder that its memory was moved to."""
    found = {}

    def make(name):
        if name not in found:
            model, rows = CASES[name]
            fitted = fit_once(model, *rows(150))
            folder = tmp_path_factory.mktemp("stored") / "m"
            move_memory(fitted, folder)
            found[name] = fitted, folder
        return found[name]

    return make


@pytest.fixture
def live(made, tmp_path):
    folder = shutil.copytree(made("no base")[1], tmp_path / "m")
    with LiveModel(folder) as opened:
        yield opened


def new_rows(name, n=40):
    return CASES[name][1](n, seed=9)


@pytest.mark.parametrize("name", CASES)
def test_a_moved_model_predicts_and_explains_bit_for_bit(made, name):
    model, folder = made(name)
    X, _ = new_rows(name)
    moved = AttnKNNClassifier.load(folder)
    assert np.array_equal(model.predict_proba(X), moved.predict_proba(X))
    ours, theirs = (m.query(X, explain=5) for m in (model, moved))
    assert np.array_equal(ours.novelty_p_value(), theirs.novelty_p_value())
    assert np.array_equal(ours.sets(0.9), theirs.sets(0.9))
    for mine, other in zip(ours.explanations(), theirs.explanations(), strict=True):
        for one, two in zip(mine.neighbors, other.neighbors, strict=True):
            assert (one.id, one.label, one.distance) == (two.id, two.label, two.distance)
            assert one.weight == two.weight and np.array_equal(one.proba_without, two.proba_without)
            assert list(one.row.values()) == pytest.approx(list(two.row.values()), nan_ok=True)


@pytest.mark.parametrize("name", CASES)
def test_new_rows_are_known_as_a_model_that_holds_its_memory_knows_them(made, tmp_path, name):
    original, folder = made(name)
    X, y = new_rows(name, 12)
    model = AttnKNNClassifier.load(_saved(original, tmp_path / "own"))
    ids = model.add(X, y).tolist()
    with LiveModel(shutil.copytree(folder, tmp_path / "m")) as live:
        change = live.add(X, y)
        assert list(change.ids) == ids and change.version == live.version == 1
        held = live.now.fitted.holding(ids)
        bank, of_new = held.bank, model.memory_.positions(ids)
        views = model._predictor.views
        for spec in views.specs:
            ours = bank.columns[spec.reliability][bank.positions(ids)]
            theirs = views.space(spec).rows.reliability[of_new]
            assert ours.tolist() == theirs.tolist()
        assert np.allclose(held.predictor.prior, model._predictor.prior)
        # what the rows before are known by stays, and is renewed where the memory is held
        assert np.abs(live.model.predict_proba(X) - model.predict_proba(X)).mean() < 0.05


def _saved(model, folder):
    model.save(folder)
    return folder


def test_changes_are_seen_kept_listed_and_taken_back(live):
    X, _ = new_rows("no base", 6)
    before = live.model.predict_proba(X)
    nearest = live.model.explain(X[:1])[0].neighbors[0]
    other = (nearest.label + 1) % 3
    assert live.relabel([nearest.id], [other]).version == 1
    assert live.model.explain(X[:1])[0].neighbors[0].id != nearest.id or (
        live.now.fitted.look_up([nearest.id])[0].label == other
    )
    live.remove([nearest.id])
    assert nearest.id not in [n.id for n in live.model.explain(X[:1])[0].neighbors]
    with pytest.raises(UnknownIdError, match="not remembered"):
        live.remove([nearest.id])
    back = live.undo(2)
    (row,) = live.now.fitted.look_up(back.ids)
    assert row.label == other and row.row == nearest.row
    live.relabel(back.ids, [nearest.label])
    assert np.allclose(live.model.predict_proba(X), before, atol=1e-6)
    assert [c.kind for c in live.history()] == ["relabel", "remove", "add", "relabel"]
    assert live.history(1)[0].version == 4
    again = AttnKNNClassifier.load(live.folder)
    assert np.array_equal(again.predict_proba(X), live.model.predict_proba(X))


def test_feedback_is_judged_before_it_is_remembered(live):
    X, y = new_rows("no base", 20)
    said = live.model.predict(X)
    change = live.feedback(X, y)
    assert change.details["judged"]["correct"] == (said == y).tolist()
    assert live.feedback_summary()["rows"] == 20 and live.model.fitted_.n_remembered == 170


def test_compacting_changes_no_answer_and_forgets_removed_rows(live):
    X, y = new_rows("no base", 20)
    live.add(X[:10], y[:10])
    live.relabel([150, 3], [0, 1])
    gone = live.remove([0, 1, 151])
    before = live.model.predict_proba(X)
    found = live.compact()
    assert found.n_rows == live.model.fitted_.n_remembered == 157
    assert found.recall == {"features": 1.0}
    assert live.n_pending == 0
    assert np.array_equal(live.model.predict_proba(X), before)
    again = AttnKNNClassifier.load(live.folder)
    assert np.array_equal(again.predict_proba(X), before)
    with pytest.raises(ValueError, match="compacted since"):
        live.undo(gone.version)
    assert live.add(X[:1], y[:1]).ids == (160,)  # ids are not given twice


def test_a_change_that_another_process_overtakes_is_made_again(live, monkeypatch):
    X, y = new_rows("no base", 2)
    store, faster = live.now.fitted.predictor.views.store, []
    apply = type(store).apply

    def late(self, edit, expect):
        if not faster:
            faster.append(True)
            with LiveModel(live.folder) as other:
                other.add(X[:1], y[:1])
        return apply(self, edit, expect)

    monkeypatch.setattr(type(store), "apply", late)
    change = live.add(X[1:], y[1:])
    assert (change.version, change.ids) == (2, (151,)) and live.model.fitted_.n_remembered == 152


def test_what_a_version_saw_stays_while_others_change_it(live):
    X, y = new_rows("no base", 8)
    version = live.now
    query = version.query([version.encoded(X)])
    expected = version.query([version.encoded(X)]).proba()
    live.add(X, y)
    live.remove([0, 1, 2])
    assert np.array_equal(query.proba(), expected)
    assert not np.array_equal(live.model.predict_proba(X), expected)


def test_neighbors_can_be_imagined_away_and_relabelled(live):
    X, _ = new_rows("no base", 5)
    shown = live.model.explain(X[:1])[0]
    first = shown.neighbors[0]
    version = live.now.if_changed([first.id], {shown.neighbors[1].id: (first.label + 1) % 3})
    seen = version.query([version.encoded(X[:1])], explain=None).explanations()[0]
    assert first.id not in [n.id for n in seen.neighbors]
    labels = {n.id: n.label for n in seen.neighbors}
    assert labels[shown.neighbors[1].id] == (first.label + 1) % 3
    assert live.version == 0 and live.model.explain(X[:1])[0].neighbors[0].id == first.id
    with pytest.raises(ValueError, match="fewer than 2"):
        live.now.if_changed(range(150))


def test_new_classes_come_to_a_memory_without_a_base(live, made, tmp_path):
    X, _ = new_rows("no base", 12)
    live.add(X + 40, ["new"] * 12 if live.model.classes_.dtype.kind == "U" else [7] * 12)
    assert live.model.classes_.tolist() == [0, 1, 2, 7]
    assert (live.model.predict(X + 40) == 7).all()
    assert AttnKNNClassifier.load(live.folder).predict(X[:1] + 40) == [7]
    with LiveModel(shutil.copytree(made("a table with a base")[1], tmp_path / "b")) as based:
        rows, _ = new_rows("a table with a base", 2)
        with pytest.raises(ValueError, match="cannot be added to a memory in a store"):
            based.add(rows, ["maybe", "maybe"])


@pytest.mark.parametrize("left", [0, 20], ids=["no row of it is left", "20 rows"])
def test_a_class_that_came_after_the_fit_moves_with_the_base(left, tmp_path):
    X, y = blobs(190)
    X, new_X, y, new_y = X[:150], X[150:], y[:150], y[150:]
    late = y == 2
    model = attn_knn(preset="instant", random_state=0).fit(X[~late], y[~late])
    ids = model.add(X[late][:20], y[late][:20])
    model.remove(ids[left:], forget_classes=True)
    move_memory(model, tmp_path / "m")
    with LiveModel(tmp_path / "m") as live:
        assert np.array_equal(live.model.predict_proba(new_X), model.predict_proba(new_X))
        some = np.r_[np.flatnonzero(new_y == 2)[:8], np.flatnonzero(new_y == 0)[:2]]
        for changed in (live, model):
            changed.add(new_X[some], new_y[some])
            changed.relabel([0], [2])
        ours, theirs = model.predict_proba(new_X), live.model.predict_proba(new_X)
    assert np.abs(ours - theirs).mean() < 0.05  # what is known of other rows stays as it was
    assert (theirs.argmax(1) == new_y).mean() > 0.8


def test_columns_may_come_with_other_types(tmp_path):
    X = pd.DataFrame({"a": np.arange(60) % 50, "b": ["x", "y"] * 30})
    model = AttnKNNClassifier(random_state=0, preset="instant").fit(X, np.arange(60) % 2)
    move_memory(model, tmp_path / "m")
    with LiveModel(tmp_path / "m") as live:
        change = live.add(pd.DataFrame({"a": [1.5, None], "b": [None, "y"]}), [0, 1])
        rows = live.now.fitted.look_up([0, *change.ids])
        assert rows[0].row == {"a": 0, "b": "x"}
        assert rows[1].row["a"] == 1.5 and pd.isna(rows[1].row["b"])
        undone = live.undo(live.remove(change.ids).version)
        assert live.now.fitted.look_up(undone.ids)[0].row["a"] == 1.5


@pytest.mark.parametrize(
    "ask",
    [
        lambda model: model.predict_proba(),
        lambda model: model.memory_,
        lambda model: review(model).issues(),
        lambda model: review(model).findings(),
        lambda model: review(model).learned(np.zeros((1, 4))),
        lambda model: review(model).rows(),
        lambda model: model.save("elsewhere"),
        lambda model: model.add(np.zeros((1, 4)), [0]),
        lambda model: model.remove([0]),
        lambda model: model.partial_fit(np.zeros((1, 4)), [0]),
        lambda model: model.refresh(),
        lambda model: move_memory(model, "elsewhere"),
    ],
)
def test_what_needs_the_whole_memory_is_refused(made, ask, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    moved = AttnKNNClassifier.load(made("no base")[1])
    with pytest.raises(ValueError, match="in a store"):
        ask(moved)
    assert not list(tmp_path.iterdir())
    assert moved.fitted_.n_remembered == 150


def test_a_model_that_forgets_by_itself_is_not_moved(tmp_path):
    X, y = blobs()
    model = attn_knn(**INSTANT, capacity=80).fit(X, y)
    with pytest.raises(ValueError, match="forgets rows by itself"):
        move_memory(model, tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_places_that_are_taken_are_left_alone(made, tmp_path):
    model, folder = made("no base")
    with pytest.raises(StoreError, match="there already"):
        move_memory(model, folder)
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "mine").write_text("x")
    with pytest.raises(StoreError, match="there already"):
        move_memory(model, tmp_path / "m", str(tmp_path / "rows"))
    assert not (tmp_path / "m").exists() and (tmp_path / "rows" / "mine").exists()
    with pytest.raises(ValueError, match="holds a password"):
        move_memory(model, tmp_path / "m", "postgresql://me:secret@localhost/x")


def test_a_store_elsewhere_and_one_of_another_model(made, tmp_path):
    model, _ = made("no base")
    place = str(tmp_path / "elsewhere")
    move_memory(model, tmp_path / "m", place)
    X, _ = new_rows("no base", 5)
    opened = AttnKNNClassifier.load(tmp_path / "m", trusted_store=place)
    assert np.array_equal(opened.predict_proba(X), model.predict_proba(X))
    shutil.rmtree(place)
    with pytest.raises(StoreError, match="nothing at"):
        AttnKNNClassifier.load(tmp_path / "m", trusted_store=place)
    move_memory(model, tmp_path / "other", place)
    with pytest.raises(StoreError, match="another model"):
        AttnKNNClassifier.load(tmp_path / "m", trusted_store=place)


def test_approximate_search_is_exact_where_it_finds_the_neighbors(tmp_path, monkeypatch):
    monkeypatch.setattr(bulk, "AUTO_EXACT_BELOW", 500)
    X, y = blobs(3000, seed=4)
    model = AttnKNNClassifier(**INSTANT).fit(X, y)
    move_memory(model, tmp_path / "m")
    with LiveModel(tmp_path / "m") as live:
        Q, yq = blobs(400, seed=5)
        gap = np.abs(live.model.predict_proba(Q) - model.predict_proba(Q))
        assert (gap.max(axis=1) < 1e-5).mean() > 0.9
        live.add(Q[:100], yq[:100])
        live.remove(np.arange(50))
        before = live.model.predict_proba(Q)
        assert live.compact().recall["features"] >= 0.95
        assert (np.abs(live.model.predict_proba(Q) - before).max(axis=1) < 1e-5).mean() > 0.9


_WRITER = """
import sys, json
import numpy as np
from nearwise.estimators import LiveModel
live = LiveModel(sys.argv[1])
rng = np.random.default_rng(int(sys.argv[2]))
print("ready", flush=True)
for number in range(10_000):
    change = live.add(rng.normal(size=(1, 4)), [number % 3], key=f"{sys.argv[2]}-{number}")
    print(json.dumps([change.version, list(change.ids)]), flush=True)
    if number % 7 == 6:
        live.compact()
"""


@pytest.mark.slow
def test_every_acknowledged_change_survives_kills(made, tmp_path):
    folder = shutil.copytree(made("no base")[1], tmp_path / "m")
    acknowledged, rng = {}, np.random.default_rng(0)
    for number in range(12):
        writer = subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(folder), str(number)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert writer.stdout.readline() == "ready\n"
        time.sleep(rng.uniform(0.1, 1.5))
        os.kill(writer.pid, signal.SIGKILL)
        for line in writer.communicate()[0].splitlines(keepends=True):
            if line.endswith("\n"):
                version, ids = json.loads(line)
                acknowledged[version] = tuple(ids)
        with LiveModel(folder) as live:
            listed = {c.version: c.ids for c in live.history()}
            assert all(listed[version] == ids for version, ids in acknowledged.items())
            rows = [row for ids in listed.values() for row in ids]
            assert len(rows) == len(set(rows)) == live.model.fitted_.n_remembered - 150
            assert len(live.now.fitted.look_up(rows)) == len(rows)
    assert len(acknowledged) > 20


def test_a_version_is_a_value(live):
    fitted = live.now.fitted
    assert replace(fitted).predictor.views is fitted.predictor.views
    with pytest.raises(ValueError, match="in a store"):
        fitted.bank.ids.tolist()


def test_keys_and_neighbors_are_those_of_a_model_that_holds_its_memory(made):
    model, folder = made("no base")
    X, _ = new_rows("no base", 9)
    moved = AttnKNNClassifier.load(folder)
    assert np.array_equal(moved.keys(X), model.keys(X))
    for ours, theirs in zip(moved.kneighbors(X, 7), model.kneighbors(X, 7), strict=True):
        assert np.array_equal(ours, theirs)
    with pytest.raises(ValueError, match="between 1 and the 150 rows"):
        moved.kneighbors(X, 151)
    with pytest.raises(ValueError, match="in a store"):
        moved.kneighbors()


def test_of_equal_rows_the_same_are_found_as_in_the_model_changed_or_not(tmp_path):
    X = np.repeat(np.eye(4), 60, axis=0)
    y = np.arange(240) % 3
    model = attn_knn(**INSTANT).fit(X, y)
    expected = model.kneighbors(np.eye(4), 20)[1].tolist()
    assert expected[0] != sorted(expected[0]) and max(expected[0]) < 60
    move_memory(model, tmp_path / "m")
    with LiveModel(tmp_path / "m") as live:
        assert live.model.kneighbors(np.eye(4), 20)[1].tolist() == expected
        for ids in (np.arange(240), np.arange(30)):
            live.relabel(ids, np.ones(len(ids), dtype=int), forget_classes=True)
        assert live.model.kneighbors(np.eye(4), 20)[1].tolist() == expected
        before = live.model.predict_proba(X[::60])
        live.compact()
        assert live.model.kneighbors(np.eye(4), 20)[1].tolist() == expected
        assert np.array_equal(live.model.predict_proba(X[::60]), before)


def test_labels_of_every_whole_number_come_back(tmp_path):
    X, y = blobs()
    model = attn_knn(**INSTANT).fit(X, np.array([1, 2**63 + 5, 2**63 + 7], dtype=np.uint64)[y])
    move_memory(model, tmp_path / "m")
    moved = AttnKNNClassifier.load(tmp_path / "m")
    assert moved.classes_.tolist() == model.classes_.tolist()
    assert moved.classes_.dtype == model.classes_.dtype


def test_what_is_kept_beside_the_rows_does_not_grow_with_changes(tmp_path):
    rng = np.random.default_rng(0)
    X = pd.DataFrame({f"c{i}": rng.normal(size=60) for i in range(12)}).assign(t=list("xy") * 30)
    model = AttnKNNClassifier(**INSTANT).fit(X, list("ab") * 30)
    move_memory(model, tmp_path / "m")
    with LiveModel(tmp_path / "m") as live:
        for i in range(20):
            row = X.iloc[[i]].mask(rng.random((1, 13)) < 0.4)
            live.add(row, ["a"])
        kept = live.now.fitted.predictor.views.summary.row_schemas
        assert len(kept) == 1
        (shown,) = live.now.fitted.look_up([79])
        assert str(shown.row["c0"]) == str(row.iloc[0]["c0"])


def test_changes_of_no_rows_change_nothing(live):
    assert live.relabel([], []).ids == ()
    with pytest.raises(ValueError, match="No ids were given"):
        live.remove([])
    with pytest.raises(ValueError, match="each once"):
        live.relabel([0, 0], [1, 1])
    with pytest.raises(ValueError, match="in a store"):
        live.refresh()
    assert live.model.fitted_.n_remembered == 150 and live.compact().n_rows == 150
    live.remove(np.arange(0, 150, 3), forget_classes=True)
    assert live.model.fitted_.n_remembered == 100


def test_a_version_whose_files_are_gone_says_so(live):
    old = AttnKNNClassifier.load(live.folder)
    X, y = new_rows("no base", 2)
    for i in range(2):
        live.add(X[i : i + 1], y[i : i + 1])
        live.compact()
    with pytest.raises(StoreError, match="Open the model again") as found:
        old.predict_proba(X)
    assert found.value.reason == "changed"
    live.catch_up()
    assert len(live.model.predict_proba(X)) == 2


def test_a_move_that_fails_leaves_nothing_behind(made, tmp_path, monkeypatch):
    model, _ = made("no base")

    def stopped(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(moving, "write_folder", stopped)
    with pytest.raises(KeyboardInterrupt):
        move_memory(model, tmp_path / "m", str(tmp_path / "store"))
    assert not (tmp_path / "store").exists() and not (tmp_path / "m" / "manifest.json").exists()
    monkeypatch.undo()
    with pytest.raises(ValueError, match="in the model's folder"):
        move_memory(model, tmp_path / "m", str(tmp_path / "m" / "x"))
    move_memory(model, tmp_path / "m", str(tmp_path / "store"))


def test_a_path_means_the_same_from_everywhere(made, tmp_path, monkeypatch):
    model, _ = made("no base")
    monkeypatch.chdir(tmp_path)
    move_memory(model, "m", "rows")
    assert (tmp_path / "rows").is_dir() and not (tmp_path / "m" / "rows").exists()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    moved = AttnKNNClassifier.load(tmp_path / "m", trusted_store=tmp_path / "rows")
    assert moved.fitted_.n_remembered == 150


@pytest.mark.parametrize("secret", ["//me:hunter2@h/d", "//h/d?password=hunter2"])
def test_no_password_is_kept_or_shown(made, tmp_path, secret):
    with pytest.raises(ValueError, match="password") as found:
        move_memory(made("no base")[0], tmp_path / "m", f"postgresql:{secret}")
    assert "hunter2" not in str(found.value)
    with pytest.raises(ValueError, match="names no store") as found:
        engine_of("mysql://me:hunter2@h/d")
    assert "hunter2" not in str(found.value)


def test_rows_that_are_never_found_are_not_counted(tmp_path):
    X, y = blobs(150)
    model = attn_knn(estimator=None, random_state=0, cv=3, max_per_class=20).fit(X, y)
    move_memory(model, tmp_path / "m")
    moved = AttnKNNClassifier.load(tmp_path / "m")
    assert moved.fitted_.n_remembered == 60
    assert np.array_equal(moved.predict_proba(X[:20]), model.predict_proba(X[:20]))


def test_pictures_with_and_without_files_come_back():
    codec = RowCodec()
    pictures = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    packed = codec.pack(pictures, np.array(["a.png", "b.png"])) + codec.pack(pictures, None)
    rows, names = codec.unpack(packed[::-1])
    assert names.tolist() == ["", "", "b.png", "a.png"]
    assert np.array_equal(rows, np.concatenate([pictures, pictures])[::-1])


FORGED = {
    "classes": [None, 3, [0, 1], [[1], 2, 3]],
    "counts": [None, [], [1.0], [1.0, -1.0, 1.0], ["a"] * 3],
    "rows_per_class": [None, "x", [1, 2], [50, 50, -1], [50.5] * 3, [10**30] * 3],
    "n_rows": [None, "x", 0, -1, 10**30],
    "next_id": [None, "x", -1, 1.5, 2**70, 0],
    "row_schemas": [None, "x", [3], [], ["@@"]],
    "more": [1],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in FORGED.items() for value in values]
)
def test_a_summary_that_is_never_written_is_not_sound(made, tmp_path, name, value):
    folder = shutil.copytree(made("no base")[1], tmp_path / "m")
    place = folder / "rows" / "head"
    head = read_folder(place, kind=disk.KIND, newest_version=2)
    meta = head.meta | {"summary": head.meta["summary"] | {name: value}}
    shutil.rmtree(place)
    write_folder(place, kind=disk.KIND, format_version=head.version, tensors={}, meta=meta)
    with pytest.raises(StoreError) as found:
        verified(folder, [])
    assert found.value.reason in ("invalid", "torn")


def test_a_store_of_classes_is_not_opened_as_one_of_numbers(live):
    with pytest.raises(StoreError, match=r"in a store.*Open it by AttnKNNClassifier\.load"):
        AttnKNNRegressor.load(live.folder)
