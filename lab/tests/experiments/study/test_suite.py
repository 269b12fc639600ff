"""Experiments from end to end: rows, skipping, going on, failures, mistakes."""

from functools import partial

import pytest
from nearwise_lab.experiments import read_records
from nearwise_lab.experiments.artifacts import load_json, load_predictions, record_path
from nearwise_lab.experiments.study import EXPERIMENTS, run_experiment
from nearwise_lab.experiments.study import session as sessions
from nearwise_lab.records import METRICS, RecordsError

NEIGHBORS = {
    "uniform", "distance", "attention", "attention+tta", "attention+k-ensemble",
    "attention+adaptive-k",
}  # fmt: skip


@pytest.fixture
def replay(run, digits, quick):
    """Give a function that runs an experiment on the digits; further arguments are settings."""

    def call(name, preset="v0.5", *, seeds=(0,), **changes):
        where = {"out": changes.pop("out")} if "out" in changes else {}
        config = {**quick, "epochs": 2, **changes}
        return run(name, digits, preset, seeds=seeds, config=config, **where)

    return call


def metrics(records):
    return {r.key: [getattr(r, m) for m in METRICS] for r in records}


def test_main_measures_every_method_and_keeps_what_figures_need(replay, tmp_path):
    rows = replay("main", seeds=(0, 1))
    assert {r.method for r in rows} == NEIGHBORS | {"cnn", "cnn+temperature"}
    assert {r.seed for r in rows} == {0, 1}
    assert all(r.status == "ok" and r.nll is not None for r in rows)
    attention = next(r for r in rows if r.method == "attention" and r.seed == 0)
    assert attention.details["knn_loss_with_self"] < attention.details["knn_loss_without_self"]
    assert {"purity", "excess", "temperatures", "final_parts"} <= set(attention.details)
    assert attention.choice["settings"]["epochs"] == 2
    own = attention.details["search_and_weigh_us_per_row"]
    assert 0 < own < attention.predict_us_per_row
    bound = next(r for r in rows if r.method == "cnn+temperature")
    assert bound.details["epochs"] == 2
    assert 0.1 <= bound.details["chance"] < 0.2  # of ten digits
    assert load_predictions(record_path(tmp_path, attention, "predictions", "npz")) is not None
    assert len(load_json(record_path(tmp_path, attention, "curves", "json"))) == 2
    assert load_json(record_path(tmp_path, attention, "maps", "json"))["memory"]
    assert load_json(record_path(tmp_path, attention, "galleries", "json"))["classes"]


def test_finished_rows_are_not_run_again(replay, tmp_path, monkeypatch):
    first = replay("main")
    text = (tmp_path / "records.jsonl").read_text()

    def never(*args, **kwargs):
        raise AssertionError("trained again")

    monkeypatch.setattr(sessions, "train_replay", never)
    monkeypatch.setattr(sessions, "train_upper_bound", never)
    assert metrics(replay("main")) == metrics(first)
    assert (tmp_path / "records.jsonl").read_text() == text


@pytest.mark.slow
def test_a_run_killed_in_training_goes_on_to_the_same_records(replay, tmp_path, monkeypatch):
    whole = replay("main", out=tmp_path / "whole")
    real = sessions.Session._teller

    def killing(self, what, epochs):
        tell = real(self, what, epochs)

        def then_kill(record):
            tell(record)
            if record["epoch"] == 1:
                raise KeyboardInterrupt

        return then_kill

    for _ in range(2):  # killed once in the replay and once in the upper bound
        with monkeypatch.context() as patch, pytest.warns(UserWarning, match="interrupted"):
            patch.setattr(sessions.Session, "_teller", killing)
            with pytest.raises(KeyboardInterrupt):
                replay("main", out=tmp_path / "killed")
    assert metrics(replay("main", out=tmp_path / "killed")) == metrics(whole)


@pytest.mark.slow
def test_the_k_sweep_has_rows_for_each_k(replay):
    rows = replay("k-sweep")
    assert {(r.method, r.condition, r.k) for r in rows} == {
        (method, f"k={k}", k) for k in (1, 5, 10) for method in ("uniform", "distance", "attention")
    }


