"""Run the study in one folder: train missing models, probe, measure, and save the results."""

import hashlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from nearwise.conditions import command_line, hardware, versions
from nearwise.data import Context, Dataset
from nearwise.data.images.pixels import as_images
from nearwise.functional.devices import choose_device
from nearwise.probes import Encoder
from nearwise.probes.encoders import fingerprint_of
from nearwise.safe_files import plain
from nearwise_lab.experiments.artifacts import load_json, save_json
from nearwise_lab.experiments.fields import FieldRun
from nearwise_lab.experiments.representations import looking
from nearwise_lab.experiments.representations.comparison import Comparison, save_comparison
from nearwise_lab.experiments.representations.settings import ARMS, Arm, StudyConfig, study_config
from nearwise_lab.experiments.representations.study import Study
from nearwise_lab.experiments.side_by_side import Jobs, Progress, number_of_jobs, run_side_by_side
from nearwise_lab.probing.data import ProbeData, digest_of_part, probe_data, without_seen
from nearwise_lab.records import lock_folder


def run_comparison(
    dataset: Dataset,
    folder: str | os.PathLike[str],
    *,
    seeds: Sequence[int] = (0,),
    config: StudyConfig | Mapping[str, Any] | None = None,
    arms: Sequence[str] | None = None,
    others: Mapping[str, Encoder] | None = None,
    device: str = "auto",
    n_jobs: Jobs = 1,
    progress: Progress | None = None,
) -> Comparison:
    """Compare neural fields, pixels and other encoders with the same probes.

    What is finished is kept in `folder` and not done again: models, features, records, geometry.

    Parameters
    ----------
    dataset : Dataset
        Of kind "images".
    folder : path
        Of models, features and records; several runs may share it, one after the other.
    seeds : sequence of int, default=(0,)
        Of first weights, batches and probes. The split is the same for all.
    config : StudyConfig or mapping, optional
        Default: the data set's recipe, changed by the mapping.
    arms : sequence of str, optional
        Names of `ARMS`; default all.
    others : mapping of str to Encoder, optional
        Frozen encoders of one's own, measured beside them.
    device : str, default="auto"
    n_jobs : int or "auto", default=1
        Processes that train and probe the study's encoders side by side; auto: on a CPU as many as
        there are processors, on a GPU one. Other encoders, geometry and maps follow in this
        process. A script then needs ``if __name__ == "__main__":``.
    progress : callable, optional
        Called with a few words on what is being done.

    Returns
    -------
    comparison : Comparison
        Also kept in `folder`; `load_comparison` reads it.

    Raises
    ------
    ValueError
        If the data set holds no images, a name or setting does not fit, or another process is
        writing to the folder.
    """
    if dataset.kind != "images":
        raise ValueError(f"{dataset.name!r} is a {dataset.kind}, no images. Name an image set.")
    if not isinstance(config, StudyConfig):
        config = study_config(dataset.name, dict(config or {}))
    others = others or {}
    chosen = _chosen_arms(arms, others)
    seeds = list(dict.fromkeys(seeds))
    if not seeds:
        raise ValueError("seeds is empty. Give at least one.")
    data = probe_data(
        dataset,
        seed=config.split_seed,
        validation=config.validation,
        test_size=config.test_size,
        limit=config.limit,
    )
    data, seen = without_seen(data, others)
    _check_images(config, data)
    used, progress = str(choose_device(device)), progress or (lambda words: None)
    study = Study(dataset.name, data, config, Path(folder), used, progress)
    jobs = number_of_jobs(n_jobs, used)
    with lock_folder(study.folder):
        found = _measured(study, chosen, others, seeds, jobs)
        facts = {**found.facts, **_facts(study, dataset, seen)}
        comparison = replace(found, facts=facts)
        save_comparison(comparison, folder)
    return comparison


def _chosen_arms(names: Sequence[str] | None, others: Mapping[str, Encoder]) -> list[Arm]:
    known = [arm.name for arm in ARMS]
    if names is not None and not names and not others:
        raise ValueError(f"No encoder is named. Known: {', '.join(known)}.")
    unknown = [n for n in names or () if n not in known]
    if unknown:
        raise ValueError(f"Unknown encoder {unknown[0]!r}. Known: {', '.join(known)}.")
    clash = [n for n in others if n in known]
    if clash:
        raise ValueError(f"An encoder of your own is called {clash[0]!r}, which the study uses.")
    return [arm for arm in ARMS if names is None or arm.name in names]


def _check_images(config: StudyConfig, data: ProbeData) -> None:
    """Check images and contexts before training, rather than fail after it."""
    height, width = as_images(data.test.images[:1]).shape[2:]
    for context in config.contexts:
        Context.parse(context).n_shown(height * width)
    if len(data.test.labels) < looking.FEWEST_ROWS:
        raise ValueError(
            f"{len(data.test.labels)} test images are too few for geometry and maps of their "
            f"features, which take {looking.FEWEST_ROWS}. Raise the limit or test_size, or take "
            "more images."
        )


