"""Tables without a first line of names, and with decimal commas, from fit to evaluate."""

import numpy as np
import pandas as pd
import pytest

from nearwise.cli import main

CHEAP = ["--estimator", "none", "--embedder", "identity", "--cv", "2"]


def people(n_rows: int, seed: int) -> pd.DataFrame:
    """Rows like those of adult: ', ' between values, '?' for gaps, the target last."""
    rng = np.random.default_rng(seed)
    age = rng.integers(20, 60, n_rows)
    work = rng.choice(["Private", "State-gov", "?"], n_rows)
    hours = rng.integers(20, 60, n_rows)
    label = np.where(
        age + 10 * (work == "Private") + rng.normal(0, 5, n_rows) > 45, ">50K", "<=50K"
    )
    return pd.DataFrame({"age": age, "work": work, "hours": hours, "label": label})


def as_adult(frame: pd.DataFrame) -> str:
    return frame.to_csv(index=False, header=False).replace(",", ", ")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Give a folder with train.data, test.data, and a model fitted on the first."""
    folder = tmp_path_factory.mktemp("headless")
    (folder / "train.data").write_text(as_adult(people(120, 0)))
    (folder / "test.data").write_text(as_adult(people(30, 1)))
    arguments = ["fit", folder / "train.data", "--no-header", "-t", "3", "-o", folder / "m.model"]
    with pytest.raises(SystemExit) as ended:
        main([*map(str, arguments), *CHEAP])
    assert not ended.value.code
    return folder


def predictions(result) -> list[str]:
    assert result.exit_code == 0, result.err
    return result.table()["prediction"].tolist()


def test_a_file_without_names_is_asked_about_by_every_command(nearwise, folder):
    data, model = folder / "train.data", folder / "m.model"
    commands = [
        ["fit", data, "-t", "3", "-o", folder / "no.model"],
        ["clean", data, "-t", "3"],
        ["predict", model, data],
        ["evaluate", model, data],
        ["add", model, data, "-o", folder / "no.model"],
    ]
    for command in commands:
        result = nearwise(*command)
        assert result.exit_code == 2, command
        assert "train.data: the first line seems to be data" in result.err
        assert "--no-header" in result.err
    assert not (folder / "no.model").exists()


def test_no_row_is_lost_and_the_target_is_the_column_that_was_named(nearwise, folder):
    facts = nearwise("inspect", folder / "m.model", "--json").json()
    assert (facts["rows"], facts["target"], list(facts["columns"])) == (120, "3", ["0", "1", "2"])
    assert set(facts["classes"]) == {"<=50K", ">50K"}


def test_rows_without_names_are_predicted_with_and_without_their_target(nearwise, folder):
    model, test = folder / "m.model", people(30, 1)
    whole = predictions(nearwise("predict", model, folder / "test.data", "--no-header"))
    bare = as_adult(test.drop(columns="label")).encode()
    assert predictions(nearwise("predict", model, "-", "--no-header", stdin=bare)) == whole
    named = test.rename(columns={"age": "0", "work": "1", "hours": "2"}).drop(columns="label")
    named = named.to_csv(index=False).encode()
    assert predictions(nearwise("predict", model, "-", "--quiet", stdin=named)) == whole
    assert np.mean(np.array(whole) == test["label"]) > 0.7


def test_evaluate_add_and_clean_take_rows_without_names(nearwise, folder, tmp_path):
    model, test = folder / "m.model", folder / "test.data"
    result = nearwise("evaluate", model, test, "--no-header")
    assert result.exit_code == 0, result.err
    assert "cells hold only '?' and count as gaps: '1'" in result.err
    assert nearwise("add", model, test, "--no-header", "-o", tmp_path / "more").exit_code == 0


def test_columns_that_cannot_be_told_apart_are_explained(nearwise, folder):
    two = b"30,Private\n40,State-gov\n"
    result = nearwise("predict", folder / "m.model", "-", "--no-header", stdin=two)
    assert result.exit_code == 2
    assert (
        "2 columns without names, and the model has '0', '1', '2' and the target '3'" in result.err
    )


def test_formats_with_names_and_images_refuse_the_option(nearwise, folder, tmp_path):
    people(5, 2).to_parquet(tmp_path / "t.parquet")
    result = nearwise("predict", folder / "m.model", tmp_path / "t.parquet", "--no-header")
    assert "names its columns itself" in result.err
    (tmp_path / "images").mkdir()
    result = nearwise("fit", tmp_path / "images", "--header", "-o", tmp_path / "m.model")
    assert "--header is about a table" in result.err
