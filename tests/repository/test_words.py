"""Sentences are short: at most 30 words in README and docs, 20 in help.

Words between full stops, colons and semicolons count; code, tables and headings do not.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted({ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("*.md")})
MOST = 30
ASIDE = re.compile(r"^```.*?^```|<!-- (\S+):start -->.*?<!-- \1:end -->|`[^`]*`", re.S | re.M)
WORD = re.compile(r"[A-Za-z][\w'’-]*")


def long_sentences(text: str, most: int) -> Iterator[str]:
    """Sentences with more words than `most`."""
    prose = ASIDE.sub("code", text)
    prose = "\n".join(
        line for line in prose.splitlines() if not line.lstrip().startswith(("|", "#"))
    )
    prose = re.sub(r"\]\([^)]*\)", "]", prose)
    for part in re.split(r"\n\s*\n|\n\s*(?=- |\d+\. )", prose):
        for sentence in re.split(r"[.!?:;](?=\s|[)*\"']|$)", part):
            if len(WORD.findall(sentence)) > most:
                yield " ".join(sentence.split())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_sentences_are_short(page: Path):
    if page.name != "CHANGELOG.md":
        assert list(long_sentences(page.read_text("utf-8"), MOST)) == []


def test_long_sentences_are_found():
    words = " ".join(["word"] * 31)
    text = f"Short. {words}. [{words}](x.md)\n\n| {words} |\n\n```text\n{words}\n```\n- {words}"
    assert len(list(long_sentences(text, MOST))) == 3
