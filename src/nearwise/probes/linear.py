"""LinearProbe: multinomial logistic regression with a penalty chosen on validation rows."""

from collections.abc import Sequence
from typing import Any, Literal, Self

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import softmax
from torch import Tensor

from nearwise.functional.devices import choose_device
from nearwise.metrics import nll
from nearwise.probes.base import Probe, Rows, Validation, channel_scale, joined

GRID = tuple(float(c) for c in np.logspace(-6, 4, 21))
_WORSE = 3  # consecutive penalties with a higher NLL that end the search


class LinearProbe(Probe):
    """Logistic regression on standardised features.

    At a given C the result equals scikit-learn's `LogisticRegression`. It also runs on a GPU, and
    tries penalties from strong to weak, each with a warm start.

    Parameters
    ----------
    C : float, sequence of float or "val", default="val"
        Inverse strength of the penalty. Of several, or "val" (21 from 1e-6 to 1e4), the one with
        the lowest NLL on validation rows is taken.
    standardize : bool, default=True
        Whether to scale features to mean 0 and deviation 1 on the training rows.
    max_iter : int, default=1000
    tol : float, default=1e-5
        Tolerance of the largest gradient entry of the mean loss.
    validation_fraction : float, default=0.1
        Share of the rows held out for the choice, if no validation rows are given. At least as many
        rows as classes are held out; the fit is then repeated on all rows.
    device : str, default="cpu"
    random_state : int, RandomState or None, default=None
        Seed of the held-out rows.

    Attributes
    ----------
    classes_, n_features_in_, choice_
        As for every probe; `choice_` holds C and the NLL of each C tried.
    coef_ : ndarray of shape (n_classes, D)
        Coefficients of the standardised features; two rows for two classes.
    intercept_ : ndarray of shape (n_classes,)
    mean_, scale_ : ndarray of shape (D,)
    n_iter_ : int
        Solver iterations at the last C.
    """

    can_refit = True

    def __init__(
        self,
        C: float | Sequence[float] | Literal["val"] = "val",
        *,
        standardize: bool = True,
        max_iter: int = 1000,
        tol: float = 1e-5,
        validation_fraction: float = 0.1,
        device: str = "cpu",
        random_state: Any = None,
    ) -> None:
        self.C = C
        self.standardize = standardize
        self.max_iter = max_iter
        self.tol = tol
        self.validation_fraction = validation_fraction
        self.device = device
        self.random_state = random_state

    @torch.inference_mode(False)
    def fit(
        self, X: Any, y: Any, validation: Validation | None = None, *, refit: bool = False
    ) -> Self:
        """Fit the probe.

        Parameters
        ----------
        X : array of shape (n, D)
        y : array of shape (n,)
        validation : (array (m, D), array (m,)), optional
            Rows to choose C; they are not used in the fit.
        refit : bool, default=False
            Whether to fit on the validation rows too, after C is chosen.

        Raises
        ------
        ValueError
            If rows, labels or settings do not fit.
        """
        grid = self._grid()
        rows = self._training_rows(X, y)
        valid = None if validation is None else self._other_rows(validation)
        if len(grid) == 1:
            self.choice_: dict[str, Any] = {"C": grid[0]}
        elif valid is None:
            self._choose(grid, *self._divided(rows, None, self._seed()))
        else:
            best = self._choose(grid, rows, valid)
            if not refit:
                self.coef_, self.intercept_ = best
                return self
        if refit and valid is not None:
            rows = joined(rows, valid)
        ((self.coef_, self.intercept_),) = self._path(rows, [self.choice_["C"]])
        return self

    def _grid(self) -> list[float]:
        if isinstance(self.C, str) and self.C != "val":
            raise ValueError(f'C={self.C!r} is neither positive nor "val".')
        grid = GRID if isinstance(self.C, str) else np.atleast_1d(np.asarray(self.C, float))
        if not len(grid) or not all(np.isfinite(c) and c > 0 for c in grid):
            raise ValueError(f'C={self.C!r} must be positive numbers, or "val".')
        return sorted(float(c) for c in grid)

    def _choose(self, grid: list[float], fitted: Rows, valid: Rows) -> tuple[Any, Any]:
        """Try penalties from strong to weak until the NLL has risen several times."""
        scores: dict[float, float] = {}
        best: tuple[Any, Any] | None = None
        for c, weights in zip(grid, self._path(fitted, grid), strict=False):
            proba = softmax(self._standardized(valid.X) @ weights[0].T + weights[1], axis=1)
            scores[c] = nll(valid.codes, proba)
            if scores[c] <= min(scores.values()):
                best = weights
            if list(scores.values()).index(min(scores.values())) < len(scores) - _WORSE:
                break
        assert best is not None  # the grid is not empty
        chosen = min(scores, key=lambda c: scores[c])
        self.choice_ = {"C": chosen, "nll": scores[chosen], "tried": list(scores.items())}
        return best

    def _path(self, rows: Rows, grid: list[float]) -> Any:
        """Yield weights (n_classes, D) and intercepts for each C, ascending."""
        self.mean_ = rows.X.mean(axis=0, dtype=np.float64)
        self.scale_ = channel_scale(rows.X.std(axis=0, dtype=np.float64), self.mean_)
        if not self.standardize:
            self.mean_, self.scale_ = np.zeros_like(self.mean_), np.ones_like(self.scale_)
        device = choose_device(self.device)
        problem = _Logistic(self._standardized(rows.X), rows.codes, len(self.classes_), device)
        start = np.zeros(problem.shape)
        for c in grid:
            start, self.n_iter_ = problem.solve(c, start, self.max_iter, self.tol)
            yield start[:, :-1].copy(), start[:, -1].copy()

    def _standardized(self, X: NDArray[Any]) -> NDArray[np.float64]:
        ready: NDArray[np.float64] = (X - self.mean_) / self.scale_
        return ready

    def predict_proba(self, X: Any = None) -> NDArray[np.float64]:
        """Return class probabilities of X (n, D), shape (n, n_classes)."""
        scores = self._standardized(self._query(X)) @ self.coef_.T + self.intercept_
        proba: NDArray[np.float64] = softmax(scores, axis=1)
        return proba


