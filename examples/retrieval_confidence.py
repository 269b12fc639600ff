"""Is the answer among the retrieved items? Calibrated confidence for a retriever, on digits.

The corpus holds a few hundred digits of eight of the ten classes; a query is another digit, encoded
by a poor embedding (6 random directions); an item is relevant if it shows the same digit.
So some lists cannot hold the answer, and others miss it. Half of the queries train the ways to
turn similarities into a probability, the other half tests them, over 5 splits:

    .venv/bin/python examples/retrieval_confidence.py [OUT.png]
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from nearwise_lab.results.measures import mean_with_interval
from nearwise_lab.retrieval import RetrievalConfidence
from sklearn.datasets import load_digits
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

from nearwise.conditions import command_line, hardware, versions
from nearwise.metrics import aurc, ece, nll, reliability_bins

ROOT = Path(__file__).parents[1]
OUT = ROOT / "docs" / "images" / "retrieval.png"
RESULTS = ROOT / "benchmarks" / "results" / "retrieval.json"
N_RANKS, N_CORPUS, N_DIRECTIONS, SEEDS = 10, 300, 6, range(5)
TOPS = (1, 3, 10)
DARK, BLUE, GREY = "#222222", "#0f86c9", "#b8bec4"
COLORS = {
    "attention": BLUE,
    "attention, with agreement": "#0a4f80",
    "isotonic": "#3a9a5b",
    "Platt": "#d9822b",
    "raw similarity": GREY,
}


def retrieve(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cosine similarities of the best items, their agreement, and whether they show the digit.

    Agreement is an item's mean similarity with the other items of its list, (n, 10, 1).
    """
    X, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(seed)
    keys = (X - X.mean(0)) @ rng.normal(size=(64, N_DIRECTIONS))
    keys /= np.linalg.norm(keys, axis=1, keepdims=True)
    order = rng.permutation(len(y))
    absent = rng.permutation(10)[:2]
    corpus = order[~np.isin(y[order], absent)][:N_CORPUS]
    queries = np.setdiff1d(order, corpus, assume_unique=True)
    similarity = keys[queries] @ keys[corpus].T
    best = np.argsort(-similarity, axis=1, kind="stable")[:, :N_RANKS]
    items = keys[corpus][best]
    agreement = (items @ items.transpose(0, 2, 1)).mean(2, keepdims=True)
    relevance = y[corpus][best] == y[queries][:, None]
    return np.take_along_axis(similarity, best, axis=1), agreement, relevance


def answers(
    similarity: np.ndarray, agreement: np.ndarray, relevance: np.ndarray, seed: int
) -> dict[int, Any]:
    """Probabilities that the answer is in the top k, by every method, for the second half."""
    half = len(similarity) // 2
    model = RetrievalConfidence(random_state=seed).fit(similarity[:half], relevance[:half])
    knowing = RetrievalConfidence(random_state=seed)
    knowing.fit(similarity[:half], relevance[:half], item_features=agreement[:half])
    both = np.concatenate([similarity, agreement[:, :, 0]], axis=1)
    top = similarity[:, :1]
    given: dict[int, Any] = {}
    for k in TOPS:
        held = np.asarray(relevance[:, :k].any(axis=1))
        platt = LogisticRegression(C=1e6).fit(top[:half], held[:half])
        whole = LogisticRegression(max_iter=2000, C=100).fit(similarity[:half], held[:half])
        more = LogisticRegression(max_iter=2000, C=100).fit(both[:half], held[:half])
        isotonic = IsotonicRegression(y_min=0.001, y_max=0.999, out_of_bounds="clip")
        isotonic.fit(top[:half, 0], held[:half])
        low, high = top[:half].min(), top[:half].max()
        given[k] = (
            held[half:],
            {
                "raw similarity": np.clip((top[half:, 0] - low) / (high - low), 0.001, 0.999),
                "Platt": platt.predict_proba(top[half:])[:, 1],
                "isotonic": isotonic.predict(top[half:, 0]),
                "logistic, all similarities": whole.predict_proba(similarity[half:])[:, 1],
                "attention": model.predict_proba(similarity[half:], k=k),
                "logistic, with agreement": more.predict_proba(both[half:])[:, 1],
                "attention, with agreement": knowing.predict_proba(
                    similarity[half:], k=k, item_features=agreement[half:]
                ),
            },
        )
    return given


