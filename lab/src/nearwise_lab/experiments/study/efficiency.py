"""The study's efficiency experiment: time and recall of indexes, time of weightings."""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
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

    @classmethod
    def of(cls, small: bool) -> "EfficiencySize":
        """Return the study's size, or a small one."""
        return cls(4000, 64, 10, 200) if small else cls()

    @property
    def name(self) -> str:
        """Name of the data in records."""
        return f"random-{self.n_rows}x{self.dim}"


def efficiency_jobs(size: EfficiencySize, seed: int, facts: dict[str, Any]) -> list[Job]:
    """Build each index that is installed over the same random keys and search it; then weigh."""

    def job(name: str, methods: Sequence[str], measure: Callable[..., dict[str, Any]]) -> Job:
        blanks = [
            Record(
                size.name, method, seed, experiment="efficiency", k=size.n_neighbors,
                condition=f"k={size.n_neighbors}", n_train=size.n_rows, n_test=size.n_queries,
                **facts,
            )
            for method in methods
        ]  # fmt: skip

        def make(missing: Sequence[Record]) -> Iterator[Record]:
            keys, queries = random_keys(size, seed)
            for blank in missing:
                found = measure(blank.method, keys, queries, size.n_neighbors)
                us = found.get("weigh_us_per_query", 1e3 * found.get("search_ms_per_query", 0.0))
                yield replace(
                    blank, fit_seconds=found.get("build_seconds"), predict_us_per_row=us,
                    details=found,
                )  # fmt: skip

        return Job(f"{size.name} · seed {seed} · efficiency · {name}", tuple(blanks), make)

    indexes = [job(name, [name], measure_index) for name in index_names()]
    return [*indexes, job("weights", WEIGHTINGS, measure_weighting)]


def index_names() -> list[str]:
    """Indexes that are installed: "exact" alone without faiss."""
    return list(INDEXES) if find_spec("faiss") is not None else ["exact"]


def random_keys(size: EfficiencySize, seed: int) -> tuple[Tensor, Tensor]:
    """Keys (n_rows, dim) and queries (n_queries, dim) of unit length, normally distributed."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(size.n_rows + size.n_queries, size.dim, generator=generator)
    rows = torch.nn.functional.normalize(rows, dim=1)
    return rows[: size.n_rows], rows[size.n_rows :]


def measure_index(name: str, keys: Tensor, queries: Tensor, n_neighbors: int) -> dict[str, Any]:
    """Build one of `INDEXES`, search it, and compare with an exact search."""
    kind, metric = INDEXES[name]
    index = make_index(kind, metric, len(keys))  # type: ignore[arg-type]
    start = time.perf_counter()
    index.fit(keys)
    build = time.perf_counter() - start
    index.search(queries[:2], n_neighbors)  # compiled loops and thread pools are warm after this
    start = time.perf_counter()
    found = index.search(queries, n_neighbors).indices
    search = time.perf_counter() - start
    return {
        "index": kind,
        **_sizes(keys, queries, n_neighbors),
        "build_seconds": build,
        "search_seconds": search,
        "search_ms_per_query": 1e3 * search / len(queries),
        "recall": recall(found, topk_neighbors(queries, keys, n_neighbors).indices),
    }


def measure_weighting(name: str, keys: Tensor, queries: Tensor, n_neighbors: int) -> dict[str, Any]:
    """Time one of `WEIGHTINGS` on neighbors that are already found, up to the vote.

    The median of seven repeats; labels and first weights are drawn, and do not change the time.
    """
    found, times = topk_neighbors(queries, keys, n_neighbors), []
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        weigh = _weighting(name, keys, queries, found, torch.randint(_CLASSES, (len(keys),)))
        weigh()  # compiled loops are warm after this
        for _ in range(_REPEATS):
            start = time.perf_counter()
            weigh()
            times.append(time.perf_counter() - start)
    median = 1e6 * statistics.median(times) / len(queries)
    return _sizes(keys, queries, n_neighbors) | {"weigh_us_per_query": median}


def _sizes(keys: Tensor, queries: Tensor, k: int) -> dict[str, int]:
    return {"n_rows": len(keys), "dim": keys.shape[1], "n_queries": len(queries), "k": k}


def _weighting(
    name: str, keys: Tensor, queries: Tensor, found: Neighbors, labels: Tensor
) -> Callable[[], Tensor]:
    if name == "attention":
        space = RememberedSpace.of(keys, labels, n_classes=_CLASSES, n_columns=keys.shape[1])
        return lambda: shared_head().predict([space.describe(found)]).log_proba
    study = MultiHeadNeighborAttention(keys.shape[1]).eval()
    weigh: Callable[[], Tensor] = {
        "uniform": lambda: uniform_weights(found.distances),
        "distance": lambda: distance_weights(found.distances),
        "multi-head": lambda: study(queries, keys[found.indices], found.distances.square()),
    }[name]
    return lambda: aggregate_labels(weigh(), labels[found.indices], _CLASSES)


def recall(found: Tensor, true: Tensor) -> float:
    """Recall: share of the true neighbors (n, k) among the found ones (n, k)."""
    hits = (found.unsqueeze(2) == true.unsqueeze(1)).any(dim=1)
    return float(hits.float().mean())
