"""``nearwise probe``: a table, differences, and a folder that goes on."""

import json

import numpy as np
import pytest
from nearwise_lab.cli.probe_command import _encoder, _short_names
from sklearn.datasets import load_digits

from nearwise.data import Dataset
from tests.estimators.cases import attn_knn

DIGITS = ("digits-images", "--limit", "300,150")


def test_probes_are_measured_compared_and_kept(nearwise, tmp_path):
    command = ("probe", "pixels,patches:4", *DIGITS, "-p", "knn,linear", "--pool", "flatten")
    done = nearwise(*command, "--out", tmp_path)
    assert done.exit_code == 0, done.err
    assert "patches:4" in done.out and "linear - knn =" in done.out and "; NLL " in done.out
    records = (tmp_path / "records.jsonl").read_text().splitlines()
    assert [json.loads(line)["probe"] for line in records] == ["knn", "linear"] * 2
    assert (tmp_path / "probes.png").stat().st_size > 5000
    told = json.loads((tmp_path / "differences.json").read_text())
    assert len(told["differences"]) == 2 and told["run"]["versions"]
    assert {"difference", "low", "high", "verdict"} == set(told["differences"][0]["nll"])
    again = nearwise(*command, "--out", tmp_path)
    assert again.out == done.out
    assert (tmp_path / "records.jsonl").read_text().splitlines() == records


def test_a_folder_is_of_one_data_set_and_takes_more_encoders(nearwise, tmp_path):
    more = ("-p", "knn,linear", "--pool", "flatten", "-q", "--out", tmp_path)
    assert nearwise("probe", "pixels", *DIGITS, *more).exit_code == 0
    joined = nearwise("probe", "patches:4", *DIGITS, *more)
    assert joined.exit_code == 0, joined.err
    assert "pixels" not in joined.out  # what was asked for is shown, all that is there is kept
    told = json.loads((tmp_path / "differences.json").read_text())["differences"]
    assert [row["encoder"] for row in told] == ["pixels", "patches:4"]
    before = (tmp_path / "records.jsonl").read_text()
    refused = nearwise("probe", "pixels", "digits-images", "--limit", "200,150", *more)
    assert refused.exit_code == 2 and "holds records of other rows" in refused.err
    assert (tmp_path / "records.jsonl").read_text() == before


def test_a_file_of_features_and_a_function_are_encoders(nearwise, tmp_path, monkeypatch):
    np.save(tmp_path / "digits.npy", load_digits().data)
    (tmp_path / "mine_probed.py").write_text(
        "def doubled(x):\n    return x.flatten(2).transpose(1, 2) * 2\n"
    )
    monkeypatch.chdir(tmp_path)
    done = nearwise(
        "probe", "digits.npy,mine_probed:doubled", *DIGITS, "-p", "knn", "--pool", "flatten", "-q"
    )
    assert done.exit_code == 0, done.err
    rows = [line.split() for line in done.out.splitlines() if "\tknn\t" in line]
    assert rows[0][-6] == rows[1][-6]  # the same pixels, other brightness: the same accuracy


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("pixel", *DIGITS), "Encoder 'pixel' is not one of pixels, patches:SIZE"),
        (("nosuch:thing", *DIGITS), "nosuch:thing cannot be loaded"),
        (("pixels", "digits-images", "-p", "knm"), "Did you mean 'knn'"),
        (("pixels", "iris"), "iris is a table"),
        (("pixels", "digits"), "Its images are 'digits-images'"),
        (("pixels", "digits-images", "--limit", "7"), "such as 5000,2000"),
    ],
)
def test_mistakes_end_with_one_line(nearwise, arguments, message):
    done = nearwise("probe", *arguments)
    assert done.exit_code == 2
    assert message in done.err


def test_features_of_other_rows_are_refused_before_anything_is_measured(nearwise, tmp_path):
    np.save(tmp_path / "more.npy", np.zeros((1800, 3), np.float32))
    done = nearwise("probe", tmp_path / "more.npy", *DIGITS)
    assert done.exit_code == 2
    assert "features of 1,800 rows and digits-images has 1,797" in done.err


def test_a_classifier_fitted_on_images_is_an_encoder(nearwise, tmp_path):
    X = np.rint(load_digits().images[:200] * 255 / 16).astype(np.uint8)[..., None]
    model = attn_knn(
        embedder="resnet-small",
        embedder_options={"dim": 9},
        train={"epochs": 1, "batch_size": 64},
        head={"epochs": 1},
        random_state=0,
    ).fit(X, load_digits().target[:200])
    model.save(tmp_path / "model")
    done = nearwise("probe", tmp_path / "model", *DIGITS, "-p", "knn", "-q", "-o", tmp_path / "o")
    assert done.exit_code == 0, done.err
    (record,) = map(json.loads, (tmp_path / "o" / "records.jsonl").read_text().splitlines())
    assert record["dims"] == 9 and record["encoder_parameters"] > 10_000


def test_a_vision_transformer_that_was_trained_is_an_encoder(nearwise, tmp_path):
    run = tmp_path / "run"
    model = ("--patch-size", "4", "--num-layers", "1", "--num-heads", "2", "--d-hidden", "8")
    size = ("--d-mlp", "8", "--resize", "0", "--train-limit", "100", "--test-limit", "20")
    how = ("--dataset", "digits", "--num-epochs", "1", "--output-dir", run, "--device", "cpu")
    trained = nearwise("vit", "train", *model, *size, *how)
    assert trained.exit_code == 0, trained.err
    done = nearwise("probe", run, *DIGITS, "-p", "knn", "--pool", "cls,mean", "-o", tmp_path / "o")
    assert done.exit_code == 0, done.err
    records = map(json.loads, (tmp_path / "o" / "records.jsonl").read_text().splitlines())
    records = list(records)
    assert [(r["pool"], r["dims"], r["tokens"]) for r in records] == [("cls", 8, 5), ("mean", 8, 5)]
    # the two commands divide the digits in ways of their own
    n_seen = 150 - records[0]["n"]
    assert n_seen > 0 and f"{n_seen} of 150 test images are among those that {run} was" in done.err


def test_rows_that_are_not_finite_are_named_as_in_the_file(nearwise, tmp_path):
    X = load_digits().data.copy()
    X[7, 3] = np.nan
    np.save(tmp_path / "digits.npy", X)
    done = nearwise("probe", tmp_path / "digits.npy", "digits-images", "-p", "knn")
    assert done.exit_code == 2
    assert "hold NaN or infinity: rows 7." in done.err


def test_ready_embeddings_are_not_taken_for_pixels():
    embeddings = Dataset(
        "mine", np.zeros((4, 3), np.float32), np.arange(4), "label", "embeddings", "here"
    )
    with pytest.raises(ValueError, match="probe them as 'features', not 'pixels'"):
        _encoder("pixels", embeddings)


def test_folders_are_called_by_their_own_name_where_it_is_enough():
    names = ["runs/a/field", "runs/b/field", "runs/one", "hf:org/net"]
    assert _short_names(names) == {"runs/one": "one", "hf:org/net": "hf:org/net"}
