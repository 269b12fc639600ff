"""Made-up records of the suite, with predictions, curves, a map and a gallery beside them."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
from nearwise_lab.experiments import Record
from nearwise_lab.experiments.artifacts import record_path, save_json, save_predictions
from nearwise_lab.records import as_line
from nearwise_lab.results.measures import Predictions

from nearwise.metrics import evaluate_probabilities

CLASSES = ["cat & dog", "mouse_1", "50 %"]
N_TEST = 60
EXPLAINED = {
    "knn_loss_with_self": 0.003, "knn_loss_without_self": 0.8, "self_weight": 0.4,
    "self_weight_error": 0.01, "even_share": 0.1, "purity": 0.98, "memory_purity": 0.99,
    "excess": 0.15, "nll_study": 2.0,
}  # fmt: skip
SKILL = {
    "uniform": 1.0, "distance": 1.1, "attention": 3.0, "attention+tta": 3.2, "cnn": 3.5,
    "cnn+temperature": 3.6,
}  # fmt: skip


def proba(skill: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = np.arange(N_TEST) % len(CLASSES)
    logits = rng.normal(size=(N_TEST, len(CLASSES)))
    logits[np.arange(N_TEST), y] += skill
    p = np.exp(logits)
    return y, p / p.sum(axis=1, keepdims=True)


def row(method, seed=0, skill=None, folder=None, **values) -> Record:
    blank = Record(
        values.pop("dataset", "toys"), method, seed, experiment=values.pop("experiment", "main"),
        preset=values.pop("preset", "v0.5"), n_train=120, n_test=N_TEST, n_classes=len(CLASSES),
        versions={"nearwise": "0"}, hardware={"cores": 2}, command="a test", time="2026-01-01",
    )  # fmt: skip
    y, p = proba(SKILL.get(method, 2.0) if skill is None else skill, seed)
    record = replace(blank, **evaluate_probabilities(y, p), **values)
    if folder is not None:
        kept = Predictions(y, p, np.arange(N_TEST), CLASSES)
        save_predictions(record_path(folder, record, "predictions", "npz"), kept)
    return record


def write(folder: Path, records) -> Path:
    folder.mkdir(exist_ok=True, parents=True)
    (folder / "records.jsonl").write_text("".join(as_line(asdict(one)) for one in records))
    return folder


def full_study(folder: Path, seeds=(0, 1)) -> Path:
    """Every experiment of a replay, and of "v1" the main one and the weights."""
    records = []
    for seed in seeds:
        records += main_rows(folder, seed)
        for k in (1, 5):
            for m in ("uniform", "attention"):
                records.append(row(m, seed, experiment="k-sweep", condition=f"k={k}", k=k))
        for where in ("memory", "everywhere"):
            for noise in (0.0, 0.3):
                for m in ("uniform", "attention"):
                    skill = SKILL[m] - 4 * noise * (where == "everywhere")
                    condition = f"where={where}"
                    noisy = {"noise": noise, "condition": condition, "skill": skill}
                    records.append(row(m, seed, experiment="label-noise", **noisy))
        for ratio in (1, 0.1):
            for condition in (f"memory-ratio={ratio:g}", f"ratio={ratio:g}"):
                records.append(row("attention", seed, experiment="long-tail", condition=condition))
        for condition, skill in (("full", 3.0), ("without=mixup", 2.0)):
            records.append(
                row("attention", seed, skill, experiment="ablation", condition=condition)
            )
        weights = {"experiment": "weights", "preset": "v1", "condition": "with=base"}
        records += [row(m, seed, **weights) for m in ("uniform", "attention")]
        records += theory_rows(seed)
        records.append(
            Record(
                "random-100x8", "exact", seed, experiment="efficiency", condition="k=10", n_test=9,
                details={
                    "n_rows": 100, "dim": 8, "n_queries": 9, "k": 10, "build_seconds": 0.1,
                    "search_ms_per_query": 0.02, "recall": 1.0,
                },
            )
        )  # fmt: skip
    failed = Record(
        "toys", "attention", 0, experiment="ablation", preset="v1", condition="without=base",
        status="failed", reason="ValueError: <it> broke.",
    )  # fmt: skip
    return write(folder, [*records, failed])


def main_rows(folder, seed):
    records = []
    for m in SKILL:
        explained = EXPLAINED | {"purity": 0.98 - 0.01 * seed}
        details = explained if m == "attention" else {"nll_study": 1.5}
        records.append(row(m, seed, folder=folder, details=details, predict_us_per_row=10.0 + seed))
    attention = next(r for r in records if r.method == "attention")
    save_json(record_path(folder, attention, "curves", "json"), history())
    save_json(record_path(folder, attention, "maps", "json"), memory_map())
    save_json(record_path(folder, attention, "galleries", "json"), gallery())
    for half in ("base-alone", "neighbors-alone"):
        name = f"attention:{half}"
        records.append(row(name, seed, 1.0, folder, preset="v1", part_of="attention"))
    for m in ("uniform", "attention"):
        records.append(
            row(m, seed, folder=folder, preset="v1", null_mass=0.2 if m != "uniform" else None)
        )
    return records


def theory_rows(seed):
    curve = {"k": [1, 2, 5], "error": [0.3, 0.2, 0.15], "a": 0.1, "b": 0.2, "r2": 0.9}
    found = {
        "error-against-k": curve | {"best_k": 5, "sqrt_n": 11.0},
        "collapse": {"purity": 0.98, "accuracy": 0.83, "excess": 0.15, "memory_purity": 0.99},
        "leak": EXPLAINED,
        "norms": {"norms": {"mean": 1.0, "std": 0.0}, "same_order": 1.0},
        "temperatures": {"temperatures": [0.9, 0.8]},
    }
    rows = [
        row("attention", seed, experiment="theory", condition=c, details=d)
        for c, d in found.items()
    ]
    return [replace(r, accuracy=None, nll=None) for r in rows]


def history():
    return [
        {
            "stage": "replay", "epoch": e, "train_loss": 3.0 / e,
            "parts": {"knn": 1.0 / e, "contrastive": 2.0 / e, "entropy": -1.0},
            "knn_clean": 0.5 / e, "attention_entropy": 2.0, "test_accuracy": 0.7 + 0.01 * e,
        }
        for e in (1, 2, 3)
    ]  # fmt: skip


def memory_map():
    points = np.random.default_rng(0).normal(size=(9, 2)).tolist()
    labels = [0, 1, 2] * 3
    return {
        "memory": points, "memory_label": labels, "test": points, "test_label": labels,
        "classes": CLASSES, "explained": 0.4,
    }  # fmt: skip


def gallery(shape=(4, 4, 3)):
    pixels = (np.arange(int(np.prod(shape))) * 5).tolist()
    neighbor = {"id": 1, "label": CLASSES[1], "distance": 0.1, "weight": 0.7, "row": pixels}
    shown = {
        "why": "wrong", "test_row": 3, "true": CLASSES[0], "predicted": CLASSES[1],
        "proba": [0.1, 0.8, 0.1], "null_mass": 0.0, "row": pixels, "neighbors": [neighbor],
    }  # fmt: skip
    return {
        "kind": "images", "image_shape": list(shape), "columns": None, "classes": CLASSES,
        "target_name": "toy", "rows": [shown],
    }  # fmt: skip


def read_json(path: Path):
    return json.loads(path.read_text(encoding="utf-8"))
