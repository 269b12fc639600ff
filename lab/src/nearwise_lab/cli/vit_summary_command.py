"""``nearwise vit summary``: parameters and FLOPs of a vision transformer."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field, ValidationError, create_model

from nearwise.cli.console import progress, say, show
from nearwise.cli.rows.parsing import split_list
from nearwise.training.settings import plain_message
from nearwise_lab.cli.vit_flags import settings_command
from nearwise_lab.experiments.vit.settings import ATTENTION, MODEL, NEVER_EXISTED, VitSettings

if TYPE_CHECKING:
    import rich.table

    from nearwise_lab.nn.vit_summary import ModelSummary

HELP = """Count the parameters of a vision transformer and its FLOPs for one image.

Takes the flags of 'nearwise vit train' that shape the model; --layer may name several, or be
"all". FLOPs are those of linear layers, attention and convolutions, as published numbers are; a
multiply-add is two. Convolutions over neighbors, which profilers leave out, count too; biases,
norms, activations and the selection of the nearest do not.

[bold]Examples[/bold]
  nearwise vit summary
  nearwise vit summary --layer ConvNNAttention --convolution-type standard --num-heads 1
  nearwise vit summary --layer all --resize 32 --patch-size 4
  nearwise vit summary --layer ConvNNAttention --sampling-type random --num-samples 32 --training
"""


def _shaping() -> dict[str, Any]:
    """Pick the settings of training that shape the model."""
    own = {}
    for name, field in VitSettings.model_fields.items():
        extra = field.json_schema_extra
        panel = extra.get("panel") if isinstance(extra, Mapping) else None
        if panel in (MODEL, ATTENTION) or name == "resize":
            own[name] = (field.annotation, field)
    return own


def _more(default: Any, description: str) -> Any:
    return Field(default, description=description, json_schema_extra={"panel": "Input and count"})


_OWN: dict[str, Any] = {"channels": 3, "classes": 10, "training": False}
SummarySettings: type[BaseModel] = create_model(
    "SummarySettings",
    **_shaping(),
    channels=(int, _more(_OWN["channels"], "Channels of an image.")),
    classes=(int, _more(_OWN["classes"], "Classes.")),
    training=(bool, _more(_OWN["training"], "Count as in training: sampled candidates, dropout.")),
)


def _summary(values: dict[str, Any], given: set[str], quiet: bool) -> None:
    from nearwise_lab.experiments.vit.model import build_vit
    from nearwise_lab.nn.layers import TOKEN_LAYERS
    from nearwise_lab.nn.vit_summary import ModelSummary, summarize

    own = {name: values.pop(name, default) for name, default in _OWN.items()}
    layer, resize = values.pop("layer", "Attention"), values.get("resize", 224)
    for name, size in (
        ("channels", own["channels"]),
        ("classes", own["classes"]),
        ("resize", resize),
    ):
        if size < 1:
            raise ValueError(f"--{name} {size} must be at least 1.")
    layers = list(TOKEN_LAYERS) if layer == "all" else split_list(layer)
    summaries: dict[str, ModelSummary] = {}
    for name in progress(layers, "Counting", quiet=quiet):
        settings = _checked({**values, "layer": name})
        try:
            model = build_vit(settings, resize, own["channels"], own["classes"])
        except ValueError as error:
            if layer != "all":
                raise
            say(f"{name} is left out: {error}", style="yellow")
            continue
        summaries[name] = summarize(model, training=own["training"])
    table = _by_part(*summaries.values()) if len(summaries) == 1 else _by_layer(summaries)
    show(table, whole=True)
    _tell(summaries, quiet)


def _checked(values: dict[str, Any]) -> VitSettings:
    try:
        return VitSettings(**values)
    except ValidationError as error:
        message = plain_message(error).rstrip(".")
        raise ValueError(f"{message}. See nearwise vit summary --help.") from None


def _by_part(summary: "ModelSummary") -> "rich.table.Table":
    # One column per part, one row per kind.
    parts = (*summary.parts, summary.whole)
    title = f"{summary.n_tokens} tokens; FLOPs of one image, in millions"
    table = _table(("", *(part.name for part in parts)), title)
    rows = zip(_rows(), *(_cells(part) for part in parts), strict=True)
    for name, *numbers in rows:
        if name == "FLOPs":
            table.add_section()
        table.add_row(name, *numbers)
        if name == "parameters":
            table.add_section()
    return table


def _by_layer(summaries: Mapping[str, "ModelSummary"]) -> "rich.table.Table":
    table = _table(("layer", *_rows()), "whole models; FLOPs of one image, in millions")
    for layer, summary in summaries.items():
        table.add_row(layer, *_cells(summary.whole))
    return table


def _table(columns: Sequence[str], title: str) -> "rich.table.Table":
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(
        box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True, title=title, title_justify="left"
    )
    table.add_column(columns[0], no_wrap=True)
    for name in columns[1:]:
        table.add_column(name, justify="right")
    return table


def _rows() -> tuple[str, ...]:
    """Name what `_cells` counts."""
    from nearwise_lab.nn import FLOP_KINDS

    return ("parameters", *FLOP_KINDS, "FLOPs")


def _cells(part: Any) -> list[str]:
    numbers = [*part.flops.values(), part.total]
    return [f"{part.parameters:,}", *(f"{n / 1e6:,.2f}" for n in numbers)]


def _tell(summaries: Mapping[str, "ModelSummary"], quiet: bool) -> None:
    if len(summaries) == 1 and not quiet:
        (summary,) = summaries.values()
        whole = summary.whole
        say(
            f"{whole.parameters:,} parameters ({summary.trainable:,} learn), "
            f"{whole.total / 1e9:.3f} GFLOPs (a multiply-add is two)."
        )


def summary_command() -> Any:
    """Make the command, with an option for every setting that shapes the model."""
    return settings_command("summary", _summary, SummarySettings, text=HELP, wrong=NEVER_EXISTED)