def _measured(
    study: Study,
    arms: Sequence[Arm],
    others: Mapping[str, Encoder],
    seeds: Sequence[int],
    jobs: int,
) -> Comparison:
    """Measure all seeds; the facts are the times."""
    started, worked = time.perf_counter(), _processor_seconds()
    processes = 1 if jobs == 1 else _measure_beforehand(study, arms, seeds, jobs)
    records, geometry, kept_fields = [], [], []
    pictures: dict[str, Any] = {}
    for turn, seed in enumerate(seeds):
        own, fields = study.encoders(arms, seed)
        encoders = {**own, **others}
        records += study.probe(encoders, seed)
        looked = _looked(study, encoders, fields, seed)
        geometry += looked["geometry"]
        kept_fields += looked["fields"]
        if turn == 0:
            study.progress(f"seed {seed}, maps and reconstructions")
            maps, arrays = looking.maps(study, encoders, seed)
            if fields:
                pictures, shown = looking.pictures(study, fields, seed)
                arrays |= shown
    wall, worked = time.perf_counter() - started, _processor_seconds() - worked
    trained = sum(field["seconds"] for field in kept_fields)
    times = (
        f"{wall:.0f} s wall and {worked:.0f} s of processors for what this run had to do, with "
        f"{processes} processes side by side; training of the fields took {trained:.0f} s wall, "
        "shared stages counted for each"
    )
    return Comparison(
        records, geometry, kept_fields, maps, pictures, {"times": times}, arrays
    )  # fmt: skip


def _processor_seconds() -> float:
    """Processor seconds of this process and its finished child processes."""
    return sum(os.times()[:4])


def _looked(
    study: Study, encoders: Mapping[str, Encoder], fields: Mapping[str, FieldRun], seed: int
) -> dict[str, Any]:
    """Geometry and reconstruction errors, measured once for the same encoders."""
    first, config = as_images(study.data.train.images), study.config
    decides = {
        "encoders": {n: fingerprint_of(e, first) for n, e in encoders.items()},
        "data": [digest_of_part(study.data.train), digest_of_part(study.data.test)],
        "config": [config.contexts, config.geometry_rows, config.precision],
    }
    key = hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:24]
    path = study.folder / "looked" / f"{key}.json"
    kept = load_json(path)
    if kept is None:
        study.progress(f"seed {seed}, geometry of {len(encoders)} encoders")
        trained = [
            {
                "encoder": name,
                "seed": seed,
                "errors": looking.errors(study, field),
                "history": field.history,
                "seconds": field.seconds,
            }
            for name, field in fields.items()
        ]
        kept = plain({"geometry": looking.geometry(study, encoders, seed), "fields": trained})
        save_json(path, kept)
    return dict(kept)


def _facts(study: Study, dataset: Dataset, seen: Mapping[str, int]) -> dict[str, Any]:
    """Conditions of the numbers; `seen` test images were left out."""
    train, validation, test = (len(part.labels) for part in study.data)
    described = study.config.model_dump(mode="json")
    facts = {
        "dataset": dataset.name,
        "classes": [str(c) for c in dataset.classes],
        "sizes": f"{train:,} training, {validation:,} validation, {test:,} test",
        "settings": ", ".join(f"{k} {v}" for k, v in described.items()),
        "config": described,
        "hardware": ", ".join(f"{k} {v}" for k, v in hardware().items()),
        "versions": ", ".join(f"{k} {v}" for k, v in versions().items()),
        "command": command_line(),
    }
    if seen:
        left_out = ", ".join(f"{n} that {name} was trained on" for name, n in seen.items())
        facts["left_out"] = f"test images: {left_out}"
    return facts


Task = tuple[int, Arm, int | None]  # seed, arm, and how many of its stages alone


class _NotMeasured(Exception):
    """A measurement is missing."""


def _measure_beforehand(study: Study, arms: Sequence[Arm], seeds: Sequence[int], jobs: int) -> int:
    """Train and probe the missing arms in parallel; returns the number of processes.

    The study finds all of it there. With as many threads it would have measured the same itself;
    with more or fewer, sums are rounded otherwise.
    """
    missing = [(s, arm) for s in seeds for arm in arms if not _is_done(study, arm, s)]
    # a first stage is shared by several arms, which wait for it; what needs none fills the gaps
    first: dict[Any, Task] = {}
    now: list[Task] = []
    later: list[Task] = []
    for seed, arm in missing:
        stage = arm.stages[:1]
        if stage and not study.is_trained(stage, seed):
            first[seed, stage] = (seed, arm, 1)
            later.append((seed, arm, None))
        else:
            now.append((seed, arm, None))
    rounds = [[*first.values(), *sorted(now, key=lambda task: not task[1].stages)], later]
    processes = min(jobs, max(map(len, rounds)))
    if processes > 1:
        quiet = replace(study, progress=_refuse)  # what is sent to processes must be of a module
        run_side_by_side(partial(_do, quiet), rounds, processes, study.progress)
    return max(processes, 1)


def _is_done(study: Study, arm: Arm, seed: int) -> bool:
    """Whether an arm is trained and all its probes are measured."""
    if arm.stages and not study.is_trained(arm.stages, seed):
        return False
    refusing = replace(study, progress=_refuse)
    try:
        refusing.probe(refusing.encoders([arm], seed)[0], seed)
    except _NotMeasured:
        return False
    return True


def _refuse(words: str) -> None:
    raise _NotMeasured(words)


def _do(study: Study, task: Task, progress: Progress) -> None:
    """Run one task in a child process: the first stages of a field, or an arm."""
    study, (seed, arm, n_stages) = replace(study, progress=progress), task
    if n_stages is not None:
        study.train(arm, seed, n_stages)
    else:
        study.probe(study.encoders([arm], seed)[0], seed)
