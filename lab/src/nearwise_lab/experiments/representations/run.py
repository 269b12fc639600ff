"""Run the study: train what is missing, probe, measure, and keep all of it in one folder."""

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nearwise.data import Context, Dataset
from nearwise.data.images.pixels import as_images
from nearwise.functional.devices import choose_device
from nearwise.probes import Encoder
from nearwise_lab.experiments.representations.arms import ARMS, Arm
from nearwise_lab.experiments.representations.beforehand import measure_beforehand
from nearwise_lab.experiments.representations.kept import right_rows, save_comparison
from nearwise_lab.experiments.representations.looking import FEWEST_ROWS
from nearwise_lab.experiments.representations.measuring import Found, Study
from nearwise_lab.experiments.representations.records import Comparison
from nearwise_lab.experiments.representations.settings import StudyConfig, study_config
from nearwise_lab.experiments.side_by_side import Jobs, Progress, number_of_jobs
from nearwise_lab.probing.data import ProbeData, probe_data, without_seen
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
    """Compare neural fields, pixels and other encoders under one suite of probes.

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
    settings = (
        config
        if isinstance(config, StudyConfig)
        else study_config(dataset.name, dict(config or {}))
    )
    chosen = _chosen_arms(arms, others or {})
    seeds = list(dict.fromkeys(seeds))
    if not seeds:
        raise ValueError("seeds is empty. Give at least one.")
    data = probe_data(
        dataset,
        seed=settings.split_seed,
        validation=settings.validation,
        test_size=settings.test_size,
        limit=settings.limit,
    )
    data, seen = without_seen(data, others or {})
    _check_images(settings, data)
    chosen_device, progress = str(choose_device(device)), progress or _quiet
    jobs = number_of_jobs(n_jobs, chosen_device)
    study = Study(dataset.name, data, settings, Path(folder), chosen_device, progress)
    with lock_folder(study.folder):
        found, times = _measured(study, chosen, others or {}, seeds, jobs)
        comparison = Comparison(
            found.records,
            right_rows,
            found.geometry,
            found.fields,
            found.maps,
            found.pictures,
            {**study.facts(dataset), "times": times, **_left_out(seen)},
        )
        save_comparison(comparison, folder)
    return comparison


def _check_images(settings: StudyConfig, data: ProbeData) -> None:
    """Refuse what would only fail once all fields are trained."""
    height, width = as_images(data.test.images[:1]).shape[2:]
    for context in settings.contexts:
        Context.parse(context).n_shown(height * width)
    if len(data.test.labels) < FEWEST_ROWS:
        raise ValueError(
            f"{len(data.test.labels)} test images are too few for geometry and maps of their "
            f"features, which take {FEWEST_ROWS}. Raise the limit or test_size, or take more "
            "images."
        )


def _measured(
    study: Study,
    arms: Sequence[Arm],
    others: Mapping[str, Encoder],
    seeds: Sequence[int],
    jobs: int,
) -> tuple[Found, str]:
    """Measure all seeds; report how long it took."""
    started, worked = time.perf_counter(), _processor_seconds()
    at_once = measure_beforehand(study, arms, seeds, jobs)
    found = Found()
    for turn, seed in enumerate(seeds):
        study.run_seed(found, arms, others, seed, pictures=turn == 0)
    wall, worked = time.perf_counter() - started, _processor_seconds() - worked
    trained = sum(field["seconds"] for field in found.fields)
    times = (
        f"{wall:.0f} s wall and {worked:.0f} s of processors for what this run had to do, with "
        f"{at_once} processes side by side; training of the fields took {trained:.0f} s wall, "
        "shared stages counted for each"
    )
    return found, times


def _left_out(seen: Mapping[str, int]) -> dict[str, str]:
    """Return which test images are not new ones to encoders of the user's own."""
    if not seen:
        return {}
    left_out = ", ".join(f"{n} that {name} was trained on" for name, n in seen.items())
    return {"left_out": f"test images: {left_out}"}


def _processor_seconds() -> float:
    """Processor seconds of this process and of those it started that have ended."""
    return sum(os.times()[:4])


def _quiet(words: str) -> None:
    """Report nothing."""


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
