"""Numbers as targets on the command line."""

import json
import shlex
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_diabetes

from nearwise import AttnKNNRegressor
from nearwise.cli import main
from nearwise.cli.rows.targets import choose_task
from nearwise.estimators.opening import load_any

FIT = ("-t", "target", "--preset", "instant")


@pytest.fixture(scope="session")
def numbers(tmp_path_factory):
    """Give a folder with train.csv and test.csv of load_diabetes, and a model of the first."""
    folder = tmp_path_factory.mktemp("numbers")
    frame = load_diabetes(as_frame=True).frame.round(5)
    frame.iloc[:120].to_csv(folder / "train.csv", index=False)
    frame.iloc[120:160].to_csv(folder / "test.csv", index=False)
    fit = ["fit", folder / "train.csv", *FIT, "-o", folder / "model", "-q"]
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as ended:
        patch.setattr(warnings, "showwarning", warnings.showwarning)
        main([*map(str, fit)])
    assert not ended.value.code
    return folder


@pytest.fixture
def labels(tables, trained):
    """Give the folder of tables with classes, and a classifier."""
    return tables, trained


def rng(n, low, high):
    return np.random.default_rng(0).integers(low, high, n)


COLUMNS = {
    "classes": {
        "text": ["yes", "no"] * 30,
        "truth values": [True, False] * 30,
        "digits": rng(1797, 0, 10),
        "wine": rng(1599, 3, 10),
        "letters": rng(20_000, 0, 26),
        "zip codes": rng(5_000, 98_001, 98_071),
        "codes in text": [f"0{one}" for one in rng(300, 100, 900)],
        "a few units": ["5 stars", "4 stars"] * 10,
        "dates": [f"2024-01-{day:02d}" for day in range(1, 29)],
    },
    "numbers": {
        "fractions": [1.5, 2.0, 3.25] * 10,
        "counts": rng(2_000, 0, 1001),
        "ages": np.repeat(np.arange(1, 30), [1, 1, *[150] * 22, 3, 2, 1, 1, 1]),
        "money": [f"${one:,}" for one in rng(300, 500, 90_000)],
        "decimal commas": ["1,5", "2,75", "3,0"] * 10,
        "percent": [f"{one}.5 %" for one in rng(60, 0, 100)],
    },
}
CASES = [(name, task) for task, columns in COLUMNS.items() for name in columns]


@pytest.mark.parametrize(("name", "task"), CASES, ids=[name for name, _ in CASES])
def test_the_task_is_what_the_column_holds(name, task, capsys):
    column = pd.Series(COLUMNS[task][name], name="goal")
    wanted, other = "classification", "regression"
    if task == "numbers":
        wanted, other = other, wanted
    assert choose_task(column, "auto", quiet=False) == wanted
    said = capsys.readouterr().err
    assert said.startswith(f"Task: {wanted}, as 'goal' holds ") and said.count("\n") == 1
    assert "no numbers" in said or f"--task {other}" in said
    assert choose_task(column, other, quiet=False) == other
    assert capsys.readouterr().err == ""  # it was asked for


def test_fit_says_what_it_learned_and_what_comes_next_works(nearwise, numbers, tmp_path):
    fitted = nearwise("fit", numbers / "train.csv", *FIT, "-o", tmp_path / "m")
    assert fitted.exit_code == 0
    model = AttnKNNRegressor.load(tmp_path / "m")
    y = pd.read_csv(numbers / "train.csv")["target"]
    rmse = np.sqrt(np.mean((model.predict(None) - y) ** 2))
    assert (
        f"Learned targets of {y.min():g} to {y.max():g} from 120 rows and 10 columns" in fitted.err
    )
    assert f"RMSE {rmse:.6g} and CRPS {model.crps(None, y).mean():.6g}, in the unit" in fitted.err
    _, _, command = fitted.err.partition("Next: nearwise ")
    words = shlex.split(command)
    words[words.index("NEW_DATA")] = numbers / "test.csv"
    words[words.index("predictions.csv")] = tmp_path / "p.csv"
    assert nearwise(*words).exit_code == 0
    assert list(pd.read_csv(tmp_path / "p.csv")) == ["prediction", "low", "high"]


