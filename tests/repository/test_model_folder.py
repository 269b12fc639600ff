"""The reference of the model folder names every file and array that `save` writes."""

import json
import re
from pathlib import Path

import pytest
from safetensors import safe_open
from sklearn.datasets import load_diabetes, load_iris

from nearwise import AttnKNNClassifier, AttnKNNRegressor, LiveModel

PAGE = Path(__file__).parents[2] / "docs/reference/model-folder.md"
MEANT = {"blobN": r"blob\d+", "NAME/FOLD": r"[\w-]+/\d+", "...": ".+"}


def named(section: str) -> re.Pattern[str]:
    """Match the names in the first column of a section's table; capitals stand for a word."""
    text = PAGE.read_text("utf-8").partition(f"## {section}\n")[2].partition("\n## ")[0]
    cells = (line.split("|")[1] for line in text.splitlines() if line.startswith("| `"))
    names = (name for cell in cells for name in re.findall(r"`([^`]+)`", cell))
    capital = re.compile(r"(blobN|NAME/FOLD|\.\.\.|[A-Z]{4,})")
    return re.compile("|".join(
        "".join(MEANT.get(part, r"\w+") if n % 2 else re.escape(part)
                for n, part in enumerate(capital.split(name))) for name in names
    ))  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = tmp_path_factory.mktemp("models")
    iris = AttnKNNClassifier(preset="instant", random_state=0)
    X, y = load_iris(return_X_y=True, as_frame=True)
    iris.fit(X, y).save(made / "iris")
    LiveModel(made / "iris").remove([3])
    numbers = AttnKNNRegressor(preset="instant", random_state=0)
    numbers.fit(*load_diabetes(return_X_y=True)).save(made / "numbers")
    return [made / "iris", made / "numbers"]


def test_what_is_shown_is_where_the_reference_says(tmp_path):
    section = (
        PAGE.read_text("utf-8").partition("## What is shown with rows\n")[2].partition("\n## ")[0]
    )
    X, y = load_iris(return_X_y=True, as_frame=True)
    X = X.assign(photo=[f"{i}.png" if i else None for i in range(len(X))])
    model = AttnKNNClassifier(preset="instant", estimator=None, random_state=0)
    model.fit(X, y, show="photo").save(tmp_path / "m")
    files = json.loads((tmp_path / "m" / "manifest.json").read_text())["files"]
    meta = json.loads((tmp_path / "m" / files["meta"]["file"]).read_text())
    assert meta["row_names"] == ["", *X["photo"][1:]] and "`row_names`" in section
    reason = meta["encoder"]["report"][-1]["reason"]
    assert f'has the reason "{reason}"' in " ".join(section.split())


def test_every_file_and_array_is_in_the_reference(folders):
    files, arrays = named("Files"), named("Arrays")
    for folder in folders:
        for path in folder.iterdir():
            assert files.fullmatch(path.name), path.name
        manifest = json.loads((folder / "manifest.json").read_text())
        members = PAGE.read_text("utf-8").partition("## manifest.json")[2].partition("## ")[0]
        assert {*re.findall(r"^\| `(\w+)`", members, re.M)} == manifest.keys()
        with safe_open(folder / manifest["files"]["tensors"]["file"], "np") as opened:
            for name in opened.keys():  # noqa: SIM118 - not a dict
                assert arrays.fullmatch(name), name
