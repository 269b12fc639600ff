"""Write the tables of weightings in docs/results.md and lab/docs/experiments.md from the records.

python benchmarks/weights_page.py
"""

from pathlib import Path
from typing import Any

from keeping import RESULTS, read
from results_page import as_table, write_block

ROOT = Path(__file__).parents[1]
MEASURED = ("accuracy", "nll", "ece", "aurc")
NAMES = {
    "uniform": "uniform",
    "distance": "distance",
    "distance-tuned": "tuned distance",
    "distance-learned": "distance learned per space",
    "distance+agreement": "distance and agreement",
    "multi-head": "multi-head",
    "base": "no neighbors",
    "attention": "attention",
    "attention-normalised": "attention, weights of sum 1",
    "classifier": "the classifier",
}
CONDITIONS = {  # of records; the braces stand for with or without the base
    "{}": "as they are",
    "memory; as-given; {}": "30 % wrong in the memory, after the fit",
    "memory; corrected; {}": "the same, weights and pool refitted to right labels",
    "everywhere; as-given; {}": "30 % wrong in all rows, judged by right labels",
    "everywhere; as-given; {}; given-labels": "the same, judged by equally wrong labels",
    "everywhere; corrected; {}": "30 % wrong in all rows, corrected",
    "ratio=0.01; as-given; {}": "long tail, 1 %",
    "ratio=0.01; corrected; {}": "long tail, 1 %, corrected",
}


def is_shown(row: dict[str, Any]) -> bool:
    """Whether a row is of the noise that the pages show."""
    return row.get("noise", "30 % symmetric") == "30 % symmetric"


def mean_of(of_seed: dict[str, float]) -> float:
    """Mean of the values of some seeds."""
    return sum(of_seed.values()) / len(of_seed)


def differences(
    rows: list[dict[str, Any]], data: str, families: str = "all"
) -> list[dict[str, Any]]:
    """Attention minus each other method: of a group of tables, or of a data set."""
    found = []
    for row in filter(is_shown, rows):
        if (row.get("group"), row.get("families")) == (data, families):
            found.append(row | {"method": row["attention minus"]})
        elif row.get("data") == data and "attention minus it, nll" in row:
            found.append(row | {key: row[f"attention minus it, {key}"] for key in MEASURED})
    return found


