"""Files of a run: three text files, JSON lines, and the model."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from nearwise.memory.store import read_folder, write_folder
from nearwise.safe_files import write_whole
from nearwise_lab.experiments.vit.settings import VitSettings
from nearwise_lab.vit_files import ARGS, MODEL

KIND = "nearwise-vit"
FORMAT_VERSION = 1
CHECKPOINT = "checkpoint"
MODEL_TEXT, RESULTS = "model.txt", "train_eval_results.txt"
EPOCHS, SUMMARY, SETTINGS = "epochs.jsonl", "summary.json", "settings.json"
OWN_FILES = (ARGS, MODEL_TEXT, RESULTS, EPOCHS, SUMMARY)
Cost = Mapping[str, Any]  # as `cost_of` counts it


def write_beginning(
    folder: Path, settings: VitSettings, facts: Mapping[str, Any], model: nn.Module, cost: Cost
) -> None:
    """Write settings, facts about the data, and the model's description before training."""
    given = settings.model_dump()
    write_lines(folder / SETTINGS, [json.dumps(given, indent=1)])
    write_lines(folder / ARGS, [f"{name}: {value}" for name, value in {**given, **facts}.items()])
    lines = [repr(model), "", "Parameters"]
    for name, part in model.named_children():
        lines.append(f"{name:<16} {sum(p.numel() for p in part.parameters()):>14,}")
    own = sum(p.numel() for p in model.parameters(recurse=False))
    lines += [f"{'tokens':<16} {own:>14,}"] if own else []
    lines += [
        f"{'total':<16} {cost['parameters']:>14,}",
        f"{'trainable':<16} {cost['trainable']:>14,}",
        f"Tokens of an image: {cost['tokens']}",
        f"GFLOPs of a forward pass of one image: {cost['gflops']:.4f} (a multiply-add is two)",
    ]
    write_lines(folder / MODEL_TEXT, lines)


def write_history(folder: Path, history: Sequence[Mapping[str, Any]], cost: Cost) -> None:
    """Write the results of all epochs so far, as text and as JSON lines."""
    lines = [
        f"Model Complexity: GFLOPs: {cost['gflops']:.4f}, Trainable Parameters: "
        f"{cost['trainable'] / 1e6:.4f} M"
    ]
    lines += [epoch_line(record) for record in history]
    tested = [r for r in history if "test_top1" in r["evaluation"]]
    if history:
        mean = sum(record["train_seconds"] for record in history) / len(history)
        lines += ["", f"Average Epoch Time: {mean:.4f}s"]
    if tested:
        best = max(tested, key=lambda record: record["evaluation"]["test_top1"])
        accuracy = best["evaluation"]["test_top1"]
        lines.append(f"Max Accuracy: {accuracy:.4f}% at Epoch {best['epoch']}")
    write_lines(folder / RESULTS, lines)
    write_lines(folder / EPOCHS, [json.dumps(record) for record in history])


def epoch_line(record: Mapping[str, Any]) -> str:
    """One epoch in the form of the published code, and validation where there is some."""
    values = record["evaluation"] | {f"train_{k}": v for k, v in record["train"].items()}
    parts = [f"[Epoch {record['epoch']:03d}] Time: {record['train_seconds']:.4f}s"]
    for part in ("train", "validation", "test"):
        if f"{part}_loss" in values:
            loss, top1, top5 = (values[f"{part}_{name}"] for name in ("loss", "top1", "top5"))
            parts.append(
                f"[{part.title()}] Loss: {loss:.8f} Accuracy: Top1: {top1:.4f}%, Top5: {top5:.4f}%"
            )
    return " | ".join(parts)


def write_summary(folder: Path, summary: Mapping[str, Any]) -> None:
    """Write the summary of a run; a number that is not finite becomes null."""
    plain = {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in summary.items()
    }
    write_lines(folder / SUMMARY, [json.dumps(plain, indent=1)])


def write_lines(path: Path, lines: Sequence[str]) -> None:
    """Write a file aside and move it into place, so that a reader never sees half of it."""
    write_whole(path, "".join(f"{line}\n" for line in lines).encode("utf-8"))


def save_model(folder: Path, model: nn.Module, meta: Mapping[str, Any]) -> None:
    """Save the weights with the metadata to rebuild the model and scale its input."""
    state = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    write_folder(
        folder / MODEL, kind=KIND, format_version=FORMAT_VERSION, tensors=state, meta=dict(meta)
    )


def load_model(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Load a model of `save_model`; ValueError if it is missing, damaged or of a newer version."""
    if not (folder / MODEL).is_dir():
        raise ValueError(
            f"{folder} holds no trained model. Let 'nearwise vit train' finish there, or name the "
            "folder of a run that has."
        )
    found = read_folder(folder / MODEL, kind=KIND, newest_version=FORMAT_VERSION)
    return dict(found.tensors), dict(found.meta)
