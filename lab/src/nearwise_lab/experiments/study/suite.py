"""Run the study's experiments: a name, a data set and a preset in, records out."""

import fnmatch
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from nearwise.data import Dataset
from nearwise.functional.devices import choose_device
from nearwise.names import did_you_mean
from nearwise_lab.data import load_dataset, load_images
from nearwise_lab.experiments.compare import bound_rows
from nearwise_lab.experiments.places import place_of
from nearwise_lab.experiments.runner import Binding, Experiment, Job, Say, checked_seeds, run
from nearwise_lab.experiments.study import replayed
from nearwise_lab.experiments.study.corrected import WEIGHTS, run_v1
from nearwise_lab.experiments.study.corrected_session import (
    ABLATIONS,
    STUDY_FIELDS,
    CorrectedSession,
    check_parameters,
    split_settings,
)
from nearwise_lab.experiments.study.efficiency import SMALL as SMALL_EFFICIENCY
from nearwise_lab.experiments.study.efficiency import EfficiencySize, efficiency_jobs
from nearwise_lab.experiments.study.human_noise import require_human_labels
from nearwise_lab.experiments.study.jobs import refuse_unknown_parts
from nearwise_lab.experiments.study.presets import (
    CORRECTED,
    StudyPreset,
    change_preset,
    check_preset_name,
    resolve_preset,
)
from nearwise_lab.experiments.study.session import Session
from nearwise_lab.experiments.study.settings import read_config
from nearwise_lab.records import Record, facts

REPLAYED: dict[str, Callable[[Session], list[Job]]] = {
    "main": replayed.main_jobs,
    "k-sweep": replayed.k_sweep_jobs,
    "label-noise": replayed.label_noise_jobs,
    "long-tail": replayed.long_tail_jobs,
    "theory": replayed.theory_jobs,
    "ablation": replayed.ablation_jobs,
}
EFFICIENCY, LABEL_NOISE = "efficiency", "label-noise"
LARGE_IMAGE_SETS = ("cifar10", "cifar100", "mnist")
SMALL_SLICE = (3000, 1000)
SMALL_TABLE_ROWS = 400
ALL = "all"
EXPERIMENTS: tuple[str, ...] = (
    "main", WEIGHTS, "k-sweep", "label-noise", "long-tail", EFFICIENCY, "theory", "ablation",
)  # fmt: skip


def run_experiment(
    name: str,
    dataset: str | PathLike[str] | Dataset,
    preset: str,
    seeds: Sequence[int],
    out: str | PathLike[str],
    *,
    small: bool = False,
    device: str = "auto",
    config: str | PathLike[str] | Mapping[str, Any] | None = None,
    data_root: str | PathLike[str] | None = None,
    only: str | None = None,
    progress: bool = True,
    command: str | None = None,
) -> list[Record]:
    """Run an experiment of the study, as it was ("v0.1" to "v0.6") or corrected ("v1").

    Every finished row is appended to `out`/records.jsonl and skipped by a second run; training
    goes on from its last epoch. A folder takes further experiments, presets, data sets and seeds
    at any time, but each preset on a data set with one size and one set of settings.

    Parameters
    ----------
    name : str
        "main", "weights" (of "v1" alone), "k-sweep", "label-noise", "long-tail", "efficiency",
        "theory", "ablation", "all".
    dataset : str, path or Dataset
        For `load_dataset`, or a data set. "efficiency" needs none and makes its own rows.
    preset : str
        "v0.1" to "v0.6", "v0.5-notebook", "v0.6-notebook" (as run, not as described), or "v1".
    seeds : sequence of int
        Non-negative.
    out : path
        Results folder.
    small : bool, default=False
        A size that takes about a minute on two cores.
    device : {"auto", "cpu", "cuda", "mps"}, default="auto"
        Where networks are trained; "auto" takes a GPU where there is one.
    config : path of a YAML file or mapping, optional
        Settings to change: fields of `StudyPreset`, for "v1" arguments of `AttnKNNClassifier`.
    data_root : path, optional
        Where `load_dataset` searches first.
    only : str, optional
        Make only what this pattern of the shell names, as in "*human-worse*": of a row "40.2 %
        human-worse, everywhere, attention", as reports name it. Rows that are made together with
        one of them come too.
    progress : bool, default=True
        Show a bar on standard error.
    command : str, optional
        Written into the records; default: the command line of this process.

    Returns
    -------
    records : list of Record
        All rows in the folder that belong to the request; failed ones have a reason.

    Raises
    ------
    ValueError
        If a name, setting or seed is unknown or does not fit.
    RecordsError
        If the folder belongs to other settings, other data or another running process.
    KeyboardInterrupt
        After Ctrl-C; finished rows and epochs are on disk.
    """
    check_preset_name(preset)
    names = experiment_names(name)
    if preset != CORRECTED and WEIGHTS in names:
        if name == WEIGHTS:
            raise ValueError(
                f'"{WEIGHTS}" compares weightings within AttnKNNClassifier, and {preset!r} is a '
                f"version of the study. Use -p {CORRECTED}."
            )
        names.remove(WEIGHTS)
    checked = checked_seeds(seeds)
    changes = config if isinstance(config, Mapping) else read_config(config) if config else {}
    place = choose_device(device)
    out = Path(out)
    loaded = None
    if names == [EFFICIENCY] and changes:
        raise ValueError(
            f'"{EFFICIENCY}" measures random keys and has no settings. Leave out '
            f"{', '.join(changes)}."
        )
    if names != [EFFICIENCY]:
        loaded = dataset if isinstance(dataset, Dataset) else _load(dataset, data_root, small)
    make = None if loaded is None else _maker(loaded, preset, small, changes)
    if make is not None and preset == CORRECTED and LABEL_NOISE in names:
        asked = "human_labels" in changes
        require_human_labels(make.study, make.dataset, data_root, asked=asked)
    stated = facts(command)
    size = SMALL_EFFICIENCY if small else EfficiencySize()

    def jobs(say: Say) -> Iterator[list[Job]]:
        n_jobs, named = 0, list[str]()
        for seed in checked:
            session = None if make is None else make(seed, out, place, stated, say, data_root)
            for experiment in names:
                found = _jobs(experiment, session, seed, size, stated)
                n_jobs += len(found)
                if only is not None:
                    named.extend(_name(row) for job in found for row in job.wanted)
                    found = [job for job in found if any(_is_named(r, only) for r in job.wanted)]
                yield found
        if not n_jobs:
            raise ValueError(f"These settings leave no row of {name!r} on this data. Change them.")
        if only is not None and not fnmatch.filter(named, only):
            raise ValueError(
                f"only={only!r} names no row. Known: {'; '.join(dict.fromkeys(named))}."
            )

    bindings, sets = [], {size.name}
    if make is not None:
        bindings, sets = [bound_rows(make.dataset), make.bound], {size.name, make.dataset.name}

    def is_wanted(row: Record) -> bool:
        return (
            row.experiment in names
            and row.seed in checked
            and row.dataset in sets
            and row.preset in (preset, "")
            and (only is None or _is_named(row, only))
        )

    return run(Experiment({"suite": "study"}, bindings, jobs, is_wanted), out, progress)


