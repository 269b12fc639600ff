"""Messages wrap on a terminal and stay lines in a file; tables are plain text in a pipe."""

import io
import sys
from itertools import takewhile

import pandas as pd
import pytest
import rich.console

from nearwise.cli import console
from nearwise.cli.tables import fact_table, grid, tab_separated
from nearwise.cli.wrapping import wrapped
from nearwise.progress_bar import ProgressBar

WORDS = "note: the model has columns that differ in every row, such as an id; they are left out."
COMMAND = "Saved to a.model. Next: nearwise predict a.model NEW --out predictions.csv --proba"


@pytest.mark.parametrize("width", [20, 40, 80, 120])
def test_messages_break_at_blanks_and_hang(width):
    lines = wrapped(WORDS, width)
    assert " ".join(line.strip() for line in lines) == WORDS
    assert all(len(line) <= width for line in lines)
    assert all(line.startswith("  ") and line[2] != " " for line in lines[1:])


def test_a_second_column_hangs_below_itself():
    first, *others = wrapped("  salary  number, 12 distinct; text with a unit in every row", 30)
    assert first.startswith("  salary  number") and others
    assert all(line.startswith(" " * 10) and line[10] != " " for line in others)


def test_a_command_at_the_end_can_be_copied():
    assert wrapped(COMMAND, 60)[-1].strip() == COMMAND.partition("Next: ")[2]
    assert wrapped(COMMAND, 120) == [COMMAND]


def test_wide_letters_count_as_two_cells_and_long_words_stay_whole():
    assert wrapped("数据 数据 数据", 9) == ["数据 数据", "  数据"]
    path = "/a/very/long/path/that/is/wider/than/the/terminal"
    assert wrapped(f"at {path} now", 12) == ["at", f"  {path}", "  now"]


def test_a_table_in_a_pipe_is_a_header_and_lines_of_cells(capsys):
    console.show(grid("Title", ["a", "b [c]"], [[1, "x\ty"], [None, "two\nlines"]]))
    assert capsys.readouterr().out == "a\tb [c]\n1\tx y\n\ttwo lines\n"
    facts = {"rows": 3, "classes": {"no": 1, "yes": 2}}
    assert tab_separated(fact_table(facts, "m")) == (
        "name\tvalue\nrows\t3\nclasses\tno: 1\nclasses\tyes: 2\n"
    )


def test_a_terminal_gets_wrapped_text_and_drawn_tables(monkeypatch):
    def terminal(**_):
        return rich.console.Console(
            file=said, force_terminal=True, width=40, markup=False, highlight=False
        )

    said = io.StringIO()
    monkeypatch.setattr(console, "_console", terminal)
    monkeypatch.setattr(sys, "stderr", said)
    console.say(WORDS)
    assert said.getvalue() == "\r" + "\n".join(wrapped(WORDS, 40)) + "\n"
    said.truncate(0)
    console.show(grid("Title", ["a", "b"], [[1, 2]]))
    assert "Title" in said.getvalue() and "\t" not in said.getvalue()
    said = io.StringIO()
    console.show(grid("Title", ["a", "b"], []))
    assert not said.getvalue()


def test_what_is_said_under_a_bar_stands_above_it_on_a_line_of_its_own(monkeypatch):
    screen = io.StringIO()
    screen.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    with ProgressBar() as bar:
        bar.add_task("fitting", total=None)
        bar.refresh()
        before = screen.tell()
        console.say("warning: a word")
        said = screen.getvalue()[before:]
    assert said.index("\x1b[2K") < said.index("warning: a word") < said.rindex("fitting")


@pytest.mark.parametrize("quiet", [False, True])
def test_a_terminal_shows_that_the_library_starts(monkeypatch, quiet):
    screen = io.StringIO()
    monkeypatch.delitem(sys.modules, "nearwise.estimators", raising=False)
    monkeypatch.setattr(console.importlib, "import_module", lambda name: None)
    monkeypatch.setattr(
        console, "_console", lambda **_: rich.console.Console(file=screen, force_terminal=True)
    )
    console.reported(lambda quiet: console.load_library())(quiet=quiet)
    assert ("starting" in screen.getvalue()) != quiet


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("name", ["evaluate", "clean", "clean --show"])
def test_tables_keep_a_line_per_row(nearwise, tables, trained, monkeypatch, width, name):
    def terminal(*, stderr=False):
        return rich.console.Console(
            file=io.StringIO() if stderr else shown, force_terminal=True, width=width,
            markup=False, highlight=False, color_system=None,
        )  # fmt: skip

    commands = {
        "evaluate": ("evaluate", trained, tables / "test.csv", "--all"),
        "clean": ("clean", tables / "train.csv", "-t", "label", "--drop", "row"),
        "clean --show": ("clean", tables / "train.csv", "-t", "label", "--show", "row"),
    }
    shown = io.StringIO()
    monkeypatch.setattr(console, "_console", terminal)
    assert nearwise(*commands[name]).exit_code == 0
    lines = shown.getvalue().splitlines()
    first = 1 + next(at for at, line in enumerate(lines) if "───" in line)
    rows = list(takewhile(str.strip, lines[first:]))
    assert len(rows) >= 10 and all(line[1] != " " and "…" not in line for line in rows)
    assert max(map(len, rows)) <= width
    if name == "clean --show":
        assert all(line.split()[1] == f"r0-{line.split()[0]}" for line in rows)


def test_a_date_says_in_which_order_it_was_read(nearwise, tmp_path):
    days = [f"{1 + i % 28:02}/{1 + i % 12:02}/20{10 + i % 9}" for i in range(60)]
    pd.DataFrame({"day": days, "x": range(60), "y": ["a", "b"] * 30}).to_csv(
        tmp_path / "t.csv", index=False
    )
    fit = ("fit", tmp_path / "t.csv", "-t", "y", "-o", tmp_path / "m", "--preset", "instant")
    done = nearwise(*fit)
    assert done.exit_code == 0 and "read as DD/MM/YYYY" in done.err
    lines = nearwise("inspect", tmp_path / "m").out.splitlines()
    assert "column\tused as\tdistinct\tmissing\tnote" in lines
    (day,) = [line.split("\t") for line in lines if line.startswith("day\t")]
    assert day[1] == "date" and int(day[2]) > 20 and not day[3]
    assert "read as DD/MM/YYYY" in day[4]


def test_a_history_without_changes_is_a_sentence(nearwise, trained):
    found = nearwise("history", trained)
    assert found.out == "version\ttime (UTC)\tchange\trows\tids\n"
    assert "no changes are listed" in found.err
