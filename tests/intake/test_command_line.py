"""Bad requests on the command line: each gets one clear line, and no file is harmed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from nearwise.cli.models import sole_writer
from nearwise.cli.outputs import check_output
from tests.cli.conftest import make_table
from tests.estimators.image_cases import named_folder

QUICK = ("--cv", "2", "--estimator", "none", "-q")
RAW = re.compile(r"Traceback|(Key|Type|Index|Runtime|Attribute|Assertion)Error|fault of nearwise")


def contents(folder):
    """Every file and link below a folder, with what it holds or leads to."""
    return {
        path: os.readlink(path) if path.is_symlink() else path.is_file() and path.read_bytes()
        for path in sorted(Path(folder).rglob("*"))
    }


def refused(result, message):
    """Whether a command ended as for a user's mistake, with one error that says this."""
    errors = [line for line in result.err.splitlines() if line.startswith("error: ")]
    assert (result.exit_code, result.out, len(errors)) == (2, "", 1), result
    assert re.search(message, errors[0]), errors[0]
    assert not RAW.search(result.err)
    return True


@pytest.fixture
def place(tables, model, tmp_path, monkeypatch):
    """Stand in a folder with train.csv, new.csv, a model "m", images and some links."""
    for name in ("train.csv", "new.csv"):
        (tmp_path / name).write_bytes((tables / name).read_bytes())
    model.rename(tmp_path / "m")
    named_folder(tmp_path / "images", 4)
    (tmp_path / "link.csv").symlink_to("new.csv")
    os.link(tmp_path / "new.csv", tmp_path / "hard.csv")
    (tmp_path / "into").symlink_to("m")
    monkeypatch.chdir(tmp_path)
    return tmp_path


# table -> message of `fit`
TABLES = {
    "no such target": (lambda f: f.rename(columns={"label": "lable"}), "Did you mean 'lable'"),
    "gap in target": (lambda f: f.assign(label=f["label"].where(f.index > 0)), "1 of 30 rows"),
    "target alone": (lambda f: f[["label"]], "no columns but the target"),
    "one row": (lambda f: f.head(1), "A classifier needs at least 2 classes"),
    "no rows": (lambda f: f.head(0), "at least one row"),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_that_cannot_be_learned_from_is_refused(nearwise, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    change, message = TABLES[name]
    change(make_table(30, 0)).to_csv("t.csv", index=False)
    before = contents(tmp_path)
    assert refused(nearwise("fit", "t.csv", "-t", "label", "-o", "out", *QUICK), message)
    assert contents(tmp_path) == before  # no model, no lock, no checkpoints


OVER_INPUT = "would replace what is read from"
IN_MODEL = "lies in the model|is a model's folder|is a folder"
# request -> message; all of them are refused before any work is done
REQUESTS = {
    "predict m new.csv -o new.csv": OVER_INPUT,
    "predict m new.csv -o ./images/../new.csv": OVER_INPUT,
    "predict m new.csv -o link.csv": OVER_INPUT,
    "predict m link.csv -o new.csv": OVER_INPUT,
    "predict m new.csv -o hard.csv": OVER_INPUT,
    "predict m images/up/000.png -o images/up/000.png --format csv": OVER_INPUT,
    "predict m images -o images/up/000.png --format csv": OVER_INPUT,
    "predict m new.csv -o m/p.csv": IN_MODEL,
    "predict m new.csv -o m/deeper/p.csv": IN_MODEL,
    "predict m new.csv -o into/p.csv": IN_MODEL,
    "predict m new.csv -o m/manifest.json --format csv": IN_MODEL,
    "predict m new.csv -o m": IN_MODEL,
    "predict m new.csv -o images --format csv": "is a folder. Name a file",
    "predict m new.csv -o p.xyz": "names no format",
    "predict m missing.csv": "No file missing.csv",
    "predict missing new.csv": "missing does not exist; a model is a folder",
    "predict new.csv new.csv": "new.csv is a file; a model is a folder",
    "predict images new.csv": "not a folder saved by nearwise",
    "clean train.csv -t label -o train.csv": OVER_INPUT,
    "clean train.csv -t label -o m/p.csv": IN_MODEL,
    "evaluate m train.csv --report train.csv": OVER_INPUT,
    "evaluate m train.csv --json train.csv": OVER_INPUT,
    "evaluate m train.csv --json a.html --report a.html": OVER_INPUT,
    "evaluate m train.csv --report m/a.html": IN_MODEL,
    "evaluate m train.csv --json into/a.json": IN_MODEL,
    "add m train.csv -o m/bigger": IN_MODEL,
    "add m train.csv -o images": "files that are not ours",
    "add m images -o images/bigger": "lies in the folder images, which is read",
    "add missing train.csv": "missing does not exist; a model is a folder",
    "fit train.csv -t label -o train.csv": "is a file; a model is a folder",
    "fit train.csv -t label -o m": "already holds a model",
    "fit train.csv -t label -o m/deeper": IN_MODEL,
    "fit train.csv -t label -o images": "files that are not ours",
    "fit images -o images/model": "lies in the folder images, which is read",
    "fit images -o images/up/model": "lies in the folder images, which is read",
}


@pytest.mark.parametrize("request_", REQUESTS)
def test_a_bad_request_is_answered_in_a_line_and_harms_nothing(nearwise, place, request_):
    before = contents(place)
    assert refused(nearwise(*request_.split()), REQUESTS[request_])
    assert contents(place) == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.drop(columns="width"), "no column 'width'"),
        (lambda f: f.assign(width="wide"), "'width'.*'wide'"),
        (lambda f: f.assign(width=np.inf), "Column 'width' holds infinity"),
        (lambda f: f.assign(width=1e300), "too large"),
    ],
    ids=["missing column", "text in a number", "infinity", "huge"],
)
def test_rows_that_the_model_cannot_take_are_refused(nearwise, place, change, message):
    change(pd.read_csv("new.csv")).to_csv("odd.csv", index=False)
    before = contents(place)
    assert refused(nearwise("predict", "m", "odd.csv", "-o", "p.csv"), message)
    assert contents(place) == before


