"""``nearwise vit summary``: parameters and FLOPs of a vision transformer."""

from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import BaseModel, Field, create_model
from rich.box import SIMPLE_HEAD
from rich.table import Table

from nearwise.cli.console import progress, say, show
from nearwise.cli.rows.parsing import split_list
from nearwise_lab.cli.vit_flags import checked, settings_command
from nearwise_lab.experiments.vit.model import build_vit
from nearwise_lab.experiments.vit.settings import ATTENTION, MODEL, VitSettings
from nearwise_lab.nn import FLOP_KINDS
from nearwise_lab.nn.layers import TOKEN_LAYERS
from nearwise_lab.nn.vit_summary import ModelSummary, PartSummary, summarize

HELP = """Count the parameters of a vision transformer and its FLOPs for one image.

Takes the flags of 'nearwise vit train' that shape the model; --layer takes several names, or
"all". FLOPs are those of linear layers, attention and convolutions, as in published numbers; a
multiply-add is two. Convolutions over neighbors, which profilers omit, count too. Biases, norms,
activations and the neighbor search do not.

[bold]Examples[/bold]
  nearwise vit summary
  nearwise vit summary --layer ConvNNAttention --convolution-type standard --num-heads 1
  nearwise vit summary --layer all --resize 32 --patch-size 4
  nearwise vit summary --layer ConvNNAttention --sampling-type random --num-samples 32 --training
"""
_TITLE = "FLOPs of one image, in millions"
_ROWS = ("parameters", *FLOP_KINDS, "FLOPs")


def _own(default: Any, description: str) -> Any:
    extra: Any = {"panel": "Input and count"}
    return type(default), Field(default, description=description, json_schema_extra=extra)


_OWN: dict[str, Any] = {
    "channels": _own(3, "Channels of an image."),
    "classes": _own(10, "Classes."),
    "training": _own(False, "Count as in training: sampled candidates, dropout."),
}
_FIELDS: dict[str, Any] = dict(VitSettings.model_fields)
_SHAPING: dict[str, Any] = {
    name: (field.annotation, field)
    for name, field in _FIELDS.items()
    if name == "resize" or field.json_schema_extra["panel"] in (MODEL, ATTENTION)
}
SummarySettings: type[BaseModel] = create_model("SummarySettings", **_SHAPING, **_OWN)


def command() -> Any:
    """Make the command, with an option for every setting that shapes the model."""
    return settings_command("summary", _summary, SummarySettings, HELP)


def _summary(values: dict[str, Any], given: set[str], quiet: bool) -> None:
    own = {name: values.pop(name, field.default) for name, (_, field) in _OWN.items()}
    layer, resize = values.pop("layer", "Attention"), values.get("resize", 224)
    for name, size in {**own, "training": 1, "resize": resize}.items():
        if size < 1:
            raise ValueError(f"--{name} {size} must be at least 1.")
    layers = list(TOKEN_LAYERS) if layer == "all" else split_list(layer)
    summaries: dict[str, ModelSummary] = {}
    for name in progress(layers, "Counting", quiet=quiet):
        settings = checked({**values, "layer": name}, "summary")
        try:
            model = build_vit(settings, resize, own["channels"], own["classes"])
        except ValueError as error:
            if layer != "all":
                raise
            say(f"{name} is left out: {error}", style="yellow")
            continue
        summaries[name] = summarize(model, training=own["training"])
    if len(summaries) > 1:
        models = [(name, *_cells(summary.whole)) for name, summary in summaries.items()]
        show(_table(("layer", *_ROWS), f"whole models; {_TITLE}", models), whole=True, titled=True)
        return
    for summary in summaries.values():  # one column per part, one row per kind
        parts = (*summary.parts, summary.whole)
        cells = zip(_ROWS, *map(_cells, parts), strict=True)
        columns = ("", *(part.name for part in parts))
        show(
            _table(columns, f"{summary.n_tokens} tokens; {_TITLE}", cells), whole=True, titled=True
        )
        if not quiet:
            say(
                f"{summary.whole.parameters:,} parameters ({summary.trainable:,} learn), "
                f"{summary.whole.total / 1e9:.3f} GFLOPs (a multiply-add is two)."
            )


def _table(columns: Sequence[str], title: str, rows: Iterable[Sequence[str]]) -> Table:
    table = Table(
        box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True, title=title, title_justify="left"
    )
    table.add_column(columns[0], no_wrap=True)
    for name in columns[1:]:
        table.add_column(name, justify="right")
    for row in rows:
        if row[0] == "FLOPs":
            table.add_section()
        table.add_row(*row, end_section=row[0] == "parameters")
    return table


def _cells(part: PartSummary) -> list[str]:
    numbers = [*part.flops.values(), part.total]
    return [f"{part.parameters:,}", *(f"{n / 1e6:,.2f}" for n in numbers)]
