"""evaluate: every encoder under every probe, records written as they finish."""

import hashlib
import json
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.base import clone
from sklearn.decomposition import PCA

from nearwise.data.contexts import Context
from nearwise.data.images.pixels import as_images
from nearwise.probes.base import Probe
from nearwise.probes.encoders import Encoder, fingerprint_of
from nearwise.probes.features import (
    POOLS,
    FeatureSet,
    Precision,
    extract_features,
    refuse_cls,
)
from nearwise.warn import warn_user
from nearwise_lab.interrupts import whole_or_nothing
from nearwise_lab.probing.catalog import check_probe_names, make_probe
from nearwise_lab.probing.cost import probe_flops, probe_parameters
from nearwise_lab.probing.data import (
    LabeledImages,
    ProbeData,
    as_probe_data,
    digest_of_part,
    without_seen,
)
from nearwise_lab.probing.measures import Record, measure
from nearwise_lab.probing.stored import StoredFeatures
from nearwise_lab.records import append_lines, as_line, facts, now, read_lines

TOKENS = "tokens"
PCA_POOL = "flatten-pca"
_PCA_WIDTH = 256
Progress = Callable[[str, int, int], None]


class Parts(NamedTuple):
    """Features of the three parts."""

    train: FeatureSet
    validation: FeatureSet
    test: FeatureSet


@dataclass(frozen=True)
class Cell:
    """One record to be: which encoder, under which probe, seen how."""

    encoder: str
    probe: str
    pool: str
    context: Context
    draw: int
    seed: int


