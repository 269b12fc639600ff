"""A problem reaches the user as one line and an exit code; never as a traceback, unless asked."""

import errno

import pytest
import typer

from nearwise.cli.console import BUG, INTERRUPTED, USER_ERROR, reported, show_tracebacks


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


@pytest.mark.parametrize(
    "error",
    [ValueError("no column 'a'"), FileNotFoundError("no file x.csv"), ImportError("needs faiss")],
)
def test_a_users_mistake_exits_2_with_its_message_alone(error, capsys):
    assert ended(error) == USER_ERROR
    out, err = capsys.readouterr()
    assert err == f"error: {error}\n"
    assert out == ""


def test_a_bare_system_error_names_the_file(capsys):
    assert ended(OSError(errno.ENOSPC, "No space left on device", "model/a")) == USER_ERROR
    assert capsys.readouterr().err == "error: model/a: No space left on device\n"


def test_a_fault_of_ours_exits_1_and_asks_for_a_report(capsys):
    assert ended(KeyError("lost")) == BUG
    err = capsys.readouterr().err
    assert "fault of nearwise" in err
    assert "--debug" in err
    assert "Traceback" not in err


def test_ctrl_c_exits_130(capsys):
    assert ended(KeyboardInterrupt()) == INTERRUPTED
    assert "Stopped" in capsys.readouterr().err


def test_debug_shows_the_traceback_and_keeps_the_exit_code(capsys):
    show_tracebacks(True)
    assert ended(ValueError("wrong")) == USER_ERROR
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.endswith("error: wrong\n")


def test_text_that_looks_like_markup_is_printed_as_it_stands(capsys):
    ended(ValueError("no column '[bold]:smile:'"))
    assert "'[bold]:smile:'" in capsys.readouterr().err
