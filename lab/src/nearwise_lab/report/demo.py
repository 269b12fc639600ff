"""The demo: handwritten digits, plain and attention k-NN beside plain baselines, one report."""

import time
from os import PathLike
from pathlib import Path

from rich.console import Console
from rich.table import Table as RichTable

from nearwise_lab.experiments import compare, read_records
from nearwise_lab.report.page import render_report
from nearwise_lab.report.summary import Results
from nearwise_lab.results.measures import COMPARED, Measure

DEMO_METHODS = (
    "knn-uniform",
    "knn-distance",
    "knn-tuned",
    "logistic",
    "random-forest",
    "attention",
)
SHOWN = (*COMPARED, Measure("fit_seconds", "fit s", 1, None))
TITLE = "Handwritten digits: attention over nearest neighbors beside plain methods"


def run_demo(out: str | PathLike[str], *, seed: int = 0, progress: bool = True) -> Path:
    """Compare methods on scikit-learn's digits, print the table, write the report.

    Parameters
    ----------
    out : path
        Results folder; run again, the finished rows are kept.
    seed : int, default=0
        Of the split and the methods.
    progress : bool, default=True
        Show progress and the table; False prints nothing.

    Returns
    -------
    Path
        The page. Under a minute on two cores.

    Raises
    ------
    RecordsError
        If `out` belongs to other settings or another running process.
    """
    start = time.perf_counter()
    compare(["digits"], DEMO_METHODS, [seed], out, progress=progress)
    page = render_report(out, title=TITLE)
    if progress:
        console = Console()
        rows = [r for r in read_records(Path(out)) if r.seed == seed]
        console.print(_table(Results(rows), seed))
        console.print(
            f"{time.perf_counter() - start:.0f} s. Wrong and unsure digits with their neighbors, "
            "reliability and training curves:"
        )
        console.print(str(page), style="bold", soft_wrap=True)
    return page


def _table(results: Results, seed: int) -> RichTable:
    table = RichTable(
        title=f"digits, seed {seed}: the same split for every method", title_justify="left"
    )
    table.add_column("method", no_wrap=True)
    for measure in SHOWN:
        table.add_column(measure.title, justify="right")
    order = results.ranked_methods("digits")
    halves = [half for method in order for half in results.halves(method)]
    for method in [name for m in order for name in (m, *results.halves(m))]:
        cells = []
        for measure in SHOWN:
            mean = results.mean("digits", method, measure.key)
            cells.append("" if mean is None else f"{mean.mean * measure.scale:.{measure.digits}f}")
        style = "bold" if method.startswith("attention") and method in order else None
        name = f"  {method.split(':')[1].replace('-', ' ')}" if method in halves else method
        table.add_row(name, *cells, style="dim" if method in halves else style)
    for failure in results.failures("digits"):
        table.add_row(failure.method, f"failed: {failure.reason}", style="red")
    return table