def measures(held: np.ndarray, chance: np.ndarray) -> dict[str, float]:
    """NLL, ECE, and the area under the risk-coverage curve of answering the surest lists first."""
    truth, proba = held.astype(int), np.stack([1 - chance, chance], axis=1)
    always = np.tile([0.0, 1.0], (len(truth), 1))
    return {
        "nll": nll(truth, proba),
        "ece": ece(truth, proba),
        "aurc_x1000": 1000 * aurc(truth, always, confidence=chance),
    }


def main(out: Path = OUT, results: Path | None = RESULTS) -> None:
    """Measure all splits, print the table, draw the first."""
    runs = [
        {"seed": seed, "k": k, "held": float(held.mean()), "method": method}
        | measures(held, chance)
        for seed in SEEDS
        for k, (held, found) in answers(*retrieve(seed), seed).items()
        for method, chance in found.items()
    ]
    rows = []
    for k, method in dict.fromkeys((r["k"], r["method"]) for r in runs):
        found = [r for r in runs if (r["k"], r["method"]) == (k, method)]
        row: dict[str, Any] = {"k": k, "method": method}
        for name in ("held", "nll", "ece", "aurc_x1000"):
            spread = mean_with_interval([r[name] for r in found])
            row[name] = {"mean": round(spread.mean, 4), "half": round(spread.half or 0.0, 4)}
        ours = {r["seed"]: r["nll"] for r in runs if (r["k"], r["method"]) == (k, "attention")}
        ahead = mean_with_interval([r["nll"] - ours[r["seed"]] for r in found])
        row["attention_nll_lower_by"] = {
            "mean": round(ahead.mean, 4),
            "half": round(ahead.half or 0.0, 4),
        }
        rows.append(row)
        scores = {name: spread for name, spread in row.items() if isinstance(spread, dict)}
        print(k, method, *(f"{n} {v['mean']} +- {v['half']}" for n, v in scores.items()))
    if results is not None:
        content = {
            "command": f"python examples/{command_line()}",
            "hardware": hardware(),
            "versions": versions(),
            "results": rows,
            "runs": runs,
        }
        results.write_text(json.dumps(content, indent=1) + "\n")
    held, found = answers(*retrieve(SEEDS[0]), SEEDS[0])[3]
    draw(held, found, out)


def draw(held: np.ndarray, found: dict[str, np.ndarray], out: Path) -> None:
    """Draw reliability and risk against coverage for the top 3."""
    import matplotlib
    from matplotlib.figure import Figure

    style: dict[Any, Any] = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(9.2, 3.3), layout="constrained")
        first, second, risk = figure.subplots(1, 3)
        for axis, name in ((first, "Platt"), (second, "attention")):
            chance = found[name]
            bins = reliability_bins(held, np.stack([1 - chance, chance], axis=1), n_bins=10)
            filled = bins.count > 0
            middle = ((bins.lower + bins.upper) / 2)[filled]
            axis.plot([0.5, 1], [0.5, 1], color=DARK, lw=0.8, ls=(0, (4, 3)))
            axis.bar(middle, bins.accuracy[filled], width=0.09, color=COLORS[name])
            scores = measures(held, chance)
            axis.set_title(f"{name}\nNLL {scores['nll']:.3f}, ECE {scores['ece']:.3f}", fontsize=9)
            axis.set_xlim(0.5, 1)
            axis.set_ylim(0, 1.02)
            axis.set_xlabel("confidence")
        first.set_ylabel("share right")
        share = np.arange(1, len(held) + 1) / len(held)
        for name, color in COLORS.items():
            wrong = ~held[np.argsort(-found[name], kind="stable")]
            risk.plot(
                share, np.cumsum(wrong) / np.arange(1, len(held) + 1), color=color, label=name
            )
        risk.set_xlabel("share of queries answered")
        risk.set_ylabel("lists without the answer")
        risk.set_ylim(0, None)
        risk.legend(frameon=False, fontsize=8)
        figure.savefig(out, dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    main(*(Path(sys.argv[1]), None) if len(sys.argv) > 1 else ())
