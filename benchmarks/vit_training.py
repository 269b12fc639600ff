"""Vision transformers with every attention layer, trained by one recipe: which is better, and why.

The published finding: without augmentation, ConvNN with random candidates beats full attention and
plain k-NN loses to it. Each arm is trained with and without augmentation, on the same images,
from the same seeds; only the layer differs. Test images decide nothing: the last epoch counts.
Differences to full attention are paired by seed. Every finished run is kept: a stopped benchmark
resumes where it was, and a later one with other arms or seeds adds them to the file of results.

    python benchmarks/vit_training.py                        # digits, a quarter of an hour per seed
    python benchmarks/vit_training.py --data cifar10-slice   # 5,000 images, a CPU hour
    python benchmarks/vit_training.py --data cifar10 --device cuda --seeds 0-1
    python benchmarks/vit_training.py --data published --augment off
        --arms "attention,convnn random"
        # 197 tokens as published, 10,000 images, 10 epochs: hours on two cores
    python benchmarks/vit_training.py --arms attention,knn --augment on --seeds 0-4
"""

import argparse
import json
import statistics
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
from keeping import conditions
from nearwise_lab.cli.settings_text import parse_seeds
from nearwise_lab.cli.vit_train_command import training_bar
from nearwise_lab.comparisons import paired_difference
from nearwise_lab.experiments.vit import VitSettings, evaluate_vit, train_vit

from nearwise.safe_files import write_aside

HERE = Path(__file__).parent
BASE = "attention"
COMMON: dict[str, Any] = {
    "scheduler": "cosine", "optimizer": "adamw", "weight_decay": 0.05, "label_smoothing": 0.1,
    "drop_path": 0.05, "dropout": 0.0, "attention_dropout": 0.0,
}  # fmt: skip
DATA: dict[str, dict[str, Any]] = {
    # 8 x 8 pixels, patches of 2: 16 patches and the class token.
    "digits": {
        "dataset": "digits", "resize": 0, "patch_size": 2, "num_layers": 2, "num_heads": 3,
        "d_hidden": 48, "d_mlp": 96, "num_epochs": 40, "batch_size": 64, "lr": 3e-3,
        "warmup_epochs": 2, "evaluate_every": 40,
    },
    "cifar10-slice": {
        "dataset": "cifar10", "resize": 0, "patch_size": 4, "num_layers": 4, "num_heads": 3,
        "d_hidden": 96, "d_mlp": 192, "num_epochs": 30, "batch_size": 128, "lr": 1e-3,
        "warmup_epochs": 3, "train_limit": 5000, "test_limit": 2000, "evaluate_every": 30,
    },
    "cifar10": {
        "dataset": "cifar10", "resize": 0, "patch_size": 4, "num_layers": 12, "num_heads": 3,
        "d_hidden": 192, "d_mlp": 768, "num_epochs": 100, "batch_size": 256, "lr": 1e-3,
        "warmup_epochs": 5, "use_amp": True, "evaluate_every": 10,
    },
    # The model and training of the published tables, on fewer images and for fewer epochs.
    "published": {
        "recipe": "published", "dataset": "cifar10", "num_epochs": 10, "train_limit": 10_000,
        "test_limit": 2000, "use_amp": True, "evaluate_every": 5,
    },
}  # fmt: skip
AUGMENTED = {"augment": True, "mixup": 0.2}


