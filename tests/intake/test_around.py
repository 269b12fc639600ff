"""Lines of a file that are no rows: left out with a note where that is certain, else named."""

import pandas as pd
import pytest

from nearwise.data import read_table
from tests.intake.test_files import read

# content, what it must give, words of the note
LEFT_OUT = {
    "sep= of Excel": ("sep=;\na;b\n1;u\n2;v\n", {"a": [1, 2], "b": ["u", "v"]}, "says that ';'"),
    "sep= with a mark": ('\ufeff"sep=,"\r\na,b\r\n1,u\r\n', {"a": [1], "b": ["u"]}, "that ','"),
    "sep= that settles it": ("SEP=\t\na,b\tc\n1,5\t2\n", {"a,b": [1.5], "c": [2]}, "says that"),
    "R, blanks": (
        '"Width" "Species"\n"1" 5.1 "u"\n"2" 4.9 "v w"\n',
        {"Unnamed: 0": [1, 2], "Width": [5.1, 4.9], "Species": ["u", "v w"]}, "as R writes them",
    ),
    "R, names of rows": (
        "mpg,cyl\nMazda RX4,21.0,6\nDatsun 710,22.8,4\n",
        {"Unnamed: 0": ["Mazda RX4", "Datsun 710"], "mpg": [21, 22.8], "cyl": [6, 4]},
        "as R writes them",
    ),
    "R, numbered": (
        "a;b\n1;7;u\n2;8;v\n3;9;u\n",
        {"Unnamed: 0": [1, 2, 3], "a": [7, 8, 9], "b": ["u", "v", "u"]}, "as R writes them",
    ),
    "units": (
        "name,height,mass\n,cm,kg\nada,170,60\nbob,180,80\n",
        {"name": ["ada", "bob"], "height": [170, 180], "mass": [60, 80]},
        r"the row below the names holds units \('cm', 'kg'\)",
    ),
    "units in brackets": (
        "t;v;y\n[s];(m/s);-\n1;2,5;u\n2;3,5;v\n", {"t": [1, 2], "v": [2.5, 3.5], "y": ["u", "v"]},
        "names holds units",
    ),
    "types": ("a,b\nint,float\n1,2.5\n2,3\n", {"a": [1, 2], "b": [2.5, 3]}, "names holds units"),
    "a total": (
        "region,n,m\neast,100,1\nwest,500,2\nTotal,600,\n",
        {"region": ["east", "west"], "n": [100, 500], "m": [1, 2]},
        "last line is no row and left out: 'Total,600,'",
    ),
    "a total below numbers": (
        "a,b\n1,2\n3,4\nTOTAL:,6\n", {"a": [1, 3], "b": [2, 4]}, "last line is no row",
    ),
    "an average": (
        "town;n;m;y\nOslo;1,5;1;u\nRom;2,5;2;v\nBern;3;3;u\nDurchschnitt;2,333;;\n",
        {"town": ["Oslo", "Rom", "Bern"], "n": [1.5, 2.5, 3], "m": [1, 2, 3], "y": [*"uvu"]},
        "last line is no row and left out: 'Durchschnitt;2,333;;'",
    ),
    "a word of averages and of other things": (
        "t,n,y\nx,1,u\nz,5,v\nw,3,u\nMedia,3,\n",
        {"t": ["x", "z", "w"], "n": [1, 5, 3], "y": [*"uvu"]}, "left out: 'Media,3,'",
    ),
    "averages and counts below numbers": (
        "a,b\n1,2\n3,4\nMittel:,3\nAnzahl,2\n", {"a": [1, 3], "b": [2, 4]}, "'Mittel:,3'",
    ),
    "a source": (
        "a,b\n1,2\n3,4\nSource: World Bank, 2020\n", {"a": [1, 3], "b": [2, 4]}, "'Source: W",
    ),
    "notes and a source": (
        "a,b,c\n1,2,x\n3,4,y\n\nNote: c is new,,\n* since 2019\nSource: us\n",
        {"a": [1, 3], "b": [2, 4], "c": ["x", "y"]}, "Note: c is new",
    ),
    "Markdown": (
        "| a | b c |\n|--:|:---|\n| 1 | x |\n| 2.5 | y z |\n", {"a": [1, 2.5], "b c": ["x", "y z"]},
        "Markdown",
    ),
    "Markdown without bars at the ends": (
        "a | b\n--|--\n1 | x\n2 | y\n", {"a": [1, 2], "b": ["x", "y"]}, "Markdown",
    ),
    "a database shell": (
        " a | b \n---+---\n 1 | x\n 2 | y\n(2 rows)\n", {"a": [1, 2], "b": ["x", "y"]}, "2 rows",
    ),
    "a framed table": (
        "+---+---+\n| a | b |\n+---+---+\n| 1 | x |\n| 2 | y |\n+---+---+\n",
        {"a": [1, 2], "b": ["x", "y"]}, "lines of dashes",
    ),
    "a title": ("Sales, 2020\na,b,c\n1,2,x\n3,4,y\n", {"a": [1, 3], "b": [2, 4], "c": ["x", "y"]},
        "1 rows above the names of the columns are left out: 'Sales 2020'",
    ),
    "a title over semicolons": (
        "Sales, all of 2020\na;b\n1,5;x\n3;y\n", {"a": [1.5, 3], "b": ["x", "y"]}, "above",
    ),
    "titles as a spreadsheet pads them": (
        "Sales,,\n,,\nby us,,\nname,town,class\nada,rome,u\nbob,oslo,v\n",
        {"name": ["ada", "bob"], "town": ["rome", "oslo"], "class": ["u", "v"]},
        "2 rows above the names of the columns are left out: 'Sales', 'by us'",
    ),
    "facts above years": (
        'Source,Bank,\n\n"Country","2019","2020","2021",\n"Peru","5","6","7",\n"Chad","7","",8,\n',
        {"Country": ["Peru", "Chad"], "2019": [5, 7], "2020": [6, None], "2021": [7, 8]},
        "above the names of the columns are left out: 'Source Bank'",
    ),
    "names of groups": (
        ",Size,,\n,width,height,class\n0,1,2,u\n1,3,4,v\n",
        {"Unnamed: 0": [0, 1], "width": [1, 3], "height": [2, 4], "class": ["u", "v"]}, "'Size'",
    ),
    "a title and units": (
        "Sales\n\nname,mass\n,kg\nada,60\nbob,80\neve,70\n",
        {"name": ["ada", "bob", "eve"], "mass": [60, 80, 70]}, "holds units",
    ),
    "words above Markdown": (
        "# Ours\n\nA table.\n\n| a | b |\n|---|---|\n| 1 | x |\n| 2 | y |\n",
        {"a": [1, 2], "b": ["x", "y"]}, "'A table.'",
    ),
    "delimiters at the end of a line": (
        "a,b\n1,x\n2,y, ,\n3,z,\n", {"a": [1, 2, 3], "b": ["x", "y", "z"]},
        r"2 lines end in more delimiters than the first \(first: line 3\)",
    ),
    "rows without values at the end": (
        "a,b\n1,x\n2,y\nTotal,\n" + ",\n" * 9, {"a": [1, 2], "b": ["x", "y"]},
        "9 rows without any value at the end",
    ),
    "gaps of spreadsheets and databases": (
        "a,b\n1,x\n#DIV/0!,\\N\n#VALUE!,(null)\n4,z\n",
        {"a": [1, None, None, 4], "b": ["x", None, None, "z"]}, "4 cells hold only",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", LEFT_OUT)
def test_lines_that_are_no_rows_are_left_out_with_a_note(tmp_path, case):
    content, expected, words = LEFT_OUT[case]
    table, notes = read(tmp_path, "t.csv", content.encode())
    assert table.astype(object).where(table.notna(), None).to_dict("list") == expected
    with pytest.warns(UserWarning, match=words):
        read_table(tmp_path / "t.csv")
    assert notes


# content, rows that it has, words of the note (none: no note)
KEPT = {
    "a total in every column": ("r,n\neast,1\nwest,2\nTotal,3\n", 3, "begins with 'Total'"),
    "totals among categories": ("r,n\nTotal,1\nwest,\nTotal,\n", 3, None),
    "a department": (
        "t,n,y\nx,1,u\nz,5,v\nMedia,,u\n",
        3,
        "begins with 'Media' and is read as a row",
    ),
    "a department beside numbers": ("t,n,m\nx,1,2\nz,5,3\nMedia,3,\n", 3, "with 'Media' and"),
    "levels": ("t,n,m\nhoch,1,2\nmittel,5,3\ntief,3,\nmittel,3,\n", 4, None),
    "one row": ("r,n\nTotal,\n", 1, None),
    "notes as values": ("note,b\nnotes,1\nnote,2\nnote on x,3\n", 3, None),
    "words over numbers": (
        "h,m\nfoo,bar\n1,2\n3,4\n",
        3,
        r"names holds words \('foo', 'bar'\)",
    ),
    "one word over numbers": ("h,m\nabout,1\n1,2\n3,4\n", 3, None),
    "units in every row": ("a,b\ncm,kg\nm,g\ncm,g\n", 3, None),
    "units over numbers and one number": ("a,b\ncm,1\n5,2\n6,3\n", 3, None),
    "dashes as values": ("a|b\n-|1\n-|2\n", 2, None),
    "a name more": ("a,b,c\n1,2\n3,4\n", 2, "fewer than 3 values"),
    "names of some columns": ("a,,\n1,2,x\n3,4,y\n", 2, "have no name"),
    "names of some columns, all of words": ("a,,b\nu,v,w\nx,v,z\n", 2, "have no name"),
    "units below an unnamed column": ("a,,b\nu,cm,kg\nv,1,2\nw,3,4\nx,5,6\n", 3, "holds units"),
    "times of day": ("a,b\n14:05:30,1\n09:10:00,2\n", 2, None),
    "codes like durations": ("a,b\n30:75:10,1\n31:10:00,2\n", 2, None),
    "blank behind every line": ("a,b\n1,2,\n3,4,\n", 2, None),
}


@pytest.mark.parametrize("case", KEPT)
def test_lines_that_may_be_rows_are_kept(tmp_path, case):
    content, n_rows, words = KEPT[case]
    table, notes = read(tmp_path, "t.csv", content.encode())
    assert len(table) == n_rows
    assert bool(words) == bool(notes), notes
    if words:
        with pytest.warns(UserWarning, match=words):
            read_table(tmp_path / "t.csv")


def test_durations_of_a_day_or_more_are_no_text(tmp_path):
    text = 'a,b,c\n1:30:00,2 days 06:00:00,"1 day, 6:00:00"\n30:00:00,0 days 00:00:00,0:00:09\n'
    table, notes = read(tmp_path, "t.csv", text.encode())
    hours = {name: (column / pd.Timedelta(hours=1)).tolist() for name, column in table.items()}
    assert hours == {"a": [1.5, 30], "b": [54, 0], "c": [30, 0.0025]}
    assert notes == [f"{tmp_path / 't.csv'}: read as durations: 'a', 'b', 'c'."]


def test_the_columns_of_a_model_are_found_below_titles(tmp_path):
    text = b"Rows for you,u\na,b\nu,v\n"
    table, notes = read(tmp_path, "t.csv", text, known={"b", "a"})
    assert table.to_dict("list") == {"a": ["u"], "b": ["v"]}
    assert "above the names" in notes[0]


def test_insisted_names_are_those_of_the_first_line(tmp_path):
    table, _ = read(tmp_path, "t.csv", b"Title,,\na,b,c\n1,2,3\n", header=True)
    assert len(table) == 2


def test_numbers_in_the_first_values_of_longer_lines_are_no_names(tmp_path):
    with pytest.raises(ValueError, match="line 2 has 3 values"):
        read(tmp_path, "t.csv", b"a,b\n1,2,3\n4,5,6\n")


def test_a_file_without_units_fits_a_file_with_them(tmp_path):
    """One column written in three ways, each as the file's owner means it."""
    ways = {
        "units.csv": b"h;m\ncm;kg\n1.700;60,5\n1.800;80,5\n",
        "plain.csv": b"h,m\n1700,60.5\n1800,80.5\n",
        "signed.csv": b'h,m\n"1,700","60.5"\n"1,800","80.5"\n',
    }
    tables = [read(tmp_path, name, content)[0].to_dict("list") for name, content in ways.items()]
    assert tables[0] == tables[1] == tables[2] == {"h": [1700, 1800], "m": [60.5, 80.5]}
