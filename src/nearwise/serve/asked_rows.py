"""Requests about rows: what is asked, and what one version of the model answers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np

from nearwise.estimators.inputs.rows import AnyRows
from nearwise.estimators.live import ReusedKeyError, Version
from nearwise.estimators.query import Query
from nearwise.memory import StoreError, UnknownIdError
from nearwise.serve.problems import ProblemError
from nearwise.warn import collected_warnings

T = TypeVar("T")
_BOUND_CONFIDENCE = 0.95  # of the bound on the share of wrong answers
_OF_SELECTION = ("threshold", "expected_risk", "risk_bound", "confidence")
_REFUSED = (ValueError, TypeError, OverflowError)  # by the model, of what it was given


@dataclass(frozen=True)
class Ask:
    """A query about rows; equal queries are answered together."""

    confidence: float | None = None
    novelty: bool = False
    coverage: float | None = None
    max_risk: float | None = None
    n_neighbors: int | None = None

    @property
    def is_selective(self) -> bool:
        """Whether to choose the predictions to act on."""
        return self.coverage is not None or self.max_risk is not None


class Answers(NamedTuple):
    """What was found for the rows of a request; None where it was not requested.

    `proba` (n, n_classes), `sets` bool (n, n_classes), `novelty_p` (n,), `accepted` bool (n,),
    `explanations` one per row, `selection` of all requests that were answered together. `warnings`:
    what of the rows was read as something else.
    """

    version: int
    classes: np.ndarray
    proba: np.ndarray
    sets: np.ndarray | None
    novelty_p: np.ndarray | None
    accepted: np.ndarray | None
    selection: dict[str, Any] | None
    explanations: list[Any] | None
    warnings: Sequence[str] = ()

    def of_rows(self, rows: slice, warnings: Sequence[str]) -> "Answers":
        """Those of some rows, with what is to be said of these."""

        def cut(values: Any) -> Any:
            return None if values is None else values[rows]

        return self._replace(
            proba=cut(self.proba),
            sets=cut(self.sets),
            novelty_p=cut(self.novelty_p),
            accepted=cut(self.accepted),
            explanations=cut(self.explanations),
            warnings=warnings,
        )

    @property
    def predicted(self) -> np.ndarray:
        """Most probable classes, (n,)."""
        found: np.ndarray = self.classes[self.proba.argmax(axis=1)]
        return found

    def records(self) -> list[dict[str, Any]]:
        """One object per row: label, proba by class, and what else was requested."""
        names = [str(label) for label in self.classes.tolist()]
        records: list[dict[str, Any]] = []
        labels, proba = self.predicted.tolist(), self.proba.tolist()
        for row, label in enumerate(labels):
            record: dict[str, Any] = {"label": label}
            if self.explanations is not None:
                record |= self.explanations[row].to_dict()
                del record["prediction"]
            record["proba"] = dict(zip(names, proba[row], strict=True))
            if self.sets is not None:
                record["set"] = self.classes[self.sets[row]].tolist()
            if self.novelty_p is not None:
                record["novelty_p"] = self.novelty_p[row]
            if self.accepted is not None:
                record["accepted"] = self.accepted[row]
            records.append(record)
        return records


def answers(version: Version, query: Query, ask: Ask) -> Answers:
    """Give what was requested of a query's rows."""
    chosen = None
    if ask.is_selective:
        chosen = query.selection(
            coverage=ask.coverage, max_risk=ask.max_risk, confidence=_BOUND_CONFIDENCE
        )
    return Answers(
        version.number,
        query.model.classes,
        query.proba(),
        None if ask.confidence is None else query.sets(ask.confidence),
        query.novelty_p_value() if ask.novelty else None,
        None if chosen is None else chosen.accepted,
        None if chosen is None else {name: getattr(chosen, name) for name in _OF_SELECTION},
        None if ask.n_neighbors is None else query.explanations(),
    )


def encoded(
    version: Version, given: list[Any]
) -> tuple[list[list[AnyRows] | Exception], list[list[str]]]:
    """Encode the rows of each request, and give the warnings about them.

    What cannot be encoded is that request's own exception. Arrays that nothing is to be said of are
    checked and encoded at once, as that takes as long for one row as for many. A table's columns
    could change their type by being joined.
    """
    arrays = [one for one in given if isinstance(one, np.ndarray)]
    alike = {(one.shape[1:], one.dtype) for one in arrays}
    if 1 < len(arrays) == len(given) and len(alike) == 1:
        whole, warnings = _encode(version, np.concatenate(arrays))
        if not isinstance(whole, Exception) and not warnings:
            ends = np.cumsum([len(one) for one in arrays])
            return [
                [view.take(np.arange(end - len(one), end)) for view in whole]
                for one, end in zip(arrays, ends, strict=True)
            ], [[]] * len(arrays)
    each = [(one, []) if isinstance(one, Exception) else _encode(version, one) for one in given]
    return [one for one, _ in each], [warnings for _, warnings in each]


def _encode(version: Version, rows: Any) -> tuple[list[AnyRows] | Exception, list[str]]:
    def checked() -> tuple[list[AnyRows], list[str]]:
        with collected_warnings() as warnings:
            return version.encoded(rows), warnings

    found = attempt(checked)
    return (found, []) if isinstance(found, Exception) else found


def not_remembered() -> ProblemError:
    """Give the problem of a request about a row that is not there."""
    return ProblemError(404, "The row is not remembered (or no longer).")


def attempt(work: Callable[[], T]) -> T | Exception:
    """Do what a client requests; an exception is its answer, and nobody else's.

    Warnings of its rows are for the client, too: an answer that has none leaves them out.
    """
    try:
        with collected_warnings():
            return work()
    except StoreError as error:  # though a ValueError, it is not a mistake of a client
        return error
    except UnknownIdError:
        return not_remembered()
    except ReusedKeyError as error:
        return ProblemError(409, str(error))
    except ImportError as error:  # an extra
        return ProblemError(501, str(error))
    except _REFUSED as error:
        return ProblemError(422, str(error))
    except Exception as error:
        return error


def call_each(requests: Sequence[Callable[[], Any]]) -> list[Any]:
    """Do the work of each request; an exception is its answer."""
    return [attempt(work) for work in requests]
