"""Write the tables of docs/results/ and lab/docs/experiments.md from the records.

python benchmarks/tables_page.py
"""

from pathlib import Path
from typing import Any

import tables_memory
import tables_model
import tables_trust
from results_page import as_table, write_block
from tables import rows_of

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("docs/results/*.md")), ROOT / "lab/docs/experiments.md"]
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


def questions(group: str) -> list[str]:
    """Attention minus each weighting, tables as observations."""
    answers, rows = differences(rows_of("weights_tables"), group), []
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
    mine, rows = differences(rows_of(name), data, families), []
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
    mine = [r for r in rows_of("weights") if r["data"] in data and is_shown(r)]
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
    measured, rows = rows_of("weights"), []
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
        for row in differences(rows_of("weights"), "cifar10, six networks")
        if row["condition"] == base
    ]
    return as_table(["attention minus", "accuracy", "NLL", "ECE", "AURC x1000"], rows)


def bars() -> list[str]:
    """Bars of the comparisons, and how far each was reached."""
    rows = []
    for bar in rows_of("weights_tables", "bars"):
        reached = bar["reached"]
        text = _gap(reached) if isinstance(reached, dict) else f"{reached:+.4f}"
        rows.append([bar["bar"], bar["wanted"], text, "met" if bar["met"] else "missed"])
    return as_table(["bar", "wanted", "reached", ""], rows)


def _gap(gap: dict[str, Any], scale: int = 1) -> str:
    digits = 2 if scale > 1 else 4
    mean, low, high = (f"{scale * gap[end]:+.{digits}f}" for end in ("mean", "low", "high"))
    mark = {"better": " better", "worse": " worse"}.get(gap["verdict"], "")
    return f"{mean} [{low}, {high}]{mark}"


def numbers_methods() -> list[str]:
    """Regressors beside each other, means over the tables."""
    results, rows = rows_of("regression"), []
    of_tables = [row for row in results if "table" in row]
    for row in sorted((r for r in results if "tables" in r), key=lambda r: r["crps_rank"]["mean"]):
        mine = [r for r in of_tables if r["method"] == row["method"]]
        covered = [r["coverage"]["mean"] for r in mine]
        met = sum(0.88 <= share <= 0.92 for share in covered)
        over = (_spread(row[key]) for key in ("crps_over_quantile_forest", "rmse_over_best"))
        rows.append([
            row["method"], str(row["tables"]), f"{row['crps_rank']['mean']:.2f}", *over,
            f"{min(covered):.3f} to {max(covered):.3f}", f"{met} of {len(mine)}",
            f"{min(r['worst_slice'] for r in mine):.3f}",
            f"{sum(r['seconds']['mean'] for r in mine) / len(mine):.1f}",
        ])  # fmt: skip
    return as_table(
        ["method", "tables", "mean CRPS rank", "CRPS / quantile forest's", "RMSE / best",
         "90 % intervals cover", "of tables .88 to .92", "worst fifth", "CPU s"], rows,
    )  # fmt: skip


def numbers_tables() -> list[str]:
    """CRPS of regressors on each table, the lowest in bold; NLL where it is published."""
    of_tables = [row for row in rows_of("regression") if "table" in row and row["crps"]]
    methods = list(dict.fromkeys(["default", *(row["method"] for row in of_tables)]))
    rows = []
    for table in dict.fromkeys(row["table"] for row in of_tables):
        found = {row["method"]: row for row in of_tables if row["table"] == table}
        least = min(row["crps"]["mean"] for row in found.values())
        seeds = sorted({row["seeds"] for row in found.values()})
        n_seeds = " to ".join(map(str, dict.fromkeys((seeds[0], seeds[-1]))))
        cells = [_bold_where_least(found.get(method), least) for method in methods]
        rows.append([table, n_seeds, *cells])
    return as_table(["table", "seeds", *methods], rows)


def numbers_wrong() -> list[str]:
    """CRPS of regressors whose training targets are wrong, relative to the best peer's."""
    own, rows = ("label-noise", "default", "instant"), []
    of_tables = [r for r in rows_of("regression_wrong") if "table" in r and r["crps"]]
    for table in dict.fromkeys(row["table"] for row in of_tables):
        found = {r["method"]: r["crps"]["mean"] for r in of_tables if r["table"] == table}
        peers = {method: crps for method, crps in found.items() if method not in own}
        best = min(peers, key=lambda method: peers[method])
        seeds = min(row["seeds"] for row in of_tables if row["table"] == table)
        cells = [f"{found[method]:.4f}" for method in own]
        rows.append([table, str(seeds), *cells, f"{peers[best]:.4f} ({best})"])
    head = ["table", "seeds", 'default, label_noise="auto"', "default", "instant", "best peer"]
    return as_table(head, rows)


