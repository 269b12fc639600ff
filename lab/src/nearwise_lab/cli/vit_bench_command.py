"""``nearwise vit bench``: time and memory of every layer on the machine at hand."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from nearwise.cli.console import progress, say, show
from nearwise.cli.options import QuietOption
from nearwise.cli.outputs import check_folder
from nearwise.cli.rows.parsing import split_list
from nearwise_lab.cli.needs import lab_command

if TYPE_CHECKING:
    import rich.table

CURVE = "256,1024,4096,16384,65536"


@lab_command
def bench(
    tokens: Annotated[str, typer.Option(metavar="N,N", help="Sequence lengths.")] = "197,1024",
    neighbors: Annotated[
        int, typer.Option("--neighbors", "-k", metavar="K", help="Neighbors per token.")
    ] = 9,
    layers: Annotated[
        str | None,
        typer.Option(metavar="NAME,NAME", help="Layers beside dense attention; default all."),
    ] = None,
    dim: Annotated[int, typer.Option(help="Width of a token.")] = 192,
    heads: Annotated[int, typer.Option(help="Heads; must divide the width.")] = 3,
    batch: Annotated[
        int | None,
        typer.Option(
            help="Sequences per batch; default 8, fewer for long ones (2,048 tokens in all)."
        ),
    ] = None,
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16", "float64"], typer.Option(help="Precision.")
    ] = "float32",
    device: Annotated[
        Literal["auto", "cpu", "cuda"], typer.Option(help="auto: a GPU if there is one.")
    ] = "auto",
    threads: Annotated[int, typer.Option(help="Threads on a CPU.")] = 1,
    repeats: Annotated[int, typer.Option(help="Rounds in which layers take turns.")] = 15,
    memory: Annotated[
        bool, typer.Option("--memory/--no-memory", help="Peak memory, in processes of their own.")
    ] = True,
    curve: Annotated[
        bool, typer.Option("--curve", help=f"Memory against N too, at {CURVE}.")
    ] = False,
    curve_tokens: Annotated[
        str | None, typer.Option(metavar="N,N", help="Other lengths for the curve.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="DIR", help="Keep results and figure here."),
    ] = None,
    quiet: QuietOption = False,
) -> None:
    """Time every attention layer against PyTorch's own, and measure its memory.

    Each layer is timed between its projections, all in turn; ratios are to MultiHeadAttention,
    which is torch's scaled_dot_product_attention between the same projections. One CPU thread is
    timed by processor time, which other programs hardly change. With --out results are kept as
    they come, and a run that was stopped resumes.

    [bold]Examples[/bold]
      nearwise vit bench
      nearwise vit bench --layers KNNAttention,ConvNNAttention --tokens 197 -k 32 --no-memory
      nearwise vit bench --device cuda --dtype bfloat16 --tokens 1024,4096 --curve -o runs/bench
    """
    from nearwise.functional.devices import choose_device
    from nearwise_lab.experiments.token_layers.bench import BenchPlan, run_bench

    lengths = _numbers("--curve-tokens", curve_tokens or CURVE)
    plan = BenchPlan(
        tokens=_numbers("--tokens", tokens),
        neighbors=neighbors,
        dim=dim,
        heads=heads,
        batch=batch,
        layers=tuple(split_list(layers)),
        dtype=dtype,
        device=str(choose_device(device)),
        threads=_positive("--threads", threads),
        repeats=repeats,
        memory=memory,
        curve=lengths if curve or curve_tokens else (),
    )

    def watch(steps: Sequence[Any], title: str) -> Iterable[Any]:
        return progress(list(steps), title, quiet=quiet)

    check_folder("--out", out)
    rows = run_bench(plan, out, watch=watch)
    for n in plan.tokens:
        show(_table(rows, n, plan.shape(n).batch))
    if plan.curve:
        show(_curve_table(rows))
    if out is not None:
        from nearwise_lab.report.token_layers import draw_bench

        figure = draw_bench(rows, out / "bench.png")
        if not quiet:
            say(f"Results: {out / 'bench.jsonl'}. Figure: {figure}")


def _table(rows: Sequence[dict[str, Any]], n_tokens: int, batch: int) -> "rich.table.Table":
    """Lay out times, ratios and memory at one length."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    here = [row for row in rows if row["tokens"] == n_tokens]
    memory = {row["layer"]: row for row in here if row["kind"] == "memory"}
    table = Table(
        box=SIMPLE_HEAD, pad_edge=False, title=f"B={batch} N={n_tokens}; both: forward and backward"
    )
    table.add_column("layer", no_wrap=True)
    titles = ["forward ms", "ratio", "both ms", "ratio"]
    for title in titles + (["forward MiB", "both MiB"] if memory else []):
        table.add_column(title, justify="right")
    for row in (row for row in here if row["kind"] == "time"):
        cells = []
        for what in ("forward", "forward_backward"):
            own = row[what]
            half = (own["high_ms"] - own["low_ms"]) / 2
            cells += [f"{own['median_ms']:.2f} ± {half:.2f}", f"{own['ratio']:.2f}"]
        if memory:
            peak = memory[row["layer"]]
            cells += [f"{peak[what]:.1f}" for what in ("forward", "forward_backward")]
        table.add_row(row["layer"], *cells)
    return table


def _curve_table(rows: Sequence[dict[str, Any]]) -> "rich.table.Table":
    """Lay out memory against N, and the power with which it grows."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from nearwise_lab.experiments.token_layers import MemoryPoint, growth

    points = [row for row in rows if row["kind"] == "curve"]
    lengths = sorted({row["tokens"] for row in points})
    table = Table(box=SIMPLE_HEAD, pad_edge=False, title="peak memory with backward, MiB")
    table.add_column("layer", no_wrap=True)
    for n in lengths:
        table.add_column(f"N={n}", justify="right")
    table.add_column("grows as", justify="right")
    for name in dict.fromkeys(row["layer"] for row in points):
        own = {row["tokens"]: row for row in points if row["layer"] == name}
        cells = [
            "-" if own[n]["mib"] is None else f"{own[n]['mib']:.1f}" for n in lengths if n in own
        ]
        power = growth([MemoryPoint(name, n, row["mib"]) for n, row in own.items()], name)
        table.add_row(name, *cells, "-" if power is None else f"N^{power:.2f}")
        for row in own.values():
            if row["note"]:
                say(f"{name} at N={row['tokens']} {row['note']}")
    return table


def _numbers(option: str, text: str) -> tuple[int, ...]:
    parts = split_list(text)
    if not parts or not all(part.isdigit() and int(part) > 0 for part in parts):
        raise ValueError(f"{option} {text!r} must be positive numbers, such as 197,1024.")
    return tuple(dict.fromkeys(int(part) for part in parts))


def _positive(option: str, number: int) -> int:
    if number < 1:
        raise ValueError(f"{option} {number} must be at least 1.")
    return number
