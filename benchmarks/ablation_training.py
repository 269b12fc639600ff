"""What each piece of the embedder's training is worth: one row per piece, switched on or off alone.

The reference is the "table" network that `AttnKNNClassifier` trains where rows are held out for it
(`embedder="table"`), with its settings; 80 % of the training part are its training rows, the rest
stops it. Every row changes one piece. The test NLL is that of the plain vote of those training
rows, without base and without attention head, so that nothing makes up for a worse space;
differences are paired by seed, positive where the change hurts.

    python benchmarks/ablation_training.py --data-root DATA
    python benchmarks/ablation_training.py --datasets digits --seeds 0 --rows "reference,MixUp .4"

Rows that the JSON file holds already are kept; delete it to begin again.
"""

import argparse
import json
import shlex
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from nearwise_lab.data import load_dataset
from nearwise_lab.results.measures import mean_with_interval
from nearwise_lab.training.terms import TermsConfig, TermsObjective
from sklearn.model_selection import train_test_split

from nearwise.classifier.fit.embedding import default_config, make_network
from nearwise.classifier.inputs.table import TableEncoder, as_frame
from nearwise.conditions import hardware, versions
from nearwise.data import split_dataset
from nearwise.metrics import accuracy, nll
from nearwise.safe_files import write_aside
from nearwise.training import TrainingRows, predict_neighbors, train_embedder

HERE = Path(__file__).parent
REFERENCE = "reference"
TWINS = "a query finds itself"
UNREFRESHED = "cached keys, hardly refreshed"
UNSTOPPED = "no early stopping"
CONSTANT = "constant rate"
UNCLIPPED = "no gradient clip"
UNFITTED = "starting scale not fitted"
PIECES: dict[str, dict[str, Any]] = {
    REFERENCE: {},
    TWINS: {},  # every row once more under another id: what leaving out by id prevents
    "256 candidates a step": {"n_candidates": 256},
    "cached keys, refreshed every 5 epochs": {"cache_momentum": 0.0},
    UNREFRESHED: {"cache_momentum": 0.0},
    UNSTOPPED: {"patience": None},
    "no weight decay": {"weight_decay": 0.0},
    "no warm-up": {"warmup_epochs": 0.0},
    CONSTANT: {},
    UNCLIPPED: {},
    UNFITTED: {},
    "label smoothing .1": {"label_smoothing": 0.1},
    "MixUp .4": {"mixup_alpha": 0.4},
    "supervised contrastive .5": {"contrastive_weight": 0.5},
    "margin contrastive .5": {"contrastive_weight": 0.5, "contrastive_kind": "margin"},
    "entropy .01": {"entropy_weight": 0.01},
    "hard rows twice as often": {"hard_negative_weight": 2.0},
}


class Unrefreshed(TermsObjective):
    """Cached keys are computed once."""

    refresh_every = 1000


class Constant(TermsObjective):
    """The learning rate does not fall."""

    last_rate = 1.0


class Unclipped(TermsObjective):
    """Gradients are not clipped."""

    gradient_clip = None


class Unfitted(TermsObjective):
    """Starts from the network's own scale."""

    def start(self, generator: torch.Generator) -> None:
        """Leave the scale as it is."""


class Unstopped(TermsObjective):
    """Only the untrained network and the last epoch are evaluated."""

    def evaluation_due(self, epoch: int) -> bool:
        """Whether it is the untrained network."""
        return epoch == 0


OBJECTIVES = {
    UNREFRESHED: Unrefreshed,
    CONSTANT: Constant,
    UNCLIPPED: Unclipped,
    UNFITTED: Unfitted,
    UNSTOPPED: Unstopped,
}


