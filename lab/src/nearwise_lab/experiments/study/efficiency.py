"""The study's efficiency experiment: times of indexes, what they find, and times of weightings."""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from nearwise.functional import (
    Neighbors,
    aggregate_labels,
    distance_weights,
    topk_neighbors,
    uniform_weights,
)
from nearwise.memory import IndexName, make_index
from nearwise.nn import RememberedSpace, shared_head
from nearwise_lab.experiments.runner import Job
from nearwise_lab.nn import MultiHeadNeighborAttention
from nearwise_lab.records import Record

INDEXES: dict[str, tuple[IndexName, str]] = {
    "exact": ("exact", "euclidean"),
    "L2": ("faiss-flat-l2", "euclidean"),
    "IP": ("faiss-flat-ip", "inner_product"),
    "HNSW": ("hnsw", "euclidean"),
    "IVF": ("ivf-flat", "euclidean"),
}
# The study's attention, and the pretrained head with the description of the neighborhoods.
WEIGHTINGS = ("uniform", "distance", "multi-head", "attention")
_CLASSES, _REPEATS = 10, 7


@dataclass(frozen=True)
class EfficiencySize:
    """Rows, width, neighbors and queries; the study's by default."""

    n_rows: int = 50_000
    dim: int = 256
    n_neighbors: int = 10
    n_queries: int = 1000

    @property
    def name(self) -> str:
        """What records call the data."""
        return f"random-{self.n_rows}x{self.dim}"


SMALL = EfficiencySize(4000, 64, 10, 200)


def random_keys(size: EfficiencySize, seed: int) -> tuple[Tensor, Tensor]:
    """Keys (n_rows, dim) and queries (n_queries, dim) of unit length, normally distributed."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(size.n_rows + size.n_queries, size.dim, generator=generator)
    rows = torch.nn.functional.normalize(rows, dim=1)
    return rows[: size.n_rows], rows[size.n_rows :]


def measure_index(name: str, keys: Tensor, queries: Tensor, n_neighbors: int) -> dict[str, Any]:
    """Build an index, search it, and compare with an exact search.

    Parameters
    ----------
    name : str
        One of `INDEXES`.
    keys, queries : Tensor of shape (n, dim)
    n_neighbors : int

    Returns
    -------
    finding : dict
        index, n_rows, dim, n_queries, k, build_seconds, search_seconds, search_ms_per_query, and
        recall (share of the true nearest k that are found).
    """
    if name not in INDEXES:
        raise ValueError(f"unknown index {name!r}; known: {', '.join(INDEXES)}.")
    kind, metric = INDEXES[name]
    index = make_index(kind, metric, len(keys))  # type: ignore[arg-type]
    start = time.perf_counter()
    index.fit(keys)
    build = time.perf_counter() - start
    index.search(queries[:2], n_neighbors)  # compiled loops and thread pools are warm after this
    start = time.perf_counter()
    found = index.search(queries, n_neighbors).indices
    search = time.perf_counter() - start
    true = topk_neighbors(queries, keys, n_neighbors).indices
    return {
        "index": kind,
        "n_rows": len(keys),
        "dim": keys.shape[1],
        "n_queries": len(queries),
        "k": n_neighbors,
        "build_seconds": build,
        "search_seconds": search,
        "search_ms_per_query": 1e3 * search / len(queries),
        "recall": recall(found, true),
    }


def measure_weighting(
    name: str, keys: Tensor, queries: Tensor, n_neighbors: int, seed: int
) -> dict[str, Any]:
    """Time a weighting of neighbors that are found already, until their votes are counted.

    Parameters
    ----------
    name : str
        One of `WEIGHTINGS`.
    keys, queries : Tensor of shape (n, dim)
    n_neighbors, seed : int
        The seed draws labels and first weights, neither of which changes the time.

    Returns
    -------
    finding : dict
        n_rows, dim, n_queries, k, weigh_us_per_query (the median of seven repeats).
    """
    found = topk_neighbors(queries, keys, n_neighbors)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        labels = torch.randint(_CLASSES, (len(keys),))
        weigh = _weighting(name, keys, queries, found, labels)
        weigh()  # compiled loops are warm after this
        times = []
        for _ in range(_REPEATS):
            start = time.perf_counter()
            weigh()
            times.append(time.perf_counter() - start)
    return {
        "n_rows": len(keys),
        "dim": keys.shape[1],
        "n_queries": len(queries),
        "k": n_neighbors,
        "weigh_us_per_query": 1e6 * statistics.median(times) / len(queries),
    }


def _weighting(
    name: str, keys: Tensor, queries: Tensor, found: Neighbors, labels: Tensor
) -> Callable[[], Tensor]:
    distances, votes = found.distances, labels[found.indices]
    if name == "uniform":
        return lambda: aggregate_labels(uniform_weights(distances), votes, _CLASSES)
    if name == "distance":
        return lambda: aggregate_labels(distance_weights(distances), votes, _CLASSES)
    if name == "multi-head":
        study = MultiHeadNeighborAttention(keys.shape[1]).eval()
        return lambda: aggregate_labels(
            study(queries, keys[found.indices], distances.square()), votes, _CLASSES
        )
    space = RememberedSpace.of(keys, labels, n_classes=_CLASSES, n_columns=keys.shape[1])
    return lambda: shared_head().predict([space.describe(found)]).log_proba


def recall(found: Tensor, true: Tensor) -> float:
    """Share of the true neighbors (n, k) that are among those found (n, k)."""
    hits = (found.unsqueeze(2) == true.unsqueeze(1)).any(dim=1)
    return float(hits.float().mean())


def index_names(wanted: Sequence[str] | None = None) -> list[str]:
    """Indexes to measure: those named, or all that are installed ("exact" alone without faiss)."""
    from importlib.util import find_spec

    if wanted is not None:
        return list(wanted)
    return list(INDEXES) if find_spec("faiss") is not None else ["exact"]


def efficiency_jobs(
    size: EfficiencySize, seed: int, facts: dict[str, Any], names: Sequence[str] | None = None
) -> list[Job]:
    """Build each index over the same random keys and search it; then time each weighting."""
    jobs = []

    def blank_of(name: str) -> Record:
        condition = f"k={size.n_neighbors}"
        blank = Record(size.name, name, seed, experiment="efficiency", condition=condition, **facts)
        return replace(blank, k=size.n_neighbors, n_train=size.n_rows, n_test=size.n_queries)

    def title(name: str) -> str:
        return f"{size.name} · seed {seed} · efficiency · {name}"

    for name in index_names(names):

        def search(missing: Sequence[Record], name: str = name) -> Iterator[Record]:
            keys, queries = random_keys(size, seed)
            found = measure_index(name, keys, queries, size.n_neighbors)
            yield replace(
                missing[0],
                fit_seconds=found["build_seconds"],
                predict_us_per_row=1e3 * found["search_ms_per_query"],
                details=found,
            )

        jobs.append(Job(title(name), (blank_of(name),), search))

    def weigh(missing: Sequence[Record]) -> Iterator[Record]:
        keys, queries = random_keys(size, seed)
        for blank in missing:
            found = measure_weighting(blank.method, keys, queries, size.n_neighbors, seed)
            yield replace(blank, predict_us_per_row=found["weigh_us_per_query"], details=found)

    jobs.append(Job(title("weights"), tuple(map(blank_of, WEIGHTINGS)), weigh))
    return jobs
