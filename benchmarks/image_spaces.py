"""What leaving out key spaces does: spaces="chosen" against "all", on images.

The same trained networks serve both. Differences are "chosen" minus "all" on the same test rows,
so below 0 means a lower NLL.

    python benchmarks/image_spaces.py --dataset digits-images --rows 800 --epochs 10 \\
        --out benchmarks/results/image_spaces_digits.json
    python benchmarks/image_spaces.py --dataset cifar10 --rows 4000 --epochs 8 \\
        --out benchmarks/results/image_spaces_cifar10.json
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np

from nearwise import AttnKNNClassifier
from nearwise.conditions import command_line, hardware, versions
from nearwise.data import load_images, split_dataset
from nearwise.metrics import evaluate_probabilities


def rows_of(args: argparse.Namespace, seed: int) -> tuple[np.ndarray, ...]:
    """Draw training and test images and labels."""
    limit = {} if args.dataset == "digits-images" else {"limit": args.rows + args.test_rows}
    dataset = load_images(args.dataset, **limit)
    train, test = split_dataset(dataset, seed=seed)
    (X, y), (X_test, y_test) = dataset.rows(train), dataset.rows(test)
    order = np.random.default_rng(seed).permutation(len(X))[: args.rows]
    return X[order], y[order], X_test[: args.test_rows], y_test[: args.test_rows]


def run(args: argparse.Namespace, seed: int, folder: str) -> list[dict]:
    """Fit both ways with one seed."""
    X, y, X_test, y_test = rows_of(args, seed)
    results = []
    for spaces in ("all", "chosen"):
        model = AttnKNNClassifier(
            embedder="resnet-small",
            spaces=spaces,
            train_params={"epochs": args.epochs},
            checkpoint_dir=f"{folder}/{seed}",
            random_state=seed,
            device=args.device,
        )
        start = time.perf_counter()
        model.fit(X, y)
        seconds = time.perf_counter() - start
        codes = np.searchsorted(model.classes_, y_test)
        scores = evaluate_probabilities(codes, model.predict_proba(X_test))
        results.append(
            {
                "spaces": spaces,
                "seed": seed,
                "n_train": len(X),
                "n_test": len(X_test),
                "kept": model.choice_["spaces"],
                "held_out_nll": model.choice_.get("spaces_nll"),
                "fit_seconds": round(seconds, 2),
            }
            | {name: round(float(scores[name]), 5) for name in ("accuracy", "nll", "ece")}
        )
        print(results[-1], flush=True)
    return results


def main() -> None:
    """Run all seeds and print; write JSON with --out."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dataset", default="digits-images")
    parser.add_argument("--rows", type=int, default=800, help="training rows")
    parser.add_argument("--test-rows", type=int, default=1_000, help="most test rows")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = [result for seed in args.seeds for result in run(args, seed, folder)]
    result = {
        "settings": {name: getattr(args, name) for name in vars(args) if name != "out"},
        "runs": runs,
        "chosen_minus_all": {
            name: [
                round(chosen[name] - all_[name], 5)
                for all_, chosen in zip(runs[::2], runs[1::2], strict=True)
            ]
            for name in ("accuracy", "nll", "ece")
        },
        "command": command_line(),
        "hardware": hardware(),
        "versions": versions(),
    }
    print(result["chosen_minus_all"])
    if args.out:
        args.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
