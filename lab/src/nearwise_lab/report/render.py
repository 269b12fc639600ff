"""The report of a results folder, from its records alone."""

from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path

from nearwise_lab.experiments import read_records
from nearwise_lab.report.compare import comparison_document
from nearwise_lab.report.summary import Results
from nearwise_lab.report.writers import FORMATS, check_formats, write_document

OF_COMPARISONS = ("html", "md", "tex", "csv", "json")  # where none are requested


def render_report(
    folder: str | PathLike[str],
    *,
    title: str | None = None,
    formats: Sequence[str] | None = None,
    progress: Callable[[str], None] | None = None,
) -> Path:
    """Write the report of a results folder into it, from its records alone.

    Run it again at any time, also while an experiment or a comparison is still going. Returns the
    page where it was requested, else the first file.

    Parameters
    ----------
    folder : path
        Written by `compare`, `run_experiment` or `run_comparison`.
    title : str, optional
        Heading of the report.
    formats : sequence of str, optional
        Of `FORMATS`, see `write_document`. Default: all; for `compare` `OF_COMPARISONS`.
    progress : callable, optional
        Called with a few words before each part is made.

    Raises
    ------
    RecordsError, ValueError
        If there are no records, or they are damaged; no row is finished; a format is unknown.
    """
    from nearwise_lab.experiments.representations.comparison import FILE, load_comparison
    from nearwise_lab.report.representations import representations_document
    from nearwise_lab.report.study import Study
    from nearwise_lab.report.study_report import study_document

    folder, watch = Path(folder), progress or (lambda step: None)
    asked = check_formats(formats)
    found = load_comparison(folder) if (folder / FILE).exists() else None
    records = read_records(folder) if found is None else []
    if not (records if found is None else found.records):
        raise ValueError(f"{folder} holds no finished rows yet. Let its command finish one.")
    if found is not None:
        document = representations_document(found, title)
    elif any(record.experiment for record in records):
        document = study_document(Study(records, folder), title, watch)
    else:
        watch("tables and figures")
        document = comparison_document(Results(records, folder), title)
        asked = asked or OF_COMPARISONS
    return write_document(document, folder, asked or FORMATS, watch)