def experiment_names(name: str) -> list[str]:
    """Experiments that a name means; a wrong one lists the right ones and the nearest."""
    if name == ALL:
        return list(EXPERIMENTS)
    if name not in EXPERIMENTS:
        hint = did_you_mean(name, [*EXPERIMENTS, ALL])
        raise ValueError(
            f"unknown experiment {name!r}.{hint} Known: {', '.join([*EXPERIMENTS, ALL])}."
        )
    return [name]


def _jobs(
    experiment: str,
    session: Session | None,
    seed: int,
    size: EfficiencySize,
    facts: dict[str, Any],
) -> list[Job]:
    if experiment == EFFICIENCY:
        return efficiency_jobs(size, seed, facts)
    if isinstance(session, CorrectedSession):
        return run_v1(experiment, session)
    assert session is not None  # every other experiment has a data set
    return REPLAYED[experiment](session)


def _name(row: Record) -> str:
    """Name a row as reports do: its condition, and its method."""
    return ", ".join(part for part in (place_of(row).label, row.method) if part)


def _is_named(row: Record, only: str) -> bool:
    return fnmatch.fnmatchcase(_name(row), only)


@dataclass(frozen=True)
class _Maker:
    """Settings, checked once, and what makes the session of a seed from them."""

    dataset: Dataset
    study: StudyPreset
    parameters: dict[str, Any] | None

    @property
    def settings(self) -> dict[str, Any]:
        """What decides the results."""
        if self.parameters is None:
            return self.study.model_dump()
        return {**self.study.model_dump(include={"name", *STUDY_FIELDS}), **self.parameters}

    @property
    def bound(self) -> Binding:
        """What binds a folder's rows to these settings."""
        of = self.study.name, self.dataset.name
        return Binding(
            f"settings of {of[0]} on {of[1]}", self.settings, lambda r: (r.preset, r.dataset) == of
        )

    def __call__(
        self, seed: int, out: Path, device: torch.device, facts: dict[str, Any], say: Say, root: Any
    ) -> Session:
        if self.parameters is None:
            return Session(self.dataset, self.study, seed, out, device, facts, say, root)
        return CorrectedSession(
            self.dataset, self.study, seed, out, device, facts, say, root,
            parameters=self.parameters,
        )  # fmt: skip


def _maker(dataset: Dataset, preset: str, small: bool, changes: Mapping[str, Any]) -> _Maker:
    corrected = preset == CORRECTED
    refuse_unknown_parts(ABLATIONS if corrected else replayed.ABLATIONS, changes)
    if not corrected:
        settings = resolve_preset(
            preset, dataset.name, dataset.kind, len(dataset), small=small, overrides=changes
        )
        return _Maker(dataset, settings, None)
    frame, parameters = split_settings(changes)
    if small:
        parameters = _small_parameters(dataset.kind, parameters) | parameters
    check_parameters(parameters, dataset)
    return _Maker(dataset, _corrected_frame(dataset, small, frame), parameters)


def _corrected_frame(dataset: Dataset, small: bool, changes: Mapping[str, Any]) -> StudyPreset:
    """Rows and grids of "v1": those of "v0.5", split by the run's seed, images as they are."""
    scratch = {"pretrained": False}  # the frame builds no network of the study
    frame = resolve_preset(
        "v0.5", dataset.name, dataset.kind, len(dataset), small=small, overrides=scratch
    )
    fixed: dict[str, Any] = dict.fromkeys(("split_seed", "channels", "image_size"))
    fixed["name"] = CORRECTED
    if small and dataset.kind != "images":
        fixed["max_rows"] = SMALL_TABLE_ROWS
    return change_preset(frame, {**fixed, **changes})


def _small_parameters(kind: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Few epochs, or two folds: the same method, seconds instead of minutes."""
    if kind == "images":
        return {"train": {"epochs": 6}}
    if given.get("preset") == "instant":  # trains nothing
        return {}
    return {"cv": 2}


def _load(name: str | PathLike[str], data_root: Any, small: bool) -> Dataset:
    """Load a data set; of a large image set only as many rows as a small run may draw from."""
    if small and str(name) in LARGE_IMAGE_SETS:
        return load_images(name, limit=SMALL_SLICE, data_root=data_root)
    return load_dataset(name, data_root=data_root, views=True)
