"""Promises of reading and writing tables."""

import io
import os
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from nearwise.data import read_table, write_table

FORMATS = ["csv", "tsv", "parquet", "npz"]


@pytest.fixture
def frame():
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "number": [0.1 + 0.2, np.nan, 1e-300, -0.0],
            "count": [1, 2, 3, 2**53 + 1],
            "flag": [True, False, True, True],
            "text, quoted": ['a "b"', "c;d", "é\tü", "x,y"],
            "f0": rng.normal(size=4),
            "f1": rng.normal(size=4),
        }
    )


def test_the_reference_tells_what_a_csv_loses(tmp_path):
    page = (Path(__file__).parents[2] / "docs/reference/data.md").read_text(encoding="utf-8")
    part = page.partition("and these words, in exactly this spelling,")[2].partition("`. ")[0]
    words = part.split("`")[1::2]
    assert {"NA", "None", "null", "nan"} < set(words)
    path = tmp_path / "table.csv"
    lines = ["word,label,day", *(f"{word},1,2024-01-02" for word in words), "Na,2,2024-01-03"]
    path.write_text("\n".join(lines))
    table = read_table(path)
    assert table["word"].isna().tolist() == [True] * len(words) + [False]
    assert table["label"].tolist() == [1] * len(words) + [2]
    assert table["day"].iloc[0] == "2024-01-02"


def give_stdin(monkeypatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


@pytest.mark.parametrize("form", FORMATS)
def test_a_table_comes_back_bit_for_bit(frame, tmp_path, form):
    path = tmp_path / f"table.{form}"
    write_table(frame, path)
    back = read_table(path)
    pd.testing.assert_frame_equal(back[frame.columns.tolist()], frame, check_exact=True)
    assert [p.name for p in tmp_path.iterdir() if p.suffix == ".tmp"] == []


@pytest.mark.parametrize("form", FORMATS)
def test_standard_input_and_output_carry_every_sniffed_format(
    frame, monkeypatch, capfdbinary, form
):
    write_table(frame, "-", format=form)
    give_stdin(monkeypatch, capfdbinary.readouterr().out)
    pd.testing.assert_frame_equal(read_table("-")[frame.columns.tolist()], frame)


def test_parquet_keeps_categories_and_missing_text(tmp_path):
    frame = pd.DataFrame({"c": pd.Categorical(["u", None, "v"], categories=["v", "u", "w"])})
    write_table(frame, tmp_path / "table.parquet")
    pd.testing.assert_frame_equal(read_table(tmp_path / "table.parquet"), frame)


def test_a_named_index_of_a_parquet_file_becomes_a_column(tmp_path):
    frame = pd.DataFrame({"a": [1, 2]}, index=pd.Index([7, 8], name="id"))
    frame.to_parquet(tmp_path / "named.parquet")
    assert read_table(tmp_path / "named.parquet").columns.tolist() == ["id", "a"]
    frame.rename_axis(None).to_parquet(tmp_path / "bare.parquet")
    assert read_table(tmp_path / "bare.parquet").to_dict("list") == {"a": [1, 2]}


def test_awkward_npz_column_names_are_kept(tmp_path):
    frame = pd.DataFrame({"file": [1, 2], "X": [3, 4], "f0": [5, 6], "a/b": ["x", "y"]})
    write_table(frame, tmp_path / "table.npz")
    pd.testing.assert_frame_equal(read_table(tmp_path / "table.npz"), frame)


def test_a_missing_file_lists_its_neighbors_and_a_folder_is_refused(tmp_path):
    (tmp_path / "there.csv").write_text("a\n1\n")
    with pytest.raises(FileNotFoundError, match=r"No file .*gone\.csv.* holds there\.csv"):
        read_table(tmp_path / "gone.csv")
    with pytest.raises(IsADirectoryError, match="is a folder"):
        read_table(tmp_path)


@pytest.mark.parametrize(
    ("table", "path", "message"),
    [
        (pd.DataFrame({"a": [1]}), "t.xlsx", "Cannot tell the format"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "t.csv", "occur more than once"),
        (pd.DataFrame({"a": ["x", None]}), "t.npz", "missing text"),
        (pd.DataFrame({"a": ["x", {1}]}), "t.parquet", "Give each column one type"),
    ],
)
def test_what_cannot_be_written_is_explained(tmp_path, table, path, message):
    with pytest.raises(ValueError, match=message):
        write_table(table, tmp_path / path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/dev/stdout").exists(), reason="no /dev/stdout here")
def test_a_redirected_dev_stdout_is_written_in_place(tmp_path):
    path, before = tmp_path / "out.txt", os.dup(1)
    with path.open("wb") as out:
        os.dup2(out.fileno(), 1)
        try:
            write_table(pd.DataFrame({"a": [1]}), "/dev/stdout", format="csv")
        finally:
            os.dup2(before, 1)
            os.close(before)
        assert path.stat().st_ino == os.fstat(out.fileno()).st_ino
    assert path.read_text() == "a\n1\n"
