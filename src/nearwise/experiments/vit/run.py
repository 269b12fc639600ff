"""Train a vision transformer as settings say."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nearwise.experiments.devices import choose_device
from nearwise.experiments.measure import MIB, PeakMemory, command_line, hardware, versions
from nearwise.experiments.vit.data import VitData, load_vit_data
from nearwise.experiments.vit.evaluate import measure_test
from nearwise.experiments.vit.model import Cost, build_vit, cost_of
from nearwise.experiments.vit.outputs import (
    CHECKPOINT,
    save_model,
    write_args,
    write_history,
    write_model_text,
    write_summary,
    write_text,
)
from nearwise.experiments.vit.recipe import engine_config, make_recipe
from nearwise.experiments.vit.settings import HOW, VitSettings
from nearwise.training.classify import SupervisedImages
from nearwise.training.engine import EngineResult, train_epochs


@dataclass(frozen=True)
class VitRun:
    """A finished run.

    Attributes
    ----------
    folder : Path
        Where everything was written.
    history : list of dict
        One record an epoch, as of `train_epochs`; evaluation holds validation_loss, _top1, _top5
        and test_loss, _top1, _top5.
    summary : dict
        What is in summary.json: metrics of the test part, best_epoch, parameters, gflops,
        epoch_seconds, peak_memory_mib, interrupted, conditions.
    """

    folder: Path
    history: list[dict[str, Any]]
    summary: dict[str, Any]


def train_vit(
    settings: VitSettings,
    *,
    told: Callable[[str], None] = lambda line: None,
    on_epoch: Callable[[dict[str, Any]], None] = lambda record: None,
    on_step: Callable[[int], None] = lambda step: None,
) -> VitRun:
    """Train a model, go on with it, or return at once where it is finished.

    The test part is evaluated every `evaluate_every` epochs, as the published code does, and
    decides nothing: the epoch is the last one, or the best on the validation images.

    Parameters
    ----------
    settings : VitSettings
    told : callable, optional
        Takes a line about what is being done.
    on_epoch : callable, optional
        Takes the record of each epoch.
    on_step : callable, optional
        Takes the number of each step, from 0.

    Returns
    -------
    run : VitRun

    Raises
    ------
    ValueError
        If settings do not fit the data, the folder holds another run, or the loss is no longer
        finite.
    """
    device = choose_device(settings.device)
    folder = Path(settings.folder)
    told(f"Loading {settings.dataset}")
    data = load_vit_data(settings)
    model = build_vit(settings, data.image_size, data.channels, data.n_classes)
    cost = cost_of(model)
    config, recipe = engine_config(settings), make_recipe(settings, data)
    folder.mkdir(parents=True, exist_ok=True)
    facts = {
        "num_classes": data.n_classes,
        "img_size": (data.channels, data.image_size, data.image_size),
        "model": "ViT",
        "total_params": cost.parameters,
        "trainable_params": cost.trainable,
    }
    _refuse_other(folder, settings)
    write_args(folder, settings, facts)
    write_text(folder / "settings.json", json.dumps(settings.model_dump(), indent=1) + "\n")
    write_model_text(folder, model, cost)
    parts = SupervisedImages(
        model, data.train.to(device), data.scale, data.n_classes, recipe, config.precision
    )
    held = {"test": data.test.to(device)}
    if data.validation is not None:
        held = {"validation": data.validation.to(device), **held}
    history: list[dict[str, Any]] = []

    def evaluate(epoch: int) -> dict[str, float]:
        values = {part: parts.evaluate(rows, seed=settings.seed) for part, rows in held.items()}
        return {f"{part}_{name}": v for part, own in values.items() for name, v in own.items()}

    def batch_loss(rows: Tensor, generator: torch.Generator, step: int) -> dict[str, Tensor]:
        on_step(step)
        return parts.batch_loss(rows, generator, step)

    def finished(record: dict[str, Any]) -> None:
        history.append(record)
        write_history(folder, history, cost)
        on_epoch(record)

    def start(known: Iterable[dict[str, Any]]) -> None:
        history.extend(known)
        if history:
            told(f"Going on after epoch {len(history)} of {settings.num_epochs}")

    told(
        f"Training {settings.layer} on {len(data.train):,} images of {data.image_size} x "
        f"{data.image_size} pixels ({cost.tokens} tokens), {cost.trainable / 1e6:.2f} M "
        f"parameters, on {device}"
    )
    with _Peak(device) as peak:
        result = train_epochs(
            model,
            batch_loss,
            len(data.train),
            config,
            seed=settings.seed,
            device=device,
            evaluate=evaluate,
            monitor=None if data.validation is None else "validation_loss",
            checkpoint=folder / CHECKPOINT,
            fingerprint=_fingerprint(settings, data),
            progress=finished,
            resumed=start,
        )
    write_history(folder, result.history, cost)
    save_model(folder, model, _meta(settings, data))
    test = measure_test(parts, data, held["test"], settings)
    summary = {**test, **_run_facts(settings, data, cost, result, peak.mib)}
    write_summary(folder, summary)
    return VitRun(folder, result.history, summary)


class _Peak:
    """Peak memory of a block in MiB: of the process, or of the CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.mib = device, 0.0
        self.own = PeakMemory()

    def __enter__(self) -> "_Peak":
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        self.own.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.own.__exit__(*error)
        self.mib = self.own.mib
        if self.device.type == "cuda":
            self.mib = torch.cuda.max_memory_allocated(self.device) / MIB


def _fingerprint(settings: VitSettings, data: VitData) -> str:
    decides = settings.decides()
    for name in ("data_path", "use_compiled", "compile_mode"):  # where, and how fast
        decides.pop(name)
    return json.dumps([decides, data.fingerprint()], sort_keys=True)


def _refuse_other(folder: Path, settings: VitSettings) -> None:
    """Refuse a folder that holds a run with other settings, and name the first that differs."""
    path = folder / "settings.json"
    if not path.exists():
        return
    before, now = json.loads(path.read_text(encoding="utf-8")), settings.model_dump()
    same = (*HOW, "data_path", "use_compiled", "compile_mode")
    for name in now:
        if name not in same and before.get(name) != now[name]:
            raise ValueError(
                f"{folder} holds a run with {name}={before.get(name)!r}, not {now[name]!r}. Give "
                "another --output-dir, or remove that folder."
            )


def _meta(settings: VitSettings, data: VitData) -> dict[str, Any]:
    return {
        "settings": settings.model_dump(exclude={"test_only", "output_dir", "device"}),
        "classes": data.classes,
        "mean": list(data.scale.mean),
        "std": list(data.scale.std),
        "image_size": data.image_size,
        "channels": data.channels,
    }


def _run_facts(
    settings: VitSettings, data: VitData, cost: Cost, result: EngineResult, peak_mib: float
) -> dict[str, Any]:
    seconds = [record["train_seconds"] for record in result.history]
    return {
        "layer": settings.layer,
        "seed": settings.seed,
        "n_train": len(data.train),
        "epochs": len(result.history),
        "best_epoch": result.best_epoch,
        "interrupted": result.interrupted,
        **cost._asdict(),
        "epoch_seconds": sum(seconds) / max(1, len(seconds)),
        "peak_memory_mib": peak_mib,
        "command": command_line(),
        "versions": versions(),
        "hardware": hardware(),
    }
