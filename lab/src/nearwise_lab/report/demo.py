"""The demo: handwritten digits, plain and attention k-NN beside plain baselines, one report."""

import time
from os import PathLike
from pathlib import Path

from rich.console import Console
from rich.table import Table as RichTable

from nearwise_lab.experiments import compare, read_records
from nearwise_lab.report.document import mean_rows
from nearwise_lab.report.render import render_report
from nearwise_lab.report.summary import Results
from nearwise_lab.results.measures import COMPARED, Measure

DEMO_METHODS = (
    "knn-uniform", "knn-distance", "knn-tuned", "logistic", "random-forest", "attention",
)  # fmt: skip
SHOWN = (*COMPARED, Measure("fit_seconds", "fit s", 1, None))
TITLE = "Handwritten digits: attention over nearest neighbors beside plain methods"


def run_demo(out: str | PathLike[str], *, seed: int = 0, progress: bool = True) -> Path:
    """Compare methods on scikit-learn's digits, print the table, write the report.

    Under a minute on two cores; run again, finished rows of the folder `out` are kept. `seed` is
    that of the split and the methods; without `progress` nothing is printed. Returns the page.
    Raises RecordsError if `out` belongs to other settings or another running process.
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
    names: dict[str, str] = {}
    for whole in results.ranked_methods("digits"):
        halves = results.halves(whole)
        names |= {whole: whole} | {h: f"  {h.split(':')[1].replace('-', ' ')}" for h in halves}
    for name, cells in mean_rows(names, SHOWN, results.means("digits")):
        style = "dim" if name.startswith("  ") else "bold" if name.startswith("attention") else ""
        table.add_row(name, *(cell.text for cell in cells), style=style)
    for failure in results.failures("digits"):
        table.add_row(failure.method, f"failed: {failure.reason}", style="red")
    return table
