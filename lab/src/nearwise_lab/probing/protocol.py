"""evaluate: every encoder under every probe, records written as they finish."""

import hashlib
import json
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
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
from nearwise_lab.probing.data import ProbeData, digest_of_part, without_seen
from nearwise_lab.probing.measures import Record, measure
from nearwise_lab.probing.stored import StoredFeatures
from nearwise_lab.records import append_lines, as_line, facts, now, read_lines

STORED, TOKENS, PCA_POOL = "stored", "tokens", "flatten-pca"
_PCA_WIDTH = 256
Encoders = Mapping[str, Encoder | StoredFeatures]
Parts = list[FeatureSet]  # training, validation, test
Progress = Callable[[str, int, int], None]


class Cell(NamedTuple):
    """Key of one record: encoder, probe, pool, context, draw and seed."""

    encoder: str
    probe: str
    pool: str
    context: Context
    draw: int
    seed: int


def evaluate(
    encoders: Encoders,
    data: ProbeData,
    *,
    probes: Sequence[str] | Mapping[str, Probe] = ("knn", "linear"),
    contexts: Sequence[str] = ("full",),
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
    progress: Progress = lambda what, done, of: None,
) -> list[Record]:
    """Measure frozen encoders with probes.

    Probes are fitted on the training part; whatever is chosen is chosen on the validation part,
    whose rows then join those that k-NN, attention and linear probes learn from (networks keep
    their best epoch); the test part is read once, by what was chosen.

    Parameters
    ----------
    encoders : mapping of str to Encoder
        By the names they shall have in the records.
    data : ProbeData
        Training, validation and test.
    probes : sequence of str, or mapping of str to Probe
        Names of `nearwise_lab.probing.PROBES`, or probes of your own, which are cloned.
    contexts : sequence of str, default=("full",)
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
    if not isinstance(probes, Mapping):
        check_probe_names(probes)
    named: dict[str, Any] = (
        dict(probes) if isinstance(probes, Mapping) else dict(zip(probes, probes, strict=True))
    )
    for name, n_seen in without_seen(data, encoders)[1].items():
        warn_user(
            f"{n_seen} of {len(data.test.labels)} test images are among those that {name} was "
            "trained on. nearwise_lab.probing.without_seen(data, encoders) leaves them out."
        )
    shape = np.shape(data.train.images)
    n_points = None if len(shape) < 3 else as_images(data.train.images[:1])[0, 0].numel()
    cells = list(_cells(encoders, named, contexts, pools, draws, seeds, n_points))
    found = {} if folder is None else {record["key"]: record for record in read_lines(folder)}
    if cache is None and folder is not None:
        cache = Path(folder) / "features"
    digests = [digest_of_part(part) for part in data]
    prints = {name: _fingerprint(encoder, data) for name, encoder in encoders.items()}
    sources: dict[str, Any] = {
        "encoder": {name: _hashed(text) for name, text in prints.items()},
        "probe": {name: _hashed(_described(make_probe(p))) for name, p in named.items()},
        "rows": _hashed(json.dumps([digests, precision, views])),
    }
    keys = []
    for cell in cells:  # hashes of all that decides a record
        seen = [*cell[:3], str(cell.context), cell.draw, cell.seed]
        probe_text = _described(make_probe(named[cell.probe], seed=cell.seed))
        batch = batch_size if cell.context.kind == "per-batch" else None
        decides = [seen, prints[cell.encoder], probe_text, digests, precision, views, batch]
        keys.append(_hashed(json.dumps(decides), 24))
    if not shared:
        _refuse_others(folder, found, sources, keys)
    options = {"precision": precision, "device": device, "batch_size": batch_size, "cache": cache}
    features: tuple[Any, Parts] | None = None
    records = []
    for done, (cell, key) in enumerate(zip(cells, keys, strict=True)):
        if key not in found:
            progress(f"{cell.encoder}, {cell.probe}, {cell.context}", done, len(cells))
            place = (cell.encoder, cell.pool, cell.context, cell.draw)
            if features is None or features[0] != place:
                features = place, _features(encoders[cell.encoder], data, cell, views, options)
            ordered = bool(features[1][0].meta.get("ordered", True))
            own = make_probe(named[cell.probe], seed=cell.seed, device=device, ordered=ordered)
            with whole_or_nothing():
                record = _measured(own, features[1], cell, digests[2])
            source = {part: sources[part][record[part]] for part in ("encoder", "probe")}
            record["source"] = {**source, "rows": sources["rows"]}
            record |= {"key": key, **facts(), "time": now()}
            if folder is not None:
                append_lines(folder, [record])
            found[key] = json.loads(as_line(record))  # the same whether read again or not
        records.append(found[key])
    progress("done", len(cells), len(cells))
    return records


def _hashed(text: str, length: int = 16) -> str:
    """First hexadecimal digits of a text's SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def _refuse_others(
    folder: Any, found: Mapping[str, Record], sources: Mapping[str, Any], keys: Collection[str]
) -> None:
    """Refuse a folder with records that this run's records could be confused with."""
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


