"""``nearwise evaluate`` gives no certificate for rows that the model learned from."""

import json

import numpy as np
import pandas as pd
import pytest

from nearwise import AttnKNNClassifier
from tests.estimators.cases import attn_knn, quietly
from tests.estimators.image_cases import QUICK, named_folder


def evaluated(nearwise, model, data, folder):
    """Scores as JSON, and what was printed, which both speak of the same rows."""
    scores = folder / "scores.json"
    result = nearwise("evaluate", model, data, "--json", scores, "--resamples", "20")
    assert result.exit_code == 0, result.err
    numbers = json.loads(scores.read_text())
    for remark in numbers["rows"]["remarks"]:
        assert remark in result.out
    return numbers, result.out


def test_the_training_table_is_scored_row_by_row_without_itself(
    nearwise, tables, trained, tmp_path
):
    numbers, printed = evaluated(nearwise, trained, tables / "train.csv", tmp_path)
    left_out = nearwise("inspect", trained, "--scores", "--json").json()["left_out"]
    assert numbers["metrics"] == left_out and left_out["accuracy"] < 1
    assert (numbers["n"], numbers["rows"]["new"], numbers["rows"]["n_learned"]) == (160, False, 160)
    assert "160 of 160 rows equal training rows, in all 3 columns that" in printed
    assert "not_measured" in numbers


def mixed(tables, folder):
    """Write a table of 50 rows that were learned from and 60 new ones."""
    train, test = (pd.read_csv(tables / name) for name in ("train.csv", "test.csv"))
    frame = pd.concat([train.head(50), test]).sample(frac=1, random_state=0)
    frame.to_csv(folder / "mixed.csv", index=False)
    return folder / "mixed.csv"


def test_new_rows_are_the_headline_and_learned_ones_stand_beside(
    nearwise, tables, trained, tmp_path
):
    numbers, printed = evaluated(nearwise, trained, mixed(tables, tmp_path), tmp_path)
    alone, _ = evaluated(nearwise, trained, tables / "test.csv", tmp_path)
    assert numbers["metrics"] == pytest.approx(alone["metrics"], abs=1e-6)
    assert numbers["selective"] == pytest.approx(alone["selective"], abs=1e-6)
    rows = numbers["rows"]
    assert (numbers["n"], rows["n_learned"], rows["n_learned_scored"]) == (60, 50, 50)
    assert "60 new rows" in printed
    assert f"accuracy {rows['learned_metrics']['accuracy']:.4f}" in printed
    assert alone["rows"]["remarks"] == [] and alone["rows"]["learned_metrics"] is None


def test_rows_that_repeat_by_nature_are_said_to(nearwise, tmp_path):
    frame = pd.DataFrame(
        {"letter": list("abcd") * 15, "label": list("xxyyxxyx") * 7 + list("xyxy")}
    )
    frame.to_csv(tmp_path / "t.csv", index=False)
    fit = ("fit", tmp_path / "t.csv", "-t", "label", "-o", tmp_path / "m", "--cv", "2")
    assert nearwise(*fit, "--estimator", "none", "-q").exit_code == 0
    new = pd.DataFrame({"letter": list("efgh"), "label": list("xyxy")})
    pd.concat([frame, new]).to_csv(tmp_path / "t.csv", index=False)
    numbers, printed = evaluated(nearwise, tmp_path / "m", tmp_path / "t.csv", tmp_path)
    assert "100 % of the rows in memory have a duplicate" in printed
    rows, apart = numbers["rows"], numbers["rows"]["learned_metrics"]
    every = (4 * numbers["metrics"]["nll"] + 60 * apart["nll"]) / 64
    assert rows["metrics_together"]["nll"] == pytest.approx(every)


