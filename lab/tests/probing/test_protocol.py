"""evaluate: records, resuming, and paired differences."""

import signal
from contextlib import suppress

import numpy as np
import pytest
from nearwise_lab.data import load_dataset
from nearwise_lab.data.trained_on import image_digests
from nearwise_lab.probing import (
    Pixels,
    RandomInit,
    SparsePoints,
    StoredFeatures,
    evaluate,
    probe_data,
)
from nearwise_lab.probing.data import LabeledImages, without_seen
from nearwise_lab.probing.measures import measure, packed, packed_nll, rows_of
from nearwise_lab.probing.paired import paired_differences
from nearwise_lab.records import read_lines
from sklearn.datasets import load_digits

from nearwise.metrics import accuracy, evaluate_probabilities
from nearwise.probes import KNNProbe, LinearProbe, MLPProbe, extract_features
from tests.probes.cases import Convolution


@pytest.fixture(scope="module")
def data():
    return probe_data(load_dataset("digits-images"), seed=0, limit=(400, 150))


def without_times(records):
    of_times = ("fit_seconds", "query_us", "time")
    return [{k: v for k, v in r.items() if k not in of_times} for r in records]


def test_a_record_is_what_the_probe_alone_gives(data):
    encoder = Pixels((8, 8), 1)
    (record,) = evaluate({"pixels": encoder}, data, probes=["knn"], pools=["flatten"])
    X, held, test = (
        extract_features(encoder, p.images, p.labels, pool="flatten", rows=p.rows) for p in data
    )
    probe = KNNProbe("val").fit(X.X, X.y, validation=(held.X, held.y), refit=True)
    proba = probe.predict_proba(test.X)
    assert record["accuracy"] == accuracy(test.y, proba)
    assert record["nll"] == evaluate_probabilities(test.y, proba)["nll"]
    assert np.array_equal(rows_of(record, "accuracy") > 0, probe.predict(test.X) == test.y)
    of_truth = proba[np.arange(len(proba)), np.searchsorted(probe.classes_, test.y)]
    assert np.allclose(rows_of(record, "nll"), -np.log(np.maximum(of_truth, 1e-7)), rtol=5e-4)
    low, high = record["intervals"]["accuracy"]
    assert low < record["accuracy"] < high
    assert (record["n"], record["n_train"], record["dims"], record["tokens"]) == (150, 400, 64, 64)


def test_top5_counts_the_five_most_probable():
    codes = np.arange(6)
    proba = np.tile([0.3, 0.25, 0.2, 0.15, 0.1, 0.0], (6, 1))
    assert measure(codes, proba)["top5"] == pytest.approx(5 / 6)
    assert measure(codes[:2], np.eye(2))["top5"] is None


def test_a_stopped_run_goes_on_and_ends_the_same(data, tmp_path):
    encoders = {"pixels": Pixels((8, 8), 1), "conv": RandomInit(Convolution)}
    options = {"probes": ["knn", "linear"], "contexts": ["full"], "pools": ["mean", "flatten"]}
    whole = evaluate(encoders, data, **options)

    def stop(what, done, total):
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate(encoders, data, folder=tmp_path, progress=stop, **options)
    assert len(read_lines(tmp_path)) == 3
    with (tmp_path / "records.jsonl").open("a") as file:
        file.write('{"key": "half')  # killed in the middle of a line
    began = []
    again = evaluate(
        encoders, data, folder=tmp_path, progress=lambda *step: began.append(step), **options
    )
    assert [done for _, done, _ in began] == [3, 4, 5, 6, 7, 8]
    assert without_times(again) == without_times(whole)
    assert without_times(read_lines(tmp_path)) == without_times(whole)


