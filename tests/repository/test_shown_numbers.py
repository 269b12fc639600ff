"""The numbers that README.md and docs/results/summary.md show are those of benchmarks/results.

For each row, bullet and paragraph with numbers, `readme` and `results` give a text that only this
one of its section has (numbers in this text are not looked at), and the numbers in the rest of it,
in order, from their records. A number that is written out there is a condition or a target.
"""

import json
import re
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
NUMBER = re.compile(r"(?<![\w.,-])[-+]?(?:\d{1,3}(?:,\d{3})+|\d*\.?\d+)(?![\w-]|\.\d)")
# No numbers of a result: code, targets of links, the level of intervals.
ASIDE = re.compile(r"`[^`]*`|\]\([^)]*\)|\b95 %")
GENERATED = re.compile(r"<!-- (\S+):start -->.*?<!-- \1:end -->", re.DOTALL)
QUALITY = ("accuracy", "nll", "ece")
SYMMETRIC = "30 % symmetric"
Shown = dict[str, list[float]]


@cache
def record(name: str) -> Any:
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text("utf-8"))


def at(name: str, *path: Any) -> Any:
    """What a file has at a path; a dict in it stands for the one row of a list with its values."""
    node = record(name)
    for step in path:
        if isinstance(step, dict):
            (node,) = [row for row in node if step.items() <= row.items()]
        else:
            node = node[step]
    return node


def study(name: str, place: str, *methods: str, experiment: str) -> list[float]:
    """Accuracy, NLL and ECE of each method in a study."""
    where = {"experiment": experiment, "place": place}
    rows = [at(f"study_{name}", "results", where | {"method": method}) for method in methods]
    return [row[key] for row in rows for key in QUALITY]


def bars(name: str, bar: str, *keys: str, of: str = "wanted") -> list[float]:
    return [at(f"study_{name}", "checks", {"bar": f"{bar}, {key}"}, of) for key in keys]


def means(node: dict[str, Any]) -> list[float]:
    return [node[key]["mean"] for key in QUALITY]


def noisy_table(task: str, *methods: str) -> list[float]:
    found = at("label_noise", "tasks", task, "means")
    return [value for method in methods for value in means(found[method])]


def interval(found: dict[str, Any], scale: float = 1) -> list[float]:
    return [found[key] * scale for key in ("mean", "low", "high")]


def nll(dataset: str, *methods: str) -> list[float]:
    found = at("quality", "datasets", dataset, "means")
    return [found[method]["nll"]["mean"] for method in methods]


def tables(condition: str, *methods: str) -> list[float]:
    """Mean NLL over the large tables of some weightings without a base."""
    where = {"group": "large-tables", "condition": f"{condition}without=base"}
    runs = [r for r in record("weights_tables")["runs"] if where.items() <= r.items()]
    return [mean(mean(r["nll"].values()) for r in runs if r["method"] == m and
                 r.get("noise", SYMMETRIC) == SYMMETRIC) for m in methods]  # fmt: skip


def images(condition: str, key: str, *methods: str) -> list[float]:
    """A measure on 10,000 images with wrong labels."""
    where = {"data": "cifar10-10000", "condition": f"{condition}; with=base", "noise": SYMMETRIC}
    return [at("weights", "results", where | {"method": m}, key, "0") for m in methods]


def networks(key: str, *methods: str) -> list[float]:
    """A measure of weightings on three networks of CIFAR-10."""
    of = "cifar10, three later networks", "results"
    return [at("weights_former_networks", *of, {"condition": "with=base", "method": m}, key)
            for m in methods]  # fmt: skip


def rank(dataset: str, left_out: str = "") -> list[int]:
    """Rank by NLL of the classifier among the methods of a data set, and their number."""
    methods = [m for m in at("quality", "datasets", dataset, "means") if ":" not in m]
    methods = sorted(set(methods) - {left_out}, key=lambda m: nll(dataset, m))
    return [methods.index("attention") + 1, len(methods)]


def one_head(key: str) -> list[float]:
    """Value of each of the three seeds of CIFAR-10 with one pretrained head."""
    return [at("one_head", "results", f"cifar10, seed {n}", "after", key) for n in range(3)]


def small_table(name: str) -> list[float]:
    """Mean NLL, accuracy and fit time; the default minus it; on how many it is lower, of all."""
    found = at("instant", "summary", "folds")
    row = [found["mean_nll"][name], *(found["costs"][k][name] for k in ("accuracy", "fit_s"))]
    if name == "default":
        return row
    minus = found["differences"][f"default - {name}"]
    return [*row, *interval(minus), minus["share_better"] * minus["tables"], minus["tables"]]


