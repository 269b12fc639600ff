"""``./run`` sets up once, repairs what was interrupted, follows changed pins, and explains itself.

A stand-in interpreter records what it is asked; nothing is installed.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCKS = ("requirements.lock", "requirements-dev.lock")
PROJECTS = ("pyproject.toml", "lab/pyproject.toml")
PYTHON = """#!/bin/sh
case "$*" in
  *version_info*) exit ${STUB_TOO_OLD:-0} ;;
  *ensurepip*) exit ${STUB_NO_VENV:-0} ;;
  --version) echo "Python 3.x" ;;
  "-m venv --clear "*)
    echo venv >> "$STUB_LOG"
    rm -rf "$4"; mkdir -p "$4/bin"
    cp "$0" "$4/bin/python"
    printf '#!/bin/sh\\necho nearwise "$@"\\n' > "$4/bin/nearwise"
    for tool in ruff mypy; do printf '#!/bin/sh\\necho %s "$@"\\n' $tool > "$4/bin/$tool"; done
    chmod +x "$4/bin"/* ;;
  "-m pip install "*"--upgrade --upgrade-strategy eager "*"-e .[dev-full] -e ./lab[all]")
    echo "newest $*" | sed 's/.*\\(newest\\).*eager \\([^ ]*\\) .*/\\1 \\2/' >> "$STUB_LOG"
    exit ${STUB_PIP_FAILS:-0} ;;
  "-m pytest "*) echo "pytest $*" ;;
  "-m pip install "*"--no-deps --require-hashes -r requirements"*".lock")
    [ -n "$STUB_WRONG_HASH" ] || exit 0
    echo "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES"
    exit 1 ;;
  "-m pip install "*"--no-build-isolation -c constraints.txt -e .[dev"*" -e ./lab"*)
    case "$*" in *dev-full*"lab[all]") echo all ;; *"-e .[dev] -e ./lab") echo dev ;; esac \\
      >> "$STUB_LOG"
    echo "Collecting torch>=2.6 (from nearwise)"
    [ -z "$STUB_KILLED" ] || kill -9 $$
    exit ${STUB_PIP_FAILS:-0} ;;