def test_an_empty_standard_input_is_named(nearwise, place):
    assert refused(nearwise("predict", "m", "-", stdin=b""), "standard input is empty")


def test_a_place_that_is_not_there_and_a_full_disk_are_named(nearwise, place):
    ask = ("predict", "m", "new.csv", "-q", "-o")
    assert refused(nearwise(*ask, "nowhere/p.csv"), "no folder .*nowhere. Make it first")
    for form in ("csv", "jsonl"):
        full = nearwise(*ask, "/dev/full", "--format", form)
        assert refused(full, "/dev/full: No space left on device")
    assert Path("/dev/full").is_char_device()


def test_an_output_beside_the_images_that_are_read_is_fine(place):
    check_output("--out", "images/p.csv", ["images"])
    Path("images/p.csv").write_text("of an earlier run")
    check_output("--out", "images/p.csv", ["images"])


def run(shell_line):
    """Run a line in a shell, which can close streams; ``nearwise`` is the command."""
    line = shell_line.replace("nearwise", f"{sys.executable} -m nearwise", 1)
    return subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("nearwise predict m new.csv >&-", "Standard output is closed"),
        ("nearwise predict m new.csv --format jsonl >&-", "Standard output is closed"),
        ("nearwise predict m new.csv >&- 2>&-", ""),
        ("nearwise predict m - -o new.csv <new.csv", OVER_INPUT),
        ("nearwise inspect m >/dev/full", "Cannot write to standard output: No space left"),
        ("nearwise fit new.csv -o new.csv 2>&-", ""),
    ],
)
def test_closed_and_full_streams_are_a_user_s_matter(place, line, message):
    before = contents(place)
    done = run(line)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr and not RAW.search(done.stderr)
    assert contents(place) == before


def test_files_never_get_the_number_of_a_closed_stream(place):
    code = (
        "import os; from nearwise.cli.console import open_streams; open_streams(); "
        "number = os.open('new.csv', os.O_RDONLY); os._exit(0 if number > 2 else 1)"
    )
    line = f'{sys.executable} -c "{code}" <&- >&- 2>&-'
    assert subprocess.run(["sh", "-c", line], check=False).returncode == 0


def test_a_model_that_another_process_changes_is_not_touched(nearwise, place):
    with sole_writer(Path("m")):
        before = contents(place)
        add = nearwise("add", "into", "train.csv")  # the same model by another name
        fit = nearwise("fit", "train.csv", "-t", "label", "-o", "m", "--overwrite", *QUICK)
        assert refused(add, "another process is changing into")
        assert refused(fit, "another process is changing m")
        assert contents(place) == before


def test_a_lock_file_that_is_a_link_is_not_followed(nearwise, place):
    Path(".m.lock").symlink_to("train.csv")
    before = contents(place)
    assert refused(nearwise("add", "m", "train.csv"), "is not a plain file.*Nothing was touched")
    assert contents(place) == before
