"""Run the study's experiments: a name, a data set and a preset in, records out."""

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from nearwise.data import Dataset
from nearwise.functional.devices import choose_device
from nearwise.names import did_you_mean
from nearwise_lab.data import load_dataset, load_images
from nearwise_lab.experiments.compare import bound_rows
from nearwise_lab.experiments.places import NOISE, WEIGHTS, place_of
from nearwise_lab.experiments.runner import Binding, Experiment, Job, Say, checked_seeds, run
from nearwise_lab.experiments.study.arms import require_human_labels
from nearwise_lab.experiments.study.corrected import corrected_jobs
from nearwise_lab.experiments.study.efficiency import EfficiencySize, efficiency_jobs
from nearwise_lab.experiments.study.presets import CORRECTED, check_preset_name
from nearwise_lab.experiments.study.replayed import replay_jobs
from nearwise_lab.experiments.study.session import Session
from nearwise_lab.experiments.study.settings import deciding, read_config, resolve
from nearwise_lab.records import Record, facts

EFFICIENCY, ALL = "efficiency", "all"
LARGE_IMAGE_SETS = ("cifar10", "cifar100", "mnist")
SMALL_SLICE = (3000, 1000)
EXPERIMENTS: tuple[str, ...] = (
    "main", *WEIGHTS, "k-sweep", "label-noise", "long-tail", EFFICIENCY, "theory", "ablation",
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
    """Run an experiment of the study with a replayed ("v0.1" to "v0.6") or corrected preset ("v1").

    Every finished row is appended to `out`/records.jsonl and skipped by a second run; training
    goes on from its last epoch. A folder takes further experiments, presets, data sets and seeds
    at any time, but each preset on a data set with one size and one set of settings.

    Parameters
    ----------
    name : str
        "main", "k-sweep", "label-noise", "long-tail", "efficiency", "theory", "ablation", "all"; of
        "v1" alone "weights", "weights-noise", "weights-tail".
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
    names = experiment_names(name, preset)
    checked = checked_seeds(seeds)
    changes = config if isinstance(config, Mapping) else read_config(config) if config else {}
    place, stated, out = choose_device(device), facts(command), Path(out)
    size = EfficiencySize.of(small)
    bindings, sets, frame = list[Binding](), {size.name}, None
    if names != [EFFICIENCY]:
        loaded = dataset if isinstance(dataset, Dataset) else _load(dataset, data_root, small)
        frame = resolve(loaded, preset, small, changes)
        if preset == CORRECTED and {"label-noise", NOISE} & {*names}:
            asked = "human_labels" in changes
            require_human_labels(frame[0], loaded, data_root, asked=asked)
        bindings, sets = [bound_rows(loaded), _bound(loaded, *frame)], {size.name, loaded.name}
    elif changes:
        raise ValueError(
            f'"{EFFICIENCY}" measures random keys and has no settings. Leave out '
            f"{', '.join(changes)}."
        )

    def of_seed(seed: int, say: Say) -> Iterator[list[Job]]:
        if frame is not None:
            session = Session(loaded, *frame, seed, out, place, stated, say, data_root)
            make = replay_jobs if frame[1] is None else corrected_jobs
        for experiment in names:
            if experiment == EFFICIENCY:
                yield efficiency_jobs(size, seed, stated)
            else:
                yield make(session, experiment)

    def jobs(say: Say) -> Iterator[list[Job]]:
        named = dict[str, None]()
        for seed in checked:
            for found in of_seed(seed, say):
                named |= dict.fromkeys(_name(row) for job in found for row in job.wanted)
                yield [job for job in found if any(_is_named(row, only) for row in job.wanted)]
        if not named:
            raise ValueError(f"These settings leave no row of {name!r} on this data. Change them.")
        if only is not None and not fnmatch.filter(named, only):
            raise ValueError(f"only={only!r} names no row. Known: {'; '.join(named)}.")

    def belongs(row: Record) -> bool:
        return (
            row.experiment in names
            and row.seed in checked
            and row.dataset in sets
            and row.preset in (preset, "")
            and _is_named(row, only)
        )

    return run(Experiment({"suite": "study"}, bindings, jobs, belongs), out, progress)


def experiment_names(name: str, preset: str) -> list[str]:
    """Experiments that a name means; a wrong one lists the right ones and the nearest."""
    if name not in (*EXPERIMENTS, ALL):
        hint = did_you_mean(name, [*EXPERIMENTS, ALL])
        raise ValueError(
            f"unknown experiment {name!r}.{hint} Known: {', '.join([*EXPERIMENTS, ALL])}."
        )
    if name in WEIGHTS and preset != CORRECTED:
        raise ValueError(
            f'"{name}" compares weightings within AttnKNNClassifier, and {preset!r} is a '
            f"version of the study. Use -p {CORRECTED}."
        )
    if name != ALL:
        return [name]
    return [e for e in EXPERIMENTS if e not in WEIGHTS or preset == CORRECTED]


def _bound(dataset: Dataset, preset: Any, parameters: dict[str, Any] | None) -> Binding:
    """Bind a folder's rows of a preset on a data set to these settings."""
    of = preset.name, dataset.name
    return Binding(
        f"settings of {of[0]} on {of[1]}",
        deciding(preset, parameters),
        lambda row: (row.preset, row.dataset) == of,
    )


def _name(row: Record) -> str:
    """Name a row as reports do: its condition, and its method."""
    return ", ".join(part for part in (place_of(row).label, row.method) if part)


def _is_named(row: Record, only: str | None) -> bool:
    return only is None or fnmatch.fnmatchcase(_name(row), only)


def _load(name: str | PathLike[str], data_root: Any, small: bool) -> Dataset:
    """Load a data set; of a large image set only as many rows as a small run may draw from."""
    if small and str(name) in LARGE_IMAGE_SETS:
        return load_images(name, limit=SMALL_SLICE, data_root=data_root)
    return load_dataset(name, data_root=data_root, views=True)