def stream(method: str) -> list[float]:
    """Accuracy, NLL, ECE and seconds in percent of the refits, of classes that come in turn."""
    found, refits = (at("stream", "results", {"stream": "classes", "method": name})
                     for name in (method, "refit on everything"))  # fmt: skip
    return [*means(found), 100 * found["seconds"]["mean"] / refits["seconds"]["mean"]]


def layer(arm: str) -> list[float]:
    """Accuracy and difference from full attention: with a class token, with the mean of tokens."""
    rows = [at(f"vit_training_digits_augmented{pooling}", "table", {"arm": arm})
            for pooling in ("", "_mean")]  # fmt: skip
    minus = [interval(row["difference"], 0.01) if "difference" in row else [] for row in rows]
    return [n for row, less in zip(rows, minus, strict=True) for n in (row["top1"] / 100, *less)]


# fmt: off
VOTES = ("uniform", "distance-tuned")
FOUR = (*VOTES, "cnn+temperature", "attention")
TTA, MODEL, PRIOR = "attention+tta", "attention+noise-model", "attention+uniform-prior"
EVERYTHING, ADDED, KNN = (
    "refit on everything", "add, never refreshed", "uniform k-NN, k = 5, on everything")


def results() -> dict[str, Shown]:
    """Headings of docs/results/summary.md with what stands below them."""
    peers = {
        "**default**": "default", '`preset="instant"`': "instant",
        "the pretrained head alone": "instant without base", "CatBoost": "CatBoost + T",
        "extra-trees": "extra-trees + T", "random forest": "random forest + T",
        "MLP, bag of 5": "MLP", "logistic regression": "tuned logistic", "tuned k-NN": "tuned k-NN"}
    ranks, of_adult = at("quality", "ranks"), rank("adult", left_out="modern-nca")[0]
    n = len(ranks["datasets"])
    main, noise, tail = (partial(study, experiment=e) for e in ("main", "label-noise", "long-tail"))
    network = main("cifar10", "", "cnn+temperature")
    two_views = "main: attention+tta"
    symmetric, asymmetric, worse, people = (f"{kind}, everywhere" for kind in (
        "30 % symmetric", "20 % asymmetric", "40.2 % human-worse", "9.01 % human-aggregate"))
    memory = "30 % symmetric, memory"
    trained = {"experiment": "main", "method": "cnn+temperature"}
    in_nll, in_ece = one_head("nll, memory wrong"), one_head("ece, memory wrong")
    six = ("knn-uniform", "knn-tuned", "lightgbm", "mlp", "attention-plain", "attention")
    whole = "attention-normalised"
    rare = {"data": "cifar10-10000", "condition": "ratio=0.01; corrected; with=base"}
    sets = [row for row in record("trust")["results"] if row["promise"] == "sets, LAC"]
    coverage = sorted(100 * row["coverage"]["mean"] for row in sets)
    unlike = {"dataset": "cifar10", "met": "cifar100"}
    arms = {
        "a fixed window of tokens": "neighborhood 1-d", "ConvNN": "convnn",
        "**k-NN attention**": "knn", "branching convolution": "branch conv",
        "a fixed window of patches": "neighborhood 2-d", "full attention": "attention"}
    published, curve = "vit_training_published", ("layer_memory", "results", "curve")
    times = [at("token_speed", "results", size, "layers", "KNNAttention K=9", "ratio").values()
             for size in ("B=8 N=197", "B=2 N=1024")]
    head = at("pretrained_head", "timings")
    instant = at("instant_speed", "results", "digits", "instant")
    return {
        "Small tables": {
            "tables of at most 1,600 training rows": [at("instant", "summary", "folds", "tables")],
            **{f"| {label}": small_table(name) for label, name in peers.items()},
            "A pull of powers towards 1": [50]},
        "Tables, seed by seed": {
            "With Adult counted": [
                of_adult, (ranks["mean_nll_rank"]["attention"] * n + of_adult) / (n + 1),
                *rank("breast_cancer")]},
        "The weights alone": {
            "- **Yes**": [30, 40],
            "- **No**: on images, once": [
                *images("everywhere; corrected", "nll", whole, "multi-head", "uniform"), *[
                    at("weights", "results", rare | {"method": m}, "nll", "0")
                    for m in (whole, "uniform")]],
            "judges itself again": [n for method in ("classifier", "base")
                                    for key in ("nll", "ece")
                                    for n in images("memory; as-given", key, method)],
            "*Attention minus": [0, 24, 10000], "Tables (mean differences": [24],
            "Images (10,000": [0]},
        "Images": {
            "CIFAR-10, seeds 0 to 2": [],
            "The peers have one view": [],
            "| CIFAR-10 |": [
                *main("cifar10", "", *FOUR, TTA)],
            "Targets for two views": [
                *bars("cifar10", two_views, "accuracy", "nll", "aurc"),
                *bars("cifar10", two_views, "aurc", of="reached"),
                *bars("cifar10", two_views, "ece"),
                *bars("cifar10", two_views, "ece", of="reached")]},
        "Wrong labels": {
            "| 30 % symmetric, all": noise("cifar10", symmetric, *FOUR, MODEL),
            "| 20 % asymmetric": noise("cifar10_half", asymmetric, *FOUR, MODEL),
            "| people's majority, 9 %": noise("cifar10_half", people, *FOUR, MODEL),
            "| 30 % symmetric, in the memory": [
                *noise("cifar10", memory, *VOTES),
                *(at("study_cifar10", "results", trained, "by_seed", "0", key) for key in QUALITY),
                *noise("cifar10", memory, "attention")],
            "`relabel` of 30 %": [*in_nll, network[1], *in_ece],
            "- Targets: 30 % symmetric": [
                *bars("cifar10", f"{symmetric}: {MODEL}", "accuracy", "ece"),
                *noise("cifar10", symmetric, f"{MODEL}+tta"),
                40, *noise("cifar10", worse, MODEL),
                *bars("cifar10", f"{worse}: {MODEL}", "accuracy"),
                9, *noise("cifar10", people, MODEL),
                *bars("cifar10", f"{people}: {MODEL}", "ece")],
            "Tables, 30 % symmetric noise": [],
            "| digits |": noisy_table("digits", *six),
            "| wine-red |": noisy_table("wine-red", *six)},
        "Rare classes": {
            "seed 0 unless noted": [],
            "| 5,000 to 500 |": tail("cifar10", "ratio = 0.1", *FOUR, PRIOR),
            "| 5,000 to 50 |": tail(
                "cifar10", "ratio = 0.01", *FOUR, f"{PRIOR}:base-alone", PRIOR)},
        "A memory that changes": {
            "| refitting at every class |": stream(EVERYTHING),
            "| `partial_fit` |": stream("partial_fit"),
            "| `add` alone |": stream(ADDED),
            "| uniform k-NN, k = 5 |": stream(KNN)},
        "Trust": {
            "90 % sets contain": [
                coverage[0], coverage[-2], sets[0]["splits"], coverage[-1],
                *(at("out_of_distribution", "results", unlike | {"score": score}, "auroc", "mean")
                  for score in ("entropy", "combined")), 0.92]},
        "Layers for transformers": {
            **{f"| {label}": layer(arm) for label, arm in arms.items()},
            "read from the mean": [
                at(published, "settings", "train_limit"),
                *(at(published, "table", {"arm": arm}, "top1") / 100
                  for arm in ("convnn random", "attention"))],
            "A k-NN attention layer": [
                9, at("token_speed", "repeats"), 197, 8, *times[0], 1024, 2, *times[1], 16384,
                *(at(*curve, {"layer": name, "tokens": 16384}, "mib")
                  for name in ("KNNAttention", "MultiHeadAttention", "KNNAttention plain"))]},
        "Numbers as targets": {
            "Peers get the same columns": [11, 19, 30, 2000],
            "exchanged among": [30],
            "CRPS of each table": [20],
        },
        "What a prediction costs": {
            "The pretrained head takes": [
                head["predict_batch_us_per_row"], head["predict_one_row_ms"], 32,
                1e6 * instant["batch_s_per_row"]["least"], 1e3 * instant["one_row_s"]["least"]]}}