def numbers_bars() -> list[str]:
    """Bars of the regressor: wanted and reached."""
    results, few = rows_of("regression"), rows_of("regression_few")
    of_method = {row["method"]: row for row in results if "tables" in row}
    of_tables = {r["table"]: r for r in results if r.get("table") and r["method"] == "default"}
    rows = [
        [f"CRPS / quantile forest's, {method}", f"at most {wanted}",
         _spread(of_method[method]["crps_over_quantile_forest"])]
        for method, wanted in (("default", ".90"), ("instant", ".95"))
    ]  # fmt: skip
    rank, rmse = of_method["default"]["crps_rank"], of_method["default"]["rmse_over_best"]
    rows.append(["mean CRPS rank", "first", _spread(rank)])
    rows.append(["RMSE / best of tuned CatBoost and forest", "at most 1.0", _spread(rmse)])
    for table, nll in PUBLISHED.items():
        reached = _spread(of_tables[table]["nll"])
        rows.append([f"NLL, {table}, below Deep Ensembles'", f"{nll}", reached])
    for table, row in of_tables.items():
        wanted = ".88 to .92; worst fifth .85"
        reached = f"{row['coverage']['mean']:.3f}; {row['worst_slice']:.3f}"
        rows.append([f"90 % intervals cover, {table}", wanted, reached])
    for row in rows_of("regression_speed"):  # of one table
        reached = f"{row['predict_ms']:.1f} ms; {row['batch_us_per_row']:.0f} us; "
        reached += f"{row['fit_over_forest']:.1f}"
        text = f"one row; row of a batch; fit / forest of 200, kin8nm, {row['preset']}"
        rows.append([text, "at most 5 ms; 150 us; 10", reached])
    for row in rows_of("regression_shift"):
        text = f"after 1,000 shifted rows 90 % intervals cover, {row['table']}, {row['preset']}, "
        text += f"seeds: {row['seeds']}"
        rows.append([text, "at least .85", _spread(row["coverage after"])])
    for n in sorted({row["rows"] for row in few if row.get("rows")}):
        mine = {(r["table"], r["method"]): r["crps"]["mean"] for r in few if r.get("rows") == n}
        tables = sorted({table for table, _ in mine})
        over = [mine[table, "default"] / mine[table, "ridge"] for table in tables]
        worst = max(range(len(tables)), key=lambda at: over[at])
        draws = min(r["seeds"] for r in few if r.get("rows") == n)
        text = f"CRPS / ridge regression's, {n} rows, {draws} draws, mean of {len(tables)} tables "
        text += "(worst)"
        reached = f"{sum(over) / len(over):.3f} ({over[worst]:.3f}, {tables[worst]})"
        rows.append([text, "at most 1.05", reached])
    return as_table(["measured", "wanted", "reached"], rows)


def _spread(found: dict[str, Any]) -> str:
    if found["low"] is None:  # of one seed
        return f"{found['mean']:.3f}"
    return "{mean:.3f} [{low:.3f}, {high:.3f}]".format_map(found)


def _bold_where_least(row: dict[str, Any] | None, least: float) -> str:
    if row is None:
        return ""
    text = f"{row['crps']['mean']:.4f}".removeprefix("0")
    return f"**{text}**" if row["crps"]["mean"] == least else text


TABLES = ("weights_tables", "large-tables", "without=base")
SETS = ("letter-8000", "cifar10-features-8000", "adult-8000", "magic04-8000")
# NLL of Deep Ensembles on the same splits (Lakshminarayanan, Pritzel and Blundell, 2017)
PUBLISHED = {"concrete": 3.06, "energy": 1.38, "kin8nm": -1.20, "power-plant": 2.79}
BLOCKS = {
    "numbers-wrong": numbers_wrong,
    "numbers-bars": numbers_bars,
    "numbers-methods": numbers_methods,
    "numbers-tables": numbers_tables,
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
    **tables_memory.BLOCKS,
    **tables_model.BLOCKS,
    **tables_trust.BLOCKS,
}


def write_blocks(page: Path) -> None:
    """Write each block that a page has marks for."""
    for name, lines in BLOCKS.items():
        if f"<!-- {name}:start -->" in page.read_text(encoding="utf-8"):
            write_block(page, name, lines())


def main() -> None:
    """Write all pages."""
    for page in PAGES:
        write_blocks(page)


if __name__ == "__main__":
    main()
