"""Explanations of several rows: a list that shows itself as cards, with a table of all."""

from typing import Any, TypeVar, overload

import numpy as np
import pandas as pd

E = TypeVar("E", bound=Any)  # Explanation or NumberExplanation
_MOST_LINES, _MOST_CARDS = 10, 10  # shown in a terminal, in a notebook


class Explanations(list[E]):
    """Explanations in the order of the rows: a list with a short display and `to_frame`."""

    @overload  # type: ignore[override]
    def __getitem__(self, at: slice) -> "Explanations[E]": ...
    @overload
    def __getitem__(self, at: int) -> E: ...
    def __getitem__(self, at: Any) -> Any:
        found = super().__getitem__(at)
        return Explanations(found) if isinstance(at, slice) else found

    def __repr__(self) -> str:
        lines = [f"  {at}: {one.headline}" for at, one in enumerate(self[:_MOST_LINES])]
        if len(self) > _MOST_LINES:
            lines.append(f"  ... and {len(self) - _MOST_LINES} more")
        rows = "1 row" if len(self) == 1 else f"{len(self)} rows"
        return "\n".join([f"<Explanations of {rows}>", *lines])

    def _repr_html_(self) -> str:
        from nearwise.html import notebook

        return notebook("explanations.html", explanations=self, most=_MOST_CARDS)

    def to_frame(self) -> pd.DataFrame:
        """Table of all neighbors: the position of the explained row, then `to_frame` of each."""
        frames = [one.to_frame() for one in self]
        if not frames:
            return pd.DataFrame(columns=["row"])
        rows = np.repeat(np.arange(len(frames)), list(map(len, frames)))
        found = pd.concat(frames, ignore_index=True).rename(columns={"row": "row (column)"})
        found.insert(0, "row", rows)
        return found
