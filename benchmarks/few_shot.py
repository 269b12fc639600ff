"""Few-shot: classes never trained on, named from 1 or 5 labeled rows each.

A seed splits a data set's classes into those that may be learned from and five that are tested. The
attention is learned from episodes of the first and, like its rivals, answers the same episodes of
the last: 5 ways, 15 queries per class. All rivals see the same scaled rows. Those "(learned
metric)" also get the linear map that the attention learned, where it took one; of them "pretrained
head" is the head of the package in place of the one that was trained on episodes. The temperature
of class means is fitted on episodes of the first classes. Intervals are over episodes (and over
splits, where several seeds were run).

    python benchmarks/few_shot.py --data-root DATA
    python benchmarks/few_shot.py --datasets digits --shots 5 --episodes 200 --seeds 0

Rows that the JSON file holds already are kept; delete it to begin again.
"""

import argparse
import json
import shlex
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from nearwise_lab.data import load_dataset
from nearwise_lab.few_shot.episodes import Episode, draw_episodes
from nearwise_lab.few_shot.estimator import FewShotAttention
from nearwise_lab.results.measures import mean_with_interval
from sklearn.linear_model import LogisticRegression

from nearwise.conditions import hardware, versions
from nearwise.functional import topk_neighbors
from nearwise.metrics import ece, nll
from nearwise.nn import RememberedSpace, shared_head
from nearwise.safe_files import write_aside

HERE = Path(__file__).parent
N_WAY, N_QUERY = 5, 15
N_KNOWN = {"letter": 16, "digits": 5, "cifar10-features": 5}
MOST_ROWS = 20_000  # of a data set, so that drawing episodes stays quick
METHODS = (
    "attention",
    "class means",
    "class means (learned metric)",
    "uniform k-NN",
    "uniform k-NN (learned metric)",
    "pretrained head (learned metric)",
    "logistic regression",
)


def run(name: str, data_root: str | None, shot: int, n_episodes: int, seed: int) -> dict[str, Any]:
    """Learn on some classes, and answer episodes of five others by every method."""
    dataset = load_dataset(name, data_root=data_root)
    X, y = np.asarray(dataset.X, dtype=np.float64)[:MOST_ROWS], np.asarray(dataset.y)[:MOST_ROWS]
    order = np.random.default_rng(seed).permutation(np.unique(y))
    known, asked = order[: N_KNOWN[name]], order[-N_WAY:]
    base = np.isin(y, known)
    start = time.process_time()
    model = FewShotAttention(n_shot=shot, random_state=seed).fit(X[base], y[base])
    seconds = time.process_time() - start
    plain = at_unit_variance(model.transform(X))
    metric = model.network_.metric
    mapped = plain if metric is None else at_unit_variance(plain @ metric.weight.detach().numpy().T)
    spaces = {"": plain, " (learned metric)": mapped}
    sizes: dict[str, Any] = {"n_way": N_WAY, "n_shot": shot, "n_query": N_QUERY}
    learned_from = list(draw_episodes(y, 50, classes=list(known), seed=seed + 1, **sizes))
    scale = {tag: best_scale(rows, learned_from) for tag, rows in spaces.items()}
    rows: dict[str, dict[str, Any]] = {m: {"accuracy": [], "nll": [], "all": []} for m in METHODS}
    truths = []
    for episode in draw_episodes(y, n_episodes, classes=list(asked), seed=seed + 2, **sizes):
        answers = {
            "attention": model.predict_proba(
                X[episode.query], X[episode.support], episode.support_labels
            )
        }
        for tag, space in spaces.items():
            answers["class means" + tag] = by_means(space, episode, scale[tag])
            answers["uniform k-NN" + tag] = by_neighbors(space, episode, shot)
        answers["pretrained head (learned metric)"] = by_pretrained_head(mapped, episode)
        answers["logistic regression"] = by_logistic(plain, episode)
        truths.append(episode.query_labels)
        for method, proba in answers.items():
            rows[method]["accuracy"].append(float((proba.argmax(1) == truths[-1]).mean()))
            rows[method]["nll"].append(nll(truths[-1], proba))
            rows[method]["all"].append(proba)
    whole = np.concatenate(truths)
    return {
        "dataset": name,
        "shot": shot,
        "seed": seed,
        "episodes": n_episodes,
        "asked": [str(c) for c in asked],
        "choice": model.report_.choice,
        "fit_seconds": round(seconds, 2),
        "ece": {m: round(ece(whole, np.concatenate(rows[m]["all"])), 5) for m in METHODS},
        "accuracy": {m: [round(v, 4) for v in rows[m]["accuracy"]] for m in METHODS},
        "nll": {m: [round(v, 4) for v in rows[m]["nll"]] for m in METHODS},
    }


