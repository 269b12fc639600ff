"""SharedState: members share one memory and its networks, and are fitted on rows held out."""

import math
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

import torch
from torch import Tensor

from nearwise.estimators.sight import Seen, Sight, average_views
from nearwise.estimators.state import (
    NO_CALIBRATION,
    Answer,
    Calibration,
    LearnedState,
    MemberView,
    pool,
)
from nearwise.functional import Neighbors

Merge = Literal["probabilities", "logits", "embeddings"]


@dataclass(kw_only=True)
class SharedState(LearnedState):
    """What predicts where the networks saw the memory's labels, and the heads did not.

    Members differ in the part of the held-out rows their head was stopped on. All remembered rows
    may be asked by all members.

    Attributes
    ----------
    sight : Sight
        Makes keys and the base's opinion of rows.
    merge : {"probabilities", "logits", "embeddings"}
        How several views of a query are merged.
    of_views : Calibration
        Temperatures for all views merged; those of one view are where `LearnedState` has them.
    """

    sight: Sight
    merge: Merge = "probabilities"
    of_views: Calibration = NO_CALIBRATION

    @property
    def has_base(self) -> bool:
        """Whether the networks' heads take part."""
        return self.sight.has_base

    def feature_keys(self, rows: Any) -> Tensor:
        """Keys of new rows in the space "features"."""
        return self.sight(rows).keys["features"]

    def keys_of_new(self, views: list[Any]) -> dict[str, Tensor]:
        """Keys of rows that are to be remembered: means over their views."""
        return average_views([self.sight(rows) for rows in views]).keys

    def looks(self, views: list[Any]) -> list[list[tuple[int, MemberView]]]:
        """See each view of new rows, or their mean where embeddings are merged, once for all."""
        seen = [self.sight(rows) for rows in views]
        if self.merge == "embeddings":
            seen = [average_views(seen)]
        members = range(self.n_members)
        return [[(member, view) for member in members] for view in map(self.look_at, seen)]

    def merged(self, answers: list[Answer]) -> Answer:
        """Merge the answers to several views as they were calibrated."""
        if len(answers) == 1:
            return answers[0]
        return merge_answers(answers, self.merge)

    def look_at(self, seen: Seen) -> MemberView:
        """Search all spaces for rows whose keys are known."""
        found: list[Neighbors] = []
        spaces = []
        for spec in self.views.specs:
            query = seen.keys[spec.name]
            result = self.views.search(spec, 0, query, spec.n_neighbors)
            found.append(result)
            spaces.append(
                self.views.neighborhood(spec, 0, result, seen.base_log_proba, query=query)
            )
        return MemberView(seen.base_log_proba, found, spaces)

    def look_again(self, member: int, positions: Tensor) -> MemberView:
        """Refuse: the networks know the labels of the remembered rows."""
        _refuse_remembered()

    def predict_left_out(self, n_classes: int) -> Answer:
        """Refuse: the networks know the labels of the remembered rows."""
        _refuse_remembered()

    def _pool(self, view: MemberView, n_classes: int) -> Answer:
        members = range(self.n_members)
        return pool([self.answer(member, view, n_classes) for member in members])

    def predict_views(self, views: list[Any], n_classes: int) -> tuple[Answer, list[Answer]]:
        """Predict from several views of the same rows: merged, and each view for itself."""
        seen = [self.sight(rows) for rows in views]
        each = [self._pool(self.look_at(one), n_classes) for one in seen]
        if len(each) > 1 and self.merge == "embeddings":
            return self._pool(self.look_at(average_views(seen)), n_classes), each
        return self.merged(each), each

    def calibration(self, n_views: int = 1) -> Calibration:
        """Temperatures for one view or for all views that were fitted."""
        if n_views == 1:
            return super().calibration()
        if n_views != self.n_views:
            raise ValueError(
                f"{n_views} views were given, the classifier was fitted with {self.n_views}, for "
                "which it is calibrated. Give as many, or one."
            )
        return self.of_views


def _refuse_remembered() -> NoReturn:
    raise ValueError(
        "This classifier held rows out once (validation_fraction), so its networks were trained "
        "on the labels of all remembered rows and cannot predict them as if unseen. Give new rows."
    )


def merge_answers(views: list[Answer], merge: Merge) -> Answer:
    """Merge the answers to several views: arithmetic or geometric mean of the distributions."""
    parts = []
    for stacked in (torch.stack(part) for part in list(zip(*views, strict=True))[:3]):
        if merge == "probabilities":
            parts.append(torch.logsumexp(stacked, dim=0) - math.log(len(views)))
        else:
            parts.append(torch.log_softmax(stacked.mean(0), dim=1))
    null_mass = torch.stack([view.null_mass for view in views]).mean(0)
    return Answer(parts[0], parts[1], parts[2], null_mass)
