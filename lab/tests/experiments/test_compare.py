"""compare: fair, resumable, and not stopped by one failing method."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fakes import attention, bayes, blobs, broken
from nearwise_lab.experiments import Method, Record, RecordsError, compare, read_records
from nearwise_lab.experiments.artifacts import load_json, load_predictions, record_path
from nearwise_lab.experiments.compare import fingerprint
from nearwise_lab.experiments.trial import align
from nearwise_lab.records import COSTS, METRICS
from sklearn.naive_bayes import GaussianNB

from nearwise.data import Dataset, split_dataset
from nearwise.metrics import evaluate_probabilities


def run(out, datasets=None, methods=None, seeds=(0, 1), **options):
    datasets = [blobs()] if datasets is None else datasets
    return compare(datasets, methods or [bayes()], seeds, out, progress=False, **options)


def beside(folder, method, seed, what, suffix):
    return record_path(folder, Record("blobs", method, seed), what, suffix)


def test_a_row_carries_every_field(tmp_path):
    (record,) = run(tmp_path, seeds=[3])
    assert (record.dataset, record.method, record.seed, record.status) == (
        "blobs",
        "bayes",
        3,
        "ok",
    )
    assert (record.n_train, record.n_test, record.n_classes) == (72, 18, 3)
    assert all(getattr(record, name) is not None for name in (*METRICS, *COSTS))
    assert record.versions["python"] and record.hardware["cores"] and record.command
    assert record.time.endswith("+00:00")


def test_metrics_are_those_of_the_kept_predictions(tmp_path):
    data = blobs(spread=3.0)
    (record,) = run(tmp_path, [data], seeds=[0])
    kept = load_predictions(beside(tmp_path, "bayes", 0, "predictions", "npz"))
    again = evaluate_probabilities(kept.y, kept.proba)
    assert record.nll == pytest.approx(again["nll"], abs=1e-6)
    assert record.accuracy == again["accuracy"]
    np.testing.assert_array_equal(kept.test_index, split_dataset(data, 0)[1])


def test_run_again_fits_only_what_is_missing_and_gives_what_was_asked_for(tmp_path):
    fitted = []
    first = run(tmp_path, methods=[bayes("a", fitted)], seeds=[0])
    assert run(tmp_path, methods=[bayes("a", fitted)], seeds=[0]) == first
    run(tmp_path, methods=[bayes("a", fitted), bayes("b", fitted)], seeds=[0, 1])
    assert sorted(fitted) == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    assert len(read_records(tmp_path)) == 4
    rows = run(tmp_path, methods=[bayes("b")], seeds=[1])
    assert [(r.method, r.seed) for r in rows] == [("b", 1)]


def test_a_failing_method_is_recorded_and_the_rest_goes_on(tmp_path):
    rows = run(tmp_path, methods=[broken(), bayes()], seeds=[0])
    assert [r.status for r in rows] == ["failed", "ok"]
    assert rows[0].reason == "RuntimeError: this method never works"
    assert rows[0].nll is None


def test_ctrl_c_keeps_the_finished_rows(tmp_path):
    class Interrupting:
        classes_ = None

        def fit(self, X, y):
            raise KeyboardInterrupt

    stop = Method("stop", lambda context: Interrupting(), "linear", "stops")
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, methods=[bayes(), stop], seeds=[0])
    assert [r.method for r in read_records(tmp_path)] == ["bayes"]


def test_a_fit_that_ctrl_c_cut_short_is_no_result(tmp_path):
    """Our own fits answer it by stopping early: their numbers would pass for whole ones."""

    class Swallowing(GaussianNB):
        def fit(self, X, y):
            with suppress(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
            return super().fit(X, y)

    stop = Method("stop", lambda context: Swallowing(), "linear", "stops early")
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, methods=[bayes(), stop], seeds=[0])
    assert [r.method for r in read_records(tmp_path)] == ["bayes"]
    assert not list(tmp_path.rglob("stop*"))  # nor predictions of it
    assert signal.getsignal(signal.SIGINT) is handler


def test_noise_changes_training_labels_only(tmp_path):
    seen = {}

    class Watching(type(bayes().build(type("c", (), {"seed": 0})))):
        def fit(self, X, y, sample_weight=None):
            seen["y"] = y
            return super().fit(X, y)

    def build(context):
        model = Watching()
        model.seed_ = context.seed
        return model

    data = blobs(n=200, n_classes=4, spread=0.1)
    watch = Method("watch", build, "linear", "watches")
    run(tmp_path, [data], [watch], [0], noise=0.25)
    train, test = split_dataset(data, 0)
    assert (seen["y"] != data.y[train]).mean() == pytest.approx(0.25)
    kept = load_predictions(beside(tmp_path, "watch", 0, "predictions", "npz"))
    assert [kept.classes[i] for i in kept.y] == list(data.y[test])


@pytest.mark.parametrize(
    ("other", "message"),
    [({"noise": 0.3}, "noise"), ({"datasets": [blobs(seed=1)]}, "other rows called 'blobs'")],
)
def test_other_noise_or_data_in_the_same_folder_are_refused(tmp_path, other, message):
    run(tmp_path)
    with pytest.raises(RecordsError, match=message):
        run(tmp_path, **other)


def test_fingerprints_tell_labels_and_features_apart():
    one = blobs()
    assert fingerprint(one) == fingerprint(blobs())
    assert fingerprint(one) != fingerprint(blobs(spread=1.1))


def test_fingerprints_tell_images_of_other_shapes_apart():
    pixels = np.arange(48, dtype=np.uint8)
    y = np.array([0, 1])
    shapes = [(2, 4, 6, 1), (2, 6, 4, 1), (2, 2, 4, 3)]
    prints = [
        fingerprint(Dataset("one", pixels.reshape(shape), y, "y", "images", "here"))
        for shape in shapes
    ]
    assert len({one["sha256"] for one in prints}) == 3
    assert [one["n_columns"] for one in prints] == [24, 24, 24]


def test_attention_rows_bring_their_halves_and_the_null_mass(tmp_path):
    rows = run(tmp_path, methods=[attention()], seeds=[0])
    assert [r.method for r in rows] == [
        "attention:base-alone",
        "attention:neighbors-alone",
        "attention",
    ]
    assert rows[1].nll == pytest.approx(np.log(3))
    assert rows[2].null_mass == pytest.approx(0.25)
    assert rows[2].k == 3
    assert rows[2].choice["embedder"] == "identity" and rows[2].choice["temperature"] == 1.5


def test_curves_and_one_gallery_are_kept(tmp_path):
    run(tmp_path, methods=[attention()], seeds=[1, 2])
    curve = load_json(beside(tmp_path, "attention", 2, "curves", "json"))
    assert [row["epoch"] for row in curve] == [1, 2, 3]
    gallery = beside(tmp_path, "attention", 1, "galleries", "json")
    assert load_json(gallery)["rows"]
    assert not beside(tmp_path, "attention", 2, "galleries", "json").exists()


def test_a_class_unseen_in_training_gets_probability_zero():
    proba = align([[0.25, 0.75]], np.array(["a", "c"]), np.array(["a", "b", "c"]))
    np.testing.assert_array_equal(proba, [[0.25, 0, 0.75]])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"datasets": []}, "at least one data set"),
        ({"seeds": []}, "at least one non-negative"),
        ({"seeds": [-1]}, "non-negative"),
        ({"methods": ["nope"]}, "unknown method"),
        ({"noise": 1.0}, r"share of the labels"),
        ({"noise_kind": "loud"}, "not one of"),
        ({"datasets": [blobs(), blobs()]}, "several data sets are called blobs"),
        ({"datasets": ["nope"]}, "Unknown data set"),
        ({"datasets": ["digits-images"]}, "Run `nearwise experiment main` on it"),
    ],
)
def test_mistakes_are_refused_before_anything_is_fitted_or_written(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        run(tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_quiet_prints_nothing_and_a_bar_names_failures(tmp_path, capfd):
    run(tmp_path / "quiet", methods=[broken()], seeds=[0])
    assert capfd.readouterr() == ("", "")
    compare([blobs()], [broken()], [0], tmp_path / "loud", progress=True)
    assert "never works" in capfd.readouterr().err


SLOW_RUN = """
import sys, time
sys.path.insert(0, {tests!r})
from fakes import attention, bayes, blobs
from nearwise_lab.experiments import compare
print("ready", flush=True)
compare([blobs(), blobs("more", seed=1)], [bayes(), attention()], range(30), {out!r},
        progress=False, command="test")
