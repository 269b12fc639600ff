"""Every command that a page of the lab prints runs, at a size of seconds."""

import re
import shlex
from pathlib import Path

import pytest

from tests.repository.test_readme import FENCE

pytestmark = pytest.mark.slow
LAB = Path(__file__).parents[2]
PAGES = [LAB / "README.md", *sorted((LAB / "docs").glob("*.md"))]
# Data sets that ship with scikit-learn, in place of those that must be downloaded.
SHIPPED = {"wine-red": "wine", "cifar10": "digits-images"}
SHIPPED_OF_VIT = {"cifar10": "digits"}
SMALL = {
    "experiment": "--small --seeds 0 --set max_rows=120 --set max_test_rows=60",
    "vit train": "--num-epochs 1 --train-limit 64 --test-limit 64",
    "vit bench": "--tokens 17 --device cpu --dtype float32 --layers KNNAttention --no-memory",
}
OF_THE_READER = {
    "hf:": "a model of the hub",
    "features.npz": "features of the reader's",
    "mymodels:": "an encoder of the reader's",
}


def commands(page: Path) -> list[str]:
    """Commands of the blocks of a page, without `nearwise` and their comments."""
    blocks = [match["code"] for match in FENCE.finditer(page.read_text(encoding="utf-8"))]
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    found = [re.sub(r"\s+#.*", "", line.strip().removeprefix("$ ")) for line in lines]
    return [line.removeprefix("nearwise ") for line in found if line.startswith("nearwise ")]


def made_small(command: str) -> list[str]:
    """Let a command take seconds, on data that are here."""
    command = command.replace("-cifar10-", "-digits-")  # in folders of runs of vit
    for name, other in (SHIPPED_OF_VIT if command.startswith("vit") else SHIPPED).items():
        command = re.sub(rf"\b{name}\b", other, command)
    command = re.sub(r"\bcuda\b", "cpu", command)
    options = next((more for start, more in SMALL.items() if command.startswith(start)), "")
    if "--test-only" in command:
        options = ""
    return shlex.split(f"{command} {options}")


@pytest.mark.parametrize(
    "page", [page for page in PAGES if commands(page)], ids=lambda page: page.stem
)
def test_the_commands_of_a_page_run_one_after_the_other(page, nearwise, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for command in commands(page):
        if not any(word in command for word in OF_THE_READER):
            result = nearwise(*made_small(command))
            assert result.exit_code == 0, f"nearwise {command}\n{result.err}"


def test_no_excuse_is_stale():
    printed = "\n".join(command for page in PAGES for command in commands(page))
    assert [word for word in OF_THE_READER if word not in printed] == []
    assert [name for name in SMALL if f"{name} " not in f"{printed} "] == []
