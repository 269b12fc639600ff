"""What ``nearwise fit`` says on Ctrl-C is true: what was saved, and the command that goes on."""

import os
import shlex
import signal
import subprocess
import sys

import pytest

from nearwise.estimators.fit import number_base, pipeline
from tests.cli.conftest import make_table

FIT = ("-t", "label", "--drop", "row", "-q")


def pressed(*args, **kwargs):
    raise KeyboardInterrupt


def command_in(said):
    """Give the words of the command that a message ends with."""
    return shlex.split(said.strip().rpartition(": nearwise ")[2])


# where Ctrl-C is pressed, options, what the message says of it
STAGES = {
    "the forest": (pipeline, "_forest", (), "Stopped in neighbors of fold 1 of 5"),
    "the memory": (pipeline, "_remember", ("--preset", "instant"), "Stopped in memory"),
    "the feature map": (pipeline, "fit_features", (), "Stopped in "),
    "a key space": (pipeline, "fit_keys", ("--embedder", "table"), "Stopped in "),
}


@pytest.mark.parametrize("stage", STAGES)
def test_a_stop_names_its_step_and_a_command_that_works(
    nearwise, tables, tmp_path, monkeypatch, stage
):
    module, name, options, said = STAGES[stage]
    place = tmp_path / "m"
    with monkeypatch.context() as patch:
        patch.setattr(module, name, pressed)
        stopped = nearwise("fit", tables / "train.csv", "-o", place, *FIT, *options)
    assert stopped.exit_code == 130 and said in stopped.err
    assert "nothing was saved" in stopped.err and not place.exists()
    assert not place.with_name("m.checkpoint").exists() or "--resume" in stopped.err
    if "nearwise fit" in stopped.err and stage != "a key space":  # which takes long
        words = command_in(stopped.err)
        assert "--preset" in words and nearwise(*words).exit_code == 0 and place.exists()


def test_a_stop_while_classifiers_are_tried_saves_what_there_is(
    nearwise, tables, tmp_path, monkeypatch
):
    place = tmp_path / "m"
    options = ("--cv", "2")
    with monkeypatch.context() as patch:
        patch.setattr("nearwise.estimators.fit.base.LogisticRegression.fit", signal_to_self)
        stopped = nearwise("fit", tables / "train.csv", "-o", place, *FIT, *options)
    assert stopped.exit_code == 130 and "holds the best model so far" in stopped.err
    assert nearwise("predict", place, tables / "new.csv", "-q").exit_code == 0
    assert "--resume" not in stopped.err  # there is no checkpoint
    assert nearwise(*command_in(stopped.err)).exit_code == 0


LOST = {
    "evaluate": ("nearwise.cli.commands.evaluate.score_rows", "No score was written."),
    "predict": ("nearwise.cli.commands.predict.read_to_predict", "Nothing was written"),
    "embed": ("nearwise.cli.commands.embed.read_to_predict", "Nothing was written"),
    "explain": ("nearwise.cli.commands.explain.read_to_predict", "rows shown so far"),
    "add": ("nearwise.cli.commands.change.read_for_model", "nearwise history"),
}


@pytest.mark.parametrize("command", LOST)
def test_a_stop_of_a_long_command_says_what_is_lost(
    nearwise, tables, model, tmp_path, monkeypatch, command
):
    place, said = LOST[command]
    monkeypatch.setattr(place, pressed)
    out = ("-o", tmp_path / "o.csv") if command in ("predict", "embed") else ()
    stopped = nearwise(command, model, tables / "test.csv", *out)
    assert stopped.exit_code == 130 and stopped.out == ""
    assert "Stopped. " in stopped.err and said in stopped.err
    assert not (tmp_path / "o.csv").exists()
    assert nearwise("history", model, "--json").json() == []


def test_a_stop_of_clean_names_the_step_of_its_fit(nearwise, tables, monkeypatch):
    monkeypatch.setattr(pipeline, "_remember", pressed)
    stopped = nearwise("clean", tables / "train.csv", "-t", "label", "--drop", "row", "-q")
    assert stopped.exit_code == 130
    assert "Stopped in memory (step 3 of 4). Nothing was written" in stopped.err


def test_a_stop_in_the_base_of_a_regressor_keeps_what_is_complete(nearwise, tmp_path, monkeypatch):
    table = make_table(120, 0).assign(price=lambda t: t["width"] * 3 + t["height"].fillna(0))
    table.drop(columns=["label", "row"]).to_csv(tmp_path / "t.csv", index=False)
    fit = ("fit", tmp_path / "t.csv", "-t", "price", "-o", tmp_path / "m", "--cv", "2", "-q")
    locations = number_base.NumberCandidate.locations

    def interrupted(self, view, fold):
        if self.name == "kernel-ridge":
            signal_to_self()
        return locations(self, view, fold)

    with monkeypatch.context() as patch:
        patch.setattr(number_base.NumberCandidate, "locations", interrupted)
        stopped = nearwise(*fit)
    assert stopped.exit_code == 130 and "holds the best model so far" in stopped.err
    assert nearwise("predict", tmp_path / "m", tmp_path / "t.csv", "-q").exit_code == 0
    base = nearwise("inspect", tmp_path / "m", "--json").json()["choice"]["base"]
    assert {*base} <= {"extra-trees", "ridge"}


def signal_to_self(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.slow
@pytest.mark.parametrize("line", ["base: logistic", "neighbors of fold 2", "embedder deep", "head"])
def test_a_signal_to_the_process_leaves_what_its_message_says(tmp_path, line):
    make_table(400, 0).to_csv(tmp_path / "t.csv", index=False)
    words = ["fit", "t.csv", "-o", "m", "-t", "label", "--drop", "row", "-v"]
    words += ["--embedder", "deep"]
    command = [sys.executable, "-m", "nearwise"]
    process = subprocess.Popen(
        [*command, *words], cwd=tmp_path, stderr=subprocess.PIPE, text=True, bufsize=1
    )
    said = ""
    for text in process.stderr:
        said += text
        if text.startswith(line) or f"{line}," in text:
            process.send_signal(signal.SIGINT)
            said += process.stderr.read()
            break
    assert process.wait(300) == 130, said
    flat = " ".join(said.split())
    assert ("nothing was saved" in flat) != (tmp_path / "m").exists()
    again = command_in(said)
    done = subprocess.run([*command, *again], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and (tmp_path / "m").exists(), done.stderr
