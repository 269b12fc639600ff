"""RealMLP, TabM and xRFM, by the estimators and published defaults of pytabkit."""

import contextlib
import io
import random
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
import torch

from nearwise_lab.experiments.peers.peer import Peer
from nearwise_lab.experiments.preprocess import Table

Network = Literal["realmlp", "tabm", "xrfm"]

# Estimator of pytabkit, and what is not its default: as its documentation has it where the NLL
# counts, each stops on the NLL, and RealMLP does without label smoothing. TabM's batches follow the
# number of rows, as in its paper: with 256 of a few hundred rows it takes three times as long.
ESTIMATORS: dict[Network, tuple[str, dict[str, Any]]] = {
    "realmlp": ("RealMLP_TD_Classifier", {"val_metric_name": "cross_entropy", "use_ls": False}),
    "tabm": ("TabM_D_Classifier", {"val_metric_name": "cross_entropy", "batch_size": "auto"}),
    "xrfm": ("XRFM_D_Classifier", {"val_metric_name": "cross_entropy"}),
}


@dataclass(eq=False, repr=False)
class TabularNetwork(Peer):
    """One fit of a pytabkit network with early stopping on held-out rows; for `TemperedBag`.

    It runs on the CPU. What pytabkit prints is kept back, and the seeds that it sets are put back.
    `settings` are of the estimator, beside those in `ESTIMATORS`.

    References
    ----------
    Holzmüller et al., "Better by Default: Strong Pre-Tuned MLPs and Boosted Trees on Tabular Data",
    NeurIPS 2024 (RealMLP). Gorishniy et al., "TabM: Advancing Tabular Deep Learning with
    Parameter-Efficient Ensembling", ICLR 2025. Beaglehole et al., "xRFM: Accurate, scalable, and
    interpretable feature learning models for tabular data", 2025.
    """

    network: Network
    settings: dict[str, Any] | None = None
    n_threads: int = 1
    random_state: int = 0

    def fit(self, X: Table, y: np.ndarray, X_val: Table, y_val: np.ndarray) -> Self:
        """Train on complete rows, with early stopping on `X_val` and `y_val`."""
        with _undisturbed():
            import pytabkit

            name, settings = ESTIMATORS[self.network]
            self._model = getattr(pytabkit, name)(
                device="cpu",
                random_state=self.random_state,
                n_threads=self.n_threads,
                **(settings | (self.settings or {})),
            )
            self._model.fit(X, y, X_val=X_val, y_val=y_val)
        self.classes_ = np.asarray(self._model.classes_)
        return self

    def _proba(self, X: Table) -> np.ndarray:
        with _undisturbed():
            return np.asarray(self._model.predict_proba(X), dtype=np.float64)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Suppress output and warnings; restore global seeds and the number of threads after."""
    numpy_state, python_state = np.random.get_state(), random.getstate()
    n_threads = torch.get_num_threads()
    silent = io.StringIO()
    try:
        with (
            contextlib.redirect_stdout(silent),
            contextlib.redirect_stderr(silent),
            warnings.catch_warnings(),
            torch.random.fork_rng(devices=[]),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        np.random.set_state(numpy_state)
        random.setstate(python_state)
        torch.set_num_threads(n_threads)
