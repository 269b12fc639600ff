"""Tables of docs/results: wrong labels, trust (sets, abstention, novelty) and groups."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from keeping import interval
from tables import Row, around, cell, listing, pivot, record, rows_of

MEASURES = {"accuracy": "accuracy", "nll": "NLL", "ece": "ECE"}
SCORES = {title: key for key, title in MEASURES.items()}
METHODS = {  # of a record, and their names here
    "uniform": "uniform k-NN",
    "knn-uniform": "uniform k-NN",
    "knn-tuned": "tuned k-NN",
    "distance-tuned": "tuned distance k-NN",
    "lightgbm": "LightGBM",
    "mlp": "MLP",
    "cnn+temperature": "network, temperature",
    "attention-plain": "`label_noise=None`",
    "attention": "`label_noise=None`",
    "attention+noise-model": '`label_noise="auto"`',
    "attention+noise-model+tta": '`"auto"`, two views',
}
AUTO = METHODS["attention+noise-model"]
BARS = ("digits", "wine-red", "adult")
PEOPLE = {"human-worse": "CIFAR-10N worse", "human-aggregate": "CIFAR-10N aggregate"}
SHIFTED = {"digits-images": "digits", "digits-shift": "digits, two views", "mnist": "MNIST",
           "cifar10": "CIFAR-10"}  # fmt: skip


def noise_tasks(name: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Data, method and means of benchmarks/label_noise.py, peers first."""
    for task, found in record(name)["tasks"].items():
        means = found["means"]
        for key in ("knn-uniform", "knn-tuned", "lightgbm", "mlp", "attention-plain", "attention"):
            if key in means:
                yield task, AUTO if key == "attention" else METHODS[key], means[key]


def wrong_tables() -> list[str]:
    """Tables with wrong labels: every method."""
    rows = [
        {"data": task, "method": method, **means}
        for task, method, means in noise_tasks("label_noise")
        if task in BARS
    ]
    return listing(rows, {"data": "data", "method": "method", **SCORES})


def wrong_few() -> list[str]:
    """Few images with wrong labels."""
    names = {"mnist": "MNIST", "digits-images": "digits"}
    rows = [
        {"data": names[task], "method": method, **means}
        for task, method, means in noise_tasks("label_noise_600")
    ]
    return listing(rows, {"images": "data", "fitted with": "method", **SCORES})


def wrong_audit() -> list[str]:
    """A transition that is estimated, and one that is counted on checked rows."""
    names = {"attention": 'estimated (`"auto"`)', "attention-audited": "counted on 400 rows"}
    rows = []
    for method, title in names.items():
        mine = [row for row in rows_of("label_noise_audit") if row["method"] == method]
        rates = interval([row["note"]["rate"] for row in mine])
        scores = {key: interval([row[key] for row in mine]) for key in MEASURES}
        rows.append({"transition": title, "seeds": len(mine), "rate": rates, **scores})
    columns = {"transition": "transition", "seeds": "seeds", "rate used": "rate", **SCORES}
    return listing(rows, columns)


def wrong_ranking() -> list[str]:
    """How well planted wrong labels are ranked."""
    names = {"attention": "`review(model).issues()`", "cleanlab-knn": "cleanlab's k-NN"}
    tasks = record("label_noise")["tasks"]
    rows = [
        {"data": data, "method": method, "precision": of["average_precision"]}
        for data in ("digits", "adult")
        for method, of in tasks[f"issues-{data}"]["means"].items()
    ]
    return pivot(rows, {"data": "data"}, "method", "precision", names, digits=4)


def labels_of(place: str) -> str:
    """Name how the labels of a place of the study are wrong."""
    share, _, kind = place.partition(", ")[0].partition(" % ")
    if kind in PEOPLE:
        return f"{PEOPLE[kind]} ({float(share):.0f} %)"
    return place.partition(", ")[0] if kind else "right"


def study_rows(name: str, where: str) -> list[Row]:
    """Rows of benchmarks/study.py with wrong labels somewhere, in the order of their names."""
    rows = [r for r in rows_of(name) if r["place"].endswith(where)]
    return sorted(rows, key=lambda row: str(row["place"]))


def by_measure(rows: Iterable[Row], labels: Mapping[str, str], methods: list[str]) -> list[str]:
    """One line per condition and measure, a column per method."""
    each = [{**row, "measure": title, "value": row[key]}
            for row in rows for key, title in MEASURES.items()]  # fmt: skip
    names = {method: METHODS[method] for method in methods}
    return pivot(each, {**labels, "measure": "measure"}, "method", "value", names)


