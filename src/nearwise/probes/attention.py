"""AttentionProbe: the library's neighbor attention on frozen features."""

from typing import Any, NamedTuple, Self, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from nearwise.functional.devices import choose_device
from nearwise.memory import IndexName
from nearwise.nn import HeadOutput, NeighborHead
from nearwise.probes.base import Probe, Rows, Validation, joined
from nearwise.probes.key_space import (
    METRICS,
    Keys,
    KeySpace,
    LearnedMap,
    ProbeMetric,
    make_probe_index,
)
from nearwise.training import HeadConfig, HeadRows, train_head

_LEARNED = ("choice_", "map_", "spaces_", "heads_", "n_parameters_")
_HEAD_ROWS = 8192  # training rows that a head of the plain features learns from


class Attention(NamedTuple):
    """Neighbors of a query in one key space, with their weights.

    `positions` of training rows and `weights` are (n, n_neighbors), nearest first; with the weights
    of the other spaces and `null` (n,), the share of the class shares, they sum to 1.
    """

    positions: NDArray[np.int64]
    weights: NDArray[np.float64]
    null: NDArray[np.float64]


class AttentionProbe(Probe):
    """Classify features by learned attention over their nearest training features.

    A `NeighborHead` weighs the neighbors by distance, rank, agreement and reliability beside a
    null neighbor. It starts as distance weighting and is stopped where the NLL of rows that do not
    vote is lowest. Neighbors are sought among the features as they are, and in a linear map of
    them that is learned by the leave-one-out vote.

    Parameters
    ----------
    n_neighbors : int, default=32
        In each key space.
    keys : {"auto", "features", "learned", "both"}, default="auto"
        Where neighbors are sought. "features" learns weights for the neighbors that plain
        k-NN asks, and nothing else; "auto" takes it or "both", by the lower held-out NLL.
    metric : {"cosine", "l2"}, default="cosine"
        Of the plain features.
    num_heads : int, default=4
    key_dim : int, default=128
        Width of the learned keys.
    epochs : int, optional
        Most epochs of the learned map; default 40, or 15 above 10,000 rows.
    validation_fraction : float, default=0.15
        Share of the rows held out where no validation rows are given; they join the memory after.
    index : str, default="auto"
    device : str, default="cpu"
    random_state : int, RandomState or None, default=None

    Attributes
    ----------
    classes_, n_features_in_
        As for every probe.
    choice_ : dict
        For each head the held-out NLL before training ("start_nll": distance weighting) and after
        ("nll"); the keys taken, the NLL of each tried, and the epochs of the learned map.
    n_parameters_ : int
        Of heads and map.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> AttentionProbe(8, keys="features", random_state=0).fit(X, y).predict(X[:2]).tolist()
    [0, 0]
    """

    can_refit = True

    def __init__(
        self,
        n_neighbors: int = 32,
        *,
        keys: Keys = "auto",
        metric: ProbeMetric = "cosine",
        num_heads: int = 4,
        key_dim: int = 128,
        epochs: int | None = None,
        validation_fraction: float = 0.15,
        index: IndexName = "auto",
        device: str = "cpu",
        random_state: Any = None,
    ) -> None:
        self.n_neighbors = n_neighbors
        self.keys = keys
        self.metric = metric
        self.num_heads = num_heads
        self.key_dim = key_dim
        self.epochs = epochs
        self.validation_fraction = validation_fraction
        self.index = index
        self.device = device
        self.random_state = random_state

    def fit(
        self, X: Any, y: Any, validation: Validation | None = None, *, refit: bool = False
    ) -> Self:
        """Remember rows and learn the weights of neighbors.

        Parameters
        ----------
        X : array of shape (n, D)
        y : array of shape (n,)
        validation : (array (m, D), array (m,)), optional
            Rows that heads are fitted and stopped on; they do not vote.
        refit : bool, default=False
            Whether they join the memory, once heads are fitted.

        Raises
        ------
        ValueError
            If rows, labels or settings do not fit.
        """
        self._check_settings()
        rows, seed = self._training_rows(X, y), self._seed()
        fitted, valid = self._divided(rows, validation, seed)
        device = choose_device(self.device)
        shares = np.bincount(fitted.codes, minlength=len(self.classes_)) / len(fitted.codes)
        self._prior = torch.from_numpy(shares).float().to(device)
        best: dict[str, Any] = {}
        nll: dict[str, float] = {}
        for keys in ("features", "both") if self.keys == "auto" else (self.keys,):
            self._fit_keys(keys, fitted, valid, seed, device)
            nll[keys] = float(np.mean([head["nll"] for head in self.choice_["heads"]]))
            if nll[keys] == min(nll.values()):
                best = {name: getattr(self, name) for name in _LEARNED}
        self.__dict__.update(best)
        self.choice_["nll"] = nll
        if fitted is not rows:
            self.spaces_ = self._remember(rows, device)
        elif refit:
            self.spaces_ = self._remember(joined(rows, valid), device)
        return self

    def _fit_keys(
        self, keys: Keys, fitted: Rows, valid: Rows, seed: int, device: torch.device
    ) -> None:
        """Learn with neighbors sought in these spaces."""
        self.choice_: dict[str, Any] = {"keys": keys}
        self.map_: LearnedMap | None = None
        if keys != "features":
            self.map_ = LearnedMap(self.key_dim, self.epochs)
            n_classes = len(self.classes_)
            result = self.map_.fit(fitted, valid, n_classes, seed=seed, device=device)
            self.choice_["map_epochs"] = result.best_epoch
        self.spaces_ = self._remember(fitted, device)
        self.heads_ = self._fit_heads(valid, seed, device)

    def _check_settings(self) -> None:
        if self.keys not in get_args(Keys):
            raise ValueError(f"keys={self.keys!r} is none of {', '.join(get_args(Keys))}.")
        if self.metric not in METRICS:
            raise ValueError(f"metric={self.metric!r} is none of {', '.join(METRICS)}.")
        if self.n_neighbors < 1 or self.key_dim < 1:
            raise ValueError(
                f"n_neighbors={self.n_neighbors} and key_dim={self.key_dim} must be at least 1."
            )

    def _remember(self, rows: Rows, device: torch.device) -> list[KeySpace]:
        codes = torch.from_numpy(rows.codes).to(device)
        spaces = []
        for metric, keys in zip(self._metrics(), self._keys_of(rows.X, device), strict=True):
            index = make_probe_index(keys, metric, self.index, self.device)
            spaces.append(KeySpace(index, keys, codes, self.n_neighbors))
        return spaces

    def _metrics(self) -> list[ProbeMetric]:
        own: list[ProbeMetric] = [] if self.choice_["keys"] == "learned" else [self.metric]
        return own if self.map_ is None else [*own, "cosine"]

    def _keys_of(self, X: NDArray[np.float32], device: torch.device) -> list[Tensor]:
        plain = [] if self.choice_["keys"] == "learned" else [torch.from_numpy(X).to(device)]
        return plain if self.map_ is None else [*plain, self.map_(X, device)]

    def _fit_heads(self, valid: Rows, seed: int, device: torch.device) -> list[NeighborHead]:
        """Heads stopped on the validation rows.

        Features know no label, so one head learns from remembered rows, each left out of its own
        neighbors. The learned map has seen those rows' labels: two heads learn from a half of the
        validation rows each and are stopped on the other.
        """
        valid_rows = self._rows_for_head(self._keys_of(valid.X, device), valid.codes)
        if self.map_ is None:
            generator = torch.Generator().manual_seed(seed)
            n = len(self.spaces_[0].keys)
            some = torch.randperm(n, generator=generator)[:_HEAD_ROWS].to(device)
            pairs = [(self._rows_for_head(None, self.spaces_[0].codes[some], some), valid_rows)]
        else:
            order = torch.randperm(len(valid.codes), generator=torch.Generator().manual_seed(seed))
            first, second = (half.to(device) for half in order.tensor_split(2))
            pairs = [
                (valid_rows.take(first), valid_rows.take(second)),
                (valid_rows.take(second), valid_rows.take(first)),
            ]
        heads, records = [], []
        for member, (train, stop) in enumerate(pairs):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed + member)
                head = NeighborHead(
                    len(self.spaces_),
                    self._prior.clamp_min(1e-6),
                    has_base=False,
                    num_heads=self.num_heads,
                    temperature=True,
                ).to(device)
            history = train_head(
                head, train, stop, HeadConfig.model_validate({}), seed=seed + member
            )
            best = min(record["held_out_nll"] for record in history)
            records.append({"start_nll": history[0]["held_out_nll"], "nll": best})
            heads.append(head)
        self.choice_["heads"] = records
        counted = [*heads, *([] if self.map_ is None else [self.map_.network])]
        self.n_parameters_ = sum(p.numel() for module in counted for p in module.parameters())
        return heads

    def _rows_for_head(
        self, keys: list[Tensor] | None, codes: Any, rows: Tensor | None = None
    ) -> HeadRows:
        """Describe to a head what queries see: by keys in each space, or as remembered rows."""
        labels = torch.as_tensor(codes, device=self._prior.device)
        prior = self._prior.clamp_min(1e-6)
        seen = []
        for i, space in enumerate(self.spaces_):
            found = space.search(None if keys is None else keys[i], rows)
            seen.append(space.see(found, prior, rows))
        base = prior.log().expand(len(labels), -1)
        return HeadRows(seen, base, labels, torch.ones(len(labels), device=labels.device))

    def _outputs(self, X: Any) -> tuple[list[HeadOutput], list[Tensor]]:
        """Ask each head about rows; return their neighbors in each space, too."""
        check_is_fitted(self)
        device, prior = self._prior.device, self._prior.clamp_min(1e-6)
        rows = torch.arange(len(self.spaces_[0].keys), device=device) if X is None else None
        keys = None if X is None else self._keys_of(self._query(X), device)
        seen, positions = [], []
        for i, space in enumerate(self.spaces_):
            found = space.search(None if keys is None else keys[i], rows)
            seen.append(space.see(found, prior, rows))
            positions.append(found.indices)
        base = prior.log().expand(len(seen[0].labels), -1)
        return [head.predict(seen, base) for head in self.heads_], positions

    def predict_proba(self, X: Any = None) -> NDArray[np.float64]:
        """Class probabilities, (n, n_classes).

        Parameters
        ----------
        X : array of shape (n, D), optional
            None: the training rows, each without itself. A learned map has been trained with their
            labels, a head of the plain features too; for an honest measure take other rows.
        """
        outputs, _ = self._outputs(X)
        proba = torch.stack([output.log_proba.double().exp() for output in outputs]).mean(0)
        mean: NDArray[np.float64] = (proba / proba.sum(1, keepdim=True)).cpu().numpy()
        return mean

    def attend(self, X: Any = None) -> dict[str, Attention]:
        """Neighbors of each row and their weights, for each key space by name.

        Parameters
        ----------
        X : array of shape (n, D), optional
            None: the training rows, each without itself.
        """
        outputs, positions = self._outputs(X)
        names = {"both": ("features", "learned")}.get(used := self.choice_["keys"], (used,))
        null = torch.stack([output.null_mass for output in outputs]).mean(0).double()
        attentions = {}
        for i, name in enumerate(names):
            weights = torch.stack([output.weights[i] for output in outputs]).mean(0).double()
            parts = (positions[i], weights, null)
            attentions[name] = Attention(*(part.cpu().numpy() for part in parts))
        return attentions
