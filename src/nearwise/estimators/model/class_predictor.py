"""ClassPredictor: the fitted parts of a classifier, and how they predict."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nearwise.estimators.model.class_prior import ClassCorrection
from nearwise.estimators.model.label_model import LabelModel
from nearwise.estimators.model.log_linear_pool import (
    NOT_YET,
    Acceptance,
    Answer,
    Calibration,
    Merge,
    joined,
    merge_answers,
    shrink,
)
from nearwise.estimators.model.memory_views import BASE, OPINION, Retrieval
from nearwise.estimators.model.predictor import Predictor
from nearwise.estimators.model.row_models import (
    KeyedRows,
    average_views,
    row_blocks,
    view_blocks,
)
from nearwise.functional.threads import one_thread
from nearwise.nn import HeadOutput, PretrainedNeighborHead
from nearwise.nn.pretrained_head import widen


class Attended(NamedTuple):
    """What is retrieved for some queries, and what the head makes of it.

    `logits` is what the head's `attend` returned.
    """

    view: Retrieval
    logits: Any
    output: HeadOutput


class JudgedRows(NamedTuple):
    """Calibration rows in each view of the fit; in the memory a row has one key, their mean.

    Attributes
    ----------
    ids : int64 Tensor of shape (n,)
        In the bank, which may have lost some of them since.
    keyed : list of KeyedRows
        One per view.
    """

    ids: Tensor
    keyed: list[KeyedRows]

    def tensors(self) -> dict[str, Tensor]:
        """Everything as named tensors; `from_tensors` rebuilds it."""
        named = {"ids": self.ids}
        for view, rows in enumerate(self.keyed):
            if rows.base_log_proba is not None:
                named[f"{view}/base"] = rows.base_log_proba
            named |= {f"{view}/keys/{name}": keys for name, keys in rows.keys.items()}
        return named

    @classmethod
    def from_tensors(cls, named: dict[str, Tensor]) -> "JudgedRows":
        """Rebuild the rows from what `tensors` returned."""
        keyed: list[KeyedRows] = []
        while f"{len(keyed)}/keys/features" in named:
            view = len(keyed)
            start = f"{view}/keys/"
            keys = {name[len(start) :]: t for name, t in named.items() if name.startswith(start)}
            keyed.append(KeyedRows(keys, named.get(f"{view}/base")))
        return cls(named["ids"], keyed)


class Judgement(NamedTuple):
    """What is decided on calibration rows; the fields are those of `ClassPredictor`.

    `choice` has the entries of `ClassPredictor.choice` that tell of it.
    """

    acceptance: Acceptance
    part_temperatures: tuple[float, ...]
    classes: ClassCorrection | None
    merge: Merge
    of_views: Calibration | None
    choice: dict[str, Any]


@dataclass(frozen=True, eq=False, kw_only=True)
class ClassPredictor(Predictor):
    """The fitted parts of a classifier.

    Attributes
    ----------
    head : PretrainedNeighborHead
    acceptance : Acceptance
        Weight of the head against the base, and the temperature.
    prior : Tensor of shape (C,)
    part_temperatures : (float, float)
        Out-of-fold temperatures of the base alone and of the neighbors alone.
    classes : ClassCorrection or None
        Correction of predictions from one view for the class prior.
    merge : {"probabilities", "logits"}
        How several views of a query are merged.
    of_views : Calibration or None
        For all views merged; None where there is one.
    judged_views : JudgedRows or None
        The calibration rows in all views; None where there is one.
    of_fit : Judgement or None
        That of the fit, where the memory has changed so much that it was judged again; else None.
    """

    prior: Tensor
    head: PretrainedNeighborHead
    acceptance: Acceptance = NOT_YET
    part_temperatures: tuple[float, ...] = (1.0, 1.0)
    classes: ClassCorrection | None = None
    merge: Merge = "probabilities"
    of_views: Calibration | None = None
    judged_views: JudgedRows | None = None
    of_fit: Judgement | None = None

    @property
    def label_model(self) -> LabelModel:
        """How the given labels come about from the classes that are predicted."""
        return self.views.label_model

    @property
    def judged_on(self) -> str:
        """What calibration rows are: "held out", "cross-fitted", "left out" or "out of bag"."""
        if self.held_rows_out:
            return "held out"
        if OPINION in self.views.bank.columns:
            return "out of bag"
        return "left out" if self._base_is_closed else "cross-fitted"

    # --- retrieval ------------------------------------------------------------------------------

    def retrieve(self, views: list[Any]) -> tuple[Tensor, list[Retrieval]]:
        """Retrieve for new rows, few enough to be encoded at once, in each of their views.

        Also gives the first view's keys in the space "features", (n, width).
        """
        keyed = [self.row_models(rows) for rows in views]
        return keyed[0].keys["features"].cpu(), [self.retrieval(one) for one in keyed]

    def retrieval(self, rows: KeyedRows, positions: Tensor | None = None) -> Retrieval:
        """Search all spaces; `positions` (n,) of rows that are remembered, each then left out."""
        base = rows.base_log_proba
        base = self._prior_of(len(rows.keys["features"])) if base is None else base
        return self.views.retrieve(rows.keys, base, len(self.prior), positions)

    def retrieve_remembered(self, positions: Tensor) -> Retrieval:
        """Search all spaces for remembered rows, each left out of its own neighbors by id."""
        base, n_known = self._stored_base(positions), len(self.prior)
        trained = self.row_models.judges_trained
        return self.views.retrieve_remembered(positions, base, n_known, trained=trained)

    def _stored_base(self, positions: Tensor) -> Tensor:
        """Out-of-fold base (or prior) log-probabilities of remembered rows."""
        if not self.has_base:
            return self._prior_of(len(positions))
        return self.views.bank.columns[BASE][positions]

    def _prior_of(self, n_rows: int) -> Tensor:
        """Give every row the class shares, which stand in for a base."""
        return torch.log(self.prior).expand(n_rows, -1)

    # --- rows to be remembered ------------------------------------------------------------------

    def keys_of_new(self, views: list[Any]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Keys and base log-probabilities of rows that are to be remembered, on the CPU.

        Keys are means over the views.

        Returns
        -------
        keys : dict of str to Tensor of shape (n, width)
            In every key space of the bank.
        columns : dict of str to Tensor
            BASE and OPINION, where the bank has them.
        """
        keyed = average_views([self.row_models(rows) for rows in views]).cpu()
        columns: dict[str, Tensor] = {}
        if BASE in self.views.bank.columns:
            assert keyed.base_log_proba is not None  # the column was made by the same base
            columns[BASE] = keyed.base_log_proba
        if OPINION in self.views.bank.columns:
            columns[OPINION] = keyed.keys[OPINION]
        return {name: keyed.keys[name] for name in self.views.bank.keys}, columns

    # --- predictions ----------------------------------------------------------------------------

    def predict_views(self, views: list[Any], n_classes: int) -> Answer:
        """Predict from one or more views of the same rows, merged."""
        merged = []
        for block in view_blocks(views):
            _, each = self.retrieve(block)
            merged.append(self.merged([self.answer(one, n_classes) for one in each]))
        return joined(merged)

    @torch.no_grad()
    def attend(self, view: Retrieval) -> Attended:
        """Keep what the head makes of what was retrieved, for not many rows."""
        logits = self.head.attend(view.spaces)
        return Attended(view, logits, self.head.pool(logits, view.spaces, view.base_log_proba))

    def merged(self, answers: list[Answer]) -> Answer:
        """Merge the answers to several views as they were calibrated."""
        return answers[0] if len(answers) == 1 else merge_answers(answers, self.merge)

    def answer(self, view: Retrieval, n_classes: int) -> Answer:
        """Predict, on the CPU."""
        output = self.head.predict(view.spaces, view.base_log_proba)
        return self.finished(output, view.base_log_proba, n_classes)

    def finished(self, output: HeadOutput, base_log_proba: Tensor, n_classes: int) -> Answer:
        """Shrink the head's output towards the base, and name all classes; on the CPU."""
        return Answer(
            self.shrunk(output.log_proba, base_log_proba, n_classes),
            widen(torch.log_softmax(base_log_proba, 1), n_classes).cpu(),
            widen(output.neighbor_log_proba, n_classes).cpu(),
            output.null_mass.cpu(),
        )

    def shrunk(self, log_proba: Tensor, base_log_proba: Tensor, n_classes: int) -> Tensor:
        """Shrink log-probabilities of the head towards the base, and name all classes."""
        if self.has_base:
            log_proba = shrink(log_proba, base_log_proba, self.acceptance.share)
        return widen(log_proba, n_classes).cpu()

    @one_thread(torch_only=True)
    def predict_left_out(self, n_classes: int, positions: Tensor | None = None) -> Answer:
        """Leave-one-out predictions of the remembered rows, or of some, in their order."""
        wanted = torch.arange(len(self.views.bank)) if positions is None else positions
        if not len(wanted):
            none = torch.zeros(0, n_classes)
            return Answer(none, none, none, none[:, 0])
        answers = []
        for rows in row_blocks(wanted):
            answers.append(self.answer(self.retrieve_remembered(rows), n_classes))
        return joined(answers)

    def predict_judged(
        self, n_classes: int, n_views: int, positions: Tensor
    ) -> tuple[Answer, list[Answer]]:
        """Predict calibration rows, each left out, in one or all views: merged, and each."""
        if self.judged_views is None:
            answer = self.predict_left_out(n_classes, positions)
            return answer, [answer]
        ids, keyed = self.judged_views
        among = torch.searchsorted(ids, self.views.bank.ids[positions])
        each = []
        for rows in keyed[:n_views]:
            blocks = [
                self.answer(self.retrieval(rows.take(among[at]), positions[at]), n_classes)
                for at in row_blocks(torch.arange(len(positions)))
            ]
            each.append(joined(blocks))
        return self.merged(each), each

    def calibration(self, n_views: int = 1) -> Calibration:
        """Temperatures and class shares that predictions from this many views are finished with."""
        if n_views == 1:
            base, neighbors = self.part_temperatures
            return Calibration(self.acceptance.temperature, base, neighbors, self.classes)
        if self.n_views == 1:
            raise ValueError(
                f"{n_views} views were given, but the classifier was fitted without. Give views "
                "to fit as well, or leave them out."
            )
        if n_views != self.n_views or self.of_views is None:
            raise ValueError(
                f"{n_views} views were given, the classifier was fitted with {self.n_views}, for "
                "which it is calibrated. Give as many, or one."
            )
        return self.of_views