def wrong_images() -> list[str]:
    """CIFAR-10 whose training labels are wrong, with the default's width and half of it."""
    rows = [
        {**row, "labels": labels_of(row["place"]), "network": width, "seeds": len(row["seeds"])}
        for name, width in (("study_cifar10", "default"), ("study_cifar10_half", "half the width"))
        for row in study_rows(name, "everywhere")
    ]
    methods = ["uniform", "distance-tuned", "cnn+temperature", "attention",
               "attention+noise-model", "attention+noise-model+tta"]  # fmt: skip
    labels = {"network": "network", "training labels": "labels", "seeds": "seeds"}
    return by_measure(rows, labels, methods)


def wrong_memory() -> list[str]:
    """CIFAR-10 whose labels are wrong in the memory alone; its network is the same throughout."""
    rows = study_rows("study_cifar10", "memory")
    (alone,) = (
        row["by_seed"]["0"]
        for row in rows_of("study_cifar10")
        if (row["experiment"], row["method"]) == ("main", "cnn+temperature")
    )
    for place in dict.fromkeys(row["place"] for row in rows):
        rows.append({**alone, "place": place, "method": "cnn+temperature"})
    rows = [{**row, "labels": labels_of(row["place"])} for row in rows]
    methods = ["uniform", "distance-tuned", "cnn+temperature", "attention"]
    head = by_measure(rows, {"labels in the memory": "labels"}, methods)
    return [line.replace(METHODS["attention"], "classifier") for line in head]


def wrong_relabelled() -> list[str]:
    """Images before and after 30 % of the remembered labels became wrong."""
    found, rows = record("one_head")["results"], []
    for data, title in SHIFTED.items():
        mine = [found[f"{data}, seed {seed}"]["after"] for seed in range(3)]
        keys = [f"{key}{of}" for key in ("nll", "ece") for of in ("", ", memory wrong")]
        rows.append({"data": title, **{key: interval([row[key] for row in mine]) for key in keys}})
    return listing(rows, {
        "images": "data", "NLL, right labels": "nll", "NLL, 30 % wrong": "nll, memory wrong",
        "ECE, right labels": "ece", "ECE, 30 % wrong": "ece, memory wrong",
    })  # fmt: skip


def wrong_targets() -> list[str]:
    """Targets that were set for wrong labels: wanted, reached."""
    tasks, rows = record("label_noise")["tasks"], []
    for data in BARS:
        for key, bar in tasks[data]["bars"].items():
            verdict = "missed" if bar["missed_by"] else "met"
            row = {"data": data, "labels": "30 % symmetric", "method": AUTO, "measure": key}
            rows.append({**row, **bar, "verdict": verdict})
    for bar in record("study_cifar10")["checks"]:
        place, _, rest = bar["bar"].partition(", everywhere: ")
        method, _, key = rest.partition(", ")
        if key in MEASURES and method in METHODS:
            row = {"data": "CIFAR-10", "labels": labels_of(place), "method": METHODS[method]}
            verdict = "met" if bar["met"] else "missed"
            rows.append({**row, "measure": key, **bar, "verdict": verdict})
    for row in rows:
        sign = "at least" if row["measure"] == "accuracy" else "at most"
        row |= {"wanted": f"{sign} {cell(row['wanted'])}", "measure": MEASURES[row["measure"]]}
    columns = {"data": "data", "training labels": "labels", "fitted with": "method"}
    return listing(rows, columns | {k: k for k in ("measure", "wanted", "reached", "verdict")})


def wrong_parts() -> list[str]:
    """Gain of each part of the noise model beside others."""
    parts = {
        "tables": {
            "+memory minus forward": "votes of posterior labels, alone",
            "+implied minus forward": "predictions of true labels, alone",
            "kept minus forward": "both",
        },
        "images": {
            "full minus -memory": "votes of posterior labels, beside all others",
            "full minus -targets": "posterior labels as first targets, beside all others",
            "full minus -correction": "self-correction, beside all others",
            "full minus -agreement": "agreement of two networks, beside all others",
            "full minus forward": "all",
        },
    }
    found, rows = record("label_noise_ablation"), []
    for kind, names in parts.items():
        for key, title in names.items():
            of = found[kind][key]
            gaps = of["all"] if kind == "tables" else of
            row = {"data": kind, "part": title, "fits": gaps["nll"][3]}
            rows.append(row | {name: around(*gap[:2]) for name, gap in gaps.items()})
    columns = {"data": "data", "part": "part", "fits": "fits", "NLL": "nll", "ECE": "ece"}
    return listing(rows, columns | {"accuracy": "accuracy", "AUROC of wrong labels": "auc"}, 4)


def wrong_random() -> list[str]:
    """Labels that have nothing to do with the rows."""
    rows = sorted(rows_of("pure_noise", "summary"), key=lambda row: (row["classes"], row["base"]))
    return listing(rows, {
        "classes": "classes", "`estimator`": "base", "draws": "draws",
        "NLL above class shares, mean": "above_mean", "largest": "above_worst",
        "largest share of answers above .9": "sure_worst", "draws with a warning": "warned",
    }, 4)  # fmt: skip


