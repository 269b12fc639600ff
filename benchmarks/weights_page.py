"""Write the tables of weightings in docs/results.md and lab/docs/experiments.md from the records.

python benchmarks/weights_page.py
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from keeping import RESULTS, read

from nearwise.safe_files import write_aside

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
    "classifier": "the classifier",
}
CONDITIONS = {
    "": "as they are",
    "memory; as-given; ": "30 % wrong in the memory, after the fit",
    "memory; corrected; ": "the same, weights and pool refitted to right labels",
    "everywhere; as-given; ": "30 % wrong in all rows, judged by right labels",
    "everywhere; as-given; {}; given-labels": "the same, judged by equally wrong labels",
    "everywhere; corrected; ": "30 % wrong in all rows, corrected",
    "ratio=0.01; as-given; ": "long tail, 1 %",
    "ratio=0.01; corrected; ": "long tail, 1 %, corrected",
}


def conditions(base: str) -> dict[str, str]:
    """Conditions of records with or without the base, with their words."""
    return {key.format(base) if "{}" in key else key + base: w for key, w in CONDITIONS.items()}


def is_shown(row: dict[str, Any]) -> bool:
    """Whether a row is of the noise that the pages show."""
    return row.get("noise", "30 % symmetric") == "30 % symmetric"


def questions(group: str) -> Iterator[str]:
    """Attention minus each weighting, tables as observations."""
    answers = [
        row
        for row in read(RESULTS / "weights_tables.json").get("results", [])
        if (row["group"], row["families"]) == (group, "all") and is_shown(row)
    ]
    yield from _head(["labels and rows", "attention minus", "tables", "NLL", "lower NLL on",
                      "accuracy", "ECE", "AURC x1000"])  # fmt: skip
    for condition, words in conditions("without=base").items():
        for row in answers:
            if row["condition"] == condition and row["attention minus"] in NAMES:
                share = f"{100 * row['share_of_tables_with_lower_nll']:.0f} %"
                cells = [words, NAMES[row["attention minus"]], str(row["n_tables"])]
                cells += [_gap(row["nll"]), share, _gap(row["accuracy"]), _gap(row["ece"])]
                yield _line([*cells, _gap(row["aurc"], 1000)])


COMPACT = ("uniform", "distance-tuned", "distance-learned", "multi-head", "base")


def summary(data: str, families: str = "all") -> Iterator[str]:
    """Attention minus each weighting in one row per condition and measure: tables, or images."""
    of_tables = data == "large-tables"
    rows = read(RESULTS / f"weights{'_tables' if of_tables else ''}.json").get("results", [])
    mine = [
        {"method": r["attention minus"], "condition": r["condition"]} | {k: r[k] for k in MEASURED}
        for r in rows
        if of_tables and (r["group"], r["families"]) == (data, families) and is_shown(r)
    ] + [
        {"method": r["method"], "condition": r["condition"]}
        | {k: r[f"attention minus it, {k}"] for k in MEASURED}
        for r in rows
        if r.get("data") == data and is_shown(r) and "attention minus it, nll" in r
    ]
    methods = [m for m in COMPACT if any(r["method"] == m for r in mine)]
    yield from _head(["labels and rows", "attention minus", *(NAMES[m] for m in methods)])
    for condition, words in conditions("without=base" if of_tables else "with=base").items():
        found = {row["method"]: row for row in mine if row["condition"] == condition}
        for key, title in (("accuracy", "accuracy"), ("nll", "NLL"), ("ece", "ECE")):
            if found:
                yield _line([words, title, *(_short(found[m][key]) for m in methods)])


def _short(gap: dict[str, Any]) -> str:
    """A mean difference with the word for it."""
    word = {"better": "better", "worse": "**worse**"}.get(gap["verdict"], "")
    return f"{gap['mean']:+.4f} {word}".strip()


def scores(data: str, base: str) -> Iterator[str]:
    """NLL and ECE of every weighting of a data set, with a mark where attention differs."""
    rows = [
        row
        for row in read(RESULTS / "weights.json").get("results", [])
        if row["data"] == data and is_shown(row)
    ]
    methods = [m for m in NAMES if any(row["method"] == m for row in rows)]
    yield from _head(["labels and rows", *(NAMES[m] for m in methods)])
    for condition, words in conditions(base).items():
        found = {row["method"]: row for row in rows if row["condition"] == condition}
        if "attention" in found:
            yield _line([words, *(_score(found.get(method)) for method in methods)])


def others() -> Iterator[str]:
    """NLL of every weighting on data sets of ten seeds, labels as they are."""
    yield from _head(["data set", "in the pool", *NAMES.values()])
    rows = read(RESULTS / "weights.json").get("results", [])
    for data in ("wine", "ionosphere", "breast_cancer", "wine-red", "wine-red-dd"):
        for base, words in (("with=base", "base and neighbors"), ("without=base", "neighbors")):
            found = {r["method"]: r for r in rows if (r["data"], r["condition"]) == (data, base)}
            cells = [_number(found[m], "nll", 4) if m in found else "" for m in NAMES]
            yield _line([data, words, *cells])


def _number(row: dict[str, Any], key: str, digits: int) -> str:
    """Mean over seeds; + or - where attention is better or worse."""
    gap = row.get(f"attention minus it, {key}", {})
    mark = {"better": "+", "worse": "-"}.get(gap.get("verdict", ""), "")
    return f"{_mean(row[key]):.{digits}f}".removeprefix("0") + mark


def _score(row: dict[str, Any] | None) -> str:
    """Accuracy, NLL and ECE: means over seeds; + or - where attention is better or worse."""
    if row is None:
        return ""
    return " / ".join(_number(row, key, 3) for key in ("accuracy", "nll", "ece"))


def networks(base: str) -> Iterator[str]:
    """Attention minus each weighting over six networks of CIFAR-10."""
    yield from _head(["attention minus", "accuracy", "NLL", "ECE", "AURC x1000"])
    for row in read(RESULTS / "weights.json").get("results", []):
        if row["data"] == "cifar10, six networks" and row["condition"] == base:
            gaps = [row[f"attention minus it, {key}"] for key in MEASURED]
            cells = [_gap(gap, 1000 if key == "aurc" else 1) for key, gap in
                     zip(MEASURED, gaps, strict=True)]  # fmt: skip
            yield _line([NAMES[row["method"]], *cells])


def bars() -> Iterator[str]:
    """What was wanted, what was reached."""
    yield from _head(["bar", "wanted", "reached", ""])
    for bar in read(RESULTS / "weights_tables.json").get("bars", []):
        reached = bar["reached"]
        text = _gap(reached) if isinstance(reached, dict) else f"{reached:+.4f}"
        yield _line([bar["bar"], bar["wanted"], text, "met" if bar["met"] else "missed"])


def _gap(gap: dict[str, Any], scale: int = 1) -> str:
    digits = 2 if scale > 1 else 4
    mean, low, high = (f"{scale * gap[end]:+.{digits}f}" for end in ("mean", "low", "high"))
    mark = {"better": " better", "worse": " worse"}.get(gap["verdict"], "")
    return f"{mean} [{low}, {high}]{mark}"


def _mean(of_seed: dict[str, float]) -> float:
    return sum(of_seed.values()) / len(of_seed)


def _head(names: list[str]) -> Iterator[str]:
    yield _line(names)
    yield "|" + " --- |" * len(names)


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


BLOCKS = {
    "weights-bars": bars,
    "weights-tables-summary": lambda: summary("large-tables"),
    "weights-images-summary": lambda: summary("cifar10-10000"),
    "weights-tables": lambda: questions("large-tables"),
    "weights-tables-unmet": lambda: summary("large-tables", "not met by the head"),
    "weights-small-tables": lambda: questions("small-tables"),
    "weights-networks": lambda: networks("with=base"),
    "weights-networks-alone": lambda: networks("without=base"),
    "weights-images": lambda: scores("cifar10-10000", "with=base"),
    "weights-others": others,
    "weights-digits": lambda: scores("digits", "with=base"),
    "weights-digits-alone": lambda: scores("digits", "without=base"),
}


def write_blocks(page: Path) -> None:
    """Write each block that a page has marks for."""
    text = page.read_text(encoding="utf-8")
    for name, lines in BLOCKS.items():
        start, end = f"<!-- {name}:start -->", f"<!-- {name}:end -->"
        if start in text:
            before, _, rest = text.partition(start)
            _, mark, after = rest.partition(end)
            if not mark:
                raise SystemExit(f"{page} has {start} without {end}.")
            text = "\n".join([before + start, *lines(), end + after])
    write_aside(page, text.encode())


def main() -> None:
    """Write both pages."""
    for page in ("docs/results.md", "lab/docs/experiments.md"):
        write_blocks(ROOT / page)


if __name__ == "__main__":
    main()
