"""Tables of docs/results/model.md and docs/results/layers.md."""

from collections.abc import Callable, Iterable
from typing import Any

from results_page import as_table
from tables import around, cell, listing, pivot, record, rows_of

METHODS = {  # of instant.json
    "default": "**default**",
    "instant": '`preset="instant"`',
    "instant without base": "pretrained head alone",
    "CatBoost + T": "CatBoost",
    "extra-trees + T": "extra-trees",
    "random forest + T": "random forest",
    "MLP": "MLP, bag of 5",
    "tuned logistic": "logistic regression",
    "tuned k-NN": "tuned k-NN",
    "class shares": "class shares",
}
HEADS = {  # of pretrained_head.json
    "head, trees": "**head, extra-trees as base**",
    "head + T": "head, temperature",
    "head": "head",
    "trees + T": "extra-trees, temperature",
    "forest + T": "random forest, temperature",
    "distance": "votes by distance",
    "logistic": "logistic regression",
    "uniform": "votes, uniform",
    "class shares": "class shares",
}
ROWS = ("16 rows", "32 rows", "48 rows")
BASES = {"neighbors": "no base", "one space": "one space, base", "full": "two spaces, base"}


def small_tables() -> list[str]:
    """Presets beside peers on small tables, and the default minus each."""
    found = record("instant")["summary"]["folds"]
    rows = [
        {"method": title, "nll": found["mean_nll"][name], "median": found["median_nll"][name],
         "left out": found["costs"]["left_out_nll"][name],
         "accuracy": found["costs"]["accuracy"][name],
         "fit": cell(found["costs"]["fit_s"][name], 1),
         "default": _gap(found, "default", name), "default on": _share(found, "default", name),
         "alone": _gap(found, "instant without base", name)}
        for name, title in METHODS.items()
    ]  # fmt: skip
    return listing(rows, {
        "method": "method", "NLL, mean": "nll", "NLL, median": "median",
        "NLL, remembered rows left out": "left out", "accuracy": "accuracy",
        "fit, CPU s": "fit", "NLL, default minus it": "default",
        "default lower on, %": "default on", "NLL, head alone minus it": "alone",
    })  # fmt: skip


def _gap(found: dict[str, Any], one: str, other: str) -> dict[str, float] | None:
    gap: dict[str, float] | None = found["differences"].get(f"{one} - {other}")
    return gap


def _share(found: dict[str, Any], one: str, other: str) -> int | None:
    gap = _gap(found, one, other)
    return None if gap is None else round(100 * gap["share_better"])


def few_rows_peers() -> list[str]:
    """Mean NLL with few rows, and how far instant is behind the better of two peers."""
    summary = record("instant")["summary"]
    rows = [
        {"rows": of.removesuffix(" rows"), **summary[of]["mean_nll"],
         "tables": summary[of]["tables"],
         "behind": round(100 * summary[of]["instant: share behind by .05"]),
         "most": summary[of]["instant: most behind"]}
        for of in ROWS
    ]  # fmt: skip
    names = ("instant", "instant without base", "tuned logistic", "tuned k-NN", "class shares")
    columns = {"rows": "rows", "tables": "tables", **{METHODS[name]: name for name in names}}
    columns |= {"instant behind by over .05, % of tables": "behind", "most behind": "most"}
    return listing(rows, columns)


def presets() -> list[str]:
    """The presets of today's names, and their difference."""
    report = record("presets")["report"]
    gap = report["differences"]["default - instant"]
    rows = [
        {"preset": name, **report["means"][name], "fit": cell(report["means"][name]["fit_s"], 1)}
        for name in ("default", "instant")
    ]
    rows[0]["gap"] = around(gap["mean"], gap["half_interval"])
    return listing(rows, {"preset": "preset", "NLL": "nll", "accuracy": "accuracy",
                          "fit, CPU s": "fit", "NLL, default minus instant": "gap"})  # fmt: skip


