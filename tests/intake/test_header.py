"""A first line that holds data is never taken for column names without a word, nor the reverse."""

import numpy as np
import pandas as pd
import pytest

from nearwise.data import read_table

IRIS = "5.1,3.5,Iris-setosa\n4.9,3.0,Iris-setosa\n7.0,3.2,Iris-versicolor\n"
ADULT = (
    "39, State-gov, 77516, 2020-01-31, <=50K\n50, Private, 83311, 2020-02-29, >50K\n"
    "38, ?, 215646, 2020-03-31, <=50K\n"
)
SPECTRUM = "species," + ",".join(str(nm) for nm in range(400, 440, 2)) + "\n"
SPECTRUM += "".join(f"{name}," + ",".join(["0.5", "0.7"] * 10) + "\n" for name in "abc")

WITHOUT_NAMES = {
    "iris": IRIS,
    "adult": ADULT,
    "numbers": "1,2\n3,4\n",
    "one row of numbers": "5.1,3.5,1.4\n",
    "repeated numbers": "5,0,0,0\n4,0,0,1\n",
    "repeated text": "x,s,n\nx,s,y\nb,f,n\n",
    "decimal commas": "5,1;3,5;u\n4,9;3,0;u\n",
    "rising numbers within their columns": "1,2,3\n1,3,4\n2,2,3\n0,1,2\n",
    "blanks": "5.1 3.5 u\n4.9 3.0 u\n",
    "a gap at the start": "?,3.5,u\n4.9,3.0,u\n",
}
WITH_NAMES = {
    "words": "width,label\n1,u\n2,v\n",
    "text only": "name,town\nada,rome\nbob,oslo\n",
    "a name that is also a value": "other,town,x\nsome,rome,1\nother,oslo,2\n",
    "numbers beside words": "id,2019,2020\n1,5,6\n2,7,8\n",
    "a letter and a digit": "x1,x2,y\n1,2,u\n3,4,v\n",
    "truth values": "yes,no\nTrue,False\nFalse,False\n",
}
NUMBERED = {
    "written by pandas": pd.DataFrame(np.eye(4)).assign(label=list("aabb")).to_csv(index=False),
    "with row numbers": pd.DataFrame(np.eye(4)).to_csv(),
    "years": "country,1990,1991,1992\nChad,6.1,6.3,6.5\nPeru,22.1,22.5,23.0\n",
    "wavelengths": SPECTRUM,
}


def table(tmp_path, text, **options):
    (tmp_path / "t.csv").write_text(text)
    notes = []
    return read_table(tmp_path / "t.csv", note=notes.append, **options), notes


@pytest.mark.parametrize("text", WITHOUT_NAMES.values(), ids=WITHOUT_NAMES)
def test_a_first_line_of_data_is_asked_about(tmp_path, text):
    with pytest.raises(ValueError, match=r"t\.csv: the first line seems to be data.*--no-header"):
        table(tmp_path, text)
    n_rows = len(text.splitlines())
    read, _ = table(tmp_path, text, header=False)
    assert read.shape[0] == n_rows
    assert list(read.columns) == [str(i) for i in range(read.shape[1])]


@pytest.mark.parametrize("text", WITH_NAMES.values(), ids=WITH_NAMES)
def test_names_are_taken_without_a_word(tmp_path, text):
    read, notes = table(tmp_path, text)
    assert list(read.columns) == text.split("\n")[0].split(",")
    assert notes == []


@pytest.mark.parametrize("text", NUMBERED.values(), ids=NUMBERED)
def test_numbers_that_may_be_names_are_taken_with_a_note(tmp_path, text):
    read, (note,) = table(tmp_path, text)
    assert len(read) == len(text.splitlines()) - 1
    assert "holds numbers" in note
    assert "--no-header" in note
    assert table(tmp_path, text, header=True)[1] == []


def test_a_header_that_is_insisted_on_is_taken(tmp_path):
    assert list(table(tmp_path, "1,2\n3,4\n", header=True)[0].columns) == ["1", "2"]
    with pytest.raises(ValueError, match="'0' occur more than once"):
        table(tmp_path, "5,0,0\n4,1,1\n", header=True)


def test_the_columns_of_a_model_are_known_names(tmp_path):
    assert list(table(tmp_path, "2,1\n3,4\n", known=["1", "2"])[0].columns) == ["2", "1"]


def test_values_without_names_are_those_of_the_file(tmp_path):
    read, notes = table(tmp_path, ADULT, header=False)
    assert read.iloc[0].tolist() == [39, "State-gov", 77516, "2020-01-31", "<=50K"]
    assert read["1"].isna().tolist() == [False, False, True]
    assert notes == [f"{tmp_path / 't.csv'}: 1 cells hold only '?' and count as gaps: '1'."]


def test_a_sheet_without_names_is_asked_about(tmp_path):
    pd.DataFrame([[5.1, "u"], [4.9, "u"]]).to_excel(tmp_path / "t.xlsx", header=False, index=False)
    with pytest.raises(ValueError, match="seems to be data"):
        read_table(tmp_path / "t.xlsx")
    assert read_table(tmp_path / "t.xlsx", header=False).to_dict("list") == {
        "0": [5.1, 4.9],
        "1": ["u", "u"],
    }


def test_formats_that_name_their_columns_refuse_to_have_none(tmp_path):
    pd.DataFrame({"a": [1]}).to_parquet(tmp_path / "t.parquet")
    with pytest.raises(ValueError, match=r"names its columns itself, as parquet .*--no-header"):
        read_table(tmp_path / "t.parquet", header=False)
