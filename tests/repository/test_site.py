"""The documentation site: every page has its place, and all of it builds without a warning."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytest.importorskip("sphinx", reason="the site needs the extra docs")


@pytest.fixture(scope="module")
def site():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "docs/site")
        yield _imported("build")


@pytest.fixture(scope="module")
def reference():
    return _imported("reference")


def _imported(name: str):
    spec = importlib.util.spec_from_file_location(f"site_{name}", ROOT / f"docs/site/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_page_is_in_a_part_of_the_site(site):
    found = set(site.pages())
    assert {path.relative_to(ROOT) for path in ROOT.glob("docs/**/*.md")} < found
    assert {path.relative_to(ROOT) for path in ROOT.glob("lab/docs/*.md")} < found


def test_links_lead_to_pages_of_the_site_or_to_the_repository(site, tmp_path):
    site.write_pages(tmp_path)
    for page in tmp_path.rglob("*.md"):
        for link in re.findall(r"\]\(([^)\s#]+)", page.read_text("utf-8")):
            if not link.startswith("https://") and "gallery" not in str(page):
                target = (page.parent / link).resolve()
                assert target.exists() or link.endswith("index.md"), (page.name, link)
                assert target.is_relative_to(tmp_path), (page.name, link)


def test_commands_are_described_with_all_their_options(reference):
    text = "\n".join(reference.commands())
    for name in ("fit", "predict", "evaluate", "serve", "undo"):
        assert f"## nearwise {name}\n" in text
    assert "--confidence LEVEL" in text and "--target" in text


def test_routes_are_described_with_their_bodies_and_answers(reference):
    text = "\n".join(reference.routes(reference.openapi()))
    assert "### POST /predict\n" in text and text.index("## Predict") < text.index("## Memory")
    assert re.search(r'"sepal length \(cm\)": \d', text)
    assert (
        "Body: [PredictRequest](#predictrequest)\n" in text
        and "| `Idempotency-Key` | header |" in text
    )
    assert "Answer: 200, [Predictions](#predictions)\n" in text
    assert "| `predictions` | array of [Prediction](#prediction) |" in text
    assert re.search(r"^\| 422 \| .+ \|$", text, re.MULTILINE)


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path):
    command = [sys.executable, str(ROOT / "docs/site/build.py"), str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-5_000:]
    assert (tmp_path / "html/reference/generated/nearwise.AttnKNNClassifier.html").exists()
    assert "AttnKNNClassifier" in (tmp_path / "html/searchindex.js").read_text("utf-8")
    assert (tmp_path / "html/llms.txt").read_text("utf-8").startswith("# nearwise")
