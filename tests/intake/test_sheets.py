"""Excel workbooks as people keep them: several sheets, titles, sums, numbers as text."""

import datetime
import io

import openpyxl
import pytest

from nearwise.data import read_table
from nearwise.estimators import report_columns
from tests.intake.files import workbook
from tests.intake.test_files import read

TABLE = [["width", "height", "class"], [1.5, 2, "u"], [2.5, 3, "v"], [3.5, 4, "u"], [4.5, 5, "v"]]
VALUES = {"width": [1.5, 2.5, 3.5, 4.5], "height": [2, 3, 4, 5], "class": ["u", "v", "u", "v"]}


def book(**sheets: list[list]) -> bytes:
    made = openpyxl.Workbook()
    made.remove(made.active)
    for name, rows in sheets.items():
        for row in rows or [[]]:
            (made[name] if name in made.sheetnames else made.create_sheet(name)).append(row)
    stream = io.BytesIO()
    made.save(stream)
    return stream.getvalue()


ABOUT = [["About this file"], [], ["made by us"]]
AROUND = {
    "titles": ([["Sales"], [], ["by us", None], *TABLE], "2 rows above the names.*'by us'"),
    "facts": ([["Region", "North"], ["Date", datetime.date(2020, 1, 1)], *TABLE], "'Region North'"),
    "groups of columns": ([["Size", None, "Class"], *TABLE], "'Size Class'"),
    "units": ([TABLE[0], ["cm", "kg", None], *TABLE[1:]], r"holds units \('cm', 'kg'\)"),
    "a total": ([*TABLE, ["Total", 14, None]], "left out: 'Total 14'"),
    "an average": ([*TABLE, [], ["Mittel", 3.5, None]], "left out: 'Mittel 3.5'"),
    "a source": ([*TABLE, [], ["Source: a, b"]], "left out: 'Source: a, b'"),
    "blanks": ([*TABLE, [None, " ", None]], None),
    "all of it": (
        [["Sales"], TABLE[0], ["cm", "kg", None], *TABLE[1:], ["Total", 14], ["* ours"]], "ours",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", AROUND)
def test_rows_around_the_table_are_left_out_with_a_note(tmp_path, case):
    rows, words = AROUND[case]
    table, notes = read(tmp_path, "t.xlsx", workbook(rows))
    assert table.to_dict("list") == VALUES
    assert bool(notes) == bool(words)
    if words:
        with pytest.warns(UserWarning, match=words):
            read_table(tmp_path / "t.xlsx")


def test_merged_titles_are_left_out(tmp_path):
    made = openpyxl.load_workbook(io.BytesIO(workbook([["Sales"], *TABLE])))
    made.active.merge_cells("A1:C1")
    made.save(tmp_path / "t.xlsx")
    with pytest.warns(UserWarning, match="'Sales'"):
        assert read_table(tmp_path / "t.xlsx").to_dict("list") == VALUES


def test_the_only_sheet_with_a_table_is_read(tmp_path):
    for sheets in ({"About": ABOUT, "Data": TABLE}, {"Empty": [], "Data": TABLE, "More": ABOUT}):
        table, notes = read(tmp_path, "t.xlsx", book(**sheets))
        assert table.to_dict("list") == VALUES
        assert "read the sheet 'Data'; the first one" in notes[0]
    with pytest.raises(ValueError, match=r"2 others do\. Name one: 'Data', 'More' \(sh"):
        read(tmp_path, "t.xlsx", book(About=ABOUT, Data=TABLE, More=TABLE))


def test_a_sheet_is_named_or_counted(tmp_path):
    content = book(**{"2021": [["a"], [1]], "2020": [["a"], [2]], "Data": TABLE})
    for sheet, expected in {"2020": [2], 2020: [2], 2: [2], "1": [1], "2021": [1]}.items():
        table, notes = read(tmp_path, "t.xlsx", content, sheet=sheet)
        assert (table["a"].tolist(), notes) == (expected, [])
    for sheet, words in {
        "data": "Did you mean 'Data'",
        0: "numbers begin with 1",
        4: "'2021', '2",
    }.items():
        with pytest.raises(ValueError, match=words):
            read(tmp_path, "t.xlsx", content, sheet=sheet)
    with pytest.raises(ValueError, match="is read as csv and has no sheets"):
        read(tmp_path, "t.csv", b"a,b\n1,2\n", sheet="Data")


def test_text_that_is_a_number_in_every_cell_is_numbers(tmp_path):
    rows = [
        ["comma", "mixed", "sum", "zip", "mark", "long", "money"],
        ["1,5", 1.5, "1.000", "01008", "?", "1577134800018164904", "$5"],
        [" 2,5 ", "2,5", "2.000", "94105", "u", None, "$6"],
        ["n/a", "3", "3.000", "10115", "v", "1577134800018164905", "$7"],
    ]  # fmt: skip
    table, notes = read(tmp_path, "t.xlsx", workbook(rows))
    held = table.astype(object).where(table.notna(), None).to_dict("list")
    assert held == {
        "comma": [1.5, 2.5, None],
        "mixed": [1.5, 2.5, 3],
        "sum": [1000, 2000, 3000],
        "zip": ["01008", "94105", "10115"],
        "mark": [None, "u", "v"],
        "long": [1577134800018164904, None, 1577134800018164905],
        "money": ["$5", "$6", "$7"],
    }
    assert any("text are read as numbers: 'comma', 'mixed', 'sum'" in note for note in notes)


def test_cells_of_times_and_durations_are_hours_and_days(tmp_path):
    times = [datetime.time(0), datetime.time(14, 5), datetime.time(14, 5, 30), None]
    spans = [datetime.timedelta(hours=hours) for hours in (1, 30, 2, 99)]
    content = workbook([["at", "span"], *map(list, zip(times, spans, strict=True))])
    table, notes = read(tmp_path, "t.xlsx", content)
    uses = {one.name: (one.use, one.parts) for one in report_columns(table)}
    assert uses == {"at": ("date", ("hour of day",)), "span": ("number", ())}
    assert not notes
