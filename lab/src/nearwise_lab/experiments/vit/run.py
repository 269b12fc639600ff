"""Train a vision transformer by settings."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nearwise.conditions import command_line, hardware, versions
from nearwise.functional.devices import choose_device
from nearwise.training import TrainingResult, train_epochs
from nearwise.warn import warn_user
from nearwise_lab.data.trained_on import keep_digests
from nearwise_lab.experiments.measure import MIB, PeakMemory
from nearwise_lab.experiments.vit.data import VitData, load_vit_data
from nearwise_lab.experiments.vit.evaluate import measure_test
from nearwise_lab.experiments.vit.image_rows import ImageTensor
from nearwise_lab.experiments.vit.learner import SupervisedImages
from nearwise_lab.experiments.vit.model import Cost, build_vit, cost_of, idle_settings
from nearwise_lab.experiments.vit.outputs import (
    CHECKPOINT,
    OWN_FILES,
    SETTINGS,
    SUMMARY,
    read_summary,
    save_model,
    write_args,
    write_history,
    write_model_text,
    write_summary,
    write_text,
)
from nearwise_lab.experiments.vit.recipe import engine_config, make_recipe
from nearwise_lab.experiments.vit.settings import HOW, VitSettings
from nearwise_lab.nn.vit import VisionTransformer
from nearwise_lab.training.runs import RunLoss, compiled


@dataclass(frozen=True)
class VitRun:
    """A finished run.

    Attributes
    ----------
    folder : Path
        Where everything was written.
    history : list of dict
        One record per epoch, as of `train_epochs`; evaluation holds validation_loss, _top1, _top5
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
    progress: Callable[[str], None] = lambda line: None,
    on_epoch: Callable[[dict[str, Any]], None] = lambda record: None,
    on_step: Callable[[int], None] = lambda step: None,
    on_resume: Callable[[int], None] = lambda epochs: None,
) -> VitRun:
    """Train a model, go on with it, or return at once where it is finished.

    The test part is evaluated every `evaluate_every` epochs, as the published code does, and
    decides nothing: the epoch is the last one, or the best on the validation images.

    Parameters
    ----------
    settings : VitSettings
    progress : callable, optional
        Takes a line about what is being done.
    on_epoch : callable, optional
        Takes the record of each epoch.
    on_step : callable, optional
        Takes the number of each step, from 0.
    on_resume : callable, optional
        Takes the number of epochs that an earlier run has finished, where it goes on from one.

    Returns
    -------
    run : VitRun

    Raises
    ------
    ValueError
        If settings do not fit the data, the folder holds another run, or the loss is no longer
        finite.
    """
    job = _Job(settings, progress)
    history: list[dict[str, Any]] = []
    already = 0

    def batch_loss(rows: Tensor, generator: torch.Generator, step: int) -> dict[str, Tensor]:
        on_step(step)
        return job.parts.batch_loss(rows, generator, step)

    def finished(record: dict[str, Any]) -> None:
        history.append(record)
        write_history(job.folder, history, job.cost)
        on_epoch(record)

    def resumed(known: list[dict[str, Any]]) -> None:
        nonlocal already
        already = len(known)
        history.extend(known)
        on_resume(already)
        progress(f"Going on after epoch {len(history)} of {settings.num_epochs}")

    with _Peak(job.device) as peak, compiled(job.model, job.config):
        result = train_epochs(
            RunLoss(job.model, batch_loss, len(job.data.train), job.evaluate, job.config),
            job.config,
            seed=settings.seed,
            device=job.device,
            monitor=None if job.data.validation is None else "validation_loss",
            checkpoint=job.folder / CHECKPOINT,
            fingerprint=_fingerprint(settings, job.data),
            progress=finished,
            resumed=resumed,
        )
    if already == settings.num_epochs and (job.folder / SUMMARY).exists():
        summary = read_summary(job.folder)
        if summary["epochs"] == already:  # and not what an interrupted part of the run left
            return VitRun(job.folder, result.history, summary)
    return job.finish(result, peak.mib)