def at_unit_variance(space: np.ndarray) -> np.ndarray:
    """Divide by one number, so that a column's mean variance is 1."""
    return space / np.sqrt(space.var(0).mean())


def by_means(space: np.ndarray, episode: Episode, scale: float) -> np.ndarray:
    """Probabilities by the squared distance to class means."""
    support, query = space[episode.support], space[episode.query]
    means = np.stack([support[episode.support_labels == c].mean(0) for c in range(N_WAY)])
    logits = -scale * ((query[:, None] - means) ** 2).sum(2) / space.shape[1]
    proba = np.exp(logits - logits.max(1, keepdims=True))
    return proba / proba.sum(1, keepdims=True)


def best_scale(space: np.ndarray, episodes: list[Episode]) -> float:
    """Scale of the squared distances with the lowest NLL on episodes of known classes."""
    scales = np.geomspace(0.05, 50, 31)
    losses = [
        np.mean([nll(e.query_labels, by_means(space, e, scale)) for e in episodes])
        for scale in scales
    ]
    return float(scales[int(np.argmin(losses))])


def by_neighbors(space: np.ndarray, episode: Episode, k: int) -> np.ndarray:
    """Even vote of the k nearest support rows, one row more spread over all classes."""
    apart = ((space[episode.query][:, None] - space[episode.support][None]) ** 2).sum(2)
    near = episode.support_labels[np.argsort(apart, axis=1, kind="stable")[:, :k]]
    votes = (near[:, :, None] == np.arange(N_WAY)).sum(1)
    return (votes + 1 / N_WAY) / (k + 1)


def by_pretrained_head(space: np.ndarray, episode: Episode) -> np.ndarray:
    """The head of the package as it is: nothing of it was learned from episodes."""
    support, query = (
        torch.from_numpy(space[at]).float() for at in (episode.support, episode.query)
    )
    labels = torch.from_numpy(episode.support_labels)
    columns = space.shape[1]
    remembered = RememberedSpace.of(support, labels, n_classes=N_WAY, n_columns=columns)
    found = topk_neighbors(query, support, min(32, len(support)))
    proba = shared_head().predict([remembered.describe(found)]).log_proba.double().exp()
    return (proba / proba.sum(1, keepdim=True)).numpy()


def by_logistic(space: np.ndarray, episode: Episode) -> np.ndarray:
    """Logistic regression fitted on the support rows."""
    model = LogisticRegression(max_iter=300)
    model.fit(space[episode.support], episode.support_labels)
    return model.predict_proba(space[episode.query])


