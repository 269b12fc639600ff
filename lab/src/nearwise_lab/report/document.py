"""A report as data: sections of words, tables, figures and galleries, written in every form."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from nearwise_lab.report.drawing import Picture
from nearwise_lab.report.tables import to_latex, to_markdown
from nearwise_lab.results.gallery import Gallery
from nearwise_lab.results.measures import Table


@dataclass(frozen=True)
class Words:
    """A paragraph."""

    text: str
    style: Literal["", "note", "failed"] = ""


@dataclass(frozen=True)
class Terms:
    """Names, each with its description."""

    items: list[tuple[str, str]]


@dataclass(frozen=True)
class Fold:
    """Something that the page shows on request, and other forms show at once."""

    title: str
    blocks: list["Block"]


Block = Words | Terms | Table | Picture | Gallery | Fold


@dataclass(frozen=True)
class Section:
    """A heading and what is below it.

    Attributes
    ----------
    title : str
    level : int
        2 for a chapter, 3 or 4 below it.
    blocks : list
    """

    title: str
    level: int = 2
    blocks: list[Block] = field(default_factory=list)


@dataclass(frozen=True)
class Document:
    """A whole report."""

    title: str
    lead: str
    sections: list[Section]
    footer: str

    def tables(self) -> list[Table]:
        """Every table, in order."""
        return [b for b in self._blocks() if isinstance(b, Table)]

    def pictures(self) -> list[Picture]:
        """Every figure, in order."""
        return [b for b in self._blocks() if isinstance(b, Picture)]

    def _blocks(self) -> Iterator["Block"]:
        return (b for s in self.sections for b in _flat(s.blocks))


def _flat(blocks: list[Block]) -> Iterator[Block]:
    for block in blocks:
        if isinstance(block, Fold):
            yield from _flat(block.blocks)
        else:
            yield block


def flat_blocks(section: Section) -> list[Block]:
    """Blocks of a section with folds opened."""
    return list(_flat(section.blocks))


def document_markdown(document: Document) -> str:
    """Words and tables in GitHub's Markdown; figures are in the page and in the PDF."""
    parts = [f"# {document.title}", document.lead]
    for section in document.sections:
        parts.append(f"{'#' * section.level} {section.title}")
        parts += filter(None, (_block_markdown(block) for block in flat_blocks(section)))
    return "\n\n".join([*parts, document.footer]) + "\n"


def _block_markdown(block: Block) -> str:
    if isinstance(block, Words):
        return block.text
    if isinstance(block, Terms):
        return "\n".join(f"- **{name}**: {text}" for name, text in block.items)
    return to_markdown(block).rstrip() if isinstance(block, Table) else ""


def document_latex(document: Document) -> str:
    """Every table in LaTeX; see `to_latex`."""
    return "\n".join(map(to_latex, document.tables()))