def trust_sets() -> list[str]:
    """Coverage and size of 90 % sets."""
    rows = [row for row in rows_of("trust") if row["promise"].startswith("sets, ")]
    rows = [{**row, "sets": row["promise"].removeprefix("sets, ")} for row in rows]
    return listing(rows, {
        "data": "dataset", "sets": "sets", "coverage": "coverage", "mean size": "mean_size",
        "share of empty sets": "empty", "class gap": "class_gap",
    })  # fmt: skip


def trust_answers() -> list[str]:
    """Abstention: what was promised and what resulted."""
    wishes = {"coverage .9": "`coverage=0.9`", "risk .05": "`max_risk=0.05`"}
    rows = [{**row, "wish": wishes[row["promise"]]} for row in rows_of("trust")
            if row["promise"] in wishes]  # fmt: skip
    return listing(rows, {
        "data": "dataset", "asked": "wish", "splits that could promise it": "splits",
        "coverage": "answered", "risk": "risk", "expected risk": "expected",
        "95 % bound": "bound", "splits with a risk above it": "above the bound",
    })  # fmt: skip


def _novelty(columns: Mapping[str, str], *, images: bool) -> list[str]:
    names = {"cifar100": "CIFAR-100", "mnist": "MNIST in color"}
    own = {"combined": '`"combined"`', "entropy": '`"entropy"`'}
    rows = [
        {**row, "score": own.get(row["score"], row["score"]), "novel": names.get(row["met"])}
        for row in rows_of("out_of_distribution")
        if (row["dataset"] == "cifar10") == images
    ]
    return listing(rows, {**columns, "score": "score", "AUROC": "auroc",
                          '`"combined"` minus it': "auroc of combined minus it",
                          "FPR at 95 % TPR": "fpr95", "known rows flagged": "false alarms",
                          "novel rows flagged": "flagged"})  # fmt: skip


def novelty_tables() -> list[str]:
    """Rows of a class that was held out of training."""
    return _novelty({"data": "dataset", "held-out classes": "runs"}, images=False)


def novelty_images() -> list[str]:
    """Images of other data sets."""
    return _novelty({"novel images": "novel"}, images=True)


def groups_promised() -> list[str]:
    """Promises of a fit, and scores of rows of new groups, with groups and without."""
    names = {"synthetic": "40 subjects (synthetic)", "parkinsons": "42 subjects (Parkinson's)"}
    rows = []
    for row in record("groups")["conditions"]["rows"]:
        copies = row["case"].startswith("copies")
        given = ("copies" if copies else "subjects") if row["groups"] else "none"
        ends = {key: around(row[key], row[f"{key}_half"])
                for key in ("nll", "coverage", "promised_minus_nll")}  # fmt: skip
        case = names.get(row["case"], row["case"])
        rows.append({**row, **ends, "case": case, "given": given})
    return listing(rows, {
        "rows": "case", "preset": "preset", "seeds": "seeds", "groups": "given",
        "out-of-fold NLL": "promised_nll", "NLL": "nll", "out-of-fold minus NLL":
        "promised_minus_nll", "NLL of class shares": "nll_of_class_shares",
        "coverage of 90 % sets": "coverage", "mean size": "set_size", "fit, CPU s": "fit_seconds",
    })  # fmt: skip


def groups_copies() -> list[str]:
    """Copies as groups, by the share of rows that have one and by what new rows are."""
    new = {"copies as often": "copies as often", "copies of none": "no copies"}
    rows = []
    for row in record("groups")["shares"]["rows"]:
        found = {key: " ± ".join(cell(row[f"{key} {of}"], 4) for of in ("mean", "sem"))
                 for key in ("nll", "promised", "promised apart")}  # fmt: skip
        rows.append({"share": row["rows with a copy"], "new": new[row["new rows"]], **found})
    return listing(rows, {
        "share of rows with a copy": "share", "new rows": "new",
        "NLL, grouped minus not": "nll", "out-of-fold minus NLL, grouped": "promised",
        "out-of-fold minus NLL, not grouped": "promised apart",
    }, 2)  # fmt: skip


BLOCKS: dict[str, Callable[[], list[str]]] = {
    "wrong-labels-tables": wrong_tables,
    "wrong-labels-few": wrong_few,
    "wrong-labels-audit": wrong_audit,
    "wrong-labels-ranking": wrong_ranking,
    "wrong-labels-images": wrong_images,
    "wrong-labels-memory": wrong_memory,
    "wrong-labels-relabelled": wrong_relabelled,
    "wrong-labels-targets": wrong_targets,
    "wrong-labels-parts": wrong_parts,
    "wrong-labels-random": wrong_random,
    "trust-sets": trust_sets,
    "trust-answers": trust_answers,
    "novelty-tables": novelty_tables,
    "novelty-images": novelty_images,
    "groups-promised": groups_promised,
    "groups-copies": groups_copies,
}