def evaluate(
    encoders: Mapping[str, Encoder | StoredFeatures],
    data: Sequence[Any],
    *,
    probes: Sequence[str] | Mapping[str, Probe] = ("knn", "linear"),
    contexts: Sequence[Context | str] = ("full",),
    pools: Sequence[str] = ("mean",),
    draws: Sequence[int] = (0,),
    seeds: Sequence[int] = (0,),
    batch_size: int = 256,
    device: str = "cpu",
    precision: Precision = "float32",
    views: int = 1,
    folder: str | os.PathLike[str] | None = None,
    shared: bool = False,
    cache: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> list[Record]:
    """Measure what probes read out of frozen encoders.

    Probes are fitted on the training part; whatever is chosen is chosen on the validation part,
    whose rows then join those that k-NN, attention and linear probes learn from (networks keep
    their best epoch); the test part is read once, by what was chosen.

    Parameters
    ----------
    encoders : mapping of str to Encoder
        By the names they shall have in the records.
    data : ProbeData, or three pairs of images and labels
        Training, validation and test.
    probes : sequence of str, or mapping of str to Probe
        Names of `nearwise_lab.probing.PROBES`, or probes of your own, which are cloned.
    contexts : sequence of Context or str, default=("full",)
    pools : sequence of str, default=("mean",)
        "mean", "max", "flatten", "cls", or "flatten-pca": 256 principal components of the
        training rows. Probes that read tokens are measured once, with pool "tokens".
    draws : sequence of int, default=(0,)
        Draws of the contexts; a full context has only the first.
    seeds : sequence of int, default=(0,)
        Of the probes. Those that draw nothing are measured with each all the same.
    batch_size, precision
        As for `extract_features`.
    device : str, default="cpu"
        Of encoders and probes.
    views : int, default=1
        Views of each training image; the other parts have one.
    folder : path, optional
        Where records are kept as they finish. What is there is not measured again. It may hold
        other encoders, probes, pools, contexts, draws and seeds of the same rows and settings.
    shared : bool, default=False
        Let the folder hold anything else too: other rows, `views` or `precision`, and other
        weights or probes under the same name. Then the folder mixes them, and only what
        `evaluate` returns is of one kind.
    cache : path, optional
        Where features are kept; default ``folder/features``.
    progress : callable (what, done, all), optional
        Called before each record, and once at the end.

    Returns
    -------
    records : list of dict
        encoder, probe, pool, context, draw, seed, n, n_train (rows learned from), n_classes, the
        measures of `probing.measures.measure`, tokens, dims (of a row the probe reads),
        parameters and flops (of the probe and of a query), encoder_parameters, fit_seconds,
        query_us (a test row), choice, data (hash of the test rows), source (hashes of the
        encoder, the probe, and of rows and settings), key, and the conditions of `facts`.

    Raises
    ------
    ValueError
        If a name is not known, the parts do not fit, features are NaN or of the wrong shape, or
        the folder holds records that these would be mixed up with.
    """
    named = _probe_makers(probes)
    parts = as_probe_data(data)
    shape = np.shape(parts.train.images)
    n_points = None if len(shape) < 3 else as_images(parts.train.images[:1])[0, 0].numel()
    for name, n_seen in without_seen(parts, encoders)[1].items():
        warn_user(
            f"{n_seen} of {len(parts.test.labels)} test images are among those that {name} was "
            "trained on. nearwise_lab.probing.without_seen(data, encoders) leaves them out."
        )
    cells = list(_cells(encoders, named, contexts, pools, draws, seeds, device, n_points))
    found = {} if folder is None else {record["key"]: record for record in read_lines(folder)}
    if cache is None and folder is not None:
        cache = Path(folder) / "features"
    digests = [digest_of_part(part) for part in parts]
    options = {"precision": precision, "device": device, "batch_size": batch_size}
    prints = {name: _fingerprint(encoder, parts) for name, encoder in encoders.items()}
    conditions = [digests, precision, views]
    sources: dict[str, Any] = {
        "encoder": {name: _hashed(text) for name, text in prints.items()},
        "probe": {name: _hashed(_described(make(0, device, {}))) for name, make in named.items()},
        "rows": _hashed(json.dumps(conditions)),
    }
    keys = []
    for cell in cells:
        probe_text = _described(named[cell.probe](cell.seed, device, {}))
        keys.append(_key(cell, prints[cell.encoder], probe_text, digests, options, views))
    if not shared:
        _refuse_others(folder, found, sources, keys)
    features: tuple[Any, Parts] | None = None
    records = []
    for done, (cell, key) in enumerate(zip(cells, keys, strict=True)):
        place = (cell.encoder, cell.pool, cell.context, cell.draw)
        if key in found:
            records.append(found[key])
            continue
        if progress is not None:
            what = f"{cell.encoder}, {cell.probe}, {cell.context}"
            progress(what, done, len(cells))
        if features is None or features[0] != place:
            features = place, _features(encoders[cell.encoder], parts, cell, options, views, cache)
        probe = named[cell.probe](cell.seed, device, features[1].train.meta)
        with whole_or_nothing():
            record = _measured(probe, features[1], cell, digests[2])
        own = {part: sources[part][record[part]] for part in ("encoder", "probe")}
        record |= {"source": {**own, "rows": sources["rows"]}, "key": key, **facts(), "time": now()}
        if folder is not None:
            append_lines(folder, [record])
        found[key] = json.loads(as_line(record))  # the same whether read again or not
        records.append(found[key])
    if progress is not None:
        progress("done", len(cells), len(cells))
    return records


def _hashed(text: str, length: int = 16) -> str:
    """First hexadecimal digits of a text's SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def _refuse_others(
    folder: Any, found: Mapping[str, Record], sources: Mapping[str, Any], keys: Collection[str]
) -> None:
    """Refuse records that could not be distinguished from those of this run, named by `keys`."""
    for record in (record for key, record in found.items() if key not in keys):
        other, what = record["source"], None
        for part in ("encoder", "probe"):
            if sources[part].get(record[part], other[part]) != other[part]:
                what = f"another {part} called {record[part]!r}"
        if other["rows"] != sources["rows"]:
            what = "other rows (another data set, split or limit) or settings (such as views)"
        if what is not None:
            raise ValueError(
                f"{folder} holds records of {what}. These would be mixed up with them: choose "
                "another folder."
            )


Makers = dict[str, Callable[[int, str, Mapping[str, Any]], Probe]]


def _probe_makers(probes: Sequence[str] | Mapping[str, Probe]) -> Makers:
    if isinstance(probes, Mapping):
        return {name: _cloned(probe) for name, probe in probes.items()}
    check_probe_names(probes)
    return {name: _by_name(name) for name in probes}


def _by_name(name: str) -> Callable[[int, str, Mapping[str, Any]], Probe]:
    return lambda seed, device, meta: make_probe(name, seed=seed, device=device, meta=meta)


def _cloned(probe: Probe) -> Callable[[int, str, Mapping[str, Any]], Probe]:
    def make(seed: int, device: str, meta: Mapping[str, Any]) -> Probe:
        own = clone(probe)
        if "random_state" in own.get_params() and own.get_params()["random_state"] is None:
            own.set_params(random_state=seed)
        return own

    return make


def _cells(
    encoders: Mapping[str, Any],
    probes: Makers,
    contexts: Sequence[Context | str],
    pools: Sequence[str],
    draws: Sequence[int],
    seeds: Sequence[int],
    device: str,
    n_points: int | None,
) -> Iterator[Cell]:
    """All records to be, those that share features after one another."""
    for pool in pools:
        if pool not in (*POOLS, PCA_POOL):
            raise ValueError(f"pool {pool!r} is not known. Use {', '.join((*POOLS, PCA_POOL))}.")
    if not (encoders and probes and contexts and pools and draws and seeds):
        raise ValueError("encoders, probes, contexts, pools, draws and seeds must not be empty.")
    reads = {name: make(0, device, {}).reads_tokens for name, make in probes.items()}
    for encoder, of in encoders.items():
        for given in contexts:
            context = Context.parse(given) if isinstance(given, str) else given
            if isinstance(of, StoredFeatures) and context.kind != "full":
                raise ValueError(
                    f"The features of {encoder!r} are stored and cannot be made from the context "
                    f"{context}. Leave other contexts out."
                )
            if n_points is not None:
                context.n_shown(n_points)  # raises where it leaves none
            for draw in draws if context.kind != "full" else draws[:1]:
                groups = [*pools, TOKENS] if not isinstance(of, StoredFeatures) else ["stored"]
                for pool in groups:
                    if pool != "stored":
                        refuse_cls(of, pool)
                    for probe in probes:
                        if pool == "stored" and reads[probe]:
                            raise ValueError(
                                f"The probe {probe!r} reads tokens, and {encoder!r} is one "
                                "vector per row. Leave the probe out."
                            )
                        if reads[probe] == (pool == TOKENS):
                            for seed in seeds:
                                yield Cell(encoder, probe, pool, context, draw, seed)


def _fingerprint(encoder: Encoder | StoredFeatures, parts: ProbeData) -> str:
    if isinstance(encoder, StoredFeatures):
        return encoder.fingerprint()
    return fingerprint_of(encoder, as_images(parts.train.images))


def _described(probe: Probe) -> str:
    params = {k: v for k, v in probe.get_params().items() if k != "device"}
    settings = json.dumps(params, sort_keys=True, default=str)
    return f"{type(probe).__name__} by {probe.chosen_by} {settings}"


def _key(
    cell: Cell,
    fingerprint: str,
    probe: str,
    digests: list[str],
    options: Mapping[str, Any],
    views: int,
) -> str:
    """Hash of all that decides a record."""
    seen = [cell.encoder, cell.probe, cell.pool, str(cell.context), cell.draw, cell.seed]
    batch = options["batch_size"] if cell.context.kind == "per-batch" else None
    decides = [seen, fingerprint, probe, digests, options["precision"], views, batch]
    return _hashed(json.dumps(decides), 24)


def _features(
    encoder: Encoder | StoredFeatures,
    parts: ProbeData,
    cell: Cell,
    options: Mapping[str, Any],
    views: int,
    cache: str | os.PathLike[str] | None,
) -> Parts:
    if isinstance(encoder, StoredFeatures):
        return Parts(*(encoder.take(part.rows, part.labels) for part in parts))
    pool = {TOKENS: None, PCA_POOL: "flatten"}.get(cell.pool, cell.pool)

    def one(part: LabeledImages, n_views: int) -> FeatureSet:
        return extract_features(
            encoder,
            part.images,
            part.labels,
            rows=part.rows,
            pool=pool,  # type: ignore[arg-type]
            context=cell.context,
            draw=cell.draw,
            views=n_views,
            cache=cache,
            progress=False,
            **options,
        )

    made = Parts(one(parts.train, views), one(parts.validation, 1), one(parts.test, 1))
    return _projected(made, cell.seed) if cell.pool == PCA_POOL else made


def _projected(parts: Parts, seed: int) -> Parts:
    """Principal components of the training rows, at most 256."""
    width = min(_PCA_WIDTH, *parts.train.X.shape)
    pca = PCA(width, svd_solver="randomized", random_state=seed).fit(parts.train.X)
    return Parts(
        *(
            FeatureSet(pca.transform(part.X).astype(np.float32), part.y, part.index, part.meta)
            for part in parts
        )
    )


def _measured(probe: Probe, parts: Parts, cell: Cell, test_digest: str) -> Record:
    train, validation, test = parts
    assert test.y is not None  # `as_probe_data` saw to it
    started = time.perf_counter()
    again: dict[str, Any] = {"refit": True} if probe.can_refit else {}
    probe.fit(train.X, train.y, validation=(validation.X, validation.y), **again)
    _synchronize()
    fit_seconds = time.perf_counter() - started
    codes = np.searchsorted(probe.classes_, test.y).clip(0, len(probe.classes_) - 1)
    if (probe.classes_[codes] != test.y).any():
        raise ValueError("Test rows have labels that no training row has. Leave them out.")
    started = time.perf_counter()
    proba = probe.predict_proba(test.X)
    _synchronize()
    query = time.perf_counter() - started
    return {
        "encoder": cell.encoder,
        "probe": cell.probe,
        "pool": cell.pool,
        "context": str(cell.context),
        "draw": cell.draw,
        "seed": cell.seed,
        "n": len(test),
        "n_train": len(train) + (len(validation) if again else 0),
        "n_classes": len(probe.classes_),
        **measure(codes.astype(np.int64), proba),
        "tokens": train.meta.get("tokens"),
        "dims": int(np.prod(train.X.shape[1:])),
        "parameters": probe_parameters(probe),
        "flops": probe_flops(probe, test.X),
        "encoder_parameters": train.meta.get("parameters"),
        "fit_seconds": fit_seconds,
        "query_us": 1e6 * query / len(test),
        "choice": probe.choice_,
        "data": test_digest,
    }


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
