"""Rows of a file, or of a model's memory, with the explanations of their predictions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nearwise.html import Card, NeighborTable

_INTERVAL = 0.9  # confidence of the intervals of numbers


@dataclass(frozen=True)
class Explained:
    """A row with its card.

    `name` describes the row in a heading, `key` is its number or id. `table` compares it with its
    neighbors column by column; None for images, whose `files` are known if they came from files.
    `label` is that of a remembered row.
    """

    name: str
    key: str
    card: "Card"
    table: "NeighborTable | None"
    files: list[str]
    label: str = ""


def explain_rows(
    model: Any, features: Any, names: Mapping[str, str], n: int | None
) -> list[Explained]:
    """Explain new rows of a table, or images, by `n` neighbors or all; `names` by key."""
    from nearwise.estimators import AttnKNNClassifier
    from nearwise.estimators.uncertainty.explain import comparable

    if isinstance(model, AttnKNNClassifier):
        query = model.query(features, explain=n)
    else:
        query = model.query(features)
    rows = comparable(features)
    return [
        _explained(model.fitted_, explanation, rows, at, name, key, p)
        for at, (key, name, (explanation, p)) in enumerate(
            zip(names, names.values(), _answers(query, n), strict=True)
        )
    ]


def explain_remembered(
    folder: Path, ids: Sequence[int], n: int | None, store: str | None
) -> list[Explained]:
    """Explain remembered rows, each left out of its own neighbors; ValueError for unknown ids."""
    from nearwise.estimators import LiveModel
    from nearwise.estimators.online.feedback import known_rows
    from nearwise.memory import UnknownIdError

    found = []
    with LiveModel(folder, trusted_store=store) as live:
        version = live.now
        for one in ids:
            try:
                label = str(version.fitted.look_up([one])[0].label)
            except UnknownIdError:
                raise ValueError(
                    f"--id: the model does not remember {one}. It remembers "
                    f"{version.fitted.n_remembered} rows, with ids up to "
                    f"{version.fitted.next_id - 1}."
                ) from None
            held = version.fitted.holding([one])
            X = held.rows_at(held.bank.positions([one]).tolist())
            extras = {"judged_by": known_rows(version.fitted)}
            extras |= {"explain": n} if hasattr(version.estimator, "classes_") else {}
            query = version.if_changed([one]).query([version.encoded(X)], **extras)
            ((explanation, p),) = _answers(query, n)
            name = f"row {one} in memory, left out of its own neighbors"
            found.append(
                replace(_explained(held, explanation, X, 0, name, str(one), p), label=label)
            )
    return found


def _answers(query: Any, n: int | None) -> list[tuple[Any, float | None]]:
    """Return explanations with their out-of-distribution p-values, None if not known."""
    if hasattr(query, "interval"):
        p_values = query.novelty_p_value().tolist()
        return list(zip(query.explanations(n, _INTERVAL), p_values, strict=True))
    found = query.explanations(trust=query.can_judge())
    return [(one, one.novelty_p_value) for one in found]


def _explained(
    fitted: Any, explanation: Any, X: Any, at: int, name: str, key: str, novelty_p: float | None
) -> Explained:
    from nearwise.html import make_card, neighbor_table
    from nearwise.html.card import pixels_of

    explanation = replace(explanation, source=None if X is None else (X, at))
    row = explanation.row
    is_image = pixels_of(row) is not None
    table = None
    if not is_image:
        table = neighbor_table(explanation, row, _shares(fitted, explanation, X, at))
    files = [str(one.row.get("file") or "") for one in explanation.neighbors]
    card = make_card(explanation, table, novelty_p=novelty_p)
    return Explained(name, key, card, table, files if is_image else [])


def _shares(fitted: Any, explanation: Any, X: Any, at: int) -> Any:
    """Split the distances by column; None for the numbers of an embedding."""
    from nearwise.estimators.uncertainty.column_shares import column_shares
    from nearwise.names import are_positions

    neighbors = explanation.neighbors
    if not neighbors or are_positions(list(neighbors[0].row)):
        return None
    return column_shares(fitted, X[at : at + 1], [one.id for one in neighbors])