def few_rows_presets() -> list[str]:
    """Default and instant under 500 rows: means, and the worst draw."""
    summary = record("few_rows")["report, one model"]["summary"]
    gap = summary["default minus instant, NLL"]
    low, mean, high = sorted(gap["over tables"])
    rows = [
        ["NLL, default", cell(summary["default"]["nll"])],
        ["NLL, instant", cell(summary["instant"]["nll"])],
        ["NLL, default minus instant, over tables",
         cell({"mean": mean, "low": low, "high": high})],
        ["draws on which the default is better by over .05",
         f"{100 * gap['draws better by over .05']:.1f} %"],
        ["draws on which it is worse by over .05",
         f"{100 * gap['draws worse by over .05']:.1f} %"],
        ["NLL, default minus instant, worst draw", cell(gap["worst draw"])],
        ["fit, CPU s, default; instant",
         f"{summary['default']['fit_seconds']:.1f}; {summary['instant']['fit_seconds']:.1f}"],
    ]  # fmt: skip
    return as_table([f"{summary['draws']} draws of {summary['tables']} tables", ""], rows)


def embeddings() -> list[str]:
    """Methods on ready embeddings: mean and extremes over seeds."""
    sets = {"lite0": "3,000 images, 192 numbers", "cifar10-features": "8,000 of cifar10-features"}
    names = {"default": "**default**", "instant": '`preset="instant"`',
             "instant, base=None": "instant, `estimator=None`",
             "logistic + T": "logistic regression, temperature", "MLP + T": "MLP, temperature",
             "class shares": "class shares"}  # fmt: skip
    summary, rows = record("embeddings")["summary"], []
    for data, title in sets.items():
        for name, words in names.items():
            found = summary[f"{data}/{name}"]
            rows.append({"data": title, "method": words} | {
                key: dict(zip(("mean", "low", "high"), found[key], strict=True))
                for key in ("accuracy", "nll", "ece")
            } | {"fit": cell(found["fit_cpu_s"][0], 1)})  # fmt: skip
    return listing(rows, {"embeddings": "data", "method": "method", "accuracy": "accuracy",
                          "NLL": "nll", "ECE": "ece", "fit, CPU s": "fit"})  # fmt: skip


def texts() -> list[str]:
    """Methods on columns of text, alone and beside others: means and intervals over seeds."""
    sets = {"sms": "messages, 2 classes", "polarity": "reviews, 2 classes",
            "netflix": "films, 12 genres: text", "netflix columns": "films: ten columns",
            "netflix mixed": "films: both"}  # fmt: skip
    names = {"default": "**default**", "instant": '`preset="instant"`',
             "logistic, words": "logistic regression, words",
             "logistic, words and characters": "the same, words and characters",
             "boosting, components": "boosting", "naive Bayes": "naive Bayes",
             "10-NN, cosine": "10-NN", "class shares": "class shares"}  # fmt: skip
    of_record = [row for row in rows_of("texts") if max(row["seeds"]) <= 100]
    found = {(row["task"], row["method"]): row for row in of_record}
    rows = [
        row | {"task": title, "method": words, "seeds": len(row["seeds"]),
               "fit": cell(row["fit_cpu_seconds"]["mean"], 1),
               "one": cell(row["one_row_ms"]["mean"], 0)}
        for task, title in sets.items()
        for name, words in names.items()
        if (row := found.get((task, name)))
    ]  # fmt: skip
    return listing(rows, {"rows": "task", "method": "method", "seeds": "seeds",
                          "accuracy": "accuracy", "NLL": "nll", "ECE": "ece",
                          "fit, CPU s": "fit", "one row, ms": "one"})  # fmt: skip


