"""The pretrained head where rows are held out once, beside the heads that are trained there.

Images and ready embeddings with `cv`: the classifier as it is, and in its own
memory the pretrained head with a temperature, alone and pooled with the networks' heads. Both are
fitted to the rows held out, as the classifier's own heads are.

    python benchmarks/held_out_head.py --data-root DATA
    python benchmarks/held_out_head.py --sets digits-images --seeds 101

Writes benchmarks/results/held_out_head.json; what it holds of other sets and seeds stays.
"""

import argparse
import json
import warnings
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor

from nearwise import AttnKNNClassifier
from nearwise.classifier.model.log_linear_pool import fit_temperature
from nearwise.conditions import hardware, versions
from nearwise.functional import topk_neighbors
from nearwise.lab.data import load_dataset
from nearwise.nn import RememberedSpace, shared_head

OUT = Path(__file__).parent / "results" / "held_out_head.json"
POWERS = np.linspace(0, 2, 21)  # of head and base in their pool


def read(name: str, root: str | None) -> tuple[np.ndarray, np.ndarray, int, dict[str, Any]]:
    """Rows, labels, number of training rows, and parameters."""
    if name == "digits-images":
        images, labels = load_digits(return_X_y=True)
        return (images * 15).astype(np.uint8).reshape(-1, 8, 8, 1), labels, 1000, {}
    dataset = load_dataset(name, data_root=root)
    return np.asarray(dataset.X), dataset.y, 8000, {"cv": 0.15}


def mean_nll(log_proba: Tensor, labels: Tensor) -> float:
    """Mean NLL of normalized predictions (n, C)."""
    normalized = torch.log_softmax(log_proba, dim=1)
    return float(-normalized[torch.arange(len(labels)), labels].mean())


def measured(name: str, seed: int, root: str | None) -> dict[str, Any]:
    """NLL on new rows."""
    X, y, n_train, options = read(name, root)
    order = np.random.default_rng(seed).permutation(len(y))
    train, test = order[:n_train], order[n_train : n_train + 2000]
    model = AttnKNNClassifier(random_state=seed, **options).fit(X[train], y[train])
    truth = torch.from_numpy(np.searchsorted(model.classes_, y[test]))
    parts = model.query(X[test]).parts
    found = {
        key: round(mean_nll(torch.from_numpy(proba).clamp_min(1e-7).log(), truth), 4)
        for key, proba in (
            ("classifier", parts.proba),
            ("base alone", parts.base_proba),
            ("its neighbors alone", parts.neighbor_proba),
        )
    }
    predictor = model._predictor
    held, bank = predictor.held, predictor.views.bank
    assert held is not None, "rows were held out by the settings above"
    new = predictor.row_models(predictor.encoder.transform(X[test])).cpu()
    names = [spec.name for spec in predictor.views.specs]
    for kind, chosen in (("features", ["features"]), ("all spaces", names)):
        spaces = [
            RememberedSpace.of(
                bank.keys[one],
                bank.labels,
                n_classes=len(model.classes_),
                n_columns=bank.keys[one].shape[1],
            )
            for one in chosen
        ]
        seen, fresh = (
            shared_head()
            .predict(
                [
                    space.describe(topk_neighbors(rows.keys[one], bank.keys[one], 32))
                    for one, space in zip(chosen, spaces, strict=True)
                ]
            )
            .log_proba
            for rows in (held.keyed[0], new)
        )
        temperature = fit_temperature(seen, held.labels, torch.ones(len(seen)))[0]
        found[f"pretrained, {kind}"] = round(mean_nll(fresh / temperature, truth), 4)
        base = held.keyed[0].base_log_proba
        pair = product(POWERS, POWERS)
        a, b = min(pair, key=lambda p: mean_nll(p[0] * seen + p[1] * base, held.labels))
        whole = mean_nll(a * fresh + b * new.base_log_proba, truth)
        found[f"pretrained, {kind}, pooled with the base"] = round(whole, 4)
    return found


def main() -> None:
    """Measure what is asked for, and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", default="digits-images,cifar10-features")
    parser.add_argument("--seeds", default="101,102,103")
    parser.add_argument("--data-root", help="default: NEARWISE_DATA")
    options = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)
    about = {"command": "benchmarks/held_out_head.py", "hardware": hardware()}
    about["versions"] = versions()
    results = json.loads(OUT.read_text())["results"] if OUT.exists() else {}
    for name, seed in product(options.sets.split(","), options.seeds.split(",")):
        found = measured(name, int(seed), options.data_root)
        results[f"{name}, seed {seed}"] = found
        OUT.write_text(json.dumps(about | {"results": results}, indent=1) + "\n")
        print(name, seed, found, flush=True)


if __name__ == "__main__":
    main()
