"""Sentences are short: at most 30 words in README, docs and docstrings, 20 in help.

Words between full stops, colons and semicolons count; code, tables and headings do not.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from nearwise.cli.app import app

ROOT = Path(__file__).parents[2]
PAGES = sorted({ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("*.md")})
HOW_TO = sorted(ROOT.glob("docs/how-to/*.md"))
SOURCES = sorted(ROOT.glob("src/nearwise/**/*.py"))
MOST = 30
MOST_OF_HELP = 20
TOP: Any = typer.main.get_command(app)
CONTEXT = TOP.make_context("nearwise", [], resilient_parsing=True)
COMMANDS = {name: TOP.get_command(CONTEXT, name) for name in TOP.list_commands(CONTEXT)}
ASIDE = re.compile(r"^```.*?^```|<!-- (\S+):start -->.*?<!-- \1:end -->|`[^`]*`", re.S | re.M)
WORD = re.compile(r"[A-Za-z][\w'\u2019-]*")


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
    assert list(long_sentences(page.read_text("utf-8"), MOST)) == []


def docstrings(source: str) -> Iterator[str]:
    """Docstrings of a module, without examples and underlined headings."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = re.split(r"Examples\n---|\[bold\]Examples", ast.get_docstring(node) or "")[0]
            text = re.sub(r"^(\w+)\n(?= {4})", r"\1:\n", text, flags=re.M)  # exceptions
            text = re.sub(r"^ *>>> .*(?:\n *\S.*)*", "", text, flags=re.M)
            yield re.sub(r"^.*\n *-{3,}$", "\n", text, flags=re.M).replace("``", "`")


@pytest.mark.parametrize(
    "room", sorted({p.parent for p in SOURCES}), ids=lambda p: p.relative_to(ROOT).as_posix()
)
def test_sentences_of_docstrings_are_short(room: Path):
    texts = [text for p in room.glob("*.py") for text in docstrings(p.read_text("utf-8"))]
    assert [long for text in texts for long in long_sentences(text, MOST)] == []


@pytest.mark.parametrize("page", HOW_TO, ids=lambda page: page.stem)
def test_a_how_to_page_is_short(page: Path):
    lines = page.read_text("utf-8").splitlines()
    assert len(lines) <= 80 and max(map(len, lines)) <= 100


def help_texts(command: Any) -> Iterator[str]:
    """Help of a command and of its options, without examples and rich's markup."""
    for text in [command.help, *(getattr(param, "help", None) for param in command.params)]:
        without_examples = re.sub(r"^ {2,}.*$", "", text or "", flags=re.M)
        yield re.sub(r"\[/?[a-z]+\]", "", without_examples)


@pytest.mark.parametrize("name", ["nearwise", *COMMANDS])
def test_help_is_short(name: str):
    texts = help_texts(COMMANDS.get(name, TOP))
    assert [long for text in texts for long in long_sentences(text, MOST_OF_HELP)] == []


def test_help_is_read_without_examples_and_markup():
    examples = "[bold]Examples[/bold]\n  nearwise fit a.csv\n  curl localhost"
    texts = help_texts(typer.core.TyperCommand("one", help=f"One. {examples}"))
    assert " ".join(next(texts).split()) == "One. Examples"


def test_long_sentences_are_found():
    words = " ".join(["word"] * 31)
    text = f"Short. {words}. [{words}](x.md)\n\n| {words} |\n\n```text\n{words}\n```\n- {words}"
    assert len(list(long_sentences(text, MOST))) == 3


def test_docstrings_are_read_without_examples_and_headings():
    source = '"""One.\n\nReturns\n-------\nTwo.\n\n>>> a\nb\n"""\ndef f():\n    "Three."\n'
    assert [" ".join(text.split()) for text in docstrings(source)] == ["One. Two.", "Three."]
