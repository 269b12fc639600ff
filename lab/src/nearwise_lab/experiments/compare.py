"""Comparison of methods on the same splits; finished rows are kept, stopped runs continue."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from nearwise.data import Dataset, split_dataset
from nearwise_lab.data import load_dataset
from nearwise_lab.experiments.methods import Method, get_methods
from nearwise_lab.experiments.peers.foundation import Checkpoint, as_checkpoints
from nearwise_lab.experiments.runner import Binding, Experiment, Job, Say, checked_seeds, run
from nearwise_lab.experiments.trial import TEST_SIZE, NoiseKind, Split, make_split, run_trial
from nearwise_lab.records import Record, facts

PEER_PACKAGES = ("pytabkit", "xrfm", "tabicl", "tabpfn", "lightpfn")


def compare(
    datasets: Sequence[str | PathLike[str] | Dataset],
    methods: Sequence[str | Method],
    seeds: Sequence[int],
    out: str | PathLike[str],
    *,
    noise: float = 0.0,
    noise_kind: NoiseKind = "symmetric",
    data_root: str | PathLike[str] | None = None,
    peer_weights: Mapping[str, str | PathLike[str] | Checkpoint] | None = None,
    progress: bool = True,
    command: str | None = None,
) -> list[Record]:
    """Fit every method on every data set and seed, and record the results on the test part.

    Splits are stratified 80/20 by seed (the official test part where there is one), the same
    for every method. Everything a method tunes, it tunes inside the training part; the test
    part is read once. Rows are appended to `out`/records.jsonl as they finish; run again, the
    finished rows are kept, failed ones are tried again, missing ones are run.

    Parameters
    ----------
    datasets : sequence of str, path or Dataset
        Names or files for `load_dataset`, or data sets.
    methods : sequence of str or Method
        Names in `METHODS`, or methods.
    seeds : sequence of int
        Non-negative; a seed draws the split, the noise and everything random in the method.
    out : path
        Results folder; one noise setting per folder. Takes more data sets, methods and seeds at
        any time.
    noise : float, default=0.0
        Share of training labels changed, in [0, 1); test labels stay clean.
    noise_kind : {"symmetric", "asymmetric"}, default="symmetric"
        Another class uniformly, or the next class.
    data_root : path, optional
        Where `load_dataset` searches first.
    peer_weights : mapping of str to path or Checkpoint, optional
        Checkpoints on this machine of "tabicl", "tabpfn" and "lightpfn"; nothing is downloaded.
    progress : bool, default=True
        Show a bar with the remaining time on standard error; False is silent.
    command : str, optional
        Written into the records; default: the command line of this process.

    Returns
    -------
    list of Record
        All rows in the folder that belong to the data sets, methods and seeds requested.

    Raises
    ------
    ValueError
        If a name is unknown, nothing is requested, a checkpoint is missing, or `noise` is out of
        range.
    RecordsError
        If the folder belongs to other settings, other data, other weights of a foundation model or
        another running process.
    KeyboardInterrupt
        After Ctrl-C; the finished rows are on disk.
    """
    chosen = get_methods(methods)
    if not 0 <= noise < 1:
        raise ValueError(f"noise={noise} is not a share of the labels. Pass one in [0, 1).")
    if noise_kind not in ("symmetric", "asymmetric"):
        raise ValueError(f"noise_kind={noise_kind!r} is not one of symmetric, asymmetric.")
    seeds = checked_seeds(seeds)
    if not datasets or not chosen:
        raise ValueError("compare needs at least one data set and one method; got none.")
    weights = as_checkpoints(peer_weights)
    views = any(method.takes_views for method in chosen)
    loaded = [
        d if isinstance(d, Dataset) else load_dataset(d, data_root=data_root, views=views)
        for d in datasets
    ]
    _check(loaded)
    for dataset in loaded:
        split_dataset(dataset, seeds[0], TEST_SIZE)  # refused before anything is written
    stated = facts(command)
    stated["versions"] |= _peer_versions()
    by_name = {dataset.name: dataset for dataset in loaded}

    @lru_cache(maxsize=1)  # the methods of a split follow one another
    def split(name: str, seed: int) -> Split:
        return make_split(by_name[name], seed, noise, noise_kind)

    def job(name: str, seed: int, method: Method) -> Job:
        def make(missing: Sequence[Record]) -> Iterator[Record]:
            yield from run_trial(
                method, split(name, seed), missing[0], Path(out),
                gallery=seed == seeds[0], weights=weights.get(method.name),
            )  # fmt: skip

        blank = Record(name, method.name, seed, float(noise), noise_kind, **stated)
        return Job(f"{name} · {method.name} · seed {seed}", (blank,), make)

    def jobs(say: Say) -> list[list[Job]]:
        return [[job(n, seed, method) for n in by_name for seed in seeds for method in chosen]]

    wanted = {m.name for m in chosen}
    of_weights = [
        Binding(f"weights of {n}", {"sha256": weights[n].sha256}, lambda r, n=n: r.method == n)  # type: ignore[misc]
        for n in sorted(wanted & {*weights})
    ]
    experiment = Experiment(
        {"noise": float(noise), "noise_kind": noise_kind, "test_size": TEST_SIZE},
        [*of_weights, *map(bound_rows, loaded)],
        jobs,
        lambda r: r.dataset in by_name and r.seed in seeds and (r.part_of or r.method) in wanted,
    )
    return run(experiment, out, progress)


def bound_rows(dataset: Dataset) -> Binding:
    """Bind records to a data set's rows: others under its name are refused."""
    name = dataset.name
    return Binding(f"rows called {name!r}", fingerprint(dataset), lambda r: r.dataset == name)


def fingerprint(dataset: Dataset) -> dict[str, Any]:
    """Size and hash of a data set, to distinguish two of one name."""
    digest = hashlib.sha256()
    if isinstance(dataset.X, pd.DataFrame):
        digest.update("\x1f".join(map(str, dataset.X.columns)).encode())
        digest.update(pd.util.hash_pandas_object(dataset.X, index=False).to_numpy().tobytes())
    else:
        values = np.ascontiguousarray(dataset.X)
        if values.ndim > 2:  # images of other shapes may have the same bytes
            digest.update(repr(values.shape).encode())
        digest.update(values.reshape(-1).view(np.uint8).data)
    digest.update("\x1f".join(map(str, dataset.y.tolist())).encode())
    return {
        "n_rows": len(dataset),
        "n_columns": int(np.prod(dataset.X.shape[1:])),
        "n_classes": len(dataset.classes),
        "sha256": digest.hexdigest()[:16],
    }


def _peer_versions() -> dict[str, str]:
    """Versions of the installed packages of higher peers."""
    found = {}
    for package in PEER_PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def _check(datasets: Sequence[Dataset]) -> None:
    """Refuse images, and several data sets of one name."""
    names = [d.name for d in datasets]
    for dataset in datasets:
        if dataset.kind == "images":
            raise ValueError(
                f"{dataset.name} holds images; the methods compared here take tables and "
                "embeddings. Run `nearwise experiment main` on it."
            )
    if twice := sorted({n for n in names if names.count(n) > 1}):
        raise ValueError(
            f"several data sets are called {', '.join(twice)}. Give each once, and files "
            "different names."
        )
