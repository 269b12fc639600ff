"""Tables of docs/results/memory.md: changes, streams, stores, the service, a busy machine."""

from collections.abc import Callable

from results_page import as_table
from tables import cell, listing, record, rows_of

STREAMS = {"classes": "classes in turn", "drift": "two classes swap labels"}
CASES = {  # of judged_changes.json
    "30 % wrong, symmetric": "30 % of the labels made wrong, to any class",
    "30 % wrong, asymmetric": "30 % of the labels made wrong, to one other class",
    "half of the classes new": "half of the classes added",
    "wrong ones corrected": "wrong labels corrected",
    "half of them corrected": "half of the wrong labels corrected",
    "like rows": "two thirds of the rows added",
    "a class renamed": "a class merged into another",
    "a class removed": "a class removed",
    "classes one by one": "classes added one by one",
}
STORE = {  # keys of disk_store.json: title and decimals
    "n_rows": ("rows", 0),
    "disk_mb": ("disk, MB", 0),
    "open_s": ("opening the model, s", 2),
    "memory_mb": ("memory beyond the interpreter and its libraries, MB", 0),
    "with_pages_of_files_mb": ("the same with cached pages of files, MB", 0),
    "first_ms": ("first prediction of a process, ms", 0),
    "single_ms": ("prediction of one row, median, ms", 0),
    "single_ms_p95": ("prediction of one row, 95th percentile, ms", 0),
    "batch_us_per_row": ("1,000 rows in one call, µs per row", 0),
    "add_ms": ("adding one row, median, ms", 0),
    "after_add_ms": ("prediction right after an addition, median, ms", 0),
    "after_add_ms_worst": ("prediction right after an addition, slowest of 50, ms", 0),
    "fit_s": ("fit of the first 50,000 rows, s", 1),
    "move_s": ("moving them to the store, s", 1),
    "add_s": ("adding all others, s", 0),
    "compact_s": ("compacting after every 50,000, s", 0),
}


def streams() -> list[str]:
    """Ways to learn from a stream, beside a new fit at every checkpoint."""
    rows = []
    for row in rows_of("stream"):
        stream = {"stream": STREAMS[row["stream"]], "seeds": len(row["seeds"])}
        share = row.get("share_of_refits")
        share = None if share is None else f"{100 * share['mean']:.1f}"
        rows.append(row | stream | {"share": share, "cpu": cell(row["seconds"]["mean"], 1)})
    columns = {
        "stream": "stream", "method": "method", "seeds": "seeds", "accuracy": "accuracy",
        "accuracy - refit's": "accuracy_difference", "NLL": "nll", "ECE": "ece",
        "CPU s": "cpu", "CPU, % of refitting": "share",
    }  # fmt: skip
    return listing(rows, columns)


def changes() -> list[str]:
    """Times of changes of one row, by the rows in memory."""
    columns = {
        "rows in memory": "rows", "add a row, median": "add_ms",
        "add a row, 95th percentile": "add_ms_p95", "of it the journal": "journal_ms",
        "relabel a row (a new fit)": "relabel_ms", "save the whole model": "save_ms",
        "open the model": "open_ms", "open, extra per added row": "replay_ms_per_add",
    }  # fmt: skip
    return listing(rows_of("live_changes"), columns, digits=1)


def judged() -> list[str]:
    """Quality after changes of the memory, with and without new decisions."""
    kinds = {"before": "before", "not judged": "changed, kept as fitted",
             "judged": "changed, judged again", "refit": "new fit"}  # fmt: skip
    rows = []
    for row in rows_of("judged_changes"):
        source = "digits, no base" if row["fit"] == "without a base" else "yeast, forest"
        pairs = [f"{cell(row[f'{kind} nll'])} / {cell(row[f'{kind} ece'])}" for kind in kinds]
        rows.append([source, CASES[row["case"]], *pairs, cell(row["cpu_seconds"], 2)])
    return as_table(["model", "change", *kinds.values(), "judging, CPU s"], rows)


