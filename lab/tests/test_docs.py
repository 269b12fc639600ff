"""lab/README.md and lab/docs/*.md: their Python blocks run; their links lead somewhere."""

from pathlib import Path

import pytest

from tests.repository.test_readme import check_links, each_page, run_blocks

LAB = Path(__file__).parents[1]
PAGES = [LAB / "README.md", *LAB.glob("docs/*.md")]
SLOW = {"layers", "long-tail", "neural-fields", "probes", "representations", "vit-training"}


@each_page(PAGES, SLOW)
def test_code_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run_blocks(page, tmp_path, monkeypatch)


@each_page(PAGES)
def test_links_lead_to_files_and_headings(page: Path):
    check_links(page)
