"""Tables of results, written as Markdown, LaTeX, CSV and HTML cells."""

import csv
import io
import math
from collections.abc import Sequence

from nearwise_lab.report.summary import SHOT_MEASURES, Results
from nearwise_lab.results.measures import (
    COMPARED,
    COST_MEASURES,
    LEVEL,
    MEASURES,
    Cell,
    Mean,
    Measure,
    Table,
    difference_cell,
    is_best,
    show_mean,
)


def results_table(results: Results, dataset: str, measures: Sequence[Measure] = MEASURES) -> Table:
    """Mean and half-interval of every method on a data set, lowest NLL first."""
    size = results.sizes(dataset)
    table = Table(
        f"{dataset}: results",
        f"{size.n_train:,} training rows, {size.n_test:,} test rows, {size.n_classes} classes. "
        f"{over_seeds(results)}; the best value of a column is bold, whether or not the "
        "difference is more than chance.",
        ["method", *(m.title for m in measures)],
    )
    order = results.ranked_methods(dataset)
    means = {m: [results.mean(dataset, m, x.key) for x in measures] for m in order}
    for method in order:
        cells = [
            Cell(
                show_mean(mean, x),
                "best" if is_best(mean, [means[o][i] for o in order], x) else "",
            )
            for i, (x, mean) in enumerate(zip(measures, means[method], strict=True))
        ]
        table.rows.append((method, cells))
    return table


def paired_table(results: Results, dataset: str, reference: str) -> Table:
    """How every other method differs from the reference on the same seeds."""
    table = Table(
        f"{dataset}: difference from {reference}",
        f"Method minus {reference}, {pairing(results)}. "
        '"None" means that the interval holds 0: no difference is shown.',
        ["method", *(m.title for m in COMPARED)],
    )
    for method in results.ranked_methods(dataset):
        if method != reference:
            cells = [
                difference_cell(results.paired(dataset, method, reference, x.key), x)
                for x in COMPARED
            ]
            table.rows.append((method, cells))
    return table


def halves_table(results: Results, dataset: str, method: str) -> Table | None:
    """Show what the neighbors add: the whole beside its base alone and its neighbors alone."""
    halves = results.halves(method)
    if not halves or results.mean(dataset, method, "nll") is None:
        return None
    null = results.mean(dataset, method, "null_mass")
    mass = ""
    if null is not None:
        mass = f" The null neighbor took {100 * null.mean:.0f} % of the weight on average."
    table = Table(
        f"{dataset}: what the two halves of {method} add",
        "Base alone is the null neighbor's prediction with its temperature, neighbors off; "
        "neighbors alone have the class prior in the null. Differences are the whole minus the "
        f"half, {pairing(results)}.{mass}",
        ["method", *(m.title for m in COMPARED)],
    )
    for name in [method, *halves]:
        cells = [Cell(show_mean(results.mean(dataset, name, x.key), x)) for x in COMPARED]
        table.rows.append((name.replace(f"{method}:", "").replace("-", " "), cells))
    for half in halves:
        cells = [difference_cell(results.paired(dataset, method, half, x.key), x) for x in COMPARED]
        label = half.replace(f"{method}:", "").replace("-", " ")
        table.rows.append((f"whole minus {label}", cells))
    return table


def shots_table(results: Results, dataset: str) -> Table | None:
    """Accuracy by the size of the classes; None where classes are of like size."""
    rows = [r for r in results.records if r.dataset == dataset and r.details.get("shots")]
    if not rows:
        return None
    shots = rows[0].details["shots"]
    sizes = ", ".join(f"{n} {name}-shot" for name, n in shots["classes"].items() if n)
    methods = [m for m in results.every_method if results.values(dataset, m, "shots.balanced")]
    table = Table(
        f"{dataset}: accuracy by the size of the class",
        f"Classes in groups by {shots['rule']}: {sizes}. Balanced accuracy is the mean over "
        f"classes. {over_seeds(results)}.",
        ["method", *(m.title for m in SHOT_MEASURES)],
    )
    means = {m: [results.mean(dataset, m, x.key) for x in SHOT_MEASURES] for m in methods}
    for method in methods:
        cells = [
            Cell(
                show_mean(mean, x),
                "best" if is_best(mean, [means[o][i] for o in methods], x) else "",
            )
            for i, (x, mean) in enumerate(zip(SHOT_MEASURES, means[method], strict=True))
        ]
        table.rows.append((method, cells))
    return table


def ranks_table(results: Results) -> Table | None:
    """Mean ranks over data sets; None for a single data set."""
    if len(results.datasets) < 2:
        return None
    ranks = {x.key: results.mean_ranks(x.key) for x in COMPARED}
    if not ranks["nll"]:
        return None
    left_out = [m for m in results.methods if m not in ranks["nll"]]
    missing = f" Not on every data set, so left out: {', '.join(left_out)}." if left_out else ""
    table = Table(
        f"Mean rank over {len(results.datasets)} data sets",
        f"Rank of the mean over seeds, averaged over {', '.join(results.datasets)}; 1 is best."
        f"{missing} Costs are geometric means over the data sets.",
        ["method", *(m.title for m in (*COMPARED, *COST_MEASURES))],
    )
    for method in ranks["nll"]:
        cells = [
            Cell(
                f"{ranks[x.key][method]:.2f}",
                "best" if ranks[x.key][method] == min(ranks[x.key].values()) else "",
            )
            for x in COMPARED
        ]
        cells += [Cell(show_mean(typical_cost(results, method, x), x)) for x in COST_MEASURES]
        table.rows.append((method, cells))
    return table