@pytest.mark.slow
def test_label_noise_in_the_memory_and_everywhere(replay):
    rows = replay("label-noise")
    cases = {(r.condition, r.noise_kind, r.noise) for r in rows}
    assert cases == {
        (where, kind, rate)
        for where in ("where=memory", "where=everywhere")
        for kind, rate in (("symmetric", 0.0), ("symmetric", 0.3), ("asymmetric", 0.3))
    }
    by = {(r.condition, r.noise_kind, r.noise, r.method): r for r in rows}
    for where in ("where=memory", "where=everywhere"):
        clean = by[where, "symmetric", 0.0, "attention"]
        assert by[where, "symmetric", 0.3, "attention"].nll > clean.nll
    assert ("where=memory", "symmetric", 0.3, "cnn") not in by
    assert by["where=everywhere", "symmetric", 0.3, "cnn"].accuracy is not None


def test_a_long_tail_is_rebuilt_and_retrained_and_in_the_memory_neither(replay, monkeypatch):
    trained = []
    real = sessions.train_replay

    def noted(inputs, *args, **how):
        trained.append(len(inputs.y_train))
        return real(inputs, *args, **how)

    monkeypatch.setattr(sessions, "train_replay", noted)
    rows = {(r.condition, r.method): r for r in replay("long-tail", cnn_epochs=1)}
    few = rows["ratio=0.1", "attention"].n_train
    assert few < rows["ratio=1", "attention"].n_train == 400
    assert {"cnn", "cnn+temperature", "uniform"} <= {m for c, m in rows if c == "ratio=0.1"}
    alone = {method: row for (c, method), row in rows.items() if c == "memory-ratio=0.1"}
    assert set(alone) == {"uniform", "distance", "attention", "attention+tta"}
    assert alone["attention"].n_train == few
    assert trained.count(few) == 1 and set(trained) == {few, 400}
    assert rows["memory-ratio=1", "uniform"].nll == rows["ratio=1", "uniform"].nll
    assert alone["uniform"].nll != rows["ratio=0.1", "uniform"].nll


@pytest.mark.slow
def test_theory_and_ablation(replay, tmp_path):
    theory = {r.condition: r.details for r in replay("theory")}
    assert set(theory) == {"norms", "error-against-k", "temperatures", "collapse", "leak"}
    assert theory["leak"]["knn_loss_with_self"] < theory["leak"]["knn_loss_without_self"]
    names = ["full", "without=contrastive", "with=leave-self-out", "without=hard-negatives"]
    rows = replay("ablation", out=tmp_path / "ablation", ablations=names)
    assert {r.condition for r in rows} == set(names[:3])  # v0.5 has no hard negatives


def test_efficiency_needs_no_data_set(run):
    rows = run("efficiency", "none at all", "v0.5", small=True)
    flat = [r for r in rows if r.method in ("exact", "L2", "IP")]
    assert flat
    assert all(r.details["recall"] == 1 for r in flat)
    weighed = {r.method for r in rows if "weigh_us_per_query" in r.details}
    assert weighed == {"uniform", "distance", "multi-head", "attention"}
    assert all(r.predict_us_per_row > 0 for r in rows)
    assert all((r.fit_seconds is None) == (r.method in weighed) for r in rows)


def test_a_failure_is_kept_with_its_reason_and_tried_again(replay, monkeypatch):
    def broken(*args, **kwargs):
        raise RuntimeError("no such luck")

    with monkeypatch.context() as patch:
        patch.setattr(sessions, "train_upper_bound", broken)
        rows = {r.method: r for r in replay("main")}
    assert rows["cnn"].status == "failed"
    assert rows["cnn"].reason == "RuntimeError: no such luck"
    assert rows["attention"].status == "ok"
    assert {r.status for r in replay("main")} == {"ok"}


def test_columns_are_replayed_with_the_tabular_embedder(run):
    rows = run("main", "iris", "v0.3", config={"epochs": 2, "cnn_epochs": 2, "n_neighbors": 5})
    assert {r.method for r in rows} == (NEIGHBORS - {"attention+tta"}) | {"mlp", "mlp+temperature"}
    assert all(r.status == "ok" for r in rows), rows


def test_a_table_leaves_out_more_neighbors_than_the_head_takes(run):
    config = {"sweep_k": [2, 70], "head": {"epochs": 2}, "estimator": None}
    rows = run("k-sweep", "iris", "v1", small=True, config=config)
    assert not [r.reason for r in rows if r.status != "ok"]
    assert {r.condition for r in rows if r.method == "attention"} == {"k=2"}