def test_too_few_rows_for_intervals_are_not_told_to_ask_for_them(nearwise, numbers, tmp_path):
    pd.read_csv(numbers / "train.csv").head(15).to_csv(tmp_path / "few.csv", index=False)
    fit = ("fit", tmp_path / "few.csv", *FIT, "--task", "regression", "-o", tmp_path / "m")
    assert "--confidence" not in nearwise(*fit).err
    refused = nearwise("predict", tmp_path / "m", tmp_path / "few.csv", "--confidence", ".9")
    assert refused.exit_code == 2 and "need 19 calibration rows" in refused.err


def test_predict_gives_what_the_library_says(nearwise, numbers):
    options = ["--confidence", ".8", "--quantiles", ".1,.5", "--coverage", ".5", "--novelty"]
    options += ["--output", "median", "--explain", "--neighbors", "2", "--copy", "age"]
    result = nearwise("predict", numbers / "model", numbers / "test.csv", *options)
    assert result.exit_code == 0, result.err
    table, model = result.table(), AttnKNNRegressor.load(numbers / "model")
    X = pd.read_csv(numbers / "test.csv")
    neighbors = [
        f"neighbor_{i}_{of}"
        for i in (1, 2)
        for of in ("id", "target", "weight", "distance", "differs")
    ]
    answers = ["prediction", "low", "high", "quantile_0.1", "quantile_0.5", "accepted", "novelty_p"]
    assert list(table) == ["age", *answers, "base_prediction", "null_mass", *neighbors]
    np.testing.assert_allclose(table["prediction"], model.predict(X, output="median"))
    np.testing.assert_allclose(table[["low", "high"]], model.predict_interval(X, 0.8))
    quantiles = model.predict_quantiles(X, [0.1, 0.5])
    np.testing.assert_allclose(table[["quantile_0.1", "quantile_0.5"]], quantiles)
    chosen = model.predict_selective(X, coverage=0.5, confidence=0.8)
    np.testing.assert_array_equal(table["accepted"], chosen.accepted)
    np.testing.assert_allclose(table["novelty_p"], model.novelty_p_value(X))
    first = [one.neighbors[0].target for one in model.explain(X, 2)]
    np.testing.assert_allclose(table["neighbor_1_target"], first)
    assert f"Accepted {chosen.accepted.sum()} of 40 rows" in result.err


def test_json_lines_hold_the_answers_beside_the_explanation(nearwise, numbers, tmp_path):
    out = tmp_path / "why.jsonl"
    options = ("--explain", "--output", "mode", "--quantiles", ".5", "-o", out)
    assert nearwise("predict", numbers / "model", numbers / "test.csv", *options).exit_code == 0
    (first, *_) = map(json.loads, out.read_text().splitlines())
    model = AttnKNNRegressor.load(numbers / "model")
    mode = model.predict(pd.read_csv(numbers / "test.csv").head(1), output="mode")
    assert first["prediction"] == pytest.approx(mode[0])
    assert first["median"] == pytest.approx(first["quantile_0.5"])
    assert {"row", "target", "prediction_without"} <= first["neighbors"][0].keys()


def test_evaluate_measures_what_the_library_predicts(nearwise, numbers, tmp_path):
    scores = tmp_path / "s.json"
    options = ("--json", scores, "--resamples", "20", "--confidence", ".8")
    printed = nearwise("evaluate", numbers / "model", numbers / "test.csv", "--all", *options)
    assert printed.exit_code == 0, printed.err
    found, model = json.loads(scores.read_text()), AttnKNNRegressor.load(numbers / "model")
    frame = pd.read_csv(numbers / "test.csv")
    y, interval = frame["target"].to_numpy(), model.predict_interval(frame, 0.8)
    metrics = found["metrics"]
    assert metrics["rmse"] == pytest.approx(np.sqrt(np.mean((model.predict(frame) - y) ** 2)))
    assert metrics["crps"] == pytest.approx(model.crps(frame, y).mean())
    inside = (interval[:, 0] <= y) & (y <= interval[:, 1])
    assert metrics["coverage"] == pytest.approx(inside.mean())
    assert metrics["width"] == pytest.approx(np.diff(interval).mean())
    assert all(low <= high for low, high in found["intervals"].values())
    assert [*found["intervals"]] == [*metrics]
    base = np.array([one.base_prediction for one in model.explain(frame)])
    assert found["base_alone"]["mae"] == pytest.approx(np.mean(abs(base - y)))
    assert sum(found["pit"]) == pytest.approx(40) and len(found["pit"]) == 10
    slices = found["by_slice"]
    assert sum(one["rows"] for one in slices) == 40 and slices[0]["to"] <= slices[1]["from"]
    covered = sum(one["rows"] * one["coverage"] for one in slices)
    assert covered == pytest.approx(inside.sum())
    assert found["selective"]["coverage_asked"] == 0.9
    for word in ("RMSE", "CRPS", "PIT", "base alone", "Selective prediction at coverage 90 %"):
        assert word in printed.out


