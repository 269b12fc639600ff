"""Batches by Ray Data: a pool of processes, here or on the machines of a cluster."""

import json
import logging
import os
import secrets
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nearwise.cli.batches.parts import Part, left_to_make, parts_of_images, parts_of_tables
from nearwise.cli.batches.worker import Job, Question, Worker
from nearwise.cli.console import progress, say
from nearwise.cli.models import open_model, pin_of, sole_writer
from nearwise.cli.outputs import refuse_inside_model
from nearwise.cli.rows.image_rows import ImageOptions, encoder_of_images
from nearwise.cli.rows.rows import check_kind
from nearwise.conditions import available_threads, require_extra

_STORE_BYTES = 128 << 20  # only the names of parts pass through Ray's store


@dataclass(frozen=True)
class Cluster:
    """Where the processes run: at an address or here, and how many (None: one per core)."""

    address: str | None = None
    workers: int | None = None

    def refuse(self) -> None:
        """Refuse with ValueError what is for Ray where one process answers."""
        for option, value in (("--workers", self.workers), ("--address", self.address)):
            if value is not None:
                raise ValueError(f"{option} is for --engine ray. Add that, or leave it out.")


def run_batch(
    question: Question,
    model: Path,
    data: Sequence[str],
    out: str,
    *,
    store: str | None,
    keep: Sequence[str] = (),
    images: ImageOptions,
    header: bool | None,
    cluster: Cluster,
    quiet: bool,
) -> None:
    """Answer a question about a table, those in a folder, or images, in parts below `out`.

    Parts that a former run made are kept. ValueError if the options cannot be fulfilled, or parts
    could not be made; the others are there then.
    """
    require_extra("--engine ray", "ray", "ray")
    if "-" in (out, *data):
        raise ValueError("--engine ray reads files and writes a folder: - cannot be either.")
    folder = Path(out)
    refuse_inside_model("--out", folder)
    learned = open_model(model, store)
    if encoder_of_images(learned) is None:
        if len(data) > 1:
            raise ValueError(
                f"{model} was fitted on a table: give one, or a folder of them, not {len(data)}."
            )
        images.refuse(f"{model} was fitted on a table")
        # a table without names is matched as a whole
        parts = parts_of_tables(data[0], whole=header is False)
    else:
        check_kind(learned, model, data, images)
        parts = parts_of_images(data)
    pin = pin_of(learned, model)
    place, cwd = folder.resolve(), Path.cwd()
    job = Job(question, model, pin, place, tuple(keep), images, header, cwd, store)
    del learned
    settings = {"model": str(pin), **question.settings(), "keep": keep, "header": header}
    settings |= asdict(images)
    folder.absolute().parent.mkdir(parents=True, exist_ok=True)
    with sole_writer(folder):
        left = left_to_make(folder, parts, data, settings)
        if not quiet and len(left) < len(parts):
            say(f"{len(parts) - len(left)} of {len(parts)} parts are there already.")
        n_rows = _made(job, left, cluster, quiet=quiet) if left else 0
    if not quiet:
        say(f"Wrote {n_rows} rows in {len(left)} parts to {out}.")


def _made(job: Job, parts: Sequence[Part], cluster: Cluster, *, quiet: bool) -> int:
    """Have parts made, and count their rows."""
    n_rows, errors, said = 0, [], set()
    with _ray(cluster) as n_cores:
        results = _results(job, parts, min(len(parts), cluster.workers or n_cores))
        for result in progress(results, "Parts", total=len(parts), quiet=quiet):
            n_rows += result["rows"]
            if result["error"]:
                errors.append(f"{result['file']}: {result['error']}")
            for remark in json.loads(result["remarks"]):
                if not quiet and remark not in said:  # each once, whatever file it is about
                    said.add(remark)
                    say(remark.replace("{}", result["file"]))
    if errors:
        others = f" ({len(errors) - 1} more such errors)" if len(errors) > 1 else ""
        raise ValueError(
            f"{len(errors)} of {len(parts)} parts were not made. {errors[0]}{others} The same "
            "command makes what is missing, once that is fixed."
        )
    return n_rows


def _results(job: Job, parts: Sequence[Part], n_workers: int) -> Iterator[dict[str, Any]]:
    import ray.data

    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # errors are raised, too
    ray.data.DataContext.get_current().enable_progress_bars = False
    rows = [{"part": json.dumps(asdict(part))} for part in parts]
    made = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
        Worker,
        fn_constructor_kwargs={"job": job},
        batch_size=1,
        num_cpus=1,
        compute=ray.data.ActorPoolStrategy(size=n_workers),
    )
    yield from made.iter_rows()


@contextmanager
def _ray(cluster: Cluster) -> Iterator[int]:
    """Reach Ray while the block runs, and give its number of cores; one that runs is left as is."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # it has log files too
    if cluster.address is None and "ray" not in sys.modules:  # it reads these when imported
        # Ray listens on all interfaces, and who reaches it can run code
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    import ray

    started = not ray.is_initialized()
    if started and cluster.address is None:
        ray.init(
            address="local",
            num_cpus=cluster.workers or available_threads(),
            object_store_memory=_STORE_BYTES,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    elif started:
        ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
    try:
        yield int(ray.cluster_resources().get("CPU", 1))
    finally:
        if started:
            ray.shutdown()