@pytest.mark.slow
def test_the_corrected_method_on_a_table(run, tmp_path):
    small = {"small": True, "config": {"estimator": None, "sweep_k": [1, 5]}}
    rows = run("main", "iris", "v1", **small)
    by = {r.method: r for r in rows}
    assert {"uniform", "distance", "distance-tuned", "mlp+temperature", "attention"} <= set(by)
    assert {"attention:base-alone", "attention:neighbors-alone"} <= set(by)
    assert not {"attention+k-ensemble", "attention+adaptive-k"} & set(by)
    assert all(r.status == "ok" for r in rows)
    assert {r.preset for r in rows} == {"v1"}
    assert by["attention"].null_mass is not None
    assert metrics(read_records(tmp_path)) == metrics(rows)
    assert {r.condition for r in run("k-sweep", "iris", "v1", **small)} == {"k=1", "k=5"}
    theory = {r.condition for r in run("theory", "iris", "v1", **small)}
    assert theory == {"error-against-k", "collapse", "temperatures"}


def test_presets_share_a_folder_and_settings_do_not(replay, tmp_path):
    replay("k-sweep", "v0.5")
    both = replay("k-sweep", "v0.3")
    assert {r.preset for r in both} == {"v0.3"}
    assert {r.preset for r in read_records(tmp_path)} == {"v0.3", "v0.5"}
    with pytest.raises(RecordsError, match=r"v0.3 on digits-images.*lr=0.005, now 1e-05"):
        replay("k-sweep", "v0.3", lr=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "k-swep"}, "Did you mean 'k-sweep'"),
        ({"preset": "v0.7"}, "unknown preset"),
        ({"seeds": []}, "non-negative"),
        ({"epoch": 1}, "Did you mean 'epochs'"),
    ],
)
def test_mistakes_are_told_before_anything_is_trained(replay, change, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        replay(**{"name": "main", **change})
    assert not (tmp_path / "records.jsonl").exists()


def test_a_device_that_is_not_there_is_refused(digits, tmp_path):
    with pytest.raises(ValueError, match="is not known"):
        run_experiment("main", digits, "v0.5", [0], tmp_path, device="tpu")


def test_the_names_are_those_of_the_study():
    assert EXPERIMENTS == (
        "main", "weights", "weights-noise", "weights-tail", "k-sweep", "label-noise", "long-tail",
        "efficiency", "theory", "ablation",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("ablation", {"ablations": ["wihout=base"]}, "no part of the method.*'without=base'"),
        ("label-noise", {"noise_rates": []}, "leave no row of 'label-noise'"),
        ("main", {"n_neighbors": -4}, "n_neighbors"),
        ("main", {"preset": "slow"}, "preset='slow' is not known"),
        ("efficiency", {"foo": 1}, "has no settings. Leave out foo"),
    ],
)
def test_settings_that_do_not_fit_are_refused_and_bind_no_folder(run, name, settings, message):
    with pytest.raises(ValueError, match=message):
        run(name, "iris", "v1", config=settings)
    fits = {} if name == "efficiency" else {"estimator": None}
    with pytest.raises(ValueError, match="names no row"):
        run(name, "iris", "v1", config=fits, only="nope")


def test_a_small_run_of_instant_has_settings_that_fit(run):
    only = {"small": True, "config": {"preset": "instant"}, "only": "attention"}
    rows = run("main", "iris", "v1", **only)
    assert {row.status for row in rows} == {"ok"}


def test_only_the_rows_that_a_pattern_names_are_made(run):
    part = partial(
        run, "k-sweep", "iris", "v0.3", config={"epochs": 1, "cnn_epochs": 1, "sweep_k": [1, 5]}
    )
    assert {row.condition for row in part(only="k = 5, *")} == {"k=5"}
    assert {row.condition for row in part()} == {"k=1", "k=5"}
    with pytest.raises(ValueError, match=r"names no row. Known: .*k = 1, uniform"):
        part(only="k = 9*")


@pytest.mark.parametrize("name", ["weights", "weights-noise", "weights-tail"])
def test_rows_of_all_comparisons_of_weightings_are_named_alike(run, name):
    with pytest.raises(ValueError, match="names no row") as refused:
        run(name, "iris", "v1", config={"estimator": None}, only="nope")
    rows = str(refused.value).split("Known: ")[1].split("; ")
    assert any("with base" in row for row in rows), rows
    assert not any("=base" in row or "as-given" in row for row in rows), rows
