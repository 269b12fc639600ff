"""LearnedState: everything a fitted classifier predicts with, and how it predicts."""

import copy
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from nearwise.classifier.fit.base import Base
from nearwise.classifier.fit.embedding import HEAD, Embedding
from nearwise.classifier.fit.feature_space import FeatureSpace
from nearwise.classifier.inputs.images import ImageEncoder, TTAView
from nearwise.classifier.inputs.table import Encoded, TableEncoder
from nearwise.classifier.model.blocks import row_blocks, view_blocks
from nearwise.classifier.model.class_prior import ClassCorrection
from nearwise.classifier.model.label_model import LabelModel
from nearwise.classifier.model.memory_views import BASE, FOLD, MemoryViews
from nearwise.classifier.model.pooling import NOT_YET, Acceptance, shrink, widen, with_new_classes
from nearwise.functional import Neighbors
from nearwise.nn import NeighborHead, Neighborhood
from nearwise.training import predict_with_head


class MemberView(NamedTuple):
    """What one member knows of some queries."""

    base_log_proba: Tensor
    found: list[Neighbors]
    spaces: list[Neighborhood]


class Looks(NamedTuple):
    """What the members know of some queries in all their views.

    Attributes
    ----------
    features : Tensor of shape (n, width)
        Keys of the first view in the space that all members share.
    merged : list of list of (member, MemberView)
        What the merged prediction is made from: one group per view, or one of their mean.
    each : list of list of (member, MemberView)
        One group per view; the very list of `merged` unless that is made from their mean.
    """

    features: Tensor
    merged: list[list[tuple[int, MemberView]]]
    each: list[list[tuple[int, MemberView]]]


class Answer(NamedTuple):
    """Log-probabilities (B, C) of the parts, and the null's mass (B,), all members pooled."""

    log_proba: Tensor
    base_log_proba: Tensor
    neighbor_log_proba: Tensor
    null_mass: Tensor


class Calibration(NamedTuple):
    """Temperatures of the whole, of the base alone and of the neighbors alone; class shares."""

    whole: float
    base: float
    neighbors: float
    classes: ClassCorrection | None = None

    def in_memory_shares(self) -> "Calibration":
        """Leave out what brings predictions to other class shares than those of the memory."""
        elsewhere = self.classes is not None and self.classes.wanted is not None
        return self._replace(classes=None) if elsewhere else self

    def corrected(self, answer: Answer) -> Answer:
        """Bring an answer to the wanted class shares; the temperatures are still to be applied."""
        if self.classes is None:
            return answer
        alone = self.classes.of_parts()
        return answer._replace(
            log_proba=self.classes(answer.log_proba, self.whole),
            base_log_proba=alone(answer.base_log_proba, self.base),
            neighbor_log_proba=alone(answer.neighbor_log_proba, self.neighbors),
        )


NO_CALIBRATION = Calibration(1.0, 1.0, 1.0)


def joined(answers: list[Answer]) -> Answer:
    """Put the answers to blocks of rows one below the other."""
    (first, *others) = answers
    return Answer(*map(torch.cat, zip(*answers, strict=True))) if others else first


def on_host(answer: Answer) -> Answer:
    """Bring an answer to the CPU."""
    return Answer(*(part.cpu() for part in answer))


