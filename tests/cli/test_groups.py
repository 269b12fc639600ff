"""``nearwise fit --groups`` and ``--time``: what rows belong to, and when they came."""

import numpy as np
import pandas as pd
import pytest

from nearwise import AttnKNNClassifier

OPTIONS = ("-t", "label", "--preset", "instant")
LATEST = ("-t", "label", "--estimator", "none", "--embedder", "identity")


def visits(n_patients=30, first=0, seed=0):
    rng = np.random.default_rng(seed)
    usual = rng.normal(size=(n_patients, 2))
    patient = np.repeat(np.arange(n_patients), 4)
    table = pd.DataFrame(
        usual[patient] + 0.1 * rng.normal(size=(len(patient), 2)), columns=["a", "b"]
    )
    table["label"] = np.where(usual[patient, 0] > 0, "ill", "well")
    table["patient"] = [f"p{first + one}" for one in patient]
    days = pd.date_range("2020-01-01", periods=len(table)).strftime("%Y-%m-%d")
    table["day"] = rng.permutation(days.to_numpy())
    return table


@pytest.fixture
def run(nearwise, tmp_path):
    """Give a function that fits a model to a table."""

    def fit(table, *options):
        table.to_csv(tmp_path / "visits.csv", index=False)
        return nearwise("fit", tmp_path / "visits.csv", "-o", tmp_path / "m", *options)

    return fit


def test_a_column_of_groups_is_no_feature_and_found_again_by_add(run, nearwise, tmp_path):
    assert run(visits(), *OPTIONS, "--groups", "patient", "--drop", "patient").exit_code == 0
    model = AttnKNNClassifier.load(tmp_path / "m")
    assert model.report_.choice["groups"] == {"of": "group", "n": 30}
    assert "patient" not in model.report_.columns
    new = visits(2, first=100, seed=1)
    new.to_csv(tmp_path / "new.csv", index=False)
    new.drop(columns="patient").to_csv(tmp_path / "without.csv", index=False)
    new.rename(columns={"patient": "who"}).to_csv(tmp_path / "renamed.csv", index=False)
    refused = nearwise("add", tmp_path / "m", tmp_path / "without.csv")
    assert (refused.exit_code, "has no column 'patient'" in refused.err) == (2, True)
    assert nearwise("add", tmp_path / "m", tmp_path / "new.csv").exit_code == 0
    assert (
        nearwise("add", tmp_path / "m", tmp_path / "renamed.csv", "--groups", "who").exit_code == 0
    )
    groups = AttnKNNClassifier.load(tmp_path / "m").memory_.columns["group"]
    assert len(groups) == 136 and len(groups.unique()) == 32
    predicted = nearwise("predict", tmp_path / "m", tmp_path / "new.csv")
    assert predicted.exit_code == 0 and "patient" not in predicted.err


def test_a_memory_in_a_store_keeps_no_groups_and_asks_for_none(run, nearwise, tmp_path):
    pytest.importorskip("lance")
    assert run(visits(), *OPTIONS, "--groups", "patient").exit_code == 0
    assert nearwise("move", tmp_path / "m", "-o", tmp_path / "stored").exit_code == 0
    X = visits(5, seed=2)[["a", "b", "day"]]
    models = [AttnKNNClassifier.load(tmp_path / name) for name in ("m", "stored")]
    assert np.array_equal(*(model.predict_proba(X) for model in models))
    visits(2, seed=1).drop(columns="patient").to_csv(tmp_path / "new.csv", index=False)
    assert nearwise("add", tmp_path / "stored", tmp_path / "new.csv").exit_code == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--groups", "patients"), "has no column 'patients'. Did you mean 'patient'?"),
        (("--groups", "label"), "--target, --weight, --groups, --time and --show name different"),
        (("--time", "day", "--groups", "day"), "--show name different columns"),
        (("--time", "day", "--cv", "3"), "Leave --cv out."),
        (("--time", "patient"), "holds 'p0' in row 0 (counted from 0; 120 such rows of 120)"),
        (("--groups", "patient", "--label-noise", "auto"), "groups and label_noise do not go"),
    ],
)
def test_columns_that_cannot_be_used_are_named(run, options, message):
    refused = run(visits(), *LATEST, *options)
    assert refused.exit_code == 2 and message in " ".join(refused.err.split())


@pytest.mark.parametrize(("option", "column"), [("--groups", "patient"), ("--weight", "weight")])
def test_rows_of_gaps_are_counted_as_in_the_file(run, option, column):
    """Not as they are sorted by time, nor without the rows that have no label."""
    table = visits().assign(weight=1.0)
    table.loc[0, "label"] = table.loc[33, column] = None
    refused = run(table, *LATEST, "--skip-unlabelled", "--time", "day", option, column)
    assert refused.exit_code == 2 and "no value in row 33 " in " ".join(refused.err.split())


@pytest.mark.parametrize("layout", ["%Y-%m-%d", "%d/%m/%Y", "%Y%m%d", "%Y-%m-%dT%H:%M+02:00"])
def test_the_latest_rows_are_held_out_however_times_are_written(run, tmp_path, layout):
    table = visits()
    when = pd.to_datetime(table["day"])
    written = run(
        table.assign(day=when.dt.strftime(layout)), *LATEST, "--time", "day", "--drop", "day"
    )
    assert written.exit_code == 0 and "on the latest 24 rows" in written.err
    model = AttnKNNClassifier.load(tmp_path / "m")
    assert list(model.report_.columns) == ["a", "b", "patient"]
    in_time = table.iloc[when.argsort()]
    assert np.array_equal(model.fitted_.rows["a"].to_numpy(), in_time["a"].to_numpy())
    assert model.fitted_.predictor.judged.numpy()[-24:].all()


def test_day_and_month_that_cannot_be_told_apart_are_asked_for(run, tmp_path):
    table = visits()
    table["day"] = [f"{1 + i % 12}/{1 + i % 5}/2020" for i in range(len(table))]
    refused = run(table, *LATEST, "--time", "day")
    said = " ".join(refused.err.split())
    assert (
        refused.exit_code == 2 and "%d/%m/%Y or %m/%d/%Y. Name one (--date COLUMN=FORMAT)" in said
    )
    assert run(table, *LATEST, "--time", "day", "--date", "day=%m/%d/%Y").exit_code == 0
    rows = AttnKNNClassifier.load(tmp_path / "m").fitted_.rows
    assert rows["day"].iloc[-1].startswith("12/")
