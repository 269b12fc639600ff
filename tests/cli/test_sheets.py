"""Sheets of a workbook, from fit to explain."""

import openpyxl
import pandas as pd
import pytest

from nearwise.cli import main
from tests.cli.conftest import make_table

CHEAP = ["--estimator", "none", "--embedder", "identity", "--cv", "2"]


def save(frame: pd.DataFrame, path) -> None:
    """Write a workbook as people do: a sheet of words, and data with a title and a total."""
    book = openpyxl.Workbook()
    book.active.title = "About"
    book.active.append(["What this is"])
    for name, rows in {"Data": frame, "Half": frame.iloc[::2]}.items():
        sheet = book.create_sheet(name)
        sheet.append(["Measured in 2020"])
        sheet.append([])
        sheet.append(list(rows.columns))
        for row in rows.astype(object).where(rows.notna(), None).itertuples(index=False):
            sheet.append([str(cell) if cell == row.width else cell for cell in row])
        sheet.append(["Source: us"])
    book.save(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Give a folder with book.xlsx, the same rows in plain.csv, and a model of its sheet Data."""
    folder = tmp_path_factory.mktemp("sheets")
    frame = make_table(80, 0)
    save(frame, folder / "book.xlsx")
    frame.iloc[::2].to_csv(folder / "plain.csv", index=False)
    arguments = ["fit", folder / "book.xlsx", "--sheet", "Data", "-t", "label"]
    with pytest.raises(SystemExit) as ended:
        main([*map(str, arguments), "-o", str(folder / "m.model"), *CHEAP])
    assert not ended.value.code
    return folder


def test_every_command_takes_a_sheet(nearwise, folder, tmp_path):
    book, model = folder / "book.xlsx", folder / "m.model"
    commands = [
        ["clean", book, "-t", "label", "--sheet", "Half"],
        ["predict", model, book, "--sheet", "3"],
        ["evaluate", model, book, "--sheet", "Half"],
        ["explain", model, book, "--rows", "0", "--sheet", "Half"],
        ["embed", model, book, "--sheet", "Half", "-o", tmp_path / "keys.csv"],
        ["add", model, book, "--sheet", "Half", "-o", tmp_path / "more.model"],
    ]
    for command in commands:
        result = nearwise(*command)
        assert result.exit_code == 0, (command, result.err)
        assert "1 rows above the names of the columns are left out: 'Measured" in result.err


def test_a_sheet_is_predicted_as_its_rows_in_csv(nearwise, folder):
    one, other = (
        nearwise("predict", folder / "m.model", folder / name, "--proba", "--copy", "row", *more)
        for name, *more in (("book.xlsx", "--sheet", "Half"), ("plain.csv",))
    )
    pd.testing.assert_frame_equal(one.table(), other.table())


def test_wrong_sheets_are_explained(nearwise, folder, tmp_path):
    fit = ["fit", folder / "book.xlsx", "-t", "label", "-o", tmp_path / "m.model"]
    assert "2 others do. Name one: 'Data', 'Half' (sheet=, --sheet)" in nearwise(*fit).err
    assert "Did you mean 'Data'?" in nearwise(*fit, "--sheet", "Date").err
    result = nearwise("predict", folder / "m.model", folder / "plain.csv", "--sheet", "Data")
    assert result.exit_code == 2
    assert "is read as csv and has no sheets" in result.err
    (tmp_path / "images").mkdir()
    result = nearwise("fit", tmp_path / "images", "--sheet", "1", "-o", tmp_path / "m.model")
    assert "--sheet is about a workbook" in result.err
