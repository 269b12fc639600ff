"""README.md and docs/**/*.md: their Python blocks run as they stand; their links lead somewhere."""

import re
import runpy
import warnings
from collections.abc import Collection
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]
# The first pages of a newcomer run with every change, and all pages in './run slow'.
SLOW = {
    "images", "trust", "wrong-labels",
}  # fmt: skip
FENCE = re.compile(
    r"(?P<note><!--\s*(?P<word>[\w-]+)(?::\s*(?P<reason>[^>]*?))?\s*-->\s*\n)?"
    r"^(?P<indent>[ ]*)```(?P<lang>[\w+-]*)[^\n]*\n(?P<code>.*?)^(?P=indent)```[ ]*$",
    re.DOTALL | re.MULTILINE,
)


def python_blocks(text: str) -> list[tuple[int, str, str | None]]:
    """List (line, code, reason not to run it or None) of a page's Python blocks.

    A block is left out only where the line above it says why:
    ``<!-- not-run: needs a running server -->``.
    """
    blocks = []
    for match in FENCE.finditer(text):
        if match["lang"] not in ("python", "py", "python3"):
            continue
        line = text.count("\n", 0, match.start("code")) + 1
        code = re.sub(rf"^{match['indent']}", "", match["code"], flags=re.MULTILINE)
        reason = (match["reason"] or "").strip() if match["word"] == "not-run" else None
        blocks.append((line, code, reason))
    return blocks


def each_page(pages: list[Path], slow: Collection[str] = ()) -> pytest.MarkDecorator:
    """Every page; those in `slow`, whose fits take ten seconds and more, only in './run slow'."""
    assert {page.stem for page in pages} >= set(slow)
    marked = [pytest.param(p, marks=pytest.mark.slow if p.stem in slow else ()) for p in pages]
    return pytest.mark.parametrize("page", marked, ids=lambda p: str(p.relative_to(ROOT)))


@each_page(PAGES, SLOW)
def test_code_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run_blocks(page, tmp_path, monkeypatch)


def run_blocks(page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a page's blocks in order as one script, as a reader would run them."""
    script = []
    for line, code, reason in python_blocks(page.read_text(encoding="utf-8")):
        if reason is not None:
            assert reason, f"{page.name}:{line} is marked not-run without a reason"
            continue
        # blank lines put every block on its own line number, so a traceback points into the page
        script += [""] * (line - 1 - len(script)) + code.splitlines()
    path = folder / f"{page.stem}.py"
    path.write_text("\n".join(script) + "\n", encoding="utf-8")
    monkeypatch.chdir(folder)
    with warnings.catch_warnings():
        warnings.resetwarnings()
        warnings.filterwarnings("error", category=DeprecationWarning, module="__main__")
        runpy.run_path(str(path), run_name="__main__")


def anchors(page: Path) -> set[str]:
    """Give the names of a page's headings as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.M)
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings}


@each_page(PAGES)
def test_links_lead_to_files_and_headings(page: Path):
    check_links(page)


def check_links(page: Path) -> None:
    """Every link within the repository leads to a file, and to a heading where it names one."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for link in re.findall(r"\]\(([^)\s]+)\)|<img src=\"([^\"]+)\"", text):
        name, _, heading = "".join(link).partition("#")
        if name.startswith("http"):
            continue
        target = page.parent / name if name else page
        assert target.exists(), f"{page.name}: {name} is missing"
        if heading:
            assert heading in anchors(target), f"{page.name}: no heading #{heading} in {name}"


def test_blocks_are_found_with_their_lines_and_reasons():
    page = (
        "# Title\n\n```python\nx = 1\n```\n\n```bash\nnearwise --help\n```\n\n"
        "<!-- not-run: needs a server -->\n```python\ny = 2\n```\n\n"
        "- item\n\n  ```py\n  if x:\n      z = 3\n  ```\n"
    )
    assert python_blocks(page) == [
        (4, "x = 1\n", None),
        (13, "y = 2\n", "needs a server"),
        (19, "if x:\n    z = 3\n", None),
    ]
