"""What HTTP adds to the classifier called directly: latency and throughput of `nearwise serve`.

    python benchmarks/service.py
    python benchmarks/service.py --rows 5000 --seconds 5

Features of CIFAR-10 (`--data-root`, or NEARWISE_DATA), preset "instant" without a base. Four
measurements of one-row requests, client and service on the same cores: the classifier called
directly; 50 requests per second, sent on time whether or not the one before was answered; as many
requests as 128 connections get answered, joined into batches, and (--max-rows 1) one by one; and
how soon a full queue says so (64 waiting, 256 connections that try again about a
second later). Writes benchmarks/results/service.json and RESULTS.md.
"""

import asyncio
import gc
import json
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from keeping import HERE, RESULTS, conditions, keep, options_of
from nearwise_lab.data import load_dataset
from results_page import write_page

from nearwise import AttnKNNClassifier
from nearwise.serve.problems import RETRY_AFTER

RATE, CONNECTIONS, CROWD = 50, 128, 256
LIMITS = {"p99 through HTTP, direct calls": 8.0, "joined, one by one": 5.0, "429, ms at p99": 50.0}


@contextmanager
def served(folder: str, *options: str) -> Iterator[tuple[str, int]]:
    """Run the service in a process of its own; give its address."""
    command = [sys.executable, "-m", "nearwise", "serve", folder, "--port", "0", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        found = None
        while found is None:
            found = re.search(r"http://\S+:\d+", process.stderr.readline())
        where = urlsplit(found[0])
        yield str(where.hostname), int(where.port or 0)
    finally:
        process.terminate()
        process.communicate()


class Connection:
    """One connection that sends a request after another; bytes in, status out."""

    def __init__(self, host: str, port: int) -> None:
        self._address = host, port

    async def open(self) -> "Connection":
        """Connect."""
        self._reader, self._writer = await asyncio.open_connection(*self._address)
        return self

    async def ask(self, body: bytes) -> int:
        """Send a prediction's request and read the answer."""
        self._writer.write(
            b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: (\d+)", head)
        assert length is not None
        await self._reader.readexactly(int(length[1]))
        return int(head[9:12])


async def at_a_rate(address: tuple[str, int], bodies: list[bytes], seconds: float) -> list[float]:
    """Milliseconds from when each request was due to its answer, at `RATE` per second."""
    idle = [await Connection(*address).open() for _ in range(CONNECTIONS)]
    for one in idle:
        assert await one.ask(bodies[0]) == 200
    latencies: list[float] = []
    start = time.perf_counter() + 0.5  # when all that will be sent is ready

    async def ask(number: int) -> None:
        due = start + number / RATE
        await asyncio.sleep(due - time.perf_counter())
        connection = idle.pop()
        assert await connection.ask(bodies[number % len(bodies)]) == 200
        latencies.append(1000 * (time.perf_counter() - due))
        idle.append(connection)

    await asyncio.gather(*(ask(number) for number in range(int(seconds * RATE))))
    return latencies


async def in_turn(
    address: tuple[str, int], bodies: list[bytes], seconds: float, n_connections: int
) -> list[tuple[int, float]]:
    """Status and milliseconds of requests, each connection sending when it was answered."""
    end = time.perf_counter() + seconds
    found: list[tuple[int, float]] = []

    async def client(number: int) -> None:
        connection = await Connection(*address).open()
        await connection.ask(bodies[0])
        while (begin := time.perf_counter()) < end:
            status = await connection.ask(bodies[number % len(bodies)])
            found.append((status, 1000 * (time.perf_counter() - begin)))
            if status == 429:
                await asyncio.sleep(RETRY_AFTER * random.uniform(0.5, 1.5))

    await asyncio.gather(*(client(number) for number in range(n_connections)))
    return found


def quantiles(values: list[float]) -> dict[str, float]:
    """Median and 99th percentile."""
    return {"p50": statistics.median(values), "p99": statistics.quantiles(values, n=100)[-1]}


def measured(folder: str, queries: Any, seconds: float) -> dict[str, Any]:
    """All four measurements of a saved model."""
    model = AttnKNNClassifier.load(folder)
    direct = []
    model.predict_proba(queries[:1])
    for number in range(min(200, len(queries))):
        begin = time.perf_counter()
        model.predict_proba(queries[number : number + 1])
        direct.append(1000 * (time.perf_counter() - begin))
    bodies = [json.dumps({"features": [row]}).encode() for row in queries[:200].tolist()]
    gc.collect()
    gc.freeze()  # a collection of all that this process has loaded would count as latency
    with served(folder) as address:
        at_rate = asyncio.run(at_a_rate(address, bodies, seconds))
        joined = asyncio.run(in_turn(address, bodies, seconds, CONNECTIONS))
        crowd = asyncio.run(in_turn(address, bodies, seconds, CROWD))
    with served(folder, "--max-rows", "1") as address:
        alone = asyncio.run(in_turn(address, bodies, seconds, CONNECTIONS))
    refused = [ms for status, ms in crowd if status == 429]
    per_second = [sum(s == 200 for s, _ in found) / seconds for found in (joined, alone, crowd)]
    at_once, through_http = quantiles(direct), quantiles(at_rate)
    return {
        "direct_ms": at_once,
        f"{RATE}_per_second_ms": through_http,
        "p99 through HTTP, direct calls": through_http["p99"] / at_once["p50"],
        "joined_per_second": per_second[0],
        "one_by_one_per_second": per_second[1],
        "crowd_per_second": per_second[2],
        "joined, one by one": per_second[0] / per_second[1],
        "n_429": len(refused),
        "429, ms at p50": statistics.median(refused) if refused else None,
        "429, ms at p99": quantiles(refused)["p99"] if len(refused) > 1 else None,
    }


def main(arguments: list[str]) -> None:
    """Measure and write results."""
    parser = options_of(__doc__, rows=49_000, seconds=20.0, data_root=None)
    options = parser.parse_args(arguments)
    data = load_dataset("cifar10-features", data_root=options.data_root)
    remembered, queried = slice(0, options.rows), slice(options.rows, options.rows + 1_000)
    with tempfile.TemporaryDirectory() as folder:
        model = AttnKNNClassifier(estimator=None, preset="instant", random_state=101)
        model.fit(data.X[remembered], data.y[remembered]).save(folder)
        found = measured(folder, data.X[queried], options.seconds)
    print(json.dumps(found, indent=1))
    checks = [
        {"bar": name, "wanted": limit, "reached": found[name],
         "met": found[name] is not None
         and (found[name] >= limit if name.startswith("joined") else found[name] <= limit)}
        for name, limit in LIMITS.items()
    ]  # fmt: skip
    results = [{"rows": options.rows, **found}]
    keep(conditions() | {"checks": checks, "results": results}, RESULTS / "service.json")
    write_page(RESULTS, HERE / "RESULTS.md")


if __name__ == "__main__":
    main(sys.argv[1:])