class _Logistic:
    """Loss of multinomial logistic regression and its gradient, on a device."""

    def __init__(
        self, X: NDArray[np.float64], codes: NDArray[np.int64], n_classes: int, device: torch.device
    ) -> None:
        # Large products in float32: their noise in the gradient is far below tol.
        small = X.size < 2e6
        self.X = torch.as_tensor(X, dtype=torch.float64 if small else torch.float32, device=device)
        self.codes = torch.from_numpy(codes).to(device)
        self.shape = (n_classes, X.shape[1] + 1)
        # A binary weight vector w equals the pair (w / 2, -w / 2) with half the penalty.
        self.factor = 2.0 if n_classes == 2 else 1.0

    def solve(
        self, c: float, start: NDArray[np.float64], max_iter: int, tol: float
    ) -> tuple[NDArray[np.float64], int]:
        """Return weights with intercepts as last column, (n_classes, D + 1), and iterations."""
        decay = self.factor / (c * len(self.codes))
        found = minimize(
            self._loss,
            start.ravel(),
            args=(decay,),
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": max_iter, "gtol": tol, "ftol": 1e-12, "maxcor": 20},
        )
        weights: NDArray[np.float64] = found.x.reshape(self.shape)
        return weights, max(int(found.nit), 1)

    def _loss(self, flat: NDArray[np.float64], decay: float) -> tuple[float, NDArray[np.float64]]:
        table = torch.from_numpy(flat.reshape(self.shape)).to(self.X)
        weights, bias = table[:, :-1], table[:, -1]
        log_proba = F.log_softmax(torch.addmm(bias, self.X, weights.T), dim=1)
        loss = (
            F.nll_loss(log_proba, self.codes).double()
            + 0.5 * decay * weights.double().square().sum()
        )
        residual = log_proba.exp()
        residual[torch.arange(len(residual), device=residual.device), self.codes] -= 1
        residual /= len(residual)
        slope = residual.T @ self.X + decay * weights
        gradient: Tensor = torch.cat([slope, residual.sum(0)[:, None]], dim=1)
        return float(loss), gradient.double().cpu().numpy().ravel()
