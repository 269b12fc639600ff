"""FewShotAttention: attention learned on many classes, used on new ones with a few rows each."""

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.base import BaseEstimator
from sklearn.utils import check_array, check_random_state, check_X_y
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from nearwise.memory import read_folder, write_folder
from nearwise.training import BatchLoss, EngineConfig, train_epochs
from nearwise_lab.few_shot.attention import EpisodeAttention
from nearwise_lab.few_shot.episodes import Episode, draw_episodes

_KIND, _VERSION = "few-shot attention", 1
_CHECKS = 8  # times a training is evaluated
_JUDGED = 60  # episodes it is evaluated on
_POWERS = (1.0, 0.5, 0.0)  # of the columns' spread that they are divided by
_RATES = {"metric": 3e-3, "head": 1e-2, "gates": 5e-2}


class FewShotAttention(BaseEstimator):
    """Name rows by a few labeled ones, with attention that was learned on other classes.

    `fit` plays episodes on the classes it is given: a few rows of some classes are the memory,
    others of the same classes are queries. `predict` then takes a support set of any classes, of
    any size. Each query's attention over the support rows is combined with the nearest class mean,
    the base of the same `nearwise.nn.NeighborHead` that the classifier uses.

    Parameters
    ----------
    n_way, n_shot, n_query : int, default=5, 5, 15
        Size of the episodes played in `fit`. Fewer classes than `n_way` play with all.
    n_episodes : int, default=600
        Episodes played, one per step.
    metric : {"auto", "identity", "learned"}, default="auto"
        "learned": a linear map of the standardised rows is trained too. "auto" keeps a third of
        the classes out and takes what does better on these; "identity" below 6 classes.
    num_heads : int, default=4
    random_state : int, RandomState or None, default=None

    Attributes
    ----------
    classes_ : ndarray
        Classes `fit` was given; predictions are of those of the support set instead.
    n_features_in_ : int
    choice_ : dict
        The metric taken, after how many episodes, its NLL on kept-out classes, and how
        columns and rows are scaled.
    history_ : list of dict
        stage, episode, loss (mean since the last record), held_out_nll.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> X, y = load_digits(return_X_y=True)
    >>> known, new = y < 6, y >= 6
    >>> model = FewShotAttention(n_episodes=40, random_state=0).fit(X[known], y[known])
    >>> support = np.flatnonzero(new)[:20]
    >>> model.predict_proba(X[-3:], X[support], y[support]).shape
    (3, 4)
    """

    def __init__(
        self,
        n_way: int = 5,
        n_shot: int = 5,
        n_query: int = 15,
        *,
        n_episodes: int = 600,
        metric: Literal["auto", "identity", "learned"] = "auto",
        num_heads: int = 4,
        random_state: Any = None,
    ) -> None:
        self.n_way = n_way
        self.n_shot = n_shot
        self.n_query = n_query
        self.n_episodes = n_episodes
        self.metric = metric
        self.num_heads = num_heads
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> Self:
        """Learn from episodes of these classes.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
            Finite numbers: features or ready embeddings.
        y : array-like of shape (n,)
            At least 2 classes; each with `n_shot` + `n_query` rows.

        Returns
        -------
        self : FewShotAttention
        """
        X, y = check_X_y(X, y, dtype=np.float64)
        if self.metric not in ("auto", "identity", "learned"):
            raise ValueError(
                f'metric={self.metric!r} is not known. Use "auto", "identity" or "learned".'
            )
        if self.n_episodes < 1:
            raise ValueError(f"n_episodes={self.n_episodes} must be at least 1.")
        self.classes_, self.n_features_in_ = np.unique(y), X.shape[1]
        self.mean_ = X.mean(0)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self.scale_, power, self.unit_length_ = self._choose_scale(X, y, seed)
        self.history_: list[dict[str, Any]] = []
        rows = self._rows(X)
        metric, steps = self._choose(rows, y, seed)
        self.choice_ |= {"scale_power": power, "unit_length": self.unit_length_}
        self.network_ = self._train(rows, y, self.classes_, metric == "learned", steps, seed)[0]
        return self

    def _choose_scale(
        self, X: np.ndarray, y: np.ndarray, seed: int
    ) -> tuple[np.ndarray, float, bool]:
        """Divide columns by a power of their spread, and rows by their length or not.

        The choice under which class means, which nothing is trained for, are most often right.
        """
        spread, found = X.std(0), {}
        typical = float(np.sqrt((spread**2).mean())) + 1e-12
        episodes = list(self._episodes(y, self.classes_, _JUDGED, seed + 2))
        for power in _POWERS:
            # A floor for near-constant columns: one that never moved here may move elsewhere.
            scale = np.maximum(spread, 0.1 * typical) ** power * typical ** (1 - power)
            for unit in (False, True):
                rows = _at_unit_length((X - self.mean_) / scale, unit)
                hits = [_means_accuracy(rows, episode) for episode in episodes]
                found[power, unit] = (float(np.mean(hits)), scale)
        best = max(found, key=lambda choice: found[choice][0])
        return found[best][1], *best

    def _choose(self, rows: Tensor, y: np.ndarray, seed: int) -> tuple[str, int]:
        """Metric and number of episodes that do best on classes kept out."""
        order = np.random.default_rng(seed).permutation(len(self.classes_))
        n_out = len(order) // 3
        if n_out < 2:
            metric: str = "identity" if self.metric == "auto" else self.metric
            self.choice_ = {"metric": metric, "episodes": self.n_episodes}
            return metric, self.n_episodes
        kept_out, learned_from = self.classes_[order[:n_out]], self.classes_[order[n_out:]]
        tried: tuple[str, ...] = (
            ("identity", "learned") if self.metric == "auto" else (self.metric,)
        )
        found: dict[str, tuple[float, int]] = {}
        for name in tried:
            judged = (name, kept_out)
            learn = name == "learned"
            _, scores = self._train(rows, y, learned_from, learn, self.n_episodes, seed, judged)
            steps = min(scores, key=scores.__getitem__)
            found[name] = (scores[steps], steps)
        best = min(found, key=lambda metric: found[metric][0])
        steps = found[best][1]
        self.choice_ = {
            "metric": best,
            "episodes": steps,
            "held_out_nll": {metric: score for metric, (score, _) in found.items()},
        }
        return best, max(steps, 1)

    def _train(
        self,
        rows: Tensor,
        y: np.ndarray,
        classes: np.ndarray,
        learn_metric: bool,
        n_episodes: int,
        seed: int,
        judged: tuple[str, np.ndarray] | None = None,
    ) -> tuple[EpisodeAttention, dict[int, float]]:
        """Play episodes of some classes; with others for evaluation, their NLL on the way."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network = EpisodeAttention(
                rows.shape[1], learn_metric=learn_metric, num_heads=self.num_heads
            )
        stage = "all classes" if judged is None else f"{judged[0]}, classes kept out"
        scores, losses = dict[int, float](), list[float]()
        episodes = self._episodes(y, classes, n_episodes, seed)

        every = max(1, n_episodes // _CHECKS)

        def evaluate(step: int) -> dict[str, float]:
            if judged is None or (step % every and step != n_episodes):
                return {}
            return {"nll": self._judge(network, rows, y, judged[1], seed)}

        def note(record: dict[str, Any]) -> None:
            step, nll = record["epoch"], record["evaluation"].get("nll")
            losses.append(record["train"]["loss"])
            if step % every and step != n_episodes:
                return
            if nll is not None:
                scores[step] = nll
            known = {"stage": stage, "episode": step, "loss": float(np.mean(losses))}
            self.history_.append(known | {"held_out_nll": nll})
            losses.clear()

        config = EngineConfig(epochs=n_episodes)
        objective = _EpisodeObjective(network, rows, episodes, evaluate)
        train_epochs(objective, config, seed=seed, progress=note)
        return network.eval(), scores

    def _episodes(
        self, y: np.ndarray, classes: np.ndarray, n: int, seed: int
    ) -> Sequence[Episode] | Any:
        sizes = {"n_way": min(self.n_way, len(classes)), "n_shot": self.n_shot}
        return draw_episodes(y, n, n_query=self.n_query, classes=list(classes), seed=seed, **sizes)

    def _judge(
        self, network: EpisodeAttention, rows: Tensor, y: np.ndarray, classes: Any, seed: int
    ) -> float:
        with torch.no_grad():
            losses = [
                float(_loss(network, rows, episode, alone=0.0))
                for episode in self._episodes(y, classes, _JUDGED, seed + 1)
            ]
        return float(np.mean(losses))

    def _rows(self, X: np.ndarray) -> Tensor:
        return torch.from_numpy(self.transform(X).astype(np.float32))

    def transform(self, X: Any) -> np.ndarray:
        """Scale rows for the attention, before the learned metric.

        Parameters
        ----------
        X : array-like of shape (n, n_features)

        Returns
        -------
        rows : float64 ndarray of shape (n, n_features)
        """
        scaled = (np.asarray(X, dtype=np.float64) - self.mean_) / self.scale_
        return _at_unit_length(scaled, self.unit_length_)

    def predict_proba(self, X: Any, support_X: Any, support_y: Any) -> np.ndarray:
        """Probabilities of the classes of a support set.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
            Rows to name.
        support_X : array-like of shape (n_support, n_features)
        support_y : array-like of shape (n_support,)
            At least 2 classes, each with at least 1 row.

        Returns
        -------
        proba : ndarray of shape (n, n_classes)
            In the order of the sorted labels of `support_y`; rows sum to 1.
        """
        check_is_fitted(self)
        X = self._checked(check_array(X, dtype=np.float64))
        support_X, support_y = check_X_y(support_X, support_y, dtype=np.float64)
        classes, codes = np.unique(support_y, return_inverse=True)
        if len(classes) < 2:
            raise ValueError(
                f"The support set holds one class, {classes.tolist()[0]!r}. Give rows of 2 or more."
            )
        with torch.no_grad():
            output = self.network_(
                self._rows(X), self._rows(self._checked(support_X)), torch.from_numpy(codes)
            )
        proba: np.ndarray = torch.softmax(output.log_proba.double(), dim=1).numpy()
        return proba

    def _checked(self, X: np.ndarray) -> np.ndarray:
        if X.shape[1] != self.n_features_in_:
            raise ValueError(
                f"X has {X.shape[1]} features, but FewShotAttention is expecting "
                f"{self.n_features_in_} features as input."
            )
        return X

    def predict(self, X: Any, support_X: Any, support_y: Any) -> np.ndarray:
        """Most probable classes of a support set, (n,); arguments as in `predict_proba`."""
        best = self.predict_proba(X, support_X, support_y).argmax(axis=1)
        named: np.ndarray = np.unique(np.asarray(support_y))[best]
        return named

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the fitted model to a folder, in one step."""
        check_is_fitted(self)
        tensors = {f"network/{k}": v for k, v in self.network_.state_dict().items()}
        tensors |= {"mean": torch.from_numpy(self.mean_), "scale": torch.from_numpy(self.scale_)}
        params = self.get_params() | {"random_state": None}
        meta = {
            "params": params,
            "network": self.network_.config,
            "classes": self.classes_.tolist(),
            "choice": self.choice_,
            "unit_length": self.unit_length_,
            "history": self.history_,
        }
        write_folder(Path(folder), kind=_KIND, format_version=_VERSION, tensors=tensors, meta=meta)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> "FewShotAttention":
        """Read what `save` wrote; it predicts bit for bit the same."""
        content = read_folder(Path(folder), kind=_KIND, newest_version=_VERSION)
        meta, tensors = content.meta, content.tensors
        model = cls(**meta["params"])
        model.classes_ = np.array(meta["classes"])
        model.choice_, model.history_ = meta["choice"], meta["history"]
        model.mean_, model.scale_ = tensors["mean"].numpy(), tensors["scale"].numpy()
        model.n_features_in_, model.unit_length_ = len(model.mean_), meta["unit_length"]
        network = EpisodeAttention(**meta["network"])
        state = {k.removeprefix("network/"): v for k, v in tensors.items() if "network/" in k}
        network.head.prior = state["head.prior"]
        network.load_state_dict(state)
        model.network_ = network.eval()
        return model