def _results(name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = read(RESULTS / f"{name}.json").get("results", [])
    return rows


def questions(group: str) -> list[str]:
    """Attention minus each weighting, tables as observations."""
    answers, rows = differences(_results("weights_tables"), group), []
    for condition, words in CONDITIONS.items():
        for row in answers:
            if row["condition"] == condition.format("without=base"):
                share = f"{100 * row['share_of_tables_with_lower_nll']:.0f} %"
                cells = [words, NAMES[row["method"]], str(row["n_tables"]), _gap(row["nll"])]
                cells += [share, _gap(row["accuracy"]), _gap(row["ece"]), _gap(row["aurc"], 1000)]
                rows.append(cells)
    return as_table(
        ["labels and rows", "attention minus", "tables", "NLL", "lower NLL on",
         "accuracy", "ECE", "AURC x1000"], rows,
    )  # fmt: skip


COMPACT = ("uniform", "distance-tuned", "distance-learned", "multi-head", "base")


def summary(name: str, data: str, base: str, families: str = "all") -> list[str]:
    """Attention minus each weighting, a row per condition and measure."""
    mine, rows = differences(_results(name), data, families), []
    methods = [m for m in COMPACT if any(row["method"] == m for row in mine)]
    for condition, words in CONDITIONS.items():
        found = {r["method"]: r for r in mine if r["condition"] == condition.format(base)}
        for key, title in (("accuracy", "accuracy"), ("nll", "NLL"), ("ece", "ECE")):
            if found:
                rows.append([words, title, *(_short(found[m][key]) for m in methods)])
    return as_table(["labels and rows", "attention minus", *(NAMES[m] for m in methods)], rows)


def _short(gap: dict[str, Any]) -> str:
    """A mean difference with the word for it."""
    word = {"better": "better", "worse": "**worse**"}.get(gap["verdict"], "")
    return f"{gap['mean']:+.4f} {word}".strip()


def scores(base: str, *data: str) -> list[str]:
    """Accuracy, NLL and ECE of every weighting, with a mark where attention differs."""
    mine = [r for r in _results("weights") if r["data"] in data and is_shown(r)]
    methods, rows = [m for m in NAMES if any(row["method"] == m for row in mine)], []
    for name in data:
        for condition, words in CONDITIONS.items():
            here = name, condition.format(base)
            found = {r["method"]: r for r in mine if (r["data"], r["condition"]) == here}
            if "attention" in found:
                cells = [_score(found.get(method)) for method in methods]
                rows.append([*([name] if len(data) > 1 else []), words, *cells])
    head = ["data set"] if len(data) > 1 else []
    return as_table([*head, "labels and rows", *(NAMES[m] for m in methods)], rows)


def others() -> list[str]:
    """NLL of every weighting on data sets of ten seeds, labels as they are."""
    measured, rows = _results("weights"), []
    data_sets = "wine", "ionosphere", "breast_cancer", "wine-red", "wine-red-dd"
    methods = [
        m for m in NAMES if any((r["data"], r["method"]) == (data_sets[0], m) for r in measured)
    ]
    for data in data_sets:
        for base, words in (("with=base", "base and neighbors"), ("without=base", "neighbors")):
            found = {
                r["method"]: r for r in measured if (r["data"], r["condition"]) == (data, base)
            }
            cells = [_number(found[m], "nll", 4) if m in found else "" for m in methods]
            rows.append([data, words, *cells])
    return as_table(["data set", "in the pool", *(NAMES[m] for m in methods)], rows)


def _number(row: dict[str, Any], key: str, digits: int) -> str:
    """Mean over seeds; + or - where attention is better or worse."""
    gap = row.get(f"attention minus it, {key}", {})
    mark = {"better": "+", "worse": "-"}.get(gap.get("verdict", ""), "")
    return f"{mean_of(row[key]):.{digits}f}".removeprefix("0") + mark


def _score(row: dict[str, Any] | None) -> str:
    """Accuracy, NLL and ECE: means over seeds; + or - where attention is better or worse."""
    if row is None:
        return ""
    return " / ".join(_number(row, key, 3) for key in ("accuracy", "nll", "ece"))


def networks(base: str) -> list[str]:
    """Attention minus each weighting over six networks of CIFAR-10."""
    rows = [
        [NAMES[row["method"]], *(_gap(row[key], 1000 if key == "aurc" else 1) for key in MEASURED)]
        for row in differences(_results("weights"), "cifar10, six networks")
        if row["condition"] == base
    ]
    return as_table(["attention minus", "accuracy", "NLL", "ECE", "AURC x1000"], rows)


def bars() -> list[str]:
    """Bars of the comparisons, and how far each was reached."""
    rows = []
    for bar in read(RESULTS / "weights_tables.json").get("bars", []):
        reached = bar["reached"]
        text = _gap(reached) if isinstance(reached, dict) else f"{reached:+.4f}"
        rows.append([bar["bar"], bar["wanted"], text, "met" if bar["met"] else "missed"])
    return as_table(["bar", "wanted", "reached", ""], rows)


def _gap(gap: dict[str, Any], scale: int = 1) -> str:
    digits = 2 if scale > 1 else 4
    mean, low, high = (f"{scale * gap[end]:+.{digits}f}" for end in ("mean", "low", "high"))
    mark = {"better": " better", "worse": " worse"}.get(gap["verdict"], "")
    return f"{mean} [{low}, {high}]{mark}"


TABLES = ("weights_tables", "large-tables", "without=base")
SETS = ("letter-8000", "cifar10-features-8000", "adult-8000", "magic04-8000")
BLOCKS = {
    "weights-bars": bars,
    "weights-tables-summary": lambda: summary(*TABLES),
    "weights-images-summary": lambda: summary("weights", "cifar10-10000", "with=base"),
    "weights-tables": lambda: questions("large-tables"),
    "weights-tables-unmet": lambda: summary(*TABLES, "not met by the head"),
    "weights-small-tables": lambda: questions("small-tables"),
    "weights-networks": lambda: networks("with=base"),
    "weights-networks-alone": lambda: networks("without=base"),
    "weights-images": lambda: scores("with=base", "cifar10-10000"),
    "weights-others": others,
    "weights-digits": lambda: scores("with=base", "digits"),
    "weights-digits-alone": lambda: scores("without=base", "digits"),
    "weights-sets": lambda: scores("with=base", *SETS),
    "weights-sets-alone": lambda: scores("without=base", *SETS),
}


def write_blocks(page: Path) -> None:
    """Write each block that a page has marks for."""
    for name, lines in BLOCKS.items():
        if f"<!-- {name}:start -->" in page.read_text(encoding="utf-8"):
            write_block(page, name, lines())


def main() -> None:
    """Write both pages."""
    for page in ("docs/results.md", "lab/docs/experiments.md"):
        write_blocks(ROOT / page)


if __name__ == "__main__":
    main()
