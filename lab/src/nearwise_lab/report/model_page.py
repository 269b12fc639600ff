"""Pages: templates filled to one HTML file that needs no network, and the page about a model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined

from nearwise import __version__
from nearwise_lab.report.drawing import Picture, slug
from nearwise_lab.report.figures import (
    comparison_bars,
    reliability_diagrams,
    risk_coverage,
    training_curves,
)
from nearwise_lab.results.gallery import Gallery, make_page_gallery
from nearwise_lab.results.measures import (
    BARS,
    COMPARED,
    LEVEL,
    MAIN_MEASURES,
    MORE_MEASURES,
    Cell,
    Mean,
    Measure,
    Predictions,
    Table,
    difference_cell,
    difference_over_rows,
    is_best,
    show_mean,
)

Scores = Mapping[str, Mapping[str, float]]  # by part and measure


@dataclass(frozen=True)
class ModelPage:
    """What the page about a model shows; `reference` is the name of the whole model."""

    title: str
    lead: str
    data: str
    reference: str
    results: Table
    more: Table
    bars: Picture
    paired: Table
    reliability: Picture
    risk: Picture
    curves: Picture | None
    gallery: Gallery | None
    parts: list[tuple[str, str]]
    facts: list[tuple[str, str]]
    version: str = __version__


def model_page(
    title: str,
    lead: str,
    data: str,
    predictions: Mapping[str, Predictions],
    scores: Scores,
    *,
    parts: Sequence[tuple[str, str]],
    sizes: str,
    history: Sequence[dict[str, Any]] = (),
    gallery: dict[str, Any] | None = None,
    facts: Sequence[tuple[str, str]] = (),
) -> ModelPage:
    """Draw everything that the page about a model shows.

    Returns ModelPage: to be rendered by `render_model_page`.

    Parameters
    ----------
    title, lead : str
        Heading, and what is below it.
    data : str
        Name of the rows.
    predictions : dict of str to Predictions
        Of the whole model, which comes first, and of its parts.
    scores : dict of str to dict
        Metrics of the same.
    parts : sequence of (str, str)
        What each of them is.
    sizes : str
        Counts of rows and classes, in words.
    history : sequence of dict
        Epochs of training.
    gallery : dict, optional
        From `make_gallery`, of the whole model.
    facts : sequence of (str, str)
        What the numbers were made under.
    """
    whole = next(iter(predictions))
    order = sorted(scores, key=lambda part: scores[part]["nll"])
    means = {part: {key: Mean(scores[part][key], None, 1) for key in BARS} for part in order}
    pooled = dict(predictions)
    return ModelPage(
        title,
        lead,
        data,
        whole,
        _results(scores, order, MAIN_MEASURES, sizes),
        _results(scores, order, MORE_MEASURES, sizes),
        comparison_bars(data, means, whole),
        _differences(predictions, order, whole),
        reliability_diagrams(data, pooled, whole),
        risk_coverage(data, pooled, whole),
        training_curves(data, whole, history),
        make_page_gallery(data, whole, 0, gallery) if gallery and gallery["rows"] else None,
        list(parts),
        list(facts),
    )


def render_model_page(page: ModelPage) -> str:
    """Fill the template of a model's page; every text is escaped."""
    return fill_template("model.html.j2", page=page)


def fill_template(name: str, **values: Any) -> str:
    """Fill a template with values; every text is escaped.

    Returns str: HTML.

    Parameters
    ----------
    name : str
        File of the template.
    **values
        What the template names; `style` and `script` are those of all pages.
    """
    folder = files("nearwise_lab.report") / "templates"

    def read(file: str) -> str:
        return (folder / file).read_text(encoding="utf-8")

    environment = Environment(
        loader=FunctionLoader(read),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    environment.globals |= {"slug": slug, "kind_of": lambda block: type(block).__name__}
    assets = {"style": read("style.css"), "script": read("report.js")}
    return environment.get_template(name).render(**assets, **values)


def _results(
    scores: Scores, order: Sequence[str], measures: Sequence[Measure], sizes: str
) -> Table:
    shown = [m for m in measures if all(m.key in scores[part] for part in order)]
    table = Table(
        "Results",
        f"{sizes}. The best value of a column is bold, whether or not the difference is more than "
        "chance.",
        ["method", *(m.title for m in shown)],
    )
    means = {part: [Mean(scores[part][m.key], None, 1) for m in shown] for part in order}
    for part in order:
        cells = [
            Cell(
                show_mean(mean, m), "best" if is_best(mean, [means[o][i] for o in order], m) else ""
            )
            for i, (m, mean) in enumerate(zip(shown, means[part], strict=True))
        ]
        table.rows.append((part, cells))
    return table


def _differences(
    predictions: Mapping[str, Predictions], order: Sequence[str], reference: str
) -> Table:
    table = Table(
        f"Difference from {reference}",
        f"Method minus {reference}, paired by row, with its {100 * LEVEL:.0f} % bootstrap "
        'interval. "None" means that the interval holds 0: no difference is shown.',
        ["method", *(m.title for m in COMPARED)],
    )
    for part in order:
        if part != reference:
            found = [
                difference_over_rows(m.key, predictions[part], predictions[reference])
                for m in COMPARED
            ]
            cells = [difference_cell(d, m) for d, m in zip(found, COMPARED, strict=True)]
            table.rows.append((part, cells))
    return table