def typical_cost(results: Results, method: str, measure: Measure) -> Mean | None:
    """Geometric mean over data sets of a cost; None where it is not known for each of them."""
    means = [results.mean(dataset, method, measure.key) for dataset in results.datasets]
    costs = [max(mean.mean, 1e-9) for mean in means if mean is not None]
    if len(costs) < len(means):
        return None
    return Mean(math.exp(sum(map(math.log, costs)) / len(costs)), None, len(costs))


def all_tables(results: Results) -> list[Table]:
    """Every table, ranks first."""
    reference = results.reference()
    tables = [ranks_table(results)]
    for dataset in results.datasets:
        if results.ranked_methods(dataset):
            tables.append(results_table(results, dataset))
            tables.append(paired_table(results, dataset, reference))
            tables += [halves_table(results, dataset, m) for m in results.methods]
            tables.append(shots_table(results, dataset))
    return [t for t in tables if t is not None and t.rows]


def over_seeds(results: Results) -> str:
    """Return what a number is the mean of."""
    if len(results.seeds) == 1:
        return f"One seed ({results.seeds[0]})"
    seeds = ", ".join(map(str, results.seeds))
    return (
        f"Mean ± half the {100 * LEVEL:.0f} % t-interval over {len(results.seeds)} seeds ({seeds})"
    )


def pairing(results: Results) -> str:
    """How differences are paired, and what their interval is."""
    if len(results.seeds) == 1:
        return f"paired by test row, with its {100 * LEVEL:.0f} % bootstrap interval"
    return f"paired by seed, with its {100 * LEVEL:.0f} % t-interval"


def to_markdown(table: Table) -> str:
    """One table in GitHub's Markdown."""
    lines = [f"### {table.title}", "", table.caption, "", _pipe(table.columns)]
    lines.append(_pipe(["---", *("---:" for _ in table.columns[1:])]))
    for name, cells in table.rows:
        texts = [f"**{c.line}**" if c.mark == "best" else c.line for c in cells]
        lines.append(_pipe([name, *texts]))
    return "\n".join(lines) + "\n"


def _pipe(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def to_latex(table: Table) -> str:
    r"""One table in LaTeX, for the packages of `LATEX_PACKAGES`, in parts that fit a page each.

    A table of numbers that is wider than the text is scaled down to it, one of sentences is broken
    in its cells.
    """
    n_others = len(table.columns) - 1
    if table.wrap:
        share = (1 - _FIRST_COLUMN) / n_others
        widths = [_FIRST_COLUMN, *[share] * n_others]
        form = "".join(
            rf">{{\raggedright\arraybackslash}}p{{\dimexpr {w:.3f}\linewidth-2\tabcolsep\relax}}"
            for w in widths
        )
        start, end = rf"\small\begin{{tabular}}{{{form}}}", r"\end{tabular}"
    else:
        widths = [float("inf")] * len(table.columns)
        start = (
            r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{\begin{tabular}"
            f"{{l{'r' * n_others}}}"
        )
        end = r"\end{tabular}}"
    named = [[name, *(c.line for c in cells)] for name, cells in table.rows]
    parts = _parts(named, widths, len(table.caption) // _LINE)
    texts, row = [], 0
    for number, n_rows in enumerate(parts, start=1):
        more = "" if len(parts) == 1 else f" ({number} of {len(parts)})"
        caption = f"{table.title}{more}. {table.caption if number == 1 else ''}".strip()
        body = [_tex_row(*each) for each in table.rows[row : row + n_rows]]
        row += n_rows
        lines = [
            r"\begin{table}",
            r"  \centering",
            rf"  \caption{{{_tex(caption)}}}",
            f"  {start}",
            r"    \toprule",
            f"    {' & '.join(map(_tex, table.columns))} \\\\",
            r"    \midrule",
            *(f"    {line}" for line in body),
            r"    \bottomrule",
            f"  {end}",
            r"\end{table}",
        ]
        texts.append("\n".join(lines) + "\n")
    return "\n".join(texts)


LATEX_PACKAGES = ("array", "booktabs", "graphicx")
_FIRST_COLUMN = 0.4  # share of the text's width, in a table of sentences
_LINE = 80  # characters of a line of small text as wide as the page's text
_LINES = 38  # of a page


def _parts(rows: list[list[str]], widths: Sequence[float], lines: int) -> list[int]:
    """Numbers of rows whose lines fill a page each; `lines` are taken of the first."""
    parts = [0]
    for texts in rows:
        needed = max(math.ceil(len(t) / (_LINE * w)) for t, w in zip(texts, widths, strict=True))
        needed = max(needed, 1)
        if lines + needed > _LINES and parts[-1]:
            parts.append(0)
            lines = 0
        parts[-1] += 1
        lines += needed
    return parts


def _tex_row(name: str, cells: Sequence[Cell]) -> str:
    texts = [rf"\textbf{{{_tex(c.line)}}}" if c.mark == "best" else _tex(c.line) for c in cells]
    return " & ".join([_tex(name), *texts]) + r" \\"


_TEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "µ": r"$\mu$",
    '"': "''",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
}


def _tex(text: str) -> str:
    return "".join(_TEX.get(character, character) for character in text)


def to_csv(results: Results) -> str:
    """All means, one line a data set, method and measure.

    Returns
    -------
    str
        Columns dataset, method, measure, mean, low, high, n; low and high are empty for one seed.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["dataset", "method", "measure", "mean", "low", "high", "n"])
    for dataset in results.datasets:
        for whole in results.methods:
            for method in [whole, *results.halves(whole)]:
                for measure in MEASURES:
                    mean = results.mean(dataset, method, measure.key)
                    if mean is not None:
                        writer.writerow(
                            [dataset, method, measure.key, mean.mean, mean.low, mean.high, mean.n]
                        )
    return out.getvalue()