def test_rows_that_were_learned_from_are_predicted_without_themselves(nearwise, numbers, tmp_path):
    frames = [pd.read_csv(numbers / f"{name}.csv") for name in ("train", "test")]
    pd.concat([frames[0].head(30), frames[1]]).to_csv(tmp_path / "mixed.csv", index=False)

    def evaluated(data):
        options = ("--resamples", "20", "--json", "-")
        return nearwise("evaluate", numbers / "model", data, *options).json()

    mixed, alone = evaluated(tmp_path / "mixed.csv"), evaluated(numbers / "test.csv")
    rows = mixed["rows"]
    assert (mixed["n"], rows["n_learned"], rows["n_learned_scored"]) == (40, 30, 30)
    assert mixed["metrics"] == pytest.approx(alone["metrics"])
    model = AttnKNNRegressor.load(numbers / "model")
    away = model.predict(None)[:30] - frames[0]["target"][:30]
    assert rows["learned_metrics"]["rmse"] == pytest.approx(np.sqrt(np.mean(away**2)))
    learned = evaluated(numbers / "train.csv")
    assert learned["n"] == 120 and "not_measured" in learned
    assert "coverage" not in learned["metrics"] and learned["rows"]["new"] is False


def test_inspect_describes_numbers(nearwise, numbers):
    facts = nearwise("inspect", numbers / "model", "--scores", "--json").json()
    y = pd.read_csv(numbers / "train.csv")["target"]
    assert facts["task"] == "regression" and facts["numbers"]["median"] == y.median()
    assert facts["left_out"]["crps"] == pytest.approx(facts["left_out_crps"], rel=0.01)
    assert 0.7 < facts["left_out"]["coverage"] <= 1 and "extra-trees" in facts["choice"]["base"]
    (row,) = nearwise("inspect", numbers / "model", "--rows", "3", "--json").json()
    assert row["target"] == y[3]


def test_verify_checks_a_regressor(nearwise, numbers):
    y = pd.read_csv(numbers / "train.csv")["target"]
    checked = nearwise("verify", numbers / "model", "--json").json()
    assert (checked["rows"], checked["numbers"]["largest"]) == (120, y.max())
    assert "predictions" in checked["checked"]


def test_embed_gives_the_keys_of_a_regressor(nearwise, numbers, tmp_path):
    out = tmp_path / "keys.csv"
    assert nearwise("embed", numbers / "model", numbers / "test.csv", "-o", out).exit_code == 0
    X = pd.read_csv(numbers / "test.csv").drop(columns="target")
    np.testing.assert_allclose(pd.read_csv(out), load_any(numbers / "model").keys(X), rtol=1e-6)


def test_clean_finds_a_target_that_was_made_wrong(nearwise, numbers, tmp_path):
    frame = pd.read_csv(numbers / "train.csv")
    frame.loc[17, "target"] = 5000.5
    frame.to_csv(tmp_path / "slip.csv", index=False)
    out = tmp_path / "suspects.csv"
    done = nearwise("clean", tmp_path / "slip.csv", "-t", "target", "-o", out)
    assert done.exit_code == 0, done.err
    found = pd.read_csv(out)
    assert list(found)[:7] == ["id", "given", "suggested", "low", "high", "suspicion", "neighbors"]
    assert (found["id"][0], found["given"][0]) == (17, 5000.5)
    assert "5000.5" in done.out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--proba"], "Use --quantiles"),
        (["--sets"], "Use --confidence"),
        (["--max-risk", ".1"], "Use --coverage"),
        (["--quantiles", ".1,x"], "are no levels"),
        (["--quantiles", "0,1"], "levels between 0 and 1"),
        (["--coverage", "90"], "must lie in (0, 1]"),
        (["--confidence", ".9999"], "calibration rows"),
    ],
)
def test_a_wish_that_numbers_do_not_meet_names_what_does(nearwise, numbers, options, message):
    result = nearwise("predict", numbers / "model", numbers / "test.csv", *options)
    assert (result.exit_code, result.out) == (2, "") and message in result.err


