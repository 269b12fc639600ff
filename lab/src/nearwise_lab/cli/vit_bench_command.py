"""``nearwise vit bench``: time and memory of every layer on the machine at hand."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from nearwise.cli.console import progress, reported, show
from nearwise.cli.options import QuietOption
from nearwise.cli.rows.parsing import split_list

if TYPE_CHECKING:
    import rich.table

    from nearwise_lab.experiments.token_layers import LayerTime

TOKENS_AT_ONCE = 2048  # of all sequences of a batch, where no batch size is given


@reported
def bench(
    tokens: Annotated[str, typer.Option(metavar="N,N", help="Sequence lengths.")] = "197,1024",
    neighbors: Annotated[
        int, typer.Option("--neighbors", "-k", metavar="K", help="Neighbors per token.")
    ] = 9,
    layers: Annotated[
        str | None,
        typer.Option(metavar="NAME,NAME", help="Layers beside dense attention. Default: all."),
    ] = None,
    dim: Annotated[int, typer.Option(help="Width of a token.")] = 192,
    heads: Annotated[int, typer.Option(help="Heads; must divide the width.")] = 3,
    batch: Annotated[
        int | None,
        typer.Option(help="Sequences per batch. Default: 8, or fewer, up to 2,048 tokens in all."),
    ] = None,
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16", "float64"], typer.Option(help="Precision.")
    ] = "float32",
    device: Annotated[
        Literal["auto", "cpu", "cuda"], typer.Option(help="auto: a GPU if there is one.")
    ] = "auto",
    threads: Annotated[int, typer.Option(help="Threads on a CPU.")] = 1,
    repeats: Annotated[int, typer.Option(help="Rounds; each times every layer once.")] = 15,
    memory: Annotated[
        bool, typer.Option("--memory/--no-memory", help="Measure peak memory, in own processes.")
    ] = True,
    quiet: QuietOption = False,
) -> None:
    """Measure time and memory of every attention layer, compared with PyTorch's.

    Layers are timed in turn, with their projections. Ratios are to MultiHeadAttention: torch's
    scaled_dot_product_attention with the same projections. A single CPU thread is timed by
    processor time, which other programs hardly change.

    [bold]Examples[/bold]
      nearwise vit bench
      nearwise vit bench --layers KNNAttention,ConvNNAttention --tokens 197 -k 32 --no-memory
      nearwise vit bench --device cuda --dtype bfloat16 --tokens 1024,4096
    """
    import torch

    from nearwise.functional.devices import choose_device
    from nearwise_lab.experiments.token_layers import (
        LayerShape,
        layer_choices,
        peak_memory,
        time_layers,
    )

    parts, place = split_list(tokens), str(choose_device(device))
    if not parts or not all(part.isdigit() and int(part) > 0 for part in parts):
        raise ValueError(f"--tokens {tokens!r} must be positive numbers, such as 197,1024.")
    if threads < 1:
        raise ValueError(f"--threads {threads} must be at least 1.")
    lengths, names = dict.fromkeys(map(int, parts)), split_list(layers)
    chosen = {n: layer_choices(n, neighbors, names) for n in lengths}
    if place == "cpu":
        torch.set_num_threads(threads)

    def watch(steps: Sequence[Any], title: str) -> Iterable[Any]:
        return progress(list(steps), title, quiet=quiet)

    for n, choices in chosen.items():
        size = batch or min(8, max(1, TOKENS_AT_ONCE // n))
        shape = LayerShape(size, n, dim, heads, dtype)
        rounds = partial(watch, title=f"Time at N={n}")
        times: Any = time_layers(choices, shape, repeats=repeats, device=place, rounds=rounds)
        peaks = {
            choice.name: peak_memory(choice, shape, device=place, threads=threads)
            for choice in (watch(choices, f"Memory at N={n}") if memory else ())
        }
        show(_table(times, peaks, f"B={size} N={n}; both: forward and backward"), titled=True)


def _table(
    times: "dict[str, dict[Any, LayerTime]]", peaks: dict[str, dict[Any, float]], title: str
) -> "rich.table.Table":
    """Tabulate times, their ratios to dense attention (the first row), and memory."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False, title=title)
    table.add_column("layer", no_wrap=True)
    titles = ["forward ms", "ratio", "both ms", "ratio"]
    for column in titles + (["forward MiB", "both MiB"] if peaks else []):
        table.add_column(column, justify="right")
    dense = next(iter(times.values()))
    for name, own in times.items():
        cells = []
        for what, spread in own.items():
            half = (spread.high_ms - spread.low_ms) / 2
            ratio = spread.median_ms / dense[what].median_ms
            cells += [f"{spread.median_ms:.2f} ± {half:.2f}", f"{ratio:.2f}"]
        table.add_row(name, *cells, *(f"{mib:.1f}" for mib in peaks.get(name, {}).values()))
    return table