class _Job:
    """Data, model and folder of one run; making it writes what is known before training."""

    def __init__(self, settings: VitSettings, progress: Callable[[str], None]) -> None:
        self.settings, self.device = settings, choose_device(settings.device)
        self.folder = Path(settings.folder)
        _refuse_other(self.folder, settings)
        for name in idle_settings(settings):
            sampled = f"sampling_type={settings.sampling_type!r}"
            warn_user(f"{name} changes nothing with layer={settings.layer!r} and {sampled}.")
        progress(f"Loading {settings.dataset}")
        self.data = data = load_vit_data(settings)
        self.model = build_vit(settings, data.image_size, data.channels, data.n_classes)
        self.cost, self.config = cost_of(self.model), engine_config(settings)
        if self.device.type == "cpu":
            _load_code(self.model)
        self.parts = SupervisedImages(
            self.model,
            data.train.to(self.device),
            data.scale,
            data.n_classes,
            make_recipe(settings, data),
            self.config.precision,
        )
        self.held = {"test": data.test.to(self.device)}
        if data.validation is not None:
            self.held = {"validation": data.validation.to(self.device), **self.held}
        self._write_beginning()
        progress(
            f"Training {settings.layer} on {len(data.train):,} images of {data.image_size} x "
            f"{data.image_size} pixels ({self.cost.tokens} tokens), "
            f"{self.cost.trainable:,} parameters, on {self.device}"
        )

    def _write_beginning(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        foreign = [name for name in OWN_FILES if (self.folder / name).exists()]
        if foreign and not (self.folder / SETTINGS).exists():
            raise ValueError(
                f"{self.folder} has a {foreign[0]} but no {SETTINGS}: it was not made by 'nearwise "
                "vit train', which would replace it. Choose another output_dir."
            )
        facts = {
            "num_classes": self.data.n_classes,
            "img_size": (self.data.channels, self.data.image_size, self.data.image_size),
            "model": "ViT",
            "total_params": self.cost.parameters,
            "trainable_params": self.cost.trainable,
        }
        write_args(self.folder, self.settings, facts)
        content = json.dumps(self.settings.model_dump(), indent=1)
        write_text(self.folder / SETTINGS, content + "\n")
        write_model_text(self.folder, self.model, self.cost)

    def evaluate(self, epoch: int) -> dict[str, float]:
        """Evaluate validation and test images."""
        seed = self.settings.seed
        values = {part: self.parts.evaluate(rows, seed=seed) for part, rows in self.held.items()}
        return {f"{part}_{name}": v for part, own in values.items() for name, v in own.items()}

    def finish(self, result: TrainingResult, peak_mib: float) -> VitRun:
        """Write history, model and summary."""
        write_history(self.folder, result.history, self.cost)
        save_model(self.folder, self.model, _meta(self.settings, self.data))
        if isinstance(self.data.train, ImageTensor):
            keep_digests(self.folder, self.data.train.pixels)
        test = measure_test(self.parts, self.data, self.held["test"], self.settings)
        facts = _run_facts(self.settings, self.data, self.cost, result, peak_mib)
        write_summary(self.folder, {**test, **facts})
        return VitRun(self.folder, result.history, {**test, **facts})


def _load_code(model: VisionTransformer) -> None:
    """Go forward and back once: training does not count loading and compiling code."""
    with torch.random.fork_rng(devices=[]):
        model.train()
        model(torch.zeros(1, model.in_channels, *model.image_size)).sum().backward()
    model.zero_grad(set_to_none=True)


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
    for name in _no_matter(settings):
        decides.pop(name)
    return json.dumps([decides, data.fingerprint()], sort_keys=True)


def _no_matter(settings: VitSettings) -> tuple[str, ...]:
    """Name the settings that do not change the result; compiled models draw dropout otherwise."""
    return (
        ("data_path",) if settings.use_compiled else ("data_path", "use_compiled", "compile_mode")
    )


def _refuse_other(folder: Path, settings: VitSettings) -> None:
    """Refuse a file, and a folder of a run with other settings: the first that differs is named."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file. Give a folder as --output-dir.")
    path = folder / SETTINGS
    if not path.exists():
        return
    before, now = json.loads(path.read_text(encoding="utf-8")), settings.model_dump()
    same = _no_matter(settings) if not before.get("use_compiled") else ("data_path",)
    for name in now:
        if name not in (*HOW, *same) and before.get(name) != now[name]:
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
    settings: VitSettings, data: VitData, cost: Cost, result: TrainingResult, peak_mib: float
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