def summary(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row a data set, shot and method: means with 95 % intervals over all episodes."""
    rows = []
    for dataset, shot in dict.fromkeys((r["dataset"], r["shot"]) for r in runs):
        found = [r for r in runs if (r["dataset"], r["shot"]) == (dataset, shot)]
        ours = [v for r in found for v in r["accuracy"]["attention"]]
        for method in METHODS:
            hits = [v for r in found for v in r["accuracy"][method]]
            row = {
                "dataset": dataset,
                "shot": shot,
                "method": method,
                "seeds": [r["seed"] for r in found],
                "episodes": len(hits),
                "accuracy": spread(hits),
                "nll": spread([v for r in found for v in r["nll"][method]]),
                "ece": round(float(np.mean([r["ece"][method] for r in found])), 5),
            }
            if method != "attention":
                pairs = zip(ours, hits, strict=True)
                row["attention_is_ahead_by"] = spread([a - b for a, b in pairs])
            rows.append(row)
    return rows


def spread(values: list[float]) -> dict[str, Any]:
    """Mean with the half-width of its 95 % interval."""
    found = mean_with_interval(values)
    return {
        "mean": round(found.mean, 5),
        "half": None if found.half is None else round(found.half, 5),
    }


def draw(rows: list[dict[str, Any]], out: Path) -> None:
    """Draw accuracies with their intervals, a panel a data set."""
    import matplotlib
    from matplotlib.figure import Figure

    colors = ("#0f86c9", "#d9822b", "#f0c48f", "#8a8f94", "#c9cdd1", "#8e5bb5", "#3a9a5b")
    datasets = list(dict.fromkeys(r["dataset"] for r in rows))
    style: dict[Any, Any] = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(3.3 * len(datasets), 3.5), layout="constrained")
        axes = figure.subplots(1, len(datasets), squeeze=False, sharey=True)[0]
        for axis, dataset in zip(axes, datasets, strict=True):
            shots = sorted({r["shot"] for r in rows if r["dataset"] == dataset})
            for place, (method, color) in enumerate(zip(METHODS, colors, strict=True)):
                found = {
                    r["shot"]: r["accuracy"]
                    for r in rows
                    if (r["dataset"], r["method"]) == (dataset, method)
                }
                at = np.arange(len(shots)) + 0.12 * (place - 3)
                means = [found[s]["mean"] for s in shots]
                halves = [found[s]["half"] or 0.0 for s in shots]
                axis.bar(at, means, 0.11, yerr=halves, color=color, label=method, ecolor="#444444")
            axis.set_xticks(range(len(shots)), [f"{s} row{'s' * (s > 1)} per class" for s in shots])
            axis.set_title(dataset)
            axis.set_ylim(0.2, 1.0)
        axes[0].set_ylabel("accuracy, 5 new classes")
        lines = axes[0].get_legend_handles_labels()
        figure.legend(*lines, frameon=False, fontsize=8, loc="outside lower center", ncols=3)
        figure.savefig(out, dpi=110, metadata={"Software": None})


def main() -> None:
    """Run what is missing and keep every row."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--datasets", default="digits,letter,cifar10-features")
    parser.add_argument("--shots", default="1,5", help="comma-separated")
    parser.add_argument("--episodes", type=int, default=200, help="asked, for each split")
    parser.add_argument("--seeds", default="0,1,2", help="splits of the classes, comma-separated")
    parser.add_argument("--data-root", default=None)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "few_shot.json")
    parser.add_argument("--figure", type=Path, default=None, help="also draw this PNG")
    options = parser.parse_args()
    command = ["python", "benchmarks/few_shot.py"]
    for name in ("datasets", "shots", "episodes", "seeds"):
        if getattr(options, name) != parser.get_default(name):
            command += [f"--{name}", str(getattr(options, name))]
    runs = json.loads(options.out.read_text())["runs"] if options.out.exists() else []
    done = {(r["dataset"], r["shot"], r["seed"], r["episodes"]) for r in runs}
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for seed in map(int, options.seeds.split(",")):
        for name in options.datasets.split(","):
            for shot in map(int, options.shots.split(",")):
                if (name, shot, seed, options.episodes) in done:
                    continue
                runs.append(run(name, options.data_root, shot, options.episodes, seed))
                means = {m: round(float(np.mean(v)), 4) for m, v in runs[-1]["accuracy"].items()}
                print(name, shot, seed, means, flush=True)
                content = {
                    "command": shlex.join(command),
                    "hardware": hardware(),
                    "versions": versions(),
                    "results": summary(runs),
                    "runs": runs,
                }
                write_aside(options.out, (json.dumps(content) + "\n").encode())
    if options.figure is not None:
        draw(summary(runs), options.figure)


if __name__ == "__main__":
    main()