def labels() -> list[str]:
    """Methods on several labels per row: means over seeds."""
    names = {"default": "**default**", "instant": '`preset="instant"`'}
    rows = [
        row | {"name": names.get(row["method"], row["method"]), "n": len(row["seeds"])}
        | {key: cell(row[key]["mean"], 0) for key in ("fit_cpu_seconds", "one_row_ms")}
        for row in rows_of("labels") if row["seeds"][0] <= 100
    ]  # fmt: skip
    return listing(rows, {"rows": "task", "method": "name", "seeds": "n",
                          "macro Brier": "macro_brier", "NLL per label": "macro_nll",
                          "mAP": "mean_average_precision", "macro F1": "macro_f1",
                          "fit, CPU s": "fit_cpu_seconds",
                          "one row, ms": "one_row_ms"})  # fmt: skip


def photographs() -> list[str]:
    """Methods on photographs: means over seeds."""
    names = {"default": "**default**", "instant": '`preset="instant"`',
             "logistic": "logistic regression, temperature",
             "10-NN, cosine": "10-NN, cosine, temperature",
             "resnet18 from scratch": "resnet18 from scratch"}  # fmt: skip
    rows = [
        row | {"name": names[row["method"]], "n": len(row["seeds"])}
        | {key: cell(row[key]["mean"], 0) for key in ("fit_seconds", "fit_cpu_seconds")}
        for row in rows_of("photographs") if row["seeds"][0] <= 100
    ]  # fmt: skip
    return listing(rows, {"images": "n_train", "method": "name", "seeds": "n",
                          "accuracy": "accuracy", "NLL": "nll", "ECE": "ece",
                          "fit, s": "fit_seconds", "fit, CPU s": "fit_cpu_seconds"})  # fmt: skip


def instant_speed() -> list[str]:
    """Seconds of fits, predictions and changes with preset instant."""
    results = record("instant_speed")["results"]
    cases = (
        ("digits, 64 numbers", results["digits"]["instant"]),
        ("digits, `estimator=None`", results["digits"]["instant without base"]),
        ("DataFrame with categories", results["mixed"]["instant"]),
        ("the same, `estimator=None`", results["mixed"]["instant without base"]),
        ("embeddings of 192 numbers, `estimator=None`", results["embeddings"]),
    )
    rows = [
        {"data": data, "rows": of["rows"], "fit": of["fit_s"]["least"],
         "one": 1e3 * of["one_row_s"]["least"], "many": 1e6 * of["batch_s_per_row"]["least"],
         "add": 1e3 * of["add_one_and_predict_s"]["least"], "mb": of["folder_mb"]}
        for data, of in cases
    ]  # fmt: skip
    return listing(rows, {
        "data": "data", "rows": "rows", "fit, s": "fit", "one row, ms": "one",
        "row of a batch, us": "many", "add one row and predict one, ms": "add", "folder, MB": "mb",
    }, digits=1)  # fmt: skip


def head_alone() -> list[str]:
    """The pretrained head without further training, beside peers."""
    summary = record("pretrained_head")["summary"]
    rows = [
        {"method": title, "median": summary["folds"]["median_nll"][name],
         "rank": cell(summary["folds"]["mean_rank"].get(name), 1),
         **{of: summary[of]["mean_nll"][name] for of in ("folds", *ROWS)}}
        for name, title in HEADS.items()
    ]  # fmt: skip
    columns = {"method": "method", "NLL, mean": "folds", "NLL, median": "median",
               "mean rank of 8": "rank", **{f"NLL, {of}": of for of in ROWS}}  # fmt: skip
    return listing(rows, columns)


def head_gaps() -> list[str]:
    """Differences of the pretrained head and its peers over tables."""
    gaps = record("pretrained_head")["summary"]["folds"]["differences"]
    rows = []
    for pair, gap in gaps.items():
        one, other = (HEADS[name].strip("*") for name in pair.split(" - "))
        share = round(100 * gap["share_better"])
        rows.append({"of": one, "less": other, "gap": gap, "share": share})
    return listing(rows, {"NLL of": "of", "minus NLL of": "less", "mean": "gap",
                          "lower on, % of tables": "share"})  # fmt: skip