def store() -> list[str]:
    """Times and memory of a model whose rows are on disk."""
    measured, wanted = rows_of("disk_store")
    rows = [
        [title, cell(measured[key], digits), cell(wanted.get(key), digits)]
        for key, (title, digits) in STORE.items()
    ]
    return as_table(["", "measured", "at most"], rows)


def large() -> list[str]:
    """Fits and batches of large memories, and the neighbors that approximate search finds."""
    content = record("large_memory")
    rows = []
    for row in content["results"].values():
        shown = {key: cell(row[key], 1) for key in ("fit_cpu_s", "peak_over_data")}
        shown["batch"] = cell(sorted(row["batch_us_per_row"])[1], 0)
        rows.append({"processor": content["hardware"]["processor"]} | row | shown)
    columns = {
        "rows": "rows", "processor": "processor", "fit, CPU s": "fit_cpu_s",
        "batch, CPU µs per row": "batch", "peak memory / data": "peak_over_data",
        "recall of the 32 nearest": "recall_of_32", "recall in each row's list": "recall_of_lists",
        "NLL": "nll", "accuracy": "accuracy",
    }  # fmt: skip
    return listing(rows, columns)


def service() -> list[str]:
    """Overhead of HTTP on a prediction of one row, and answers of a full queue."""
    (row,) = rows_of("service")
    wanted = {one["bar"]: one["wanted"] for one in record("service")["checks"]}
    direct, paced = row["direct_ms"], row["50_per_second_ms"]
    ratios = "p99 through HTTP, direct calls", "joined, one by one", "429, ms at p99"
    slower, joined, full = (f"{row[name]:.1f}" for name in ratios)
    at_most, at_least, within = (f"{wanted[name]:g}" for name in ratios)
    both = "{p50:.1f}, {p99:.1f}".format_map
    return as_table(
        ["", "measured", "wanted"],
        [
            ["direct call, ms (median, 99th percentile)", both(direct), ""],
            ["50 requests per second, ms (median, 99th percentile)", both(paced), ""],
            ["99th percentile through HTTP / direct", slower, f"at most {at_most}"],
            ["128 connections, batched, requests per s", f"{row['joined_per_second']:,.0f}", ""],
            ["128 connections, one by one, requests per s",
             f"{row['one_by_one_per_second']:,.0f}", ""],
            ["batched / one by one", joined, f"at least {at_least}"],
            ["full queue, 429 after, ms (median)", f"{row['429, ms at p50']:.1f}", ""],
            ["full queue, 429 after, ms (99th percentile)", full, f"at most {within}"],
        ],
    )  # fmt: skip


def kills() -> list[str]:
    """Changes that survived kill -9."""
    columns = {
        "memory": "memory", "kills": "kills", "acknowledged changes": "acknowledged",
        "changes made": "changes", "acknowledged, but lost": "lost", "made twice": "doubled",
        "largest difference of a probability": "largest_gap",
    }  # fmt: skip
    return listing(rows_of("kills"), columns)


def busy() -> list[str]:
    """Times beside two endless loops on two cores, over those of a quiet machine."""
    rows = [
        row | {"order": row["order"].removesuffix(" first")} | {
            f"{name}_{state}": row[f"{name}_seconds"][state][0]
            for name in ("cpu", "wall") for state in ("quiet", "busy")
        }
        for row in rows_of("busy")
    ]  # fmt: skip
    columns = {
        "work": "work", "imported first": "order", "quiet, CPU s": "cpu_quiet",
        "busy, CPU s": "cpu_busy", "ratio (at most 2)": "cpu_ratio", "quiet, s": "wall_quiet",
        "busy, s": "wall_busy", "ratio (at most 3)": "wall_ratio",
    }  # fmt: skip
    return listing(rows, columns, digits=2)


BLOCKS: dict[str, Callable[[], list[str]]] = {
    "memory-kills": kills,
    "memory-changes": changes,
    "memory-judged": judged,
    "memory-streams": streams,
    "memory-store": store,
    "memory-large": large,
    "memory-service": service,
    "memory-busy": busy,
}