@dataclass(kw_only=True)
class LearnedState(ABC):
    """The fitted parts that every kind of fit leaves behind.

    Attributes
    ----------
    encoder : TableEncoder or ImageEncoder
        What is remembered of the table's columns, or of the images.
    heads : list of NeighborHead
        One a member.
    views : MemoryViews
        The memory as the members see it.
    acceptance : Acceptance
    prior : Tensor of shape (C,)
    part_temperatures : (float, float)
        Out-of-fold temperatures of the base alone and of the neighbors alone; that of the whole
        is part of the acceptance.
    classes : ClassCorrection or None
        What brings predictions from one view to the wanted class shares.
    choice : dict
        What was chosen, with the out-of-fold NLL it was chosen by.
    history : list of dict
    tta : tuple of str
        Views that `fit` made of images.
    n_views : int
        Views of every row in `fit`, the first included.
    """

    encoder: TableEncoder | ImageEncoder
    views: MemoryViews
    prior: Tensor
    heads: list[NeighborHead] = field(default_factory=list)
    acceptance: Acceptance = NOT_YET
    part_temperatures: tuple[float, ...] = (1.0, 1.0)
    classes: ClassCorrection | None = None
    choice: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    tta: tuple[TTAView, ...] = ()
    n_views: int = 1

    @property
    def label_model(self) -> LabelModel:
        """How the given labels come about from the classes that are predicted."""
        return self.views.label_model

    @property
    def n_members(self) -> int:
        """Number of members."""
        return len(self.heads)

    @property
    @abstractmethod
    def has_base(self) -> bool:
        """Whether a base takes part; without, the class shares stand in for it."""

    @abstractmethod
    def feature_keys(self, rows: Any) -> Tensor:
        """Keys of new rows in the space that all members share."""

    @abstractmethod
    def keys_of_new(self, views: list[Any]) -> dict[str, Tensor]:
        """Keys of rows that are to be remembered, in every space of the bank but FOLD."""

    @abstractmethod
    def looks(self, views: list[Any]) -> Looks:
        """See new rows, few enough to be seen at once, in all their views, as every member does."""

    def predict_views(self, views: list[Any], n_classes: int) -> Answer:
        """Predict from one or more views of the same rows, merged."""
        merged = []
        for block in view_blocks(views):
            groups = self.looks(block).merged
            merged.append(self.merged([pool(self.answers(group, n_classes)) for group in groups]))
        return joined(merged)

    def answers(self, group: list[tuple[int, MemberView]], n_classes: int) -> list[Answer]:
        """Predict with every member that has seen the rows, on the CPU."""
        return [on_host(self.answer(member, view, n_classes)) for member, view in group]

    def merged(self, answers: list[Answer]) -> Answer:
        """Merge the answers to several views."""
        (answer,) = answers
        return answer

    @abstractmethod
    def look_again(self, member: int, positions: Tensor) -> MemberView:
        """Search all spaces for remembered rows, each left out of its own neighbors by id."""

    @abstractmethod
    def predict_left_out(self, n_classes: int, positions: Tensor | None = None) -> Answer:
        """Leave-one-out predictions of the remembered rows, or of some, in their order."""

    def fork(self) -> Self:
        """Copy for a change: what changes replace is the copy's own, all else is shared."""
        fork = copy.copy(self)
        fork.views = self.views.fork()
        fork.heads, fork.choice = list(self.heads), dict(self.choice)
        return fork

    def to(self, device: torch.device) -> None:
        """Have searches and heads run on a device from now on; the bank stays on the CPU."""
        self.views.forget()
        self.views.device = None if device.type == "cpu" else device
        for head in self.heads:
            head.to(device)

    def calibration(self, n_views: int = 1) -> Calibration:
        """Temperatures that predictions from so many views are finished with."""
        if n_views > 1:
            raise ValueError(
                f"{n_views} views were given, but the classifier was fitted without. Give views "
                "to fit as well, or leave them out."
            )
        base, neighbors = self.part_temperatures
        return Calibration(self.acceptance.temperature, base, neighbors, self.classes)

    def answer(self, member: int, view: MemberView, n_classes: int) -> Answer:
        """Predict with one member."""
        output = predict_with_head(self.heads[member], view.spaces, view.base_log_proba)
        pooled = output.log_proba
        if self.has_base:
            pooled = shrink(pooled, view.base_log_proba, self.acceptance.share)
        return Answer(
            widen(pooled, n_classes),
            widen(torch.log_softmax(view.base_log_proba, 1), n_classes),
            widen(output.neighbor_log_proba, n_classes),
            output.null_mass,
        )


