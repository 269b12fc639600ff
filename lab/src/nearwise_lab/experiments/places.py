"""Experimental conditions of rows: the varied quantity, as a key and in words."""

from dataclasses import dataclass

from nearwise_lab.records import Record

WEIGHTS = CLEAN, NOISE, TAIL = "weights", "weights-noise", "weights-tail"
"""Experiments that exchange the weighting of neighbors and nothing else."""


@dataclass(frozen=True)
class Place:
    """Place of rows in the suite: an experiment, a preset and a condition.

    Attributes
    ----------
    experiment, preset, condition, noise, noise_kind
        As in `Record`.
    """

    experiment: str
    preset: str
    condition: str = ""
    noise: float = 0.0
    noise_kind: str = "symmetric"

    @property
    def number(self) -> float | None:
        """The varied number: k, class-size ratio or noise rate; None for a named condition."""
        if self.experiment == "label-noise":
            return self.noise
        try:
            return float(self.condition.split("=")[-1])
        except ValueError:
            return None

    @property
    def label(self) -> str:
        """The condition in words."""
        if self.experiment == "label-noise":
            where = self.condition.removeprefix("where=")
            kind = f" {self.noise_kind}" if self.noise else ""
            return f"{100 * self.noise:.3g} %{kind}, {where}"
        shown = self.condition.replace("with=", "with ").replace("without=", "without ")
        shown = shown.replace("=", " = ").replace("-", " ")
        if self.experiment == NOISE:
            return f"{100 * self.noise:.3g} % {self.noise_kind}, {shown}"
        return shown


def place_of(record: Record) -> Place:
    """Return the place of a record."""
    return Place(
        record.experiment, record.preset, record.condition, record.noise, record.noise_kind
    )