print("done", flush=True)
"""


@pytest.mark.slow
def test_kill_9_at_any_moment_loses_no_finished_row(tmp_path):
    rng = np.random.default_rng(0)
    code = SLOW_RUN.format(tests=str(Path(__file__).parent), out=str(tmp_path / "killed"))
    records = tmp_path / "killed" / "records.jsonl"
    kills = kept_before = grew = 0

    def size_of(path):
        return path.stat().st_size if path.exists() else 0

    for _ in range(200):
        known = size_of(records)
        child = subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, env=os.environ
        )
        child.stdout.readline()
        # Every other kill comes while rows are written, the others while the run starts.
        while kills % 2 and child.poll() is None and size_of(records) == known:
            time.sleep(0.01)
        time.sleep(rng.uniform(0.02, 0.25))
        if kills < 20 and child.poll() is None:
            os.kill(child.pid, signal.SIGKILL)
            kills += 1
        child.wait()
        if records.exists():
            kept = len(read_records(tmp_path / "killed"))
            assert kept >= kept_before
            kept_before = kept
        if child.returncode == 0:
            break
        grew += size_of(records) > known
    assert kills == 20 and grew > 5
    compare(
        [blobs(), blobs("more", seed=1)],
        [bayes(), attention()],
        range(30),
        tmp_path / "whole",
        progress=False,
    )

    def results(folder):
        return {r.key: [getattr(r, m) for m in METRICS] for r in read_records(folder)}

    assert results(tmp_path / "killed") == results(tmp_path / "whole")
    lines = (tmp_path / "killed" / "records.jsonl").read_text().splitlines()
    assert all(json.loads(line) for line in lines)


def embeddings_in_two_views(n=60):
    X = np.random.default_rng(0).normal(size=(n, 3)).astype(np.float32)
    y = (np.arange(n) % 2).astype(np.int64)
    X += y[:, None]
    return Dataset("pair", X, y, "label", "embeddings", "made by a test", views={"twice": 2 * X})


class InTwoViews(GaussianNB):
    """Takes a second view, which must be twice the first, row by row."""

    def fit(self, X, y, views):
        np.testing.assert_array_equal(views[0], 2 * X)
        return super().fit(X, y)

    def predict_proba(self, X, views):
        np.testing.assert_array_equal(views[0], 2 * X)
        return super().predict_proba(X)


def test_a_method_gets_the_views_of_its_own_rows(tmp_path):
    method = Method("two", lambda context: InTwoViews(), "linear", "", takes_views=True)
    (record,) = run(tmp_path, [embeddings_in_two_views()], [method], seeds=[0])
    assert record.status == "ok", record.reason
    (lacking,) = run(tmp_path / "other", [blobs()], [method], seeds=[0])
    assert "two needs further views of the rows, and blobs has none" in lacking.reason


def test_accuracy_by_class_size_is_recorded_where_sizes_differ(tmp_path):
    even, tailed = blobs(), blobs("tailed")
    kept = np.r_[np.flatnonzero(tailed.y != "cat"), np.flatnonzero(tailed.y == "cat")[:10]]
    tailed = replace(tailed, X=tailed.X.iloc[kept].reset_index(drop=True), y=tailed.y[kept])
    compare([even, tailed], [attention()], [0], tmp_path / "out", progress=False)
    rows = {(r.dataset, r.method): r for r in read_records(tmp_path / "out")}
    assert rows["blobs", "attention"].details == {}
    shots = rows["tailed", "attention"].details["shots"]
    assert set(shots) == {"many", "medium", "few", "balanced", "classes", "rule"}
    assert "shots" in rows["tailed", "attention:base-alone"].details