def with_fit(dataset: str, *methods: str) -> list[float]:
    """NLL and seconds of a fit of some methods on a data set."""
    found = at("quality", "datasets", dataset, "means")
    return [found[m][key]["mean"] for m in methods for key in ("nll", "fit_seconds")]


def numbers(*methods: str) -> list[float]:
    """CRPS over that of a quantile forest, and seconds of a fit, means over the tables."""
    shown = []
    for method in methods:
        every = at("regression", "results", {"method": method, "tables": 11})
        costs = [row["seconds"]["mean"] for row in at("regression", "results")
                 if row["method"] == method and "table" in row]
        shown += [every["crps_over_quantile_forest"]["mean"], mean(costs)]
    return shown


def readme() -> dict[str, Shown]:
    """Headings of README.md with what stands below them."""
    peers = ("default", "CatBoost + T", "tuned logistic", "tuned k-NN")
    small = [value for name in peers for value in small_table(name)[:3:2]]
    knn, window, full = map(layer, ("knn", "neighborhood 1-d", "attention"))
    means_of = [found["means"].get("attention", {}) for found in at("quality", "datasets").values()]
    one_row = [found["one_row_ms"]["mean"] for found in means_of if found.get("one_row_ms")]
    return {
        "When to use it": {},
        "When not": {},
        "Results": {
            "[21 small tables]": small,
            "[11 regression tables]": numbers(
                "default", "catboost-tuned", "quantile-forest", "ngboost"),
            "[breast_cancer]": with_fit(
                "breast_cancer", "attention", "logistic", "catboost", "knn-tuned"),
            "[Adult]": with_fit("adult", "attention", "catboost", "lightgbm", "knn-tuned"),
            "[images, 30 %": images(
                "memory; as-given", "ece", "attention", "base", "multi-head", "uniform"),
            "[k-NN layers in a small ViT]": [
                knn[0], knn[4], window[0], window[4], *full],
            "right of 0 is better": []},
        "Cost and limits": {"seconds on a small table": [min(one_row), max(one_row)]}}


