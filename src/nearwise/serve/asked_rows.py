"""Queries about rows, and their answers by one version of the model."""

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
_MEMBERS = {"prediction_set": "set", "act": "accepted"}  # output names that differ in JSON


@dataclass(frozen=True)
class Ask:
    """Options of a query about rows; requests with equal options are answered together."""

    confidence: float | None = None
    novelty: bool = False
    coverage: float | None = None
    max_risk: float | None = None
    max_width: float | None = None
    n_neighbors: int | None = None
    quantiles: tuple[float, ...] | None = None

    @property
    def is_selective(self) -> bool:
        """Whether to select predictions to act on."""
        return (self.coverage, self.max_risk, self.max_width) != (None, None, None)


@dataclass(frozen=True)
class Answers:
    """Predictions, explanations and selection for the rows of one request.

    `values` are the requested outputs by their Open Inference Protocol names, each (n, ...);
    `explanations` one per row, or None; `selection` of all requests that were answered together;
    `warnings` about values that were converted. `classes` is None for regression. `column_shares`
    have an entry per neighbor of each explanation.
    """

    version: int
    values: dict[str, np.ndarray]
    explanations: list[Any] | None = None
    selection: dict[str, Any] | None = None
    warnings: Sequence[str] = ()
    classes: np.ndarray | None = None
    column_shares: list[list[dict[str, float]]] | None = None

    def of_rows(self, rows: slice, warnings: Sequence[str]) -> "Answers":
        """Return the answers of some rows, with the warnings about these rows."""
        values = {name: found[rows] for name, found in self.values.items()}
        shown = None if self.explanations is None else self.explanations[rows]
        return replace(self, values=values, explanations=shown, warnings=warnings)

    def records(self) -> list[dict[str, Any]]:
        """Return one object per row: requested outputs and explanation."""
        columns = {_MEMBERS.get(name, name): self._in_json(name) for name in self.values}
        rows = zip(*columns.values(), strict=True)
        records = [dict(zip(columns, row, strict=True)) for row in rows]
        if self.explanations is None:
            return records
        for record, one in zip(records, self.explanations, strict=True):
            shown = one.to_dict()
            record |= {name: shown[name] for name in shown if name not in {*record, "prediction"}}
        for record, of_row in zip(records, self.column_shares or (), strict=False):
            for neighbor, shares in zip(record["neighbors"], of_row, strict=True):
                neighbor["column_shares"] = shares
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
        """Return an output of the Open Inference Protocol; ids of missing neighbors are -1."""
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
    """Encode the rows of each request, and return the warnings about them.

    A request that cannot be encoded gets its own exception. Arrays without warnings are encoded
    together, since one row takes as long as many. Tables are encoded one by one: joined columns
    could change their type.
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
    """Return the error for a row id that does not exist."""
    return ProblemError(404, "The row is not remembered (or no longer).")


def attempt(work: Callable[[], T]) -> T | Exception:
    """Do a client's work and return an exception instead of raising it.

    Thus other requests of the batch are unaffected. Warnings are collected and dropped here.
    """
    try:
        with collected_warnings():
            return work()
    except StoreError as error:  # a ValueError, but not a mistake of the client
        return error
    except UnknownIdError:
        return not_remembered()
    except ReusedKeyError as error:
        return ProblemError(409, str(error))
    except ImportError as error:  # an extra
        return ProblemError(501, str(error))
    except (ValueError, OverflowError) as error:  # of the model about its input
        return ProblemError(422, str(error))
    except Exception as error:
        return error


def call_each(requests: Sequence[Callable[[], Any]]) -> list[Any]:
    """Do the work of each request; an exception is returned as its answer."""
    return [attempt(work) for work in requests]
