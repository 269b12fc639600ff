"""SharedState: members share one memory and its networks, and are fitted on rows held out."""

import math
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

import torch
from torch import Tensor

from nearwise.classifier.model.row_encoders import Seen, Sight, average_views
from nearwise.classifier.model.state import (
    NO_CALIBRATION,
    Answer,
    Calibration,
    LearnedState,
    Looks,
    MemberView,
    on_host,
)
from nearwise.functional import Neighbors

Merge = Literal["probabilities", "logits", "embeddings"]


@dataclass
class HeldOut:
    """Rows that neither memory nor networks have seen, kept to judge later predictions by.

    Attributes
    ----------
    seen : list of Seen
        Their keys and the base's opinion, one a view.
    labels : int64 Tensor of shape (n,)
    folds : int64 Tensor of shape (n,)
        The member whose head was not fitted on the row.
    weight : Tensor of shape (n,)
    digests : int64 Tensor of shape (n,), or None
        By which the rows are known again (`row_digests`); None in a model of an older version.
    """

    seen: list[Seen]
    labels: Tensor
    folds: Tensor
    weight: Tensor
    digests: Tensor | None = None

    def tensors(self) -> dict[str, Tensor]:
        """Everything as named tensors; `from_tensors` rebuilds it."""
        named = {"labels": self.labels, "folds": self.folds, "weight": self.weight}
        for view, seen in enumerate(self.seen):
            named[f"{view}/base"] = seen.base_log_proba.contiguous()  # the prior is one row, spread
            named |= {f"{view}/keys/{name}": keys for name, keys in seen.keys.items()}
        return named if self.digests is None else named | {"digests": self.digests}

    @classmethod
    def from_tensors(cls, named: dict[str, Tensor]) -> "HeldOut":
        """Rebuild the rows from what `tensors` returned."""
        seen: list[Seen] = []
        while f"{len(seen)}/base" in named:
            view = len(seen)
            start = f"{view}/keys/"
            keys = {name[len(start) :]: t for name, t in named.items() if name.startswith(start)}
            seen.append(Seen(keys, named[f"{view}/base"]))
        return cls(seen, named["labels"], named["folds"], named["weight"], named.get("digests"))


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
    held : HeldOut or None
        The rows held out; None in a model that was saved before they were kept.
    """

    sight: Sight
    merge: Merge = "probabilities"
    of_views: Calibration = NO_CALIBRATION
    held: HeldOut | None = None

    @property
    def has_base(self) -> bool:
        """Whether the networks' heads take part."""
        return self.sight.has_base

    def feature_keys(self, rows: Any) -> Tensor:
        """Keys of new rows in the space "features"."""
        return self.sight(rows).keys["features"].cpu()

    def keys_of_new(self, views: list[Any]) -> dict[str, Tensor]:
        """Keys of rows that are to be remembered: means over their views."""
        keys = average_views([self.sight(rows) for rows in views]).keys
        return {spec.name: keys[spec.name].cpu() for spec in self.views.specs}

    def looks(self, views: list[Any]) -> Looks:
        """See each view of new rows, and their mean where embeddings are merged, once for all."""
        seen = [self.sight(rows) for rows in views]
        each = [self._group(one) for one in seen]
        averaged = self.merge == "embeddings" and len(views) > 1
        merged = [self._group(average_views(seen))] if averaged else each
        return Looks(seen[0].keys["features"].cpu(), merged, each)

    def _group(self, seen: Seen) -> list[tuple[int, MemberView]]:
        view = self.look_at(seen)
        return [(member, view) for member in range(self.n_members)]

    def merged(self, answers: list[Answer]) -> Answer:
        """Merge the answers to several views as they were calibrated."""
        if len(answers) == 1:
            return answers[0]
        return merge_answers(answers, self.merge)

    def look_at(self, seen: Seen) -> MemberView:
        """Search all spaces for rows whose keys are known."""
        base = self.views.to_device(seen.base_log_proba)
        found: list[Neighbors] = []
        spaces = []
        for spec in self.views.specs:
            query = self.views.to_device(seen.keys[spec.name])
            result = self.views.search(spec, 0, query, spec.n_neighbors)
            found.append(result)
            spaces.append(self.views.neighborhood(spec, 0, result, base))
        return MemberView(base, found, spaces)

    def look_again(self, member: int, positions: Tensor) -> MemberView:
        """Refuse: the networks know the labels of the remembered rows."""
        _refuse_remembered()

    def predict_left_out(self, n_classes: int, positions: Tensor | None = None) -> Answer:
        """Refuse: the networks know the labels of the remembered rows."""
        _refuse_remembered()

    def predict_held_out(self, n_classes: int, n_views: int) -> tuple[Answer, list[Answer]]:
        """Predict the rows held out, in one or all views, each by a head that was not fitted on it.

        Give the merged answer and that to each view. They ask the memory as it is now, whatever
        came or went since the fit.
        """
        assert self.held is not None  # the caller has looked
        seen = self.held.seen[:n_views]
        folds = self.held.folds
        each = [out_of_fold(self, self.look_at(one), folds, n_classes) for one in seen]
        if n_views > 1 and self.merge == "embeddings":
            look = self.look_at(average_views(seen))
            return out_of_fold(self, look, folds, n_classes), each
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


def out_of_fold(state: LearnedState, look: MemberView, folds: Tensor, n_classes: int) -> Answer:
    """Answers to rows held out, each from the head that was not fitted on it."""
    members = range(int(folds.max()) + 1)
    order = [torch.nonzero(folds == member)[:, 0] for member in members]
    answers = []
    for member, rows in enumerate(order):
        spaces = [seen.take(rows) for seen in look.spaces]
        view = MemberView(look.base_log_proba[rows], [], spaces)
        answers.append(on_host(state.answer(member, view, n_classes)))
    back = torch.argsort(torch.cat(order))
    return Answer(*(torch.cat(parts)[back] for parts in zip(*answers, strict=True)))


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
