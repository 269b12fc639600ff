"""Train a vision transformer by settings."""

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nearwise.conditions import command_line, hardware, versions
from nearwise.functional.devices import choose_device
from nearwise.nn import KNNAttention
from nearwise.training import TrainingResult, train_epochs
from nearwise.warn import warn_user
from nearwise_lab.data.trained_on import keep_digests
from nearwise_lab.experiments.measure import MIB, PeakMemory
from nearwise_lab.experiments.vit.data import ImageTensor, load_vit_data
from nearwise_lab.experiments.vit.learner import SupervisedImages
from nearwise_lab.experiments.vit.model import build_vit, cost_of, idle_settings
from nearwise_lab.experiments.vit.outputs import (
    CHECKPOINT,
    OWN_FILES,
    SETTINGS,
    SUMMARY,
    save_model,
    write_beginning,
    write_history,
    write_summary,
)
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
    """Train a model, continue its training, or return at once if it is finished.

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
        progress(f"Going on after epoch {already} of {settings.num_epochs}")

    config = settings.engine()
    with _peak_mib(job.device) as peak_mib, compiled(job.model, config):
        result = train_epochs(
            RunLoss(job.model, batch_loss, len(job.data.train), job.evaluate, config),
            config,
            seed=settings.seed,
            device=job.device,
            monitor=None if job.data.validation is None else "validation_loss",
            checkpoint=job.folder / CHECKPOINT,
            fingerprint=job.fingerprint(),
            progress=finished,
            resumed=resumed,
        )
    if already == settings.num_epochs and (job.folder / SUMMARY).exists():
        summary = json.loads((job.folder / SUMMARY).read_text(encoding="utf-8"))
        if summary["epochs"] == already:  # and not what an interrupted part of the run left
            return VitRun(job.folder, result.history, summary)
    return job.finish(result, peak_mib[0])


class _Job:
    """Data, model and folder of one run; the constructor writes the files that precede training."""

    def __init__(self, settings: VitSettings, progress: Callable[[str], None]) -> None:
        self.settings, self.device = settings, choose_device(settings.device)
        self.folder = Path(settings.folder)
        _refuse_other(self.folder, settings)
        for name in idle_settings(settings):
            sampled = f"sampling_type={settings.sampling_type!r}"
            warn_user(f"{name} changes nothing with layer={settings.layer!r} and {sampled}.")
        progress(f"Loading {settings.dataset}")
        self.data = data = load_vit_data(settings)
        size, n_classes = data.image_size, len(data.classes)
        self.model = build_vit(settings, size, data.channels, n_classes)
        self._warn_of_dense_layers()
        self.cost = cost_of(self.model)
        if self.device.type == "cpu":
            _load_code(self.model)
        train, test = data.train.to(self.device), data.test.to(self.device)
        self.parts = SupervisedImages(self.model, train, data.scale, n_classes, settings)
        self.held = {"test": test}
        if data.validation is not None:
            self.held = {"validation": data.validation.to(self.device), **self.held}
        self.folder.mkdir(parents=True, exist_ok=True)
        facts = {
            "num_classes": n_classes,
            "img_size": (data.channels, size, size),
            "model": "ViT",
            "total_params": self.cost["parameters"],
            "trainable_params": self.cost["trainable"],
        }
        write_beginning(self.folder, settings, facts, self.model, self.cost)
        progress(
            f"Training {settings.layer} on {len(data.train):,} images of {size} x {size} pixels "
            f"({self.cost['tokens']} tokens), {self.cost['trainable']:,} parameters, on "
            f"{self.device}"
        )

    def _warn_of_dense_layers(self) -> None:
        """Warn if layers of nearest tokens have as many neighbors as tokens."""
        n_tokens = math.prod(self.model.grid_size) + self.model.num_prefix_tokens
        layers = [one for one in self.model.modules() if isinstance(one, KNNAttention)]
        if layers and (k := min(layer.n_neighbors for layer in layers)) >= n_tokens:
            warn_user(f"K={k} is at least the {n_tokens} tokens: this is dense attention.")

    def evaluate(self, epoch: int) -> dict[str, float]:
        """Evaluate validation and test images."""
        values = {part: self.parts.evaluate(rows) for part, rows in self.held.items()}
        return {f"{part}_{name}": v for part, own in values.items() for name, v in own.items()}

    def fingerprint(self) -> str:
        """Text of all that decides the result."""
        idle = {*HOW, *_no_matter(self.settings.use_compiled)}
        decides = self.settings.model_dump(exclude=idle)
        return json.dumps([decides, self.data.fingerprint()], sort_keys=True)

    def finish(self, result: TrainingResult, peak_mib: float) -> VitRun:
        """Write history, model and summary."""
        settings, data = self.settings, self.data
        write_history(self.folder, result.history, self.cost)
        meta = {
            "settings": settings.model_dump(exclude={"test_only", "output_dir", "device"}),
            "classes": data.classes,
            "mean": list(data.scale.mean),
            "std": list(data.scale.std),
            "image_size": data.image_size,
            "channels": data.channels,
        }
        save_model(self.folder, self.model, meta)
        if isinstance(data.train, ImageTensor):
            keep_digests(self.folder, data.train.pixels)
        seconds = [record["train_seconds"] for record in result.history]
        summary = {
            **self.parts.measure(self.held["test"]),
            "layer": settings.layer,
            "seed": settings.seed,
            "n_train": len(data.train),
            "epochs": len(result.history),
            "best_epoch": result.best_epoch,
            "interrupted": result.interrupted,
            **self.cost,
            "epoch_seconds": sum(seconds) / max(1, len(seconds)),
            "peak_memory_mib": peak_mib,
            "command": command_line(),
            "versions": versions(),
            "hardware": hardware(),
        }
        write_summary(self.folder, summary)
        return VitRun(self.folder, result.history, summary)


def _load_code(model: VisionTransformer) -> None:
    """Run one forward and backward pass, so that loading and compiling code is not timed."""
    with torch.random.fork_rng(devices=[]):
        model.train()
        model(torch.zeros(1, model.in_channels, *model.image_size)).sum().backward()
    model.zero_grad(set_to_none=True)


@contextmanager
def _peak_mib(device: torch.device) -> Iterator[list[float]]:
    """Peak memory of the block, of the process or the CUDA device, in the list that it gives."""
    found: list[float] = []
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        yield found
        found.append(torch.cuda.max_memory_allocated(device) / MIB)
    else:
        with PeakMemory() as own:
            yield found
        found.append(own.mib)


def _no_matter(use_compiled: bool) -> tuple[str, ...]:
    """Name the settings that do not change the result; compiled models draw dropout otherwise."""
    return ("data_path",) if use_compiled else ("data_path", "use_compiled", "compile_mode")


def _refuse_other(folder: Path, settings: VitSettings) -> None:
    """Refuse a file, files of others, and a run with other settings: the first that differs."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file. Give a folder as --output-dir.")
    if not (folder / SETTINGS).exists():
        if foreign := [name for name in OWN_FILES if (folder / name).exists()]:
            raise ValueError(
                f"{folder} has a {foreign[0]} but no {SETTINGS}: it was not made by 'nearwise "
                "vit train', which would replace it. Choose another output_dir."
            )
        return
    before = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
    either_compiled = settings.use_compiled or bool(before.get("use_compiled"))
    now = settings.model_dump(exclude={*HOW, *_no_matter(either_compiled)})
    for name, value in now.items():
        if before.get(name) != value:
            raise ValueError(
                f"{folder} holds a run with {name}={before.get(name)!r}, not {value!r}. Give "
                "another --output-dir, or remove that folder."
            )
