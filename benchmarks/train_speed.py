"""Seconds per epoch of image training: the plain network against the loss over the whole memory.

Claim: on one H100 an epoch of ResNet-18 with the leave-one-out loss over all 45,000 memory rows
takes at most 1.3 times that of the same network with cross-entropy alone. Both train through
`train_embedder`, in turn, on the same random images (what they show does not change the time);
the first epochs of each, which warm up the device, are left out, and so are held-out rows.

    python benchmarks/train_speed.py --device cuda --out benchmarks/results/train_speed.json
    python benchmarks/train_speed.py --backbone resnet-small --rows 5000 --epochs 2 --repeats 1
"""

import argparse
import json
import os
import statistics
import sys
from importlib.metadata import version
from pathlib import Path

import torch

from nearwise.conditions import hardware, versions
from nearwise.nn import build_network
from nearwise.training import Augmentation, TrainConfig, TrainingRows, train_embedder

N_CLASSES, SIDE, DIM, SEED = 10, 32, 256, 0
PLAIN = {"knn_weight": 0.0, "ce_weight": 1.0}
MEMORY = {
    "knn_weight": 1.0,
    "ce_weight": 1.0,
    "n_candidates": None,
    "cache_momentum": 0.5,
}
AUGMENT = {"crop_padding": 4, "flip": True, "cutout": 8}
LIMIT = 1.3


def rows(n_rows: int) -> TrainingRows:
    """Random images with random labels."""
    generator = torch.Generator().manual_seed(SEED)
    shape = (n_rows, 3, SIDE, SIDE)
    images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    return TrainingRows(images, torch.randint(N_CLASSES, (n_rows,), generator=generator))


def epoch_seconds(settings: dict, data: TrainingRows, arguments: argparse.Namespace) -> list[float]:
    """Seconds of each epoch after the warm-up."""
    network = build_network(
        {
            "embedder": {
                "kind": "image",
                "backbone": arguments.backbone,
                "dim": DIM,
                "image_size": SIDE,
            },
            "n_classes": N_CLASSES,
            "head": True,
            "similarity": "cosine",
        },
        seed=SEED,
    )
    config = TrainConfig(
        epochs=arguments.warm_up + arguments.epochs,
        batch_size=arguments.batch_size,
        augment=Augmentation.model_validate(AUGMENT),
        precision=arguments.precision,
        mixup_alpha=arguments.mixup,
        patience=None,
        **settings,
    )
    result = train_embedder(network, data, None, config, seed=SEED, device=arguments.device)
    return [round(record["seconds"], 3) for record in result.history[arguments.warm_up :]]


def measure(arguments: argparse.Namespace) -> dict:
    """Both kinds of training in turn."""
    data = rows(arguments.rows).to(arguments.device)
    plain, memory = [], []
    for _ in range(arguments.repeats):
        plain.append(epoch_seconds(PLAIN, data, arguments))
        memory.append(epoch_seconds(MEMORY, data, arguments))
    # A full refresh of the cache falls into some epochs: means, not medians, count it in.
    ratios = [statistics.fmean(m) / statistics.fmean(p) for p, m in zip(plain, memory, strict=True)]
    return {
        "task": (
            f"epoch of {arguments.backbone}, {arguments.rows} images of {SIDE}x{SIDE}, batches "
            f"of {arguments.batch_size}, {arguments.precision}"
        ),
        "against": "the same network with cross-entropy alone",
        "plain_seconds": plain,
        "memory_seconds": memory,
        "ratio_median": round(statistics.median(ratios), 3),
        "ratio_min": round(min(ratios), 3),
        "ratio_max": round(max(ratios), 3),
        "limit": LIMIT,
        "within_limit": statistics.median(ratios) <= LIMIT,
    }


def circumstances(device: str) -> dict:
    """Hardware with the load before the run, and versions, for a record of times."""
    named = {"device": device}
    if device.startswith("cuda"):
        named["accelerator"] = torch.cuda.get_device_name(device)
    return {
        "hardware": hardware() | named | {"load_before": round(os.getloadavg()[0], 2)},
        "versions": versions() | {"transformers": version("transformers")},
    }


def parse() -> argparse.Namespace:
    """Read the command line; the defaults are those of the claim."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--backbone", default="resnet18")
    parser.add_argument("--rows", type=int, default=45_000)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--warm-up", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--mixup", type=float, default=0.0)
    parser.add_argument("--precision", choices=("float32", "bfloat16"))
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    accelerated = not arguments.device.startswith("cpu")
    if arguments.precision is None:
        arguments.precision = "bfloat16" if accelerated else "float32"
    return arguments


def main() -> None:
    """Measure, print and write."""
    arguments = parse()
    record = {
        "command": " ".join(["python", "benchmarks/train_speed.py", *sys.argv[1:]]),
        "seed": SEED,
        "repeats": arguments.repeats,
        "threads": torch.get_num_threads(),
        **circumstances(arguments.device),
        "results": [measure(arguments)],
    }
    text = json.dumps(record, indent=2)
    if arguments.out is None:
        print(text)
    else:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(text + "\n")
    result = record["results"][0]
    print(
        f"{result['task']}\n  whole memory / plain: {result['ratio_median']} "
        f"({result['ratio_min']}-{result['ratio_max']}), limit {LIMIT}",
        file=sys.stderr,
    )


if __name__ == "__main__":
    main()
