"""Arguments and options shared by several commands."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

DataArgument = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        help="Table: CSV (or .gz), Parquet, Excel, JSON, npz or svmlight. - is standard input. "
        "Images: a folder with one folder per class.",
    ),
]
RowsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="DATA",
        help="Table: CSV (or .gz), Parquet, Excel, JSON, npz or svmlight. - is standard input. "
        "Images: files, or folders of files.",
    ),
]
TargetOption = Annotated[
    str | None,
    typer.Option(
        "--target", "-t", metavar="COLUMN", help="Tables: column of labels or numbers to predict."
    ),
]
TargetsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--target",
        "-t",
        metavar="COLUMN",
        help="Tables: column of labels or numbers to predict. For several labels or numbers per "
        "row repeat the option, or write a pattern such as 'tag_*'.",
    ),
]
TaskOption = Annotated[
    Literal["auto", "classification", "regression"],
    typer.Option(
        help="Predict classes (classification) or numbers (regression). auto decides by the target "
        "column and prints its choice."
    ),
]
KnownTargetOption = Annotated[
    str | None,
    typer.Option("--target", "-t", metavar="COLUMN", help="Default: the target in training."),
]
SkipUnlabelledOption = Annotated[
    bool, typer.Option("--skip-unlabelled", help="Tables: leave out rows without a label.")
]
HeaderOption = Annotated[
    bool | None,
    typer.Option(
        "--header/--no-header",
        help="Tables: whether the first line holds column names. With --no-header the columns are "
        "named 0, 1, 2, ... By default, a first line that looks like data is an error.",
    ),
]
SheetOption = Annotated[
    str | None,
    typer.Option(
        "--sheet",
        metavar="NAME|NUMBER",
        help="Excel: sheet to read, by its name or its number from 1. By default the first one, or "
        "the only one with a table.",
    ),
]
ModelArgument = Annotated[
    Path, typer.Argument(metavar="MODEL", help="Model folder written by 'nearwise fit'.")
]
StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URI",
        help="Where MODEL's training rows are, if 'nearwise move' put them outside its folder. "
        "Only this place is opened, with your user name and settings.",
    ),
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print no progress and no notes.")]
CopyOption = Annotated[
    list[str] | None,
    typer.Option(
        "--copy", metavar="COLUMN", help="Copy a column of DATA, such as an id. May be repeated."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def _names(help_text: str) -> Any:
    return typer.Option(metavar="COLUMN", help=f"{help_text}. May be repeated.")


DropOption = Annotated[list[str] | None, _names("Leave out a column, such as an id")]
ShowOption = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN",
        help="Column of image files, URLs or texts to show with each row. It is no feature. "
        "In an npz: name of an array of text.",
    ),
]
KeepOption = Annotated[list[str] | None, _names("Use a column that would be left out as an id")]
CategoryOption = Annotated[
    list[str] | None, _names("Use a column of numbers as categories (zip codes)")
]
NumberOption = Annotated[
    list[str] | None,
    _names("Read a column of text as numbers, some with a unit. Other text is a missing value"),
]
TextOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="COLUMN[=FOLDER]",
        help="Read a column as text, by its words and parts of words. FOLDER, such as ./potion, "
        "adds a local model2vec or sentence-transformers model. May be repeated.",
    ),
]
WordsOption = Annotated[
    list[str] | None,
    _names("Keep NA, None, ... in a column as text. Only empty cells are missing values"),
]
DateOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="COLUMN[=FORMAT]",
        help="Read a column of text as dates, or stop with the reason. FORMAT, if needed, is "
        "like %d-%m-%y. May be repeated.",
    ),
]
ImageSizeOption = Annotated[
    str | None,
    typer.Option(
        "--image-size",
        metavar="SIDE|HxW",
        help="Images: resize all to this size in pixels, height first. The aspect ratio is "
        "not kept.",
    ),
]
ColorOption = Annotated[
    Literal["grey", "rgb"] | None,
    typer.Option("--color", help="Images: convert all to greyscale or to colour."),
]
SkipDamagedOption = Annotated[
    bool, typer.Option("--skip-damaged", help="Images: leave out unreadable files, and name them.")
]
ResizeOption = Annotated[
    bool,
    typer.Option(
        "--resize", help="Images: resize them to MODEL's size. Photographs are in any case."
    ),
]
CoverageOption = Annotated[
    float | None,
    typer.Option(
        metavar="SHARE",
        help="Accept only the most confident predictions: this share of all rows (0.8: four in "
        "five).",
    ),
]
RiskOption = Annotated[
    float | None,
    typer.Option(
        metavar="SHARE",
        help="Accept as many predictions as possible with at most this share of wrong ones "
        "(0.02: one in fifty). Not with --coverage.",
    ),
]
ConfidenceOption = Annotated[
    float | None,
    typer.Option(
        metavar="LEVEL",
        help="Confidence of prediction sets and intervals (default 0.9: nine in ten hold the true "
        "class or number). Also of the bound on the share of wrong predictions (default 0.95).",
    ),
]
IdsArgument = Annotated[
    str,
    typer.Argument(
        metavar="IDS", help="Row ids, as 'nearwise predict --explain' shows them: 0-4 or 0,2,7."
    ),
]
ForgetOption = Annotated[
    bool, typer.Option("--forget-classes", help="Allow that a class loses its last row.")
]
KeyOption = Annotated[
    str | None,
    typer.Option(
        "--key",
        metavar="TEXT",
        help="Idempotency key: a repeated request with this key is ignored.",
    ),
]


def named_store(store: str | None) -> list[str]:
    """Return the --store option for a suggested command."""
    return [] if store is None else ["--store", store]


@dataclass(frozen=True)
class ReadOptions:
    """Options for reading rows: `header`, `sheet`, `skip_unlabelled` for tables, `quiet` for both.

    The others are for images: size, colour, and damaged files.
    """

    header: bool | None = None
    sheet: str | None = None
    skip_unlabelled: bool = False
    size: str | None = None
    color: Literal["grey", "rgb"] | None = None
    skip_damaged: bool = False
    resize: bool = False
    quiet: bool = False

    def refuse_of_images(self, why: str) -> None:
        """Raise ValueError for image options without images; `why` describes the data."""
        given: dict[str, object] = {"image_size": self.size or None, "color": self.color}
        given |= {"skip_damaged": self.skip_damaged, "resize": self.resize}
        refuse(f"is for images; {why}", given)

    def refuse_of_tables(self, **columns: object) -> None:
        """Raise ValueError for table options, or column names in `columns`, with images."""
        header = "header" if self.header else "no_header"
        refuse("is about a table; images have no columns", {header: self.header is not None})
        refuse("is about a workbook; images have no sheets", {"sheet": self.sheet})
        refuse("names a column; images have none", {n: some or None for n, some in columns.items()})
        unlabelled = {"skip_unlabelled": self.skip_unlabelled}
        refuse("is about a table; the folder of an image is its label", unlabelled)


def refuse(why: str, given: Mapping[str, object], **instead: str) -> None:
    """Raise ValueError for given options (by parameter name) that do not apply.

    `instead` has advice for some options; for others it is to leave them out.
    """
    for name, value in given.items():
        if value is not None and value is not False:
            advice = instead.get(name, "Leave it out")
            raise ValueError(f"--{name.replace('_', '-')} {why}. {advice}.")