# fmt: on
PAGES = {"README.md": readme, "docs/results/summary.md": results}


def sections(page: str) -> dict[str, str]:
    text = GENERATED.sub("", (ROOT / page).read_text(encoding="utf-8"))
    return dict(re.findall(r"^## (.*)\n((?:(?!## ).*\n?)*)", text, re.MULTILINE))


def differences(text: str, shown: Shown) -> Iterator[str]:
    """Tell what a section shows otherwise than its records, and what is looked up in vain."""
    blocks = re.split(r"\n(?=\||- )|\n\s*\n", text)
    for key in shown:
        if (found := sum(key in block for block in blocks)) != 1:
            yield f"{key!r} is in {found} rows, bullets and paragraphs, not in one."
    for block in blocks:
        keys = [key for key in shown if key in block]
        expected = [value for key in keys for value in shown[key]]
        rest = block.replace(keys[0], "", 1) if keys else block
        numbers = NUMBER.findall(ASIDE.sub("", rest))
        if len(numbers) != len(expected):
            yield f"{block!r} shows {numbers}, the records give {expected}."
        for number, value in zip(numbers, expected, strict=False):
            last_place = 10.0 ** -len(number.partition(".")[2])
            if abs(float(number.replace(",", "")) - value) > 0.5 * last_place + 1e-9:
                yield f"{block!r} shows {number}, its record {value:.6g}."


@pytest.mark.parametrize("page", PAGES)
def test_every_number_shown_is_that_of_its_record(page: str):
    found = sections(page)
    for heading, shown in PAGES[page]().items():
        assert list(differences(found[heading], shown)) == []


def test_no_record_names_a_folder_of_the_machine_that_made_it():
    for path in sorted((ROOT / "benchmarks" / "results").glob("*.json")):
        found = re.findall(r"[ =\"'](/[a-z]+/[^\s\"']+)", path.read_text("utf-8"))
        assert not found, (path.name, found[:3])


def test_every_section_of_the_results_is_compared():
    assert sections("docs/results/summary.md").keys() == results().keys()


ROW, BULLET = "| a | .25 [-.1, +1,000] |", "\n- 3 b"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (ROW + BULLET, ""),
        (ROW + " CIFAR-10, `k=1`, [d](e5.md#1), 95 %" + BULLET, ""),
        (ROW.replace(".25", ".26") + BULLET, "shows .26, its record 0.25."),
        (ROW.replace("-.1", ".1") + BULLET, "shows .1, its record -0.1."),
        (ROW + " 7 |" + BULLET, "'7'], the records give [0.25, -0.1, 1000]."),
        (ROW + "\n| c | .5 |" + BULLET, "['.5'], the records give []."),
        (ROW, "'b' is in 0 rows"),
        (ROW + BULLET + BULLET, "'b' is in 2 rows"),
    ],
)
def test_what_differs_is_found(text: str, found: str):
    seen = list(differences(text, {"a": [0.25, -0.1, 1000], "b": [3]}))
    assert [found in line for line in seen] == [True] * bool(found)