@dataclass(kw_only=True)
class CrossFittedState(LearnedState):
    """What predicts after a cross-fit: every member has models of its own, fitted without a fold.

    Attributes
    ----------
    features, embedding, base
        The label-free key space, the trained spaces and the base; the last two may be None.
    """

    encoder: TableEncoder
    features: FeatureSpace
    embedding: Embedding | None
    base: Base | None

    @property
    def has_base(self) -> bool:
        """Whether a base takes part; without, the class shares stand in for it."""
        return self.base is not None

    def base_log_proba(self, member: int, rows: Encoded) -> Tensor:
        """Give one member's base (or prior) log-probabilities of new rows, (n, C)."""
        if self.base is None:
            return torch.log(self.prior).expand(len(rows), -1)
        extra = {}
        if self.embedding is not None and self.base.asks(HEAD):
            opinion = self.embedding.head_log_proba(member, self.encoder, rows)
            extra[HEAD] = opinion.double().numpy()
        log_proba = self.base.log_proba(self.encoder, rows, member, extra)
        return torch.from_numpy(log_proba).float()

    def feature_keys(self, rows: Encoded) -> Tensor:
        """Keys of new rows in the space that all members share."""
        return self.features(self.encoder, rows)

    def member_keys(
        self, name: str, member: int, rows: Encoded, features: Tensor, base_log_proba: Tensor
    ) -> Tensor:
        """Keys of new rows in a named space, as one member makes them."""
        if name == "features":
            return features
        if name == "supervised":
            return supervised_keys(features, base_log_proba)
        assert self.embedding is not None  # "trained" exists only with an embedding
        return self.embedding.keys(member, self.encoder, rows)

    def look(
        self, member: int, rows: Encoded, features: Tensor, shared: dict[str, Neighbors]
    ) -> MemberView:
        """Search all spaces for new rows; `shared` keeps what every member finds alike."""
        own = base = self.views.to_device(self.base_log_proba(member, rows))
        found: list[Neighbors] = []
        spaces: list[Neighborhood] = []
        for spec in self.views.specs:
            common = spec.scope == "all" and not spec.per_member
            if common and spec.name in shared:
                result = shared[spec.name]
            else:
                keys = self.member_keys(spec.name, member, rows, features, own)
                keys = self.views.to_device(keys)
                result = self.views.search(spec, member, keys, spec.n_neighbors)
                if common:
                    shared[spec.name] = result
            found.append(result)
            if not spaces:
                base = self.widened_base(own, result)
            spaces.append(self.views.neighborhood(spec, member, result, base))
        return MemberView(base, found, spaces)

    def look_again(self, member: int, positions: Tensor) -> MemberView:
        """Search all spaces for remembered rows, each left out of its own neighbors by id."""
        bank = self.views.bank
        base = self.views.to_device(self.stored_base(positions))
        found: list[Neighbors] = []
        spaces: list[Neighborhood] = []
        for spec in self.views.specs:
            keys = self.views.to_device(bank.keys[spec.key(member)][positions])
            result = self.views.search(spec, member, keys, spec.n_neighbors, bank.ids[positions])
            found.append(result)
            if not spaces:
                base = self.widened_base(base, result)
            seen = self.views.neighborhood(spec, member, result, base, positions)
            spaces.append(seen)
        return MemberView(base, found, spaces)

    def widened_base(self, base_log_proba: Tensor, found: Neighbors) -> Tensor:
        """Widen base log-probabilities (n, C0) to all C classes that the heads know.

        On classes the base was not fitted on, the neighbors in the feature space give its opinion.
        """
        n_known = base_log_proba.shape[1]
        if n_known == len(self.prior):
            return base_log_proba
        labels = self.views.labels_of(0, found.indices)
        return with_new_classes(base_log_proba, found.distances, labels, len(self.prior))

    def stored_base(self, positions: Tensor) -> Tensor:
        """Out-of-fold base (or prior) log-probabilities of remembered rows."""
        if self.base is None:
            return torch.log(self.prior).expand(len(positions), -1)
        return self.views.bank.keys[BASE][positions]

    def keys_of_new(self, views: list[Encoded]) -> dict[str, Tensor]:
        """Keys of rows that are to be remembered, in every space of the bank but FOLD.

        Their base opinion is the mean of the fold models', which have not seen them.
        """
        (rows,) = views
        features = self.feature_keys(rows)
        members = range(self.n_members)
        opinions = torch.stack([self.base_log_proba(member, rows) for member in members])
        base = torch.log_softmax(opinions.mean(0), dim=1)
        keys: dict[str, Tensor] = {}
        if BASE in self.views.bank.keys:
            keys[BASE] = base
            keys["supervised"] = self.member_keys("supervised", 0, rows, features, base)
        for spec in self.views.specs:
            for member in members:
                name = spec.key(member)
                if name not in keys:
                    keys[name] = self.member_keys(spec.name, member, rows, features, base)
        return keys

    def members_of(self, positions: Tensor) -> list[tuple[int, Tensor]]:
        """Blocks of places in `positions`, each with a member: its fold, and rows added later."""
        folds = self.views.bank.keys[FOLD][positions, 0]
        return [
            (member, block)
            for member in range(self.n_members)
            for block in row_blocks(torch.nonzero((folds == member) | (folds < 0))[:, 0])
        ]

    def looks(self, views: list[Encoded]) -> Looks:
        """See new rows, in their one view, as every member does."""
        (rows,) = views
        features = self.feature_keys(rows)
        shared: dict[str, Neighbors] = {}
        members = range(self.n_members)
        groups = [[(member, self.look(member, rows, features, shared)) for member in members]]
        return Looks(features, groups, groups)

    def predict_left_out(self, n_classes: int, positions: Tensor | None = None) -> Answer:
        """Leave-one-out predictions of the remembered rows, or of some, in their order."""
        if positions is None:
            positions = torch.arange(len(self.views.bank))
        n = len(positions)
        totals = [torch.zeros(n, n_classes) for _ in range(3)]
        null_mass, counts = torch.zeros(n), torch.zeros(n)
        for member, rows in self.members_of(positions):
            answer = on_host(
                self.answer(member, self.look_again(member, positions[rows]), n_classes)
            )
            for total, part in zip(totals, answer[:3], strict=True):
                total[rows] += part
            null_mass[rows] += answer.null_mass
            counts[rows] += 1
        means = [torch.log_softmax(total / counts[:, None], dim=1) for total in totals]
        return Answer(means[0], means[1], means[2], null_mass / counts)


def supervised_keys(features: Tensor, base_log_proba: Tensor) -> Tensor:
    """Features beside half the centred log-probabilities of the base, scaled by their width."""
    opinion = base_log_proba.to(features.device).clamp_min(-9.0)
    opinion = opinion - opinion.mean(dim=1, keepdim=True)
    return torch.cat([features, 0.5 * opinion / opinion.shape[1] ** 0.5], dim=1)


def pool(answers: list[Answer]) -> Answer:
    """Geometric mean of the members' distributions; arithmetic of the null's mass.

    The geometric mean keeps the sharpness that the out-of-fold predictions had: averaging
    probabilities would blur rows of which one member in five knows no duplicate.
    """
    means = [
        torch.log_softmax(torch.stack(parts).mean(0), dim=1)
        for parts in list(zip(*answers, strict=True))[:3]
    ]
    null_mass = torch.stack([answer.null_mass for answer in answers]).mean(0)
    return Answer(means[0], means[1], means[2], null_mass)


def as_float(array: np.ndarray) -> Tensor:
    """Turn an array into a float32 tensor."""
    return torch.from_numpy(np.ascontiguousarray(array)).float()