def head_speed() -> list[str]:
    """Time of the head alone."""
    found = record("pretrained_head")["timings"]
    names = {"describe": "describe the neighbors", "predict": "predict"}
    rows = [
        {
            "step": title,
            "many": found[f"{name}_batch_us_per_row"],
            "one": found[f"{name}_one_row_ms"],
        }
        for name, title in names.items()
    ]
    columns = {"step": "step", "row of a batch of 2,000, us": "many", "one row, ms": "one"}
    return listing(rows, columns, digits=1)


def few_shot() -> list[str]:
    """Episodes of unseen classes: accuracy and NLL of each method."""
    names = {"pretrained head (learned metric)": "pretrained head",
             "class means (learned metric)": "class means",
             "uniform k-NN (learned metric)": "uniform k-NN",
             "logistic regression": "logistic regression"}  # fmt: skip
    rows = [row for row in rows_of("few_shot") if row["method"] in names]
    shown = [
        row | {"measure": title, "value": around(row[key]["mean"], row[key]["half"])}
        for key, title in (("accuracy", "accuracy"), ("nll", "NLL")) for row in rows
    ]  # fmt: skip
    labels = {"measure": "measure", "data": "dataset", "rows per class": "shot"}
    return pivot(shown, labels, "method", "value", names)


def _without(found: dict[str, dict[str, float]]) -> list[str]:
    rows = [{"left out": name} | of for name, of in found.items()]
    columns = {title: key for key, title in BASES.items()}
    return listing(rows, {"left out": "left out", **columns})


def ablation_inputs() -> list[str]:
    """NLL of short trainings without some inputs."""
    return _without(record("pretrain_ablation")["without"])


def ablation_tasks() -> list[str]:
    """NLL of short trainings without a kind of tasks."""
    return _without(record("pretrain_ablation")["kinds of tasks"]["without"])


def columns_in_the_head() -> list[str]:
    """A head that sees columns minus one that does not."""
    titles = {"c16 - c0": "1,500 steps, 6,000 tasks", "long16 - long0": "5,000 steps, 12,000 tasks",
              "big32 - long0": "5,000 steps, wider, 24,000 tasks"}  # fmt: skip
    gaps, rows = record("pretrain_columns")["differences"], []
    for name, title in titles.items():
        for key, base in (("head", "no base"), ("head, trees", "extra-trees as base")):
            gap = gaps[name][key]
            share = round(100 * gap["share_lower"])
            rows.append({"of": title, "base": base, "share": share,
                         "gap": around(gap["mean"], gap["half_interval"])})  # fmt: skip
    return listing(rows, {"training": "of", "base": "base",
                          "NLL, with columns minus without": "gap",
                          "lower on, % of tables": "share"})  # fmt: skip


def _minus(names: dict[str, str], found: dict[str, Any], title: str, over: str) -> list[str]:
    rows = [
        {"score": words, "tables": found[name]["n"],
         "gap": around(found[name]["mean"], found[name]["half_interval"])}
        for name, words in names.items()
    ]  # fmt: skip
    return listing(rows, {"score": "score", over: "tables", title: "gap"}, digits=4)


def abstention_scores() -> list[str]:
    """AURC of scores of abstention minus that of the largest probability."""
    names = {"auto": "best on left-out rows", "learned": "logistic regression on all scores",
             "entropy": "entropy", "margin": "margin of the two largest",
             "null_mass": "attention to no neighbor", "distance": "distance"}  # fmt: skip
    found = record("choices")["abstention"]["minus the largest probability"]
    return _minus(names, found, "AURC minus that of the largest probability", "tables")


def novelty_scores() -> list[str]:
    """AUROC of novelty scores minus that of the combined one."""
    names = {"distance+entropy+null_mass": "combined without sparsity (used)",
             "null_mass": "attention to no neighbor", "entropy": "entropy",
             "sparsity": "sparsity", "distance": "distance"}  # fmt: skip
    found = record("choices")["novelty"]["minus combined"]
    return _minus(names, found, "AUROC minus that of all four combined", "tables")