def run(dataset: Any, seed: int, piece: str) -> dict[str, Any]:
    """Train once and score the plain vote on the test rows."""
    train, test = split_dataset(dataset, seed)
    table = as_frame(dataset.X)
    encoder = TableEncoder()
    fitted, seen = encoder.fit(table.iloc[train]), encoder.transform(table.iloc[test])
    classes, codes = np.unique(dataset.y, return_inverse=True)
    numbers, categories = encoder.network_inputs(fitted)
    rows = TrainingRows(numbers, torch.from_numpy(codes[train]), x_cat=categories)
    inner, held_out = train_test_split(
        np.arange(len(train)), test_size=0.2, random_state=seed, stratify=codes[train]
    )
    memory = rows.take(torch.from_numpy(inner))
    taught = doubled(memory, len(rows)) if piece == TWINS else memory
    settings = default_config("table", len(train)) | PIECES[piece]
    network = make_network("table", encoder, numbers.shape[1], len(classes), seed)
    start = time.perf_counter()
    judged, config = rows.take(torch.from_numpy(held_out)), TermsConfig(**settings)
    objective = OBJECTIVES.get(piece, TermsObjective)
    result = train_embedder(network, taught, judged, config, seed=seed, objective=objective)
    seconds = time.perf_counter() - start
    numbers, categories = encoder.network_inputs(seen)
    novel = torch.full((len(test),), -1)
    queries = TrainingRows(numbers, torch.from_numpy(codes[test]), x_cat=categories, ids=novel)
    proba = predict_neighbors(network, queries, memory).numpy().astype(float)
    return {
        "dataset": dataset.name,
        "piece": piece,
        "seed": seed,
        "accuracy": round(accuracy(codes[test], proba), 5),
        "nll": round(nll(codes[test], proba), 5),
        "best_epoch": result.best_epoch,
        "seconds": round(seconds, 2),
    }


def doubled(rows: TrainingRows, first_id: int) -> TrainingRows:
    """Every row twice, the second time under an id of its own, from `first_id` on."""
    twice = rows.take(torch.arange(len(rows)).repeat(2))
    ids = torch.cat([rows.row_ids, first_id + torch.arange(len(rows))])
    return TrainingRows(twice.x_num, twice.labels, x_cat=twice.x_cat, ids=ids)


def summary(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row a data set and piece: means, and the paired difference from the reference."""
    rows = []
    for dataset in dict.fromkeys(r["dataset"] for r in runs):
        of = {(r["piece"], r["seed"]): r for r in runs if r["dataset"] == dataset}
        for piece in [p for p in PIECES if any(p == q for q, _ in of)]:
            seeds = sorted(s for p, s in of if p == piece and (REFERENCE, s) in of)
            found = [of[piece, s] for s in seeds]
            row = {
                "dataset": dataset,
                "piece": piece,
                "seeds": len(seeds),
                "nll": float(np.mean([r["nll"] for r in found])),
                "accuracy": float(np.mean([r["accuracy"] for r in found])),
                "seconds": float(np.mean([r["seconds"] for r in found])),
            }
            if piece != REFERENCE:
                change = [of[piece, s]["nll"] - of[REFERENCE, s]["nll"] for s in seeds]
                spread = mean_with_interval(change)
                row |= {"change": spread.mean, "low": spread.low, "high": spread.high}
            rows.append(row)
    return rows


def read(path: Path) -> list[dict[str, Any]]:
    """Rows of an earlier run."""
    return json.loads(path.read_text())["runs"] if path.exists() else []


def main() -> None:
    """Run what is missing and keep every row."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--datasets", default="wine-red-dd,digits", help="comma-separated")
    parser.add_argument("--seeds", default="0,1,2", help="comma-separated")
    parser.add_argument("--rows", default=",".join(PIECES), help="comma-separated")
    parser.add_argument("--data-root", default=None)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "ablation_training.json")
    options = parser.parse_args()
    # "cached keys, ..." holds a comma: known names are looked for in the text instead of split.
    wanted = [piece for piece in PIECES if piece == REFERENCE or piece in options.rows]
    if not any(piece in options.rows for piece in PIECES):
        parser.error(f"no such row: {options.rows}; known: {'; '.join(PIECES)}")
    command = ["python", "benchmarks/ablation_training.py"]
    for name in ("datasets", "seeds", "rows"):
        if getattr(options, name) != parser.get_default(name):
            command += [f"--{name}", getattr(options, name)]
    runs = read(options.out)
    done = {(r["dataset"], r["piece"], r["seed"]) for r in runs}
    torch.set_num_threads(1)  # the tables are small: more threads wait for each other
    for name in options.datasets.split(","):
        dataset = load_dataset(name, data_root=options.data_root)
        for piece in wanted:
            for seed in map(int, options.seeds.split(",")):
                if (dataset.name, piece, seed) in done:
                    continue
                runs.append(run(dataset, seed, piece))
                print(*runs[-1].values(), flush=True)
                content = {
                    "command": shlex.join(command),
                    "hardware": hardware(),
                    "versions": versions(),
                    "results": summary(runs),
                    "runs": runs,
                }
                write_aside(options.out, (json.dumps(content, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
