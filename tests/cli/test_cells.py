"""Cells of a file reach other files as they are written, and none becomes another by being read."""

import csv
import io
import json

import numpy as np
import pandas as pd
import pytest

from nearwise.data import read_table
from tests.cli.conftest import make_table

LONG = ("1577134800018164904", "1577134800018164905")
WRITTEN = {
    "ids with a gap": ["1001", "", "1003"],
    "19 digits with a gap": [LONG[0], "", LONG[1]],
    "19 digits": [LONG[0], LONG[1], LONG[0]],
    "beyond 64 bits": ["10000000000000000000000001", "", "10000000000000000000000002"],
    "exponents": ["1E3", "10E2", "1000"],
    "digits at the end": ["0.10", "3.0", "2"],
    "commas at thousands": ["1,234", "2,500", "3,100"],
    "zeros in front": ["007", "7", "07"],
    "words for gaps": ["NA", "None", "x"],
    "a question mark": ["?", "1", "2"],
    "truth values": ["TRUE", "false", "True"],
    "blanks": [" a", "b ", ""],
    "dates": ["2020-01-05", "", "05.01.2020"],
    "quotes": ['say "a"', "b,c", "d\ne"],
}


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A table of three rows for the trained model, with a column for each way to write cells."""
    path = tmp_path_factory.mktemp("cells") / "t.csv"
    text = make_table(3, 5).astype(str).assign(**WRITTEN)
    text.to_csv(path, index=False)
    return path


def rows_of(text):
    return list(csv.DictReader(io.StringIO(text)))


@pytest.mark.parametrize("command", ["predict", "embed"])
def test_kept_columns_are_written_as_they_were(nearwise, trained, kept, command):
    keep = [word for name in WRITTEN for word in ("--copy", name)]
    found = rows_of(nearwise(command, trained, kept, "-o", "-", *keep, "-q").out)
    assert {name: [row[name] for row in found] for name in WRITTEN} == WRITTEN


def test_clean_writes_every_column_as_it_was(nearwise, tmp_path):
    table = make_table(40, 0).astype(object).fillna("").astype(str)
    table["account"] = [LONG[i % 2] if i % 5 else "" for i in range(40)]
    table["code"] = np.resize(["1E3", "0.10", "NA"], 40)
    table.to_csv(tmp_path / "t.csv", index=False)
    options = ("-q", "-o", "-")
    found = rows_of(nearwise("clean", tmp_path / "t.csv", "-t", "label", *options).out)
    names = [name for name in table if name != "label"]
    for row in found:
        assert [row[name] for name in names] == table.loc[int(row["id"]), names].tolist()


def test_types_of_kept_columns_stay_where_they_can(nearwise, trained, kept, tmp_path):
    keep = [word for name in ("ids with a gap", "19 digits", "dates") for word in ("--copy", name)]
    assert nearwise("predict", trained, kept, "-o", tmp_path / "p.parquet", *keep).exit_code == 0
    types = pd.read_parquet(tmp_path / "p.parquet").dtypes.astype(str)
    assert types[["ids with a gap", "19 digits"]].tolist() == ["Int64", "int64"]


def written(path, cells):
    """Write whole numbers with gaps in the format of a path."""
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps({"b": 1.5, "a": cell}) + "\n" for cell in cells))
    elif path.suffix == ".json":
        path.write_text(json.dumps({"columns": ["b", "a"], "data": [[1.5, c] for c in cells]}))
    elif path.suffix == ".csv":
        lines = [f"1.5,{'' if cell is None else cell}" for cell in cells]
        path.write_text("\n".join(["b,a", *lines, ""]))
    else:
        kind = "UInt64" if max(cell or 0 for cell in cells) >= 2**63 else "Int64"
        frame = pd.DataFrame({"b": 1.5, "a": pd.array(cells, dtype=kind)})
        if path.suffix == ".parquet":
            frame.to_parquet(path, index=False)
    return path


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".jsonl", ".json"])
@pytest.mark.parametrize("first", [int(LONG[0]), -(2**63), 2**64 - 2, 2**53])
def test_whole_numbers_beside_gaps_are_read_exactly(tmp_path, suffix, first):
    cells = [first, None, first + 1]
    column = read_table(written(tmp_path / f"t{suffix}", cells))["a"]
    assert [None if pd.isna(cell) else int(cell) for cell in column] == cells


def codes(tmp_path, texts, n=60, name="code"):
    """Write a table in which one of two texts decides the label, with a gap now and then."""
    rng = np.random.default_rng(0)
    code = np.resize(texts, n)
    label = np.where(np.arange(n) % len(texts) == 0, "up", "down")
    frame = pd.DataFrame({"x": rng.normal(size=n), name: code, "y": label})
    frame.loc[7, name] = ""
    frame.to_csv(tmp_path / "t.csv", index=False)
    return tmp_path / "t.csv"


INSTANT = ("--preset", "instant", "-q")


@pytest.mark.parametrize("texts", [LONG, ("1E3", "1000"), ("1" + "0" * 25, "1" + "0" * 24 + "1")])
def test_codes_that_decide_the_label_stay_two_categories(nearwise, tmp_path, texts):
    data, place = codes(tmp_path, texts), tmp_path / "m"
    fit = ("fit", data, "-t", "y", "--category", "code", "-o", place, *INSTANT)
    assert nearwise(*fit).exit_code == 0
    (_, report) = nearwise("inspect", place, "--json").json()["column_report"]
    assert (report["use"], report["distinct"], report["missing"]) == ("category", 2, 1)
    found = nearwise("predict", place, data, "-q").out.split()[1:]
    assert np.mean(np.array(found) == pd.read_csv(data)["y"]) > 0.95


@pytest.mark.parametrize(
    "labels", [("1E3", "1000"), ("1E3", "10E2"), ("1" + "0" * 22, "1" + "0" * 21 + "1")]
)
def test_labels_that_one_number_stands_for_stay_apart(nearwise, tmp_path, labels):
    frame = pd.DataFrame({"x": np.arange(40.0), "y": np.repeat(labels, 20)})
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.iloc[:20].to_csv(tmp_path / "one.csv", index=False)
    fit = nearwise("fit", tmp_path / "t.csv", "-t", "y", "-o", tmp_path / "m", *INSTANT[:2])
    assert fit.exit_code == 0 and "RuntimeWarning" not in fit.err
    classes = nearwise("inspect", tmp_path / "m", "--json").json()["classes"]
    assert classes == dict.fromkeys(labels, 20)
    result = nearwise("evaluate", tmp_path / "m", tmp_path / "one.csv", "--json", "-", "-q")
    assert result.json()["n"] == 20


def test_one_number_written_in_two_ways_is_one_label(nearwise, tmp_path):
    frame = pd.DataFrame({"x": np.arange(40.0), "y": np.repeat(["1", "1.0", "2", "2.00"], 10)})
    frame.to_csv(tmp_path / "t.csv", index=False)
    fit = nearwise("fit", tmp_path / "t.csv", "-t", "y", "-o", tmp_path / "m", *INSTANT[:2])
    assert "Learned 2 classes" in fit.err and "stays text" not in fit.err


@pytest.fixture
def with_words(tmp_path):
    """Labels Good, None and nothing; continents EU, NA and nothing."""
    frame = make_table(60, 0).drop(columns=["row", "label"])
    frame["quality"] = np.resize(["Good", "None"], 60)
    frame["continent"] = np.resize(["EU", "NA", "AS"], 60)
    frame.loc[[6, 9], "quality"] = ""
    frame.loc[3, "continent"] = ""
    frame.to_csv(tmp_path / "t.csv", index=False)
    return tmp_path / "t.csv"


def test_words_read_as_gaps_are_named_with_the_flags(nearwise, with_words, tmp_path):
    fit = ("fit", with_words, "-t", "quality", "-o", tmp_path / "m", *INSTANT[:2])
    refused = nearwise(*fit)
    assert refused.exit_code == 2
    for part in ("29 cells say 'None'", "--keep-words quality", "--skip-unlabelled"):
        assert part in refused.err
    again = nearwise(*fit, "--keep-words", "quality")
    assert again.exit_code == 2 and "2 of 60 rows have no value" in again.err
    done = nearwise(*fit, "--keep-words", "quality", "--skip-unlabelled")
    assert "left out 2 rows without a label" in done.err
    assert "in 'continent' 20 cells say 'NA', read as gaps; --keep-words continent" in done.err
    fit = ("fit", with_words, "-t", "quality", "-o", tmp_path / "n", *INSTANT[:2])
    assert "Did you mean 'quality'" in nearwise(*fit, "--keep-words", "qualty").err


def test_a_model_reads_the_words_that_it_has_learned(nearwise, with_words, tmp_path):
    keep = ("--keep-words", "quality", "--keep-words", "continent", "--skip-unlabelled")
    place = tmp_path / "m"
    assert nearwise("fit", with_words, "-t", "quality", "-o", place, *keep, *INSTANT).exit_code == 0
    facts = nearwise("inspect", place, "--json").json()
    assert facts["classes"] == {"Good": 29, "None": 29}
    (continent,) = (c for c in facts["column_report"] if c["name"] == "continent")
    assert (continent["distinct"], continent["missing"]) == (3, 1)
    refused = nearwise("evaluate", place, with_words)
    assert refused.exit_code == 2 and "2 of 60 rows have no value" in refused.err
    scores = nearwise("evaluate", place, with_words, "--skip-unlabelled", "--json", "-", "-q")
    assert scores.json()["n"] == 58
    added = nearwise("add", place, with_words, "--skip-unlabelled")
    assert "Added 58 rows" in added.err and "new classes" not in added.err
    predicted = nearwise("predict", place, with_words)
    assert predicted.exit_code == 0 and "Categories" not in predicted.err


def test_clean_names_rows_of_the_file_where_some_are_left_out(nearwise, with_words):
    options = ("--keep-words", "quality", "--skip-unlabelled")
    result = nearwise("clean", with_words, "-t", "quality", *options, "-o", "-", "-q")
    lines = pd.read_csv(with_words, dtype=str, keep_default_na=False)
    found = rows_of(result.out)
    assert len(found) == 58
    assert all(row["width"] == lines["width"][int(row["id"])] for row in found)
    assert not {"6", "9"} & {near for row in found for near in row["neighbors"].split()}
