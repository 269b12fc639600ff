"""Requests about rows: what is asked, and what one version of the model answers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from nearwise.estimators.inputs.rows import AnyRows
from nearwise.estimators.live import ReusedKeyError, Version
from nearwise.memory import StoreError, UnknownIdError
from nearwise.serve.problems import ProblemError
from nearwise.warn import collected_warnings

T = TypeVar("T")
_MEMBERS = {"prediction_set": "set", "act": "accepted"}  # of JSON, where their names are others
_REFUSED = (ValueError, TypeError, OverflowError)  # by the model, of what it was given


@dataclass(frozen=True)
class Ask:
    """A query about rows; equal queries are answered together."""

    confidence: float | None = None
    novelty: bool = False
    coverage: float | None = None
    max_risk: float | None = None
    max_width: float | None = None
    n_neighbors: int | None = None
    quantiles: tuple[float, ...] | None = None

    @property
    def is_selective(self) -> bool:
        """Whether to choose the predictions to act on."""
        return (self.coverage, self.max_risk, self.max_width) != (None, None, None)


@dataclass(frozen=True)
class Answers:
    """Predictions, explanations and choices for the rows of one request.

    `values` are what was requested, by the names of the Open Inference Protocol, each (n, ...);
    `explanations` one per row, or None; `selection` of all requests that were answered together.
    `warnings`: what of the rows was read as something else. `classes` is None of numbers.
    """

    version: int
    values: dict[str, np.ndarray]
    explanations: list[Any] | None = None
    selection: dict[str, Any] | None = None
    warnings: Sequence[str] = ()
    classes: np.ndarray | None = None

    def of_rows(self, rows: slice, warnings: Sequence[str]) -> "Answers":
        """Those of some rows, with what is to be said of these."""
        values = {name: found[rows] for name, found in self.values.items()}
        shown = None if self.explanations is None else self.explanations[rows]
        return replace(self, values=values, explanations=shown, warnings=warnings)

    def records(self) -> list[dict[str, Any]]:
        """One object per row: what was requested, and what explains it."""
        columns = {_MEMBERS.get(name, name): self._in_json(name) for name in self.values}
        rows = zip(*columns.values(), strict=True)
        records = [dict(zip(columns, row, strict=True)) for row in rows]
        if self.explanations is None:
            return records
        for record, one in zip(records, self.explanations, strict=True):
            shown = one.to_dict()
            record |= {name: shown[name] for name in shown if name not in {*record, "prediction"}}
        return records

    def _in_json(self, name: str) -> list[Any]:
        values = self.values[name]
        if self.classes is None or name not in ("proba", "prediction_set"):
            return values.tolist()
        if name == "prediction_set":
            return [self.classes[held].tolist() for held in values]
        names = [str(label) for label in self.classes.tolist()]
        return [dict(zip(names, row, strict=True)) for row in values.tolist()]

    def output(self, name: str) -> np.ndarray:
        """Give an output of the Open Inference Protocol; ids are -1 where a neighbor is missing."""
        if name in self.values:
            return self.values[name]
        assert self.explanations  # requested
        if hasattr(self.explanations[0], name):
            return np.array([getattr(one, name) for one in self.explanations])
        attribute = name.removeprefix("neighbor_")
        known = 0.0 if self.classes is None else self.classes[0]
        filler = {"id": -1, "weight": 0.0, "distance": -1.0}.get(attribute, known)
        width = max(len(one.neighbors) for one in self.explanations)
        lists = [[getattr(n, attribute) for n in one.neighbors] for one in self.explanations]
        padded = [one + [filler] * (width - len(one)) for one in lists]
        kind = self.classes.dtype if attribute == "label" and self.classes is not None else None
        return np.array(padded, dtype=kind).reshape(len(padded), width)


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