def _cells(
    encoders: Encoders,
    probes: Mapping[str, Any],
    contexts: Sequence[str],
    pools: Sequence[str],
    draws: Sequence[int],
    seeds: Sequence[int],
    n_points: int | None,
) -> Iterator[Cell]:
    """Yield all cells to measure, grouped by the features that they need."""
    for pool in pools:
        if pool not in (*POOLS, PCA_POOL):
            raise ValueError(f"pool {pool!r} is not known. Use {', '.join((*POOLS, PCA_POOL))}.")
    if not (encoders and probes and contexts and pools and draws and seeds):
        raise ValueError("encoders, probes, contexts, pools, draws and seeds must not be empty.")
    reads = {name: make_probe(probe).reads_tokens for name, probe in probes.items()}
    for name, encoder in encoders.items():
        found = [STORED]
        if not isinstance(encoder, StoredFeatures):
            found = [*pools, TOKENS]
            for pool in pools:
                refuse_cls(encoder, pool)
        elif any(reads.values()):
            deep = next(probe for probe in probes if reads[probe])
            raise ValueError(
                f"The probe {deep!r} reads tokens, and {name!r} is one vector per row. Leave the "
                "probe out."
            )
        for context in map(Context.parse, contexts):
            if STORED in found and context.kind != "full":
                raise ValueError(
                    f"The features of {name!r} are stored and cannot be made from the context "
                    f"{context}. Leave other contexts out."
                )
            if n_points is not None:
                context.n_shown(n_points)  # raises where it leaves none
            for draw in draws if context.kind != "full" else draws[:1]:
                for pool in found:
                    for probe in probes:
                        if reads[probe] == (pool == TOKENS):
                            for seed in seeds:
                                yield Cell(name, probe, pool, context, draw, seed)


def _fingerprint(encoder: Encoder | StoredFeatures, data: ProbeData) -> str:
    if isinstance(encoder, StoredFeatures):
        return encoder.fingerprint()
    return fingerprint_of(encoder, as_images(data.train.images))


def _described(probe: Probe) -> str:
    params = {k: v for k, v in probe.get_params().items() if k != "device"}
    settings = json.dumps(params, sort_keys=True, default=str)
    return f"{type(probe).__name__} by {probe.chosen_by} {settings}"


def _features(
    encoder: Encoder | StoredFeatures,
    data: ProbeData,
    cell: Cell,
    views: int,
    options: Mapping[str, Any],
) -> Parts:
    if isinstance(encoder, StoredFeatures):
        return [encoder.take(part.rows, part.labels) for part in data]
    pool: Any = {TOKENS: None, PCA_POOL: "flatten"}.get(cell.pool, cell.pool)
    parts = [
        extract_features(
            encoder,
            part.images,
            part.labels,
            rows=part.rows,
            pool=pool,
            context=cell.context,
            draw=cell.draw,
            views=views if part is data.train else 1,
            progress=False,
            **options,
        )
        for part in data
    ]
    if cell.pool != PCA_POOL:
        return parts
    width = min(_PCA_WIDTH, *parts[0].X.shape)
    pca = PCA(width, svd_solver="randomized", random_state=cell.seed).fit(parts[0].X)
    return [
        FeatureSet(pca.transform(part.X).astype(np.float32), part.y, part.index, part.meta)
        for part in parts
    ]


def _measured(probe: Probe, parts: Parts, cell: Cell, test_digest: str) -> Record:
    train, validation, test = parts
    started = time.perf_counter()
    again: dict[str, Any] = {"refit": True} if probe.can_refit else {}
    probe.fit(train.X, train.y, validation=(validation.X, validation.y), **again)
    _synchronize()
    fit_seconds = time.perf_counter() - started
    codes = np.searchsorted(probe.classes_, np.asarray(test.y)).clip(0, len(probe.classes_) - 1)
    if (probe.classes_[codes] != test.y).any():
        raise ValueError("Test rows have labels that no training row has. Leave them out.")
    started = time.perf_counter()
    proba = probe.predict_proba(test.X)
    _synchronize()
    query = time.perf_counter() - started
    return {
        **cell._asdict(),
        "context": str(cell.context),
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