def arms(n_tokens: int) -> dict[str, dict[str, Any]]:
    """Settings of each layer, scaled to the number of tokens.

    K is 9, or a third of few tokens; random candidates are a sixth of the tokens, as 32 of 197.
    """
    few = n_tokens < 32
    k = 5 if few else 9
    random = {"sampling_type": "random", "num_samples": 8 if few else max(k, n_tokens // 6)}
    spatial = {"sampling_type": "grid", "num_samples": 3 if few else 6}
    window = max(2, n_tokens // 8)
    knn, convnn = {"layer": "KNNAttention", "K": k}, {"layer": "ConvNNAttention", "K": k}
    halves = {"K": k, "branch_ratio": 0.5}  # of the channels, which must divide into the heads
    return {
        BASE: {"layer": "Attention"},
        "knn": knn,
        "knn+temperature+null": {**knn, "learned_temperature": True, "null_neighbor": True},
        "knn random": {**knn, **random},
        "kvt": {"layer": "KvtAttention", "K": k},
        "convnn": convnn,
        "convnn random": {**convnn, **random},
        "convnn spatial": {**convnn, **spatial},
        "local": {"layer": "LocalAttention", "window_size": window},
        "neighborhood 1-d": {"layer": "NeighborhoodAttention", "K": k},
        "neighborhood 2-d": {"layer": "NeighborhoodAttention2D", "K": 3},
        "sparse": {"layer": "SparseAttention", "sparse_context_window": 2 * window},
        "branch conv": {"layer": "BranchConv", "kernel_size": k, **halves},
        "branch attention": {"layer": "BranchAttention", **halves},
        "convolution": {"layer": "TokenConvolution", "kernel_size": k},
    }


def shared(data: str) -> dict[str, Any]:
    """Settings that all arms have in common; a recipe brings its own training."""
    return DATA[data] if "recipe" in DATA[data] else {**COMMON, **DATA[data]}


def settings_of(data: str, arm: str, augmented: bool, seed: int, runs: Path, device: str) -> Any:
    """Settings of one run."""
    base = shared(data)
    side = 8 if base["dataset"] == "digits" else 32
    patches = 14 if "recipe" in base else side // base["patch_size"]
    chosen = arms(patches**2 + 1)[arm]
    folder = runs / data / arm.replace(" ", "-") / f"{'on' if augmented else 'off'}-{seed}"
    augmentation = AUGMENTED if augmented else {}
    where = {"seed": seed, "output_dir": str(folder), "device": device}
    return VitSettings(**{**base, **chosen, **augmentation, **where})


def record_of(run: Any, arm: str, augmented: bool, device: Any) -> dict[str, Any]:
    """What the table needs of a run."""
    names = (
        "seed", "top1", "nll", "ece", "parameters", "gflops", "epoch_seconds",
        "peak_memory_mib", "epochs", "n_train", "n_test",
    )  # fmt: skip
    kept = {name: run.summary[name] for name in names}
    kept["train_top1"] = run.history[-1]["train"]["top1"]
    kept["versions"] = run.summary["versions"]
    if "random" in arm:  # evaluated as the published code does, with candidates drawn anew
        asked = VitSettings(output_dir=str(run.folder), sample_in_eval=True, device=device)
        kept["top1_sampled"] = evaluate_vit(asked, {"sample_in_eval"})["top1"]
    return {"arm": arm, "augment": augmented, **kept}


def table(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mean of each arm and its paired difference to full attention, with 95 % intervals."""
    rows = []
    for augmented in (False, True):
        own = [r for r in records if r["augment"] == augmented]
        base = {r["seed"]: r["top1"] for r in own if r["arm"] == BASE}
        for arm in dict.fromkeys(r["arm"] for r in own):
            runs = [r for r in own if r["arm"] == arm]
            row: dict[str, Any] = {
                "arm": arm,
                "augment": augmented,
                "seeds": [r["seed"] for r in runs],
                "top1": statistics.fmean(r["top1"] for r in runs),
                "top1_range": [min(r["top1"] for r in runs), max(r["top1"] for r in runs)],
            }
            for name in ("nll", "train_top1", "epoch_seconds", "peak_memory_mib"):
                row[name] = statistics.fmean(r[name] for r in runs)
            if "top1_sampled" in runs[0]:
                row["top1_sampled"] = statistics.fmean(r["top1_sampled"] for r in runs)
            row |= {name: runs[0][name] for name in ("parameters", "gflops")}
            both = [(r["top1"], base[r["seed"]]) for r in runs if r["seed"] in base]
            if arm != BASE and both:
                row["difference"] = paired_difference(*zip(*both, strict=True)).as_dict()
            rows.append(row)
    return rows


def verdict(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Say what became of the published finding, and which arms are above full attention."""

    def judged(arm: str, augmented: bool) -> str:
        row = next((r for r in rows if (r["arm"], r["augment"]) == (arm, augmented)), {})
        found = row.get("difference", {"n": 0})
        return "not measured with two seeds" if found["n"] < 2 else str(found["verdict"])

    names = list(dict.fromkeys(r["arm"] for r in rows if r["arm"] != BASE))
    return {
        ("augmented" if on else "plain"): {arm: judged(arm, on) for arm in names}
        for on in (False, True)
    }


def shown(rows: list[dict[str, Any]]) -> str:
    """The table as text."""
    lines = [
        "augment  arm                    top-1  (range)         - attention     train   s/epoch"
    ]
    for r in sorted(rows, key=lambda row: (row["augment"], -row["top1"])):
        low, high = r["top1_range"]
        found = r.get("difference")
        difference = ""
        if found is not None:
            difference = f"{found['mean']:+.2f}"
            if found["low"] is not None:
                difference += f" [{found['low']:+.1f}, {found['high']:+.1f}]"
        lines.append(
            f"{'on' if r['augment'] else 'off':8} {r['arm']:21} {r['top1']:6.2f}  "
            f"({low:.2f}-{high:.2f})  {difference:22} {r['train_top1']:6.2f} "
            f"{r['epoch_seconds']:8.2f}"
        )
    return "\n".join(lines)


def former(out: Path, data: str) -> list[dict[str, Any]]:
    """Runs that earlier calls recorded under the same settings, each with the code that ran."""
    content = json.loads(out.read_text()) if out.exists() else {}
    if content and content["settings"] != settings_shown(data):
        print(f"The runs in {out} have other settings; they are replaced, not joined.")
        return []
    return [{"versions": content["versions"], **run} for run in content.get("runs", [])]


def joined(records: list[dict[str, Any]], new: dict[str, Any]) -> list[dict[str, Any]]:
    """All runs, the new one in place of an earlier one of the same arm, images and seed."""
    key = itemgetter("arm", "augment", "seed")
    return [r for r in records if key(r) != key(new)] + [new]


def settings_shown(data: str) -> dict[str, Any]:
    """Settings of all arms as the file of results shows them."""
    return {**shared(data), "augmented": AUGMENTED}


def write(out: Path, data: str, records: list[dict[str, Any]]) -> None:
    """Write what is known so far."""
    rows = table(records)
    content = {
        **conditions(),
        "threads": torch.get_num_threads(),
        "settings": settings_shown(data),
        "table": rows,
        "verdict": verdict(rows),
        "runs": records,
    }
    write_aside(out, (json.dumps(content, indent=1) + "\n").encode())


def main() -> None:
    """Train what is missing, and write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", choices=DATA, default="digits")
    parser.add_argument("--arms", help="comma-separated; default all", default=None)
    parser.add_argument("--augment", choices=("on", "off", "both"), default="both")
    parser.add_argument("--seeds", default="0-1", help="such as 0-4, or 0,2")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda", "mps"))
    parser.add_argument("--epochs", type=int, help="other than the data set's own")
    parser.add_argument(
        "--pooling",
        choices=("token", "mean"),
        help="default token, as published; through local layers it sees few patches, mean sees all",
    )
    parser.add_argument(
        "--class-token",
        choices=("global", "local"),
        help="default that of the recipe; local is a token of the line, as published",
    )
    parser.add_argument("--runs", type=Path, default=Path("runs/vit_training"))
    parser.add_argument("--out", type=Path, help="default results/vit_training_DATA.json")
    args = parser.parse_args()
    if args.epochs:
        DATA[args.data] |= {"num_epochs": args.epochs, "evaluate_every": args.epochs}
    for name in ("pooling", "class_token"):
        if (chosen := getattr(args, name)) is not None:
            DATA[args.data][name] = chosen
            args.runs = args.runs / f"{name}-{chosen}"
    names = args.arms.split(",") if args.arms else list(arms(17))
    if unknown := sorted(set(names) - set(arms(17))):
        parser.error(f"no arm {unknown[0]!r}; there are {', '.join(arms(17))}")
    out = args.out or HERE / "results" / f"vit_training_{args.data}.json"
    records = former(out, args.data)
    for seed in parse_seeds(args.seeds):
        for augmented in {"on": (True,), "off": (False,), "both": (False, True)}[args.augment]:
            for arm in names:
                settings = settings_of(args.data, arm, augmented, seed, args.runs, args.device)
                with training_bar(settings) as calls:
                    run = train_vit(settings, **calls)
                if run.summary["interrupted"]:
                    raise SystemExit("Interrupted. Run it again to go on.")
                last = record_of(run, arm, augmented, args.device)
                records = joined(records, last)
                write(out, args.data, records)
                print(
                    f"seed {seed} {'on ' if augmented else 'off'} {arm:22} {last['top1']:.2f}",
                    flush=True,
                )
    print(shown(table(records)))


if __name__ == "__main__":
    main()
