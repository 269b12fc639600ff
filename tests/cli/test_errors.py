"""A problem reaches the user as one line and an exit code; never as a traceback, unless asked."""

import errno

import pytest
import typer

from nearwise import conditions
from nearwise.cli.console import BUG, USER_ERROR, reported, show_tracebacks


@pytest.fixture(autouse=True)
def _without_tracebacks():
    show_tracebacks(False)
    yield
    show_tracebacks(False)


def ended(error):
    """Exit code of a command that raises this error."""

    @reported
    def command():
        raise error

    with pytest.raises(typer.Exit) as caught:
        command()
    return caught.value.exit_code


MISTAKES = {
    "no column '[bold]:smile:'": ValueError("no column '[bold]:smile:'"),  # is no markup
    "no file x.csv": FileNotFoundError("no file x.csv"),
    "needs faiss": ImportError("needs faiss"),
    "model/a: No space left": OSError(errno.ENOSPC, "No space left", "model/a"),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_a_users_mistake_exits_2_with_its_message_alone(message, capsys):
    assert ended(MISTAKES[message]) == USER_ERROR
    assert capsys.readouterr() == ("", f"error: {message}\n")


def test_a_fault_of_ours_exits_1_and_asks_for_a_report(capsys):
    assert ended(KeyError("lost")) == BUG
    err = capsys.readouterr().err
    assert "fault of nearwise" in err
    assert "--debug" in err
    assert "Traceback" not in err


IN_FLAGS = {
    "columns={'zip code': 'number'}: no": "--number 'zip code': no",
    "leave it out: columns={'a': 'left out'}.": "leave it out: --drop a.",
    """columns={"it's": 'keep'}""": """--keep 'it'"'"'s'""",
    "estimator=None and preset='instant' do": "--estimator none and --preset instant do",
    "n_neighbors=5000 is": "--n-neighbors 5000 is",
    "cv=1 leaves": "--cv 1 leaves",
    'label_noise="auto": labels': "--label-noise auto: labels",
    "Give random_state=0, say": "Give --seed 0, say",
    "metric='manhattan' is": "metric='manhattan' is",  # no option sets it
    "more, or hold rows out: cv=0.1.": "more, or hold rows out: --cv 0.1.",
    'cv="latest" does not fit': "--time does not fit",
    "cv=[0.05, 0.5] must": "--cv 0.05,0.5 must",
    "estimator=X['a'] is": "estimator=X['a'] is",  # code, not a value
    "fit(cv=range(3))": "fit(cv=range(3))",
    "out: skip_damaged=True (--skip-damaged).": "out: --skip-damaged.",
    "or pass header=False (--no-header).": "or pass --no-header.",
    "header=False (on the command line --no-header): the": "--no-header: the",
    "Pass color=\"rgb\" or color='grey' (--color rgb) to": "Pass --color rgb or --color grey to",
    "value per row: groups=... (--groups COLUMN)": "value per row: groups=... (--groups COLUMN)",
}


@pytest.mark.parametrize("text", IN_FLAGS)
def test_parameters_in_messages_are_the_options_of_the_command(text, capsys):
    @reported
    def fit(
        drop, estimator, preset, n_neighbors, cv, label_noise, seed, color, header, skip_damaged
    ):
        raise ValueError(text)

    with pytest.raises(typer.Exit):
        fit(*[None] * 10)
    assert capsys.readouterr().err == f"error: {IN_FLAGS[text]}\n"


def test_other_commands_name_how_to_fit_by_its_options(capsys):
    ended(ValueError("hold more out: cv=0.3"))
    assert capsys.readouterr().err == "error: hold more out: --cv 0.3\n"


def test_a_command_without_the_option_leaves_the_parameter(capsys):
    ended(ValueError("preset='instant' and columns={'a': 'keep'}"))
    assert capsys.readouterr().err == "error: preset='instant' and columns={'a': 'keep'}\n"


WRONG = [
    "fit t.csv -t y -o m --preset slow",
    "fit t.csv -t y -o m --class-prior even",
    "clean t.csv -t y --judge me",
    "predict m t.csv --format xml",
    "fit t.csv -t y -o m --epochs 0",
    "clean t.csv -t y --top many",
]


@pytest.mark.parametrize("line", WRONG)
def test_a_wrong_option_is_refused_in_words_of_ours(nearwise, line):
    result = nearwise(*line.split())
    option = next(word for word in line.split() if word.startswith("--"))
    assert result.exit_code == 2 and f"Invalid value for '{option}'" in result.err
    assert "Value error" not in result.err and "pydantic" not in result.err


def test_an_installation_without_a_page_says_so(nearwise, tables, trained, tmp_path, monkeypatch):
    monkeypatch.setattr(conditions, "entry_points", lambda **chosen: ())
    page = tmp_path / "report.html"
    result = nearwise("evaluate", trained, tables / "test.csv", "--report", page)
    assert result.exit_code == 2
    assert "entry point 'evaluate' of the group 'nearwise.pages'" in result.err
