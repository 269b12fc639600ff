"""Columns in which some remembered rows differ most from the others."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd

from nearwise.cached import cached_property
from nearwise.estimators.inputs.table import Encoded, TableEncoder
from nearwise.estimators.model.fitted_model import FittedModel

_MOST_VALUES = 50  # most frequent values of a category
_DAYS = ": days"  # of the part of a date that counts days
_LEAST = 0.1  # smallest difference worth a word, in standard deviations


class Difference(NamedTuple):
    """A column in which rows differ from the others.

    `column` is the name, for a category with its value; `here` and `elsewhere` are means of a
    number, or shares of the value; `size` is their difference in standard deviations.
    """

    column: str
    here: str
    elsewhere: str
    size: float


@dataclass(frozen=True, eq=False)
class ColumnProfile:
    """Encoded rows of a memory of a table, with the mean and spread of each column.

    Attributes
    ----------
    rows : Encoded
        The n remembered rows, in the order of the memory.
    mean, spread : float64 ndarray of shape (n_numbers,)
        Of the known values; a constant column has spread infinity.
    """

    encoder: TableEncoder
    rows: Encoded
    mean: np.ndarray
    spread: np.ndarray

    @classmethod
    def of(cls, model: FittedModel) -> Self:
        """Profile the memory of a model; ValueError for images, or if rows are in a store."""
        encoder: Any = model.predictor.encoder
        if encoder.kind == "images":
            raise ValueError("Images have no columns to compare.")
        model.predictor.views.require_all("Columns are compared over all remembered rows, which")
        rows = encoder.transform(model.rows)
        n_known = np.maximum(1, (~np.isnan(rows.numbers)).sum(axis=0))
        mean = np.nansum(rows.numbers, axis=0) / n_known
        spread = np.sqrt(np.nansum((rows.numbers - mean) ** 2, axis=0) / n_known)
        flat = spread <= 1e-12 * np.maximum(1.0, np.abs(mean))
        return cls(encoder, rows, mean, np.where(flat, np.inf, spread))

    def of_row(self, position: int, n: int = 3) -> list[tuple[str, str]]:
        """Columns and values of the row at a position that are most unlike the other rows."""
        rows = self.rows.take(np.array([position]))
        far = np.nan_to_num(np.abs(rows.numbers[0] - self.mean) / self.spread)
        found = [
            (far[at], self._name(at), self._text(at, rows.numbers[0, at]))
            for at in self._shown
            if not np.isnan(rows.numbers[0, at])
        ]
        for at, name in enumerate(self.encoder.categorical):
            code = int(rows.codes[0, at])
            if code:
                share = float((self.rows.codes[:, at] == code).mean())
                size = ((1 - share) / share) ** 0.5
                found.append((size, name, str(self.encoder.categories[name][code - 1])))
        found.sort(key=lambda one: -one[0])
        return [(name, value) for _, name, value in found[:n]]

    def against_the_rest(self, positions: np.ndarray, n: int = 3) -> list[Difference]:
        """Columns in which the rows at some positions differ most from all others.

        Empty if these are all rows, or none, or if no column differs by .1 standard deviations.
        """
        here = np.zeros(len(self.rows), dtype=bool)
        here[positions] = True
        if not here.any() or here.all():
            return []
        found = [*self._numbers(here), *self._categories(here)]
        found.sort(key=lambda one: -one.size)
        return [one for one in found[:n] if one.size >= _LEAST]

    @cached_property
    def _shown(self) -> list[int]:
        """Numbers to compare: of a date the day alone, if it has one."""
        names, sources = self.encoder.numeric, self.encoder.sources
        return [
            at
            for at, (name, source) in enumerate(zip(names, sources, strict=True))
            if name == source or name.endswith(_DAYS) or f"{source}{_DAYS}" not in names
        ]

    def _name(self, at: int) -> str:
        """Name of a number; the column's of a day."""
        return self.encoder.sources[at] if self._is_day(at) else self.encoder.numeric[at]

    def _is_day(self, at: int) -> bool:
        return self.encoder.numeric[at] == f"{self.encoder.sources[at]}{_DAYS}"

    def _text(self, at: int, value: float) -> str:
        """Text of a number, or of a day as a date; a dash for none."""
        if np.isnan(value):
            return "\N{EN DASH}"
        if self._is_day(at):
            origin = pd.Timestamp(self.encoder.dates[self.encoder.sources[at]]["origin"])
            return str((origin + pd.Timedelta(days=float(value))).date())
        return short(value)

    def _numbers(self, here: np.ndarray) -> Iterator[Difference]:
        inside, outside = _means(self.rows.numbers[here]), _means(self.rows.numbers[~here])
        sizes = np.nan_to_num(np.abs(inside - outside) / self.spread)
        for at in self._shown:
            texts = self._text(at, inside[at]), self._text(at, outside[at])
            yield Difference(self._name(at), *texts, float(sizes[at]))

    def _categories(self, here: np.ndarray) -> Iterator[Difference]:
        n_here, n_rows = int(here.sum()), len(here)
        for at, name in enumerate(self.encoder.categorical):
            codes, n_codes = self.rows.codes[:, at], len(self.encoder.categories[name]) + 1
            inside = np.bincount(codes[here], minlength=n_codes)
            every = np.bincount(codes, minlength=n_codes)
            for code in range(1, min(n_codes, _MOST_VALUES + 1)):
                share = every[code] / n_rows
                if 0 < share < 1:
                    shares = inside[code] / n_here, (every[code] - inside[code]) / (n_rows - n_here)
                    size = abs(shares[0] - shares[1]) / (share * (1 - share)) ** 0.5
                    texts = [f"{100 * one:.0f} %" for one in shares]
                    value = f"{name} = {self.encoder.categories[name][code - 1]}"
                    yield Difference(value, texts[0], texts[1], size)


def _means(numbers: np.ndarray) -> np.ndarray:
    """Mean of the known values of each column, NaN without any."""
    n_known = (~np.isnan(numbers)).sum(axis=0)
    found: np.ndarray = np.nansum(numbers, axis=0) / np.where(n_known, n_known, np.nan)
    return found


def short(value: float) -> str:
    """Format a number with four significant digits."""
    rounded = float(f"{value:.4g}")
    return f"{rounded:.0f}" if 1e4 <= abs(rounded) < 1e9 else f"{rounded:.4g}"