def test_a_fit_that_ctrl_c_cut_short_is_no_record(data, tmp_path):
    class Swallowing(KNNProbe):
        def fit(self, *args, **kwargs):
            with suppress(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
            return super().fit(*args, **kwargs)

    probes = {"whole": KNNProbe(3), "cut": Swallowing(3)}
    with pytest.raises(KeyboardInterrupt):
        evaluate({"pixels": Pixels((8, 8), 1)}, data, probes=probes, folder=tmp_path)
    assert [r["probe"] for r in read_lines(tmp_path)] == ["whole"]


def test_records_chosen_in_another_way_are_measured_again(data, tmp_path, monkeypatch):
    asked = {"encoders": {"pixels": Pixels((8, 8), 1)}, "data": data, "probes": ["knn"]}
    evaluate(**asked, folder=tmp_path, shared=True)
    monkeypatch.setattr(KNNProbe, "chosen_by", "coin")
    evaluate(**asked, folder=tmp_path, shared=True)
    assert len(read_lines(tmp_path)) == 2


def test_test_images_that_an_encoder_was_trained_on_are_told_and_left_out(data):
    encoder = Pixels((8, 8), 1)
    encoder.trained_on = image_digests(data.test.images[[3, 7]])
    encoders = {"mine": encoder, "other": Pixels((8, 8), 1)}
    with pytest.warns(UserWarning, match=r"2 of 150 test images .* that mine was trained on"):
        evaluate(encoders, data, probes=["knn"])
    left, seen = without_seen(data, encoders)
    assert seen == {"mine": 2}
    assert left.test.rows.tolist() == np.delete(data.test.rows, [3, 7]).tolist()
    assert left.train is data.train
    encoder.trained_on = image_digests(data.test.images)
    with pytest.raises(ValueError, match="All 150 test images"):
        without_seen(data, encoders)


def test_another_encoder_of_the_same_name_is_measured_anew(data, tmp_path):
    options = {"probes": ["knn"], "folder": tmp_path, "shared": True}
    evaluate({"conv": RandomInit(Convolution)}, data, **options)
    evaluate({"conv": RandomInit(Convolution, seed=1)}, data, **options)
    evaluate({"conv": RandomInit(Convolution)}, data, **options)
    assert len(read_lines(tmp_path)) == 2


def test_a_folder_takes_more_of_the_same_rows_and_refuses_what_would_be_mixed_up(data, tmp_path):
    first = {"conv": RandomInit(Convolution)}
    options = {"probes": ["knn"], "folder": tmp_path}
    evaluate(first, data, **options)
    evaluate({"pixels": Pixels((8, 8), 1)}, data, probes=["knn", "linear"], folder=tmp_path)
    evaluate(first, data, probes=["knn"], pools=["max"], seeds=[3], folder=tmp_path)
    assert len(read_lines(tmp_path)) == 4
    before = (tmp_path / "records.jsonl").read_bytes()
    other_rows = data._replace(train=LabeledImages(*(part[1:] for part in data.train)))
    for message, encoders, parts, changes in [
        ("another encoder called 'conv'", {"conv": RandomInit(Convolution, seed=1)}, data, {}),
        ("another probe called 'knn'", first, data, {"probes": {"knn": KNNProbe(3)}}),
        ("other rows", first, other_rows, {}),
        (r"settings \(such as views\)", first, data, {"views": 2}),
    ]:
        with pytest.raises(ValueError, match=message):
            evaluate(encoders, parts, **{**options, **changes})
    assert (tmp_path / "records.jsonl").read_bytes() == before


def test_the_test_labels_change_no_choice(data):
    wrong = data._replace(test=data.test._replace(labels=np.roll(data.test.labels, 1)))
    options = {"probes": ["linear", "knn-val"], "pools": ["flatten"]}
    one = evaluate({"pixels": Pixels((8, 8), 1)}, data, **options)
    other = evaluate({"pixels": Pixels((8, 8), 1)}, wrong, **options)
    assert [r["choice"] for r in one] == [r["choice"] for r in other]
    assert one[0]["accuracy"] > other[0]["accuracy"] + 0.5


def test_draws_are_of_partial_contexts_only(data):
    records = evaluate(
        {"points": SparsePoints((8, 8), 1)},
        data,
        probes=["knn"],
        contexts=["full", "0.2"],
        draws=[0, 1],
        seeds=[0, 1],
    )
    assert [(r["context"], r["draw"], r["seed"]) for r in records] == [
        ("full", 0, 0), ("full", 0, 1),
        ("0.2", 0, 0), ("0.2", 0, 1), ("0.2", 1, 0), ("0.2", 1, 1),
    ]  # fmt: skip


def test_probes_and_features_of_ones_own(data):
    X = load_digits().data
    records = evaluate(
        {"stored": StoredFeatures(X)},
        data,
        probes={"mine": KNNProbe(3, metric="euclidean"), "line": LinearProbe(C=0.1)},
    )
    assert [r["probe"] for r in records] == ["mine", "line"]
    known = np.concatenate([data.train.rows, data.validation.rows])
    labels = np.concatenate([data.train.labels, data.validation.labels])
    probe = KNNProbe(3, metric="euclidean").fit(X[known], labels)
    assert records[0]["accuracy"] == probe.score(X[data.test.rows], data.test.labels)


def test_validation_rows_are_learned_from_once_choices_are_made(data):
    options = {
        "probes": {
            "knn": KNNProbe(5),
            "linear": LinearProbe((0.01, 0.1)),
            "mlp": MLPProbe(8, epochs=1),
        },
        "pools": ["flatten"],
    }
    records = evaluate({"pixels": Pixels((8, 8), 1)}, data, **options)
    assert [r["n_train"] for r in records] == [400, 400, 360]
    assert [r["flops"] for r in records] == [
        2 * 400 * 64, 2 * (64 + 1) * 10, 2 * (64 + 10) * 8
    ]  # fmt: skip


def test_flatten_pca_is_fitted_on_training_rows(data):
    options = {"probes": ["linear"], "pools": ["flatten-pca"]}
    (record,) = evaluate({"pixels": Pixels((8, 8), 1)}, data, **options)
    assert record["dims"] == 64
    assert record["accuracy"] > 0.85


def fake(probe, hits, encoder="a", seed=0, data="d", pool="mean"):
    return {
        "encoder": encoder, "probe": probe, "pool": pool, "context": "full", "draw": 0,
        "seed": seed, "n": len(hits), "data": data, "correct": packed(np.array(hits, bool)),
        "source": {"encoder": encoder, "probe": probe, "rows": data},
    }  # fmt: skip


def test_a_paired_difference_is_narrower_than_unpaired_ones():
    generator = np.random.default_rng(0)
    base = generator.random(1000) < 0.7
    better = base | (generator.random(1000) < 0.05)
    (row,) = paired_differences([fake("knn", base), fake("attention", better)], baseline="knn")
    assert row["difference"] == pytest.approx(better.mean() - base.mean())
    assert 0 < row["low"] < row["difference"] < row["high"]
    assert row["high"] - row["low"] < 0.03  # two independent samples: 0.08
    assert row["verdict"] == "higher"


def test_differences_pair_seeds_and_rows_and_name_none_where_there_is_none():
    generator = np.random.default_rng(1)
    records = [
        fake(probe, generator.random(500) < 0.6, seed=seed)
        for probe in ("knn", "linear")
        for seed in (0, 1, 2)
    ]
    (row,) = paired_differences(records, baseline="knn")
    assert row["runs"] == 3 and row["n"] == 500 and row["verdict"] == "none"
    assert not paired_differences(
        [fake("knn", [1, 0]), fake("linear", [1, 1], data="others")], baseline="knn"
    )


def test_token_probes_are_paired_with_pooled_ones():
    records = [
        fake("knn", [1, 0, 1]),
        fake("transformer", [1, 1, 1], pool="tokens"),
        fake("knn", [0, 0, 1], encoder="b"),
    ]
    (row,) = paired_differences(records, baseline="knn")
    assert (row["pool"], row["baseline_pool"]) == ("tokens", "mean")
    with pytest.raises(ValueError, match=r"probe 'mlp'. There are knn, transformer"):
        paired_differences(records, baseline="mlp")


def test_differences_of_the_nll_are_of_the_same_rows(data):
    records = evaluate({"pixels": Pixels((8, 8), 1)}, data, probes=["knn-20", "linear"],
                       pools=["flatten"])  # fmt: skip
    (row,) = paired_differences(records, baseline="knn-20", measure="nll")
    plain, linear = records
    assert row["difference"] == pytest.approx(linear["nll"] - plain["nll"], abs=1e-4)
    assert row["low"] < row["difference"] < row["high"]
    better = {**linear, "row_nll": packed_nll(rows_of(plain, "nll") - 0.01)}
    (row,) = paired_differences([plain, better], baseline="knn-20", measure="nll")
    assert row["verdict"] == "lower" and row["difference"] == pytest.approx(-0.01, abs=1e-4)
    assert paired_differences(records, baseline="knn-20")[0]["measure"] == "accuracy"
    with pytest.raises(ValueError, match="measure='brier' is not one of accuracy, nll"):
        paired_differences(records, baseline="knn-20", measure="brier")


def test_records_of_other_weights_probes_or_rows_are_never_paired(data):
    options = {"probes": ["knn", "linear"]}
    one = evaluate({"conv": RandomInit(Convolution)}, data, **options)
    other = evaluate({"conv": RandomInit(Convolution, seed=1)}, data, **options)
    knn, linear = one[0], other[1]
    assert paired_differences(one, baseline="knn")
    assert not paired_differences([knn, linear], baseline="knn")
    fewer = data._replace(train=LabeledImages(*(part[1:] for part in data.train)))
    (few,) = evaluate({"conv": RandomInit(Convolution)}, fewer, probes=["linear"])
    assert few["data"] == knn["data"] and not paired_differences([knn, few], baseline="knn")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"probes": ["knnn"]}, "Unknown probe 'knnn'. Did you mean 'knn'"),
        ({"pools": ["mode"]}, "pool 'mode' is not known"),
        ({"contexts": ["half"]}, "Context 'half'"),
        ({"seeds": []}, "must not be empty"),
        ({"contexts": ["full", "0.001"]}, "0.001 of 64 points leaves no point"),
        ({"pools": ["mean", "cls"]}, "Pixels has no token of the whole image"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_measured(data, options, message):
    encoders = {"it": Pixels((8, 8), 1)}
    with pytest.raises(ValueError, match=message):
        evaluate(encoders, data, progress=lambda *step: pytest.fail("began"), **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"contexts": ["full", "0.2"]}, "cannot be made from"),
        ({"probes": ["knn", "transformer"]}, "'transformer' reads tokens, and 'it' is one vector"),
    ],
)
def test_what_stored_features_cannot_give_is_refused(data, options, message):
    with pytest.raises(ValueError, match=message):
        evaluate({"it": StoredFeatures(np.zeros((1797, 2)))}, data, **options)
