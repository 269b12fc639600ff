"""The demo: plain and attention k-NN and simple baselines on handwritten digits, one report."""

from os import PathLike
from pathlib import Path

from nearwise_lab.experiments import compare
from nearwise_lab.report.render import render_report

DEMO_METHODS = (
    "knn-uniform", "knn-distance", "knn-tuned", "logistic", "random-forest", "attention",
)  # fmt: skip
TITLE = "Handwritten digits: attention over nearest neighbors beside plain methods"


def run_demo(out: str | PathLike[str], *, seed: int = 0, progress: bool = True) -> Path:
    """Compare methods on scikit-learn's digits and write the report.

    Under a minute on two cores; run again, finished rows of the folder `out` are kept. `seed` is
    that of the split and the methods; without `progress` nothing is printed. Returns the page.
    Raises RecordsError if `out` belongs to other settings or another running process.
    """
    compare(["digits"], DEMO_METHODS, [seed], out, progress=progress)
    return render_report(out, title=TITLE)