def stored_trees() -> list[str]:
    """Formats of a forest: time, size, and what forged copies do."""
    names = {"arrays": "flat arrays (used)", "scikit-learn": "scikit-learn, skops",
             "treelite": "treelite", "onnxruntime": "ONNX Runtime"}  # fmt: skip
    rows = []
    for name, of in record("stored_trees")["rows"].items():
        forged = of.get("forged", {})
        shown = [str(forged.get(key, 0)) for key in ("refused", "answered", "died")]
        gap = f"{of['largest difference']:.0e}" if "largest difference" in of else ""
        rows.append(of | {"format": " ".join([names[name], of.get("version", "")]).strip(),
                          "gap": gap, "forged": " / ".join(shown) if forged else ""})  # fmt: skip
    return listing(rows, {
        "format": "format", "one row, ms": "one row, ms", "397 rows, ms": "397 rows, ms",
        "MB": "MB",
        "largest difference of probabilities": "gap", "forged: refused / answered / died": "forged",
    }, digits=2)  # fmt: skip


def layer_speed() -> list[str]:
    """Time of k-NN attention relative to dense attention."""
    rows = []
    for place, found in record("token_speed")["results"].items():
        batch, tokens = (int(part.split("=")[1]) for part in place.split())
        for name in ("dense", "KNNAttention K=9", "KNNAttention K=32"):
            of = found["layers"][name]
            rows.append({
                "tokens": tokens, "batch": batch,
                "layer": name.replace(" K=", ", neighbors: "),
                "f": of["f"]["median_ms"], "fb": of["fb"]["median_ms"],
                "rf": cell(of["ratio"]["forward"], 2),
                "rfb": cell(of["ratio"]["forward_backward"], 2),
            })  # fmt: skip
    return listing(rows, {
        "tokens": "tokens", "batch": "batch", "layer": "layer", "forward, ms": "f",
        "forward and backward, ms": "fb", "forward / dense": "rf",
        "forward and backward / dense": "rfb",
    }, digits=1)  # fmt: skip


def layer_memory() -> list[str]:
    """Peak memory of forward and backward against the number of tokens."""
    names = {"MultiHeadAttention": "dense", "KNNAttention": "`KNNAttention`, CPU loops",
             "KNNAttention plain": "`KNNAttention`, plain"}  # fmt: skip
    curve = record("layer_memory")["results"]["curve"]
    return pivot(curve, {"tokens": "tokens"}, "layer", "mib", names, digits=0)


def layer_busy() -> list[str]:
    """Time of a layer beside two busy loops, relative to a quiet machine."""
    return listing(rows_of("busy_layers"), {
        "threads started by": "order", "CPU time, busy / quiet": "cpu_ratio",
        "wall time, busy / quiet": "wall_ratio",
    }, digits=2)  # fmt: skip


def token_memory() -> list[str]:
    """Names predicted right with several memories of earlier tokens."""
    names = {"memory of all": "memory of all", "newest 24": "newest 24",
             "24 at random": "24 at random", "no memory": "no memory",
             "nearest pixels, of all": "nearest pixels, no model"}  # fmt: skip
    rows = [
        {"memory": name, "seen": f"{8 * at} to {8 * at + 7}",
         "share": around(of["mean"], of["half"])}
        for at in (0, 3, 5, 8, 11)
        for name, means in record("token_memory")["means"].items() for of in [means[at]]
    ]  # fmt: skip
    return pivot(rows, {"images seen before": "seen"}, "memory", "share", names)


