"""Progress where no bar can be drawn: lines in a log file, now and then."""

import io
import re
import time

import pytest
from rich.console import Console

from nearwise import progress_bar
from nearwise.estimators.progress import Progress, reporting_stages_to
from nearwise.progress_bar import ProgressBar


class Log:
    """What standard error, which is no terminal here, was given so far."""

    def __init__(self, capsys):
        self._capsys, self._text = capsys, ""

    @property
    def text(self):
        self._text += self._capsys.readouterr().err
        return self._text

    def wait_for(self, text):
        """Wait until it says something, for ten seconds at most."""
        for _ in range(1000):
            if text in self.text:
                return
            time.sleep(0.01)
        pytest.fail(f"no {text!r} in {self.text!r}")


@pytest.fixture
def log(monkeypatch, capsys):
    """Standard error; lines come every hundredth of a second."""
    monkeypatch.setattr(progress_bar, "_LINE_SECONDS", 0.01)
    return Log(capsys)


def test_a_log_file_gets_a_line_where_something_changed_and_no_other(log):
    with ProgressBar() as bar:
        task = bar.add_task("rows [of] 2", total=2000, note="loss 0.5")
        log.wait_for("loss 0.5")
        time.sleep(0.1)
        bar.update(task, completed=1500)
        log.wait_for("1,500 of 2,000")
    lines = log.text.splitlines()
    assert [re.sub(r"^\d+:\d\d:\d\d  ", "", line) for line in lines] == [
        "rows [of] 2 (0 of 2,000) loss 0.5",
        "rows [of] 2 (1,500 of 2,000) loss 0.5",
    ]


def test_nothing_is_written_of_a_short_run_nor_where_progress_is_off(log, monkeypatch):
    with ProgressBar(disable=True) as bar:
        bar.add_task("silent", total=2)
        time.sleep(0.1)
    monkeypatch.setattr(progress_bar, "_LINE_SECONDS", 60)
    with ProgressBar() as bar:
        bar.add_task("short", total=2)
    assert not log.text


def test_a_terminal_gets_a_bar_and_no_lines(log):
    terminal = Console(file=io.StringIO(), force_terminal=True, width=100)
    with ProgressBar(console=terminal) as bar:
        bar.add_task("work", total=2, note="a note of lines")
        time.sleep(0.1)
    assert "work" in terminal.file.getvalue()
    assert "━" in terminal.file.getvalue()
    assert "a note of lines" not in terminal.file.getvalue()


def test_a_fit_writes_its_stages_and_epochs(log):
    with Progress(1) as progress:
        progress.stage("forest")
        log.wait_for("forest")
        progress.epoch("network", {"epoch": 3, "train_loss": 0.25}, 10)
        log.wait_for("network · epoch 3 of 10, loss 0.2500")


def test_stages_are_reported_within_the_block_only():
    reported = []
    with reporting_stages_to(reported.append):
        Progress(0).stage("inside")
    Progress(0).stage("outside")
    assert reported == ["inside"]