@pytest.mark.parametrize("options", [["--output", "mode"], ["--quantiles", ".5"]])
def test_a_classifier_refuses_what_is_for_numbers(nearwise, labels, options):
    tables, trained = labels
    result = nearwise("predict", trained, tables / "new.csv", *options)
    assert result.exit_code == 2 and "predicts classes" in result.err


@pytest.mark.parametrize(
    "options",
    [["--class-prior", "uniform"], ["--embedder", "table"], ["--epochs", "2"]],
    ids=lambda options: options[0],
)
def test_fit_refuses_what_only_classes_have(nearwise, numbers, tmp_path, options):
    fit = ("fit", numbers / "train.csv", "-t", "target", "-o", tmp_path / "m", *options, "-q")
    refused = nearwise(*fit)
    assert refused.exit_code == 2 and not (tmp_path / "m").exists()
    assert f"{options[0]} is for classes" in refused.err


@pytest.mark.parametrize(
    ("value", "said"),
    [("many", "'many' in row 7"), ("", "first row 7"), ("inf", "inf in row 7")],
)
def test_a_target_that_is_no_number_is_named_with_its_row(nearwise, numbers, tmp_path, value, said):
    frame = pd.read_csv(numbers / "train.csv").astype({"target": object})
    frame.loc[[7, 9], "target"] = value
    frame.to_csv(tmp_path / "t.csv", index=False)
    fit = ("fit", tmp_path / "t.csv", *FIT, "--task", "regression", "-o", tmp_path / "m", "-q")
    refused = nearwise(*fit)
    assert refused.exit_code == 2 and said in refused.err
    test = nearwise("evaluate", numbers / "model", tmp_path / "t.csv", "-q")
    assert test.exit_code == 2 and said in test.err


def test_the_other_kind_is_not_written_over(nearwise, numbers, labels, tmp_path, model):
    fit = ("fit", numbers / "train.csv", *FIT, "-o", model, "--overwrite", "-q")
    refused = nearwise(*fit)
    assert refused.exit_code == 2 and "Choose another --out" in refused.err
    assert load_any(model).classes_.tolist() == ["no", "yes"]


def test_weights_groups_time_and_no_base_go_with_numbers(nearwise, numbers, tmp_path):
    frame = pd.read_csv(numbers / "train.csv")
    n = np.arange(len(frame))
    frame = frame.assign(w=1.0 + n % 2, who=n // 2, when=n[::-1])
    frame.to_csv(tmp_path / "t.csv", index=False)
    fit = ("fit", tmp_path / "t.csv", "-t", "target", "--estimator", "none", "--overwrite", "-q")
    fit += ("-o", tmp_path / "m")
    for options in (
        ["--weight", "w", "--groups", "who", "--n-neighbors", "8", "--preset", "instant"],
        ["--time", "when", "--drop", "w", "--category", "sex"],
        ["--cv", ".3", "--label-noise", "0.05"],
    ):
        assert nearwise(*fit, *options).exit_code == 0, options
        held = load_any(tmp_path / "m").report_.choice
        assert ("held_out" in held) == (options[0] != "--weight")


def test_a_table_without_names_is_read_by_its_places(nearwise, numbers, tmp_path):
    frame = pd.read_csv(numbers / "train.csv")
    frame.to_csv(tmp_path / "t.csv", index=False, header=False)
    fit = ("fit", tmp_path / "t.csv", "--no-header", "-t", "10", "-o", tmp_path / "m", "-q")
    assert nearwise(*fit, "--preset", "instant").exit_code == 0
    predict = ("predict", tmp_path / "m", tmp_path / "t.csv", "--no-header")
    whole = nearwise(*predict).table()
    frame.iloc[:, :10].to_csv(tmp_path / "t.csv", index=False, header=False)
    pd.testing.assert_frame_equal(nearwise(*predict).table(), whole)
