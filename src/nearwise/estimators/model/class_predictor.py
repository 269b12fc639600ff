"""ClassPredictor: the fitted parts of a classifier, and its predictions."""

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
from nearwise.estimators.model.memory_views import BASE, EMBEDDED, OPINION, Retrieval
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
    """Neighbors of some queries, and the output of the head.

    `logits` is the result of the head's `attend`.
    """

    view: Retrieval
    logits: Any
    output: HeadOutput


class JudgedRows(NamedTuple):
    """Calibration rows in each view of the fit; the memory holds the mean key of the views.

    Attributes
    ----------
    ids : int64 Tensor of shape (n,)
        Ids in the bank; rows may have been removed since.
    keyed : list of KeyedRows
        One per view.
    """

    ids: Tensor
    keyed: list[KeyedRows]

    def tensors(self) -> dict[str, Tensor]:
        """Named tensors of the rows; `from_tensors` rebuilds them."""
        named = {"ids": self.ids}
        for view, rows in enumerate(self.keyed):
            if rows.base_log_proba is not None:
                named[f"{view}/base"] = rows.base_log_proba
            named |= {f"{view}/keys/{name}": keys for name, keys in rows.keys.items()}
        return named

    @classmethod
    def from_tensors(cls, named: dict[str, Tensor]) -> "JudgedRows":
        """Rebuild the rows from the result of `tensors`."""
        keyed: list[KeyedRows] = []
        while f"{len(keyed)}/keys/features" in named:
            view = len(keyed)
            start = f"{view}/keys/"
            keys = {name[len(start) :]: t for name, t in named.items() if name.startswith(start)}
            keyed.append(KeyedRows(keys, named.get(f"{view}/base")))
        return cls(named["ids"], keyed)


class Judgement(NamedTuple):
    """Calibration, decided on the calibration rows; fields as in `ClassPredictor`.

    `choice` has the entries of `ClassPredictor.choice` about it.
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
        Class-prior correction of predictions from one view.
    merge : {"probabilities", "logits"}
        Mean of probabilities or of logits over several views of a query.
    of_views : Calibration or None
        Calibration of predictions merged over all views; None with one view.
    judged_views : JudgedRows or None
        The calibration rows in all views; None with one view.
    of_fit : Judgement or None
        Calibration of the fit if changes of the memory have led to a new one; else None.
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
        """Model of the given labels, given the predicted classes."""
        return self.views.label_model

    @property
    def judged_on(self) -> str:
        """Kind of calibration rows: "held out", "cross-fitted", "left out" or "out of bag"."""
        if self.held_rows_out:
            return "held out"
        if OPINION in self.views.bank.columns:
            return "out of bag"
        return "left out" if self._base_is_closed else "cross-fitted"

    # --- retrieval ------------------------------------------------------------------------------

    def retrieve(self, views: list[Any]) -> tuple[Tensor, list[Retrieval]]:
        """Neighbors of one block of new rows, in each of their views.

        Returned after the first view's keys in the space "features", (n, width).
        """
        keyed = [self.row_models(rows) for rows in views]
        return keyed[0].keys["features"].cpu(), [self.retrieval(one) for one in keyed]

    def retrieval(self, rows: KeyedRows, positions: Tensor | None = None) -> Retrieval:
        """Search all spaces; a remembered row, given by `positions` (n,), is left out by its id."""
        base = rows.base_log_proba
        base = self._prior_of(len(rows.keys["features"])) if base is None else base
        return self.views.retrieve(rows.keys, base, len(self.prior), positions)

    def retrieve_remembered(self, positions: Tensor) -> Retrieval:
        """Search all spaces for the neighbors of remembered rows, each left out by its id."""
        base, n_known = self._stored_base(positions), len(self.prior)
        trained = self.row_models.judges_trained
        return self.views.retrieve_remembered(positions, base, n_known, trained=trained)

    def _stored_base(self, positions: Tensor) -> Tensor:
        """Out-of-fold base (or prior) log-probabilities of remembered rows."""
        if not self.has_base:
            return self._prior_of(len(positions))
        return self.views.bank.columns[BASE][positions]

    def _prior_of(self, n_rows: int) -> Tensor:
        """Logarithms of the class shares for every row, used in place of a base."""
        return torch.log(self.prior).expand(n_rows, -1)

    # --- rows to be remembered ------------------------------------------------------------------

    def keys_of_new(self, views: list[Any]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Keys and base log-probabilities of rows to add to the memory, on the CPU.

        Keys are means over the views.

        Returns
        -------
        keys : dict of str to Tensor of shape (n, width)
            In every key space of the bank.
        columns : dict of str to Tensor
            BASE, OPINION and EMBEDDED, if the bank has them.
        """
        keyed = average_views([self.row_models(rows) for rows in views]).cpu()
        columns: dict[str, Tensor] = {}
        if BASE in self.views.bank.columns:
            assert keyed.base_log_proba is not None  # the column was made by the same base
            columns[BASE] = keyed.base_log_proba
        if OPINION in self.views.bank.columns:
            columns[OPINION] = keyed.keys[OPINION]
        if EMBEDDED in self.views.bank.columns:
            columns[EMBEDDED] = keyed.keys[EMBEDDED]
        return {name: keyed.keys[name] for name in self.views.bank.keys}, columns

    # --- predictions ----------------------------------------------------------------------------

    def predict_views(self, views: list[Any], n_classes: int) -> Answer:
        """Predict rows, merged over one or more views."""
        merged = []
        for block in view_blocks(views):
            _, each = self.retrieve(block)
            merged.append(self.merged([self.answer(one, n_classes) for one in each]))
        return joined(merged)

    @torch.no_grad()
    def attend(self, view: Retrieval) -> Attended:
        """Head logits and output for retrieved neighbors, kept for later use; for small batches."""
        logits = self.head.attend(view.spaces)
        return Attended(view, logits, self.head.pool(logits, view.spaces, view.base_log_proba))

    def merged(self, answers: list[Answer]) -> Answer:
        """Merge the predictions of several views by `merge`."""
        return answers[0] if len(answers) == 1 else merge_answers(answers, self.merge)

    def answer(self, view: Retrieval, n_classes: int) -> Answer:
        """Prediction from retrieved neighbors, on the CPU."""
        output = self.head.predict(view.spaces, view.base_log_proba)
        return self.finished(output, view.base_log_proba, n_classes)

    def finished(self, output: HeadOutput, base_log_proba: Tensor, n_classes: int) -> Answer:
        """Shrink the head's output towards the base and add missing classes; on the CPU."""
        return Answer(
            self.shrunk(output.log_proba, base_log_proba, n_classes),
            widen(torch.log_softmax(base_log_proba, 1), n_classes).cpu(),
            widen(output.neighbor_log_proba, n_classes).cpu(),
            output.null_mass.cpu(),
        )

    def shrunk(self, log_proba: Tensor, base_log_proba: Tensor, n_classes: int) -> Tensor:
        """Shrink log-probabilities of the head towards the base and add missing classes."""
        if self.has_base:
            log_proba = shrink(log_proba, base_log_proba, self.acceptance.share)
        return widen(log_proba, n_classes).cpu()

    @one_thread(torch_only=True)
    def predict_left_out(self, n_classes: int, positions: Tensor | None = None) -> Answer:
        """Leave-one-out predictions of all remembered rows, or of the rows at `positions`."""
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
        """Leave-one-out predictions of calibration rows: merged over views, and per view."""
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
        """Calibration (temperatures, class correction) for predictions from `n_views` views."""
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