def test_rows_that_were_forgotten_are_counted(nearwise, tables, trained, tmp_path):
    out = tmp_path / "bounded"
    add = ("add", trained, tables / "test.csv", "-o", out, "--capacity", "120", "-q")
    assert nearwise(*add).exit_code == 0
    result = nearwise("evaluate", out, tables / "train.csv", "--resamples", "20", "--json", "-")
    rows = result.json()["rows"]
    assert rows["n_forgotten"] == 100
    assert "100 rows that are no longer in memory" in " ".join(rows["remarks"])


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Give a folder of images and a model of it; read them only."""
    root = tmp_path_factory.mktemp("pictures")
    named_folder(root / "set", 80)
    attn_knn(**QUICK).fit(root / "set").save(root / "model")
    return root


def test_images_that_were_held_out_are_scored_and_the_others_left_out(nearwise, pictures, tmp_path):
    numbers, _ = evaluated(nearwise, pictures / "model", pictures / "set", tmp_path)
    rows = numbers["rows"]
    assert (rows["new"], rows["n_learned"], numbers["n"]) == (False, 80, 20)
    assert "60 of them are left out: all networks were trained on them" in " ".join(rows["remarks"])
    held = nearwise("inspect", pictures / "model", "--json").json()["oof_nll"]
    assert 0 < numbers["metrics"]["nll"] < held + 0.05


def test_images_whose_labels_the_networks_know_get_no_score(nearwise, pictures, tmp_path):
    model = AttnKNNClassifier.load(pictures / "model")
    learned = ~model._predictor.judged.numpy()
    kept = {str(name) for name in model.fitted_.row_names[learned]}
    for place in (pictures / "set").rglob("*.png"):
        if str(place.relative_to(pictures)) in kept:
            copy = tmp_path / "some" / place.relative_to(pictures / "set")
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(place.read_bytes())
    result = nearwise("evaluate", pictures / "model", tmp_path / "some")
    assert result.exit_code == 2 and result.out == ""
    assert "all 60 images are in the training data" in result.err


def survey(n, first, seed):
    """Few answers that many give, with labels that they do not decide."""
    rng = np.random.default_rng(seed)
    answers = rng.integers(0, 3, (n, 3))
    agrees = answers.sum(axis=1) + rng.normal(0, 2, n) > 3
    columns = {f"q{i}": answers[:, i] for i in range(3)}
    ids = [f"C{number:05}" for number in range(first, first + n)]
    return pd.DataFrame({"customer_id": ids} | columns | {"y": np.where(agrees, "yes", "no")})


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """Give a folder with a survey, other customers' answers, and a model; read them only."""
    root = tmp_path_factory.mktemp("survey")
    survey(150, 0, 1).to_csv(root / "old.csv", index=False)
    survey(120, 150, 2).to_csv(root / "new.csv", index=False)
    frame = pd.read_csv(root / "old.csv")
    model = attn_knn(preset="instant", random_state=0)
    with quietly():
        model.fit(frame.drop(columns="y"), frame["y"]).save(root / "model")
    return root


@pytest.mark.parametrize("has_ids", [True, False])
def test_other_customers_with_the_same_answers_are_all_scored(nearwise, answers, tmp_path, has_ids):
    new = pd.read_csv(answers / "new.csv")
    model = AttnKNNClassifier.load(answers / "model")
    right = (model.predict(new.drop(columns="y")) == new["y"]).mean()
    (new if has_ids else new.drop(columns="customer_id")).to_csv(tmp_path / "t.csv", index=False)
    numbers, printed = evaluated(nearwise, answers / "model", tmp_path / "t.csv", tmp_path)
    assert numbers["n"] == 120 and numbers["metrics"]["accuracy"] == pytest.approx(right)
    assert numbers["rows"]["n_learned"] == (0 if has_ids else pytest.approx(120, abs=5))
    if not has_ids:
        assert "('customer_id', left out by the model, is not in the file)" in printed
        assert "they count as new and are in the scores" in printed
        assert len(numbers["rows"]["remarks"]) == 2  # none says that some are left out


@pytest.mark.parametrize("has_ids", [True, False])
def test_customers_that_were_learned_from_are_known_again(nearwise, answers, tmp_path, has_ids):
    """In another order and file; without ids each still has a row with its label to itself."""
    old = pd.read_csv(answers / "old.csv").sample(100, random_state=0)
    (old if has_ids else old.drop(columns="customer_id")).to_csv(tmp_path / "t.csv", index=False)
    numbers, printed = evaluated(nearwise, answers / "model", tmp_path / "t.csv", tmp_path)
    assert (numbers["rows"]["new"], numbers["rows"]["n_learned"]) == (False, 100)
    assert ("in all 3 columns that the model uses and in 'customer_id'" in printed) == has_ids
    assert ("some of the 100 may be new" in printed) != has_ids


def test_few_rows_get_scores_and_no_intervals(nearwise, answers, tmp_path):
    pd.read_csv(answers / "new.csv").head(3).to_csv(tmp_path / "t.csv", index=False)
    numbers, printed = evaluated(nearwise, answers / "model", tmp_path / "t.csv", tmp_path)
    assert numbers["intervals"] == {} and " to 1.0000" not in printed
    assert "Too few rows" in printed and "3 rows are too few" in str(numbers)