def token_tail() -> list[str]:
    """Error of attention to a part of the keys: means over seeds."""
    names = {"nearest": "nearest alone", "tail-corrected": "with `tail_samples`",
             "even sample": "even sample alone"}  # fmt: skip
    found: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in record("tail_correction")["records"]:
        if row["budget"] in (128, 512) and row["estimator"] in names and row["rms"] is not None:
            place = (row["tokens"], row["scale"], row["budget"], row["estimator"])
            found.setdefault(place, []).append(row)
    rows = [
        {"tokens": tokens, "spread": f"{_mean(of, 'perplexity'):,.0f}", "read": budget,
         "estimator": estimator, "rms": _mean(of, "rms")}
        for (tokens, _, budget, estimator), of in found.items()
    ]  # fmt: skip
    labels = {"tokens": "tokens", "keys attended (perplexity)": "spread", "keys read": "read"}
    return pivot(rows, labels, "estimator", "rms", names)


def _mean(rows: Iterable[dict[str, Any]], key: str) -> float:
    values = [row[key] for row in rows]
    return float(sum(values) / len(values))


def probe_speed() -> list[str]:
    """Time and memory of a k-NN probe beside others."""
    rows = []
    for name, data in (
        ("probe_speed", "10,000 against 50,000 x 512, two threads"),
        ("probe_speed_cifar10-features", "10,000 against 50,000 x 192, one thread"),
    ):
        for method, of in record(name)["medians"].items():
            mib = f"{of['peak_mib']:,.0f}"
            rows.append({"data": data, "method": method.replace(", exact", "")} | of | {"mib": mib})
    return listing(rows, {"queries": "data", "method": "method", "wall s": "wall_seconds",
                          "CPU s": "cpu_seconds", "peak memory, MiB": "mib"}, digits=2)  # fmt: skip


def probe_neighbors() -> list[str]:
    """Accuracy and NLL of k-NN by how k is chosen."""
    names = {"Brier score": "k by Brier score (used)", "NLL": "k by NLL",
             "accuracy": "k by accuracy", "always 20": "k = 20"}  # fmt: skip
    parts = {"full": "all", "0.2:fixed": "a fifth, the same of each image",
             "0.2": "a fifth, others of each image"}  # fmt: skip
    rows = []
    for row in rows_of("probe_neighbors"):
        *place, part = row["features"].split(", ")
        shown = f"{cell(row['accuracy'])} / {cell(row['nll'], 2)}"
        data = ", ".join(place) or part
        rows.append(row | {"data": data, "pixels": parts.get(part, ""), "shown": shown})
    return pivot(rows, {"features": "data", "pixels": "pixels"}, "k by", "shown", names)


def probe_attention() -> list[str]:
    """NLL and accuracy of attention over frozen features beside k-NN."""
    names = {"attention": "attention, whitened features where better",
             "attention-features": "attention", "knn": "k-NN"}  # fmt: skip
    rows = [
        row | {"shown": f"{cell(row['accuracy'])} / {cell(row['nll'])}"}
        for row in rows_of("probe_memory", "summary")
    ]
    return pivot(rows, {"data": "data", "rows remembered": "n"}, "probe", "shown", names)


BLOCKS: dict[str, Callable[[], list[str]]] = {
    "model-small-tables": small_tables,
    "model-presets": presets,
    "model-few-rows-peers": few_rows_peers,
    "model-few-rows-presets": few_rows_presets,
    "model-embeddings": embeddings,
    "model-texts": texts,
    "model-photographs": photographs,
    "model-labels": labels,
    "model-instant-speed": instant_speed,
    "model-head": head_alone,
    "model-head-gaps": head_gaps,
    "model-head-speed": head_speed,
    "model-few-shot": few_shot,
    "model-ablation-inputs": ablation_inputs,
    "model-ablation-tasks": ablation_tasks,
    "model-columns": columns_in_the_head,
    "model-abstention": abstention_scores,
    "model-novelty": novelty_scores,
    "model-stored-trees": stored_trees,
    "layers-speed": layer_speed,
    "layers-memory": layer_memory,
    "layers-busy": layer_busy,
    "layers-token-memory": token_memory,
    "layers-tail": token_tail,
    "layers-probe-speed": probe_speed,
    "layers-probe-neighbors": probe_neighbors,
    "layers-probe-attention": probe_attention,
}