esac
"""


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "a project"
    folder.mkdir()
    (folder / "lab").mkdir()
    for name in ("run", *PROJECTS, "constraints.txt", *LOCKS):
        shutil.copy(ROOT / name, folder / name)
    stub = tmp_path / "python"
    stub.write_text(PYTHON)
    stub.chmod(0o755)
    return folder


def run(project, *arguments, **environment):
    settings = {"PYTHON": str(project.parent / "python"), "STUB_LOG": str(project.parent / "log")}
    return subprocess.run(
        [project / "run", *arguments],
        env=os.environ | settings | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def steps(project):
    log = project.parent / "log"
    return log.read_text().split() if log.exists() else []


def test_help_needs_no_python(project):
    result = run(project, "help", PYTHON="no-such-python")
    assert result.returncode == 0
    assert "./run demo" in result.stdout


def test_the_first_call_sets_up_and_the_next_starts_at_once(project):
    first = run(project, "inspect", "my model", "--json")
    assert first.stdout == "nearwise inspect my model --json\n"
    assert "Setting up" in first.stderr
    assert "collecting torch>=2.6" in first.stderr
    second = run(project, "demo")
    assert (second.stdout, second.stderr) == ("nearwise demo\n", "")
    assert steps(project) == ["venv", "all"]


@pytest.mark.parametrize("file", ["constraints.txt", *LOCKS])
def test_a_changed_pin_is_installed_into_the_same_environment(project, file):
    run(project, "demo")
    with (project / file).open("a") as pins:
        pins.write("extra==1\n")
    assert run(project, "demo").stdout == "nearwise demo\n"
    assert steps(project) == ["venv", "all", "all"]


def test_a_killed_set_up_is_made_anew(project):
    assert run(project, "demo", STUB_KILLED="1").returncode != 0
    result = run(project, "demo")
    assert result.stdout == "nearwise demo\n"
    assert "making it anew" in result.stderr
    assert steps(project) == ["venv", "all", "venv", "all"]


def test_a_failed_installation_shows_its_output_and_goes_on_later(project):
    failed = run(project, "demo", STUB_PIP_FAILS="1")
    assert failed.returncode == 2
    assert "the installation failed" in failed.stderr
    assert "Collecting torch" in failed.stderr
    assert run(project, "demo").stdout == "nearwise demo\n"
    assert steps(project) == ["venv", "all", "all"]


@pytest.mark.parametrize("asked", [{}, {"TORCH": "torch"}], ids=["pinned torch", "newest torch"])
def test_the_newest_versions_are_tried_in_an_environment_of_their_own(project, asked):
    done = run(project, "newest", "-k", "round", **asked)
    assert done.returncode == 0, done.stderr
    assert "tests/estimators/test_persistence.py" in done.stdout
    assert done.stdout.endswith("-k round\n")
    venv, newest, torch = steps(project)
    assert (venv, newest) == ("venv", "newest")
    assert torch == "torch" if asked else torch.startswith("torch==")
    assert not (project / ".venv").exists()


def test_newest_versions_that_do_not_install_are_said(project):
    failed = run(project, "newest", STUB_PIP_FAILS="1")
    assert failed.returncode == 2
    assert "the newest versions do not install together" in failed.stderr


def test_a_package_with_another_hash_ends_the_installation(project):
    failed = run(project, "demo", STUB_WRONG_HASH="1")
    assert failed.returncode == 2
    assert "DO NOT MATCH THE HASHES" in failed.stderr
    assert steps(project) == ["venv"]


def test_the_tests_install_what_they_need_and_everything_else_every_extra(project):
    tested = run(project, "test", "-k", "round")
    assert tested.returncode == 0, tested.stderr
    assert "pytest -m pytest -n auto" in tested.stdout and "-k round" in tested.stdout
    assert "--all-extras" not in tested.stdout
    assert "mypy --num-workers 2 --disable-error-code import-not-found" in tested.stdout
    assert run(project, "test").returncode == 0
    assert steps(project) == ["venv", "dev"]
    assert run(project, "demo").stdout == "nearwise demo\n"
    assert "--all-extras -k round" in run(project, "test", "--all-extras", "-k", "round").stdout
    everything = run(project, "test-all")
    assert everything.stdout.count("--all-extras") == 2
    assert "mypy --num-workers 2\n" in everything.stdout
    assert run(project, "test").returncode == 0  # more than it needs is there
    assert steps(project) == ["venv", "dev", "all"]


def locked_in(lock: str) -> dict[str, str]:
    """Versions of a lock, in which every entry has hashes and nothing has an address."""
    locked = dict(re.findall(r"^([\w.-]+)==(\S+)[^\n]*\n    --hash=sha256:", lock, re.MULTILINE))
    assert len(locked) == len(re.findall(r"^\w", lock, re.MULTILINE))
    assert "://" not in lock and "--index" not in lock and "--find" not in lock
    return locked


def test_developers_need_few_packages_in_the_same_versions():
    few, all_of_them = (locked_in((ROOT / name).read_text()) for name in reversed(LOCKS))
    assert few.items() <= all_of_them.items()
    assert len(few) <= 60 - len({"torch", "pip", "nearwise", "nearwise-lab"})


def test_the_lock_holds_the_pinned_versions():
    locked = locked_in((ROOT / "requirements.lock").read_text())
    pins = re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    pinned = {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pins}
    pinned.pop("torch")  # its builds differ between machines
    said = "remake requirements.lock as CONTRIBUTING.md says"
    assert {name: locked.get(name) for name in pinned} == pinned, said
    elsewhere = {name for name in locked if name not in pinned}  # other systems
    assert elsewhere <= {"cffi", "colorama", "httpx2-jsfetch", "pycparser"}, said


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"PYTHON": "no-such-python"}, "no no-such-python found. Install Python 3.11 or newer"),
        ({"STUB_TOO_OLD": "1"}, "needs Python 3.11 or newer; found Python 3.x"),
        ({"STUB_NO_VENV": "1"}, "python3-venv"),
    ],
    ids=["missing", "too old", "no venv"],
)
def test_an_unfit_python_is_explained(project, environment, message):
    result = run(project, "demo", **environment)
    assert result.returncode == 2
    assert message in result.stderr
    assert steps(project) == []