class _EpisodeObjective(BatchLoss):
    """NLL of one episode per epoch."""

    last_rate = 0.02

    def __init__(
        self,
        network: EpisodeAttention,
        rows: Tensor,
        episodes: Iterable[Episode],
        evaluate: Callable[[int], dict[str, float]],
    ) -> None:
        super().__init__(
            network, lambda episode, *_: {"loss": _loss(network, rows, episode)}, 1, evaluate
        )
        self._network, self._episodes = network, iter(episodes)

    def batches(self, *_: Any) -> list[Episode]:
        """Give the next episode."""
        return [next(self._episodes)]

    def make_optimizer(self, config: EngineConfig) -> torch.optim.Optimizer:
        """AdamW with rates of their own for gates, metric and head."""
        network = self._network
        gates = [network.log_scale, network.head.base_gate, network.head.space_gate]
        metric = [] if network.metric is None else list(network.metric.parameters())
        apart = {id(p) for p in (*gates, *metric)}
        rest = [p for p in network.parameters() if id(p) not in apart]
        groups = [("gates", gates, 0.0), ("metric", metric, 0.0), ("head", rest, 1e-3)]
        return torch.optim.AdamW(
            [
                {"params": found, "lr": _RATES[name], "weight_decay": decay}
                for name, found, decay in groups
                if found
            ]
        )


def _at_unit_length(rows: np.ndarray, wanted: bool) -> np.ndarray:
    """Rows divided by their length, if that is set."""
    if not wanted:
        return rows
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    unit: np.ndarray = rows / np.maximum(length, 1e-12)
    return unit


def _means_accuracy(rows: np.ndarray, episode: Episode) -> float:
    """Share of an episode's queries whose nearest class mean is right."""
    support, query = rows[episode.support], rows[episode.query]
    means = np.stack([support[episode.support_labels == c].mean(0) for c in range(len(episode[4]))])
    nearest = ((query[:, None] - means[None]) ** 2).sum(2).argmin(1)
    return float((nearest == episode.query_labels).mean())


def _loss(
    network: EpisodeAttention, rows: Tensor, episode: Episode, *, alone: float = 0.5
) -> Tensor:
    """Mean NLL of an episode's queries; the neighbors alone count too, by `alone`."""
    query, support = (torch.from_numpy(part) for part in (episode.query, episode.support))
    truth = torch.from_numpy(episode.query_labels)
    output = network(rows[query], rows[support], torch.from_numpy(episode.support_labels))
    loss = F.nll_loss(output.log_proba, truth)
    return loss + alone * F.nll_loss(output.neighbor_log_proba, truth) if alone else loss
