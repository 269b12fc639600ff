"""TransformerProbe and MLPProbe: small networks trained on frozen features."""

import copy
from abc import abstractmethod
from typing import Any, Literal, Self

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from nearwise.functional.devices import choose_device
from nearwise.probes.base import Probe, Rows, Validation, channel_scale
from nearwise.training import BatchLoss, EngineConfig, train_epochs

TokenPooling = Literal["mean", "attention"]
_DROPOUT = 0.1
_CHUNK = 1024


class Standardized(nn.Module):
    """Layer that standardises channels by mean and deviation of features (n, ..., width)."""

    mean: Tensor
    scale: Tensor

    def __init__(self, X: NDArray[Any]) -> None:
        super().__init__()
        axes: tuple[int, ...] = tuple(range(X.ndim - 1))
        mean = X.mean(axis=axes, dtype=np.float64)
        square = np.zeros_like(mean)
        for start in range(0, len(X), _CHUNK):
            square += ((X[start : start + _CHUNK] - mean) ** 2).sum(axis=axes)
        scale = channel_scale(np.sqrt(square / (X.size // X.shape[-1])), mean)
        self.register_buffer("mean", torch.from_numpy(mean).float())
        self.register_buffer("scale", torch.from_numpy(scale).float())

    def forward(self, x: Tensor) -> Tensor:
        """Standardise features, in the precision of the network."""
        return (x.to(self.mean.dtype) - self.mean) / self.scale


class TokenTransformer(nn.Module):
    """Standardised tokens, linear map, transformer layers (0: none), pooling, linear head.

    Each of `num_tokens` tokens has a learned position; None means no positions. With "attention"
    pooling one learned query attends over the tokens.
    """

    def __init__(
        self,
        X: NDArray[Any],
        n_classes: int,
        *,
        d_model: int,
        num_layers: int,
        num_heads: int,
        num_tokens: int | None,
        pooling: TokenPooling,
    ) -> None:
        super().__init__()
        self.standardized = Standardized(X)
        self.embed = nn.Linear(X.shape[2], d_model)
        self.position: nn.Parameter | None = None
        if num_tokens is not None:
            self.position = nn.Parameter(torch.empty(num_tokens, d_model))
            nn.init.trunc_normal_(self.position, std=0.02)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                d_model,
                num_heads,
                dim_feedforward=2 * d_model,
                dropout=_DROPOUT,
                activation="gelu",
                batch_first=True,
                norm_first=True,
            )
            for _ in range(num_layers)
        )
        self.query: nn.Parameter | None = None
        if pooling == "attention":
            self.query = nn.Parameter(torch.empty(1, 1, d_model))
            nn.init.trunc_normal_(self.query, std=0.02)
            self.attend = nn.MultiheadAttention(d_model, num_heads, batch_first=True)
            self.norm = nn.LayerNorm(d_model)
        self.head = nn.Linear(d_model, n_classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits (B, n_classes) of tokens (B, L, token_dim)."""
        x = self.embed(self.standardized(tokens))
        if self.position is not None:
            x = x + self.position
        for layer in self.layers:
            x = layer(x)
        if self.query is None:
            pooled = x.mean(dim=1)
        else:
            x = self.norm(x)
            query = self.query.expand(len(x), -1, -1)
            pooled = self.attend(query, x, x, need_weights=False)[0][:, 0]
        logits: Tensor = self.head(pooled)
        return logits


RATES = (1e-3, 3e-3)


class NetworkProbe(Probe):
    """Base of network probes: training with early stopping by the NLL of validation rows."""

    epochs: int
    batch_size: int
    lr: float | Literal["val"]
    weight_decay: float
    device: str
    random_state: Any

    @abstractmethod
    def _build(self, X: NDArray[Any], n_classes: int) -> nn.Module:
        """Make the network for rows such as `X`, with initial weights from torch's random state."""

    @torch.inference_mode(False)
    def fit(self, X: Any, y: Any, validation: Validation | None = None) -> Self:
        """Train the network on X, (n, D), or (n, L, D) for a probe of tokens.

        Rate and epoch are chosen by the NLL of `validation`, (X, y), or of a held-out share of the
        rows. Raises ValueError if rows, labels or settings do not fit.
        """
        rows, seed = self._training_rows(X, y), self._seed()
        fitted, valid = self._divided(rows, validation, seed)
        device = choose_device(self.device)
        tried: dict[float, float] = {}
        for lr in self._rates():
            network, history = self._train(fitted, valid, lr, seed, device)
            nlls = [record["evaluation"]["nll"] for record in history]
            tried[lr] = min(nlls)
            if tried[lr] <= min(tried.values()):
                self.network_, self.history_ = network, history
                self.choice_: dict[str, Any] = {
                    "lr": lr, "epoch": 1 + int(np.argmin(nlls)), "nll": tried[lr]
                }  # fmt: skip
        self.choice_["tried"] = list(tried.items())
        self.n_parameters_ = sum(p.numel() for p in self.network_.parameters())
        return self

    def _rates(self) -> tuple[float, ...]:
        if self.lr == "val":
            return RATES
        if isinstance(self.lr, str) or not self.lr > 0:
            raise ValueError(f'lr={self.lr!r} is neither positive nor "val".')
        return (self.lr,)

    def _train(
        self, fitted: Rows, valid: Rows, lr: float, seed: int, device: torch.device
    ) -> tuple[nn.Module, list[dict[str, Any]]]:
        """Train a network at a learning rate; it has the weights of its best epoch."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network = self._build(fitted.X, len(self.classes_))
        network = network.to(device)
        X, codes = (torch.from_numpy(part).to(device) for part in fitted)
        truth = torch.from_numpy(valid.codes).to(device)

        def batch_loss(rows: Tensor, generator: torch.Generator, step: int) -> dict[str, Tensor]:
            at = rows.to(device)
            return {"loss": F.cross_entropy(network(X[at]).float(), codes[at])}

        def evaluate(epoch: int) -> dict[str, float]:
            return {"nll": float(F.nll_loss(_log_proba(network, valid.X), truth))}

        config = EngineConfig.model_validate(
            {
                "epochs": self.epochs,
                "batch_size": self.batch_size,
                "lr": lr,
                "weight_decay": self.weight_decay,
                "warmup_epochs": 0.05 * self.epochs,
                "precision": "bfloat16" if device.type == "cuda" else "float32",
            }
        )
        objective = BatchLoss(network, batch_loss, len(codes), evaluate)
        result = train_epochs(objective, config, seed=seed, device=device, monitor="nll")
        return network, result.history

    def predict_proba(self, X: Any = None) -> NDArray[np.float64]:
        """Return class probabilities, (n, n_classes); X as for `fit`."""
        X, network = self._query(X), self.network_
        if next(network.parameters()).device.type == "cpu":
            # in float32 the last digits of a row depend on the number of rows
            network = copy.deepcopy(network).double()
        proba: NDArray[np.float64] = _log_proba(network, X).double().exp().cpu().numpy()
        normalized: NDArray[np.float64] = proba / proba.sum(axis=1, keepdims=True)
        return normalized


class TransformerProbe(NetworkProbe):
    """A small transformer over the tokens of frozen features.

    Features are (n, L, D), or (n, D) for one token per row: then there is no attention between
    tokens, and `MLPProbe` answers the same question at less cost.

    Parameters
    ----------
    d_model : int, default=256
    num_layers : int, default=2
        Number of layers; 0 with ``pooling="attention"`` is only attentive pooling.
    num_heads : int, default=4
        Number of heads; must divide `d_model`.
    pooling : {"mean", "attention"}, default="mean"
    positions : bool, default=True
        Whether to learn a position for each token. Use False for tokens without order, such as
        points of random contexts.
    epochs : int, default=30
        Number of epochs; the one with the lowest NLL on validation rows is kept.
    batch_size : int, default=128
    lr : float or "val", default="val"
        Learning rate of AdamW, with warm-up and cosine schedule. "val" trains at 1e-3 and at 3e-3,
        and keeps the network with the lower NLL on the validation rows.
    weight_decay : float, default=0.05
    validation_fraction : float, default=0.1
        Share of the rows held out if no validation rows are given; at least as many rows as
        classes.
    device : str, default="cpu"
        Device of the network; on a GPU it computes in bfloat16.
    random_state : int, RandomState or None, default=None

    Attributes
    ----------
    classes_, n_features_in_, choice_
        As for every probe. `n_features_in_` is the number of tokens of (n, L, D), or the width D
        of (n, D). `choice_` holds the kept rate and epoch, and the NLL of each rate.
    network_ : nn.Module
    history_ : list of dict
        One record per epoch.
    n_parameters_ : int

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> tokens = rng.normal(size=(40, 6, 3)).astype(np.float32)
    >>> y = (tokens.mean((1, 2)) > 0).astype(int)
    >>> probe = TransformerProbe(16, num_layers=1, epochs=2, random_state=0).fit(tokens, y)
    >>> probe.predict_proba(tokens[:1]).shape
    (1, 2)
    """

    reads_tokens = True

    def __init__(
        self,
        d_model: int = 256,
        num_layers: int = 2,
        num_heads: int = 4,
        *,
        pooling: TokenPooling = "mean",
        positions: bool = True,
        epochs: int = 30,
        batch_size: int = 128,
        lr: float | Literal["val"] = "val",
        weight_decay: float = 0.05,
        validation_fraction: float = 0.1,
        device: str = "cpu",
        random_state: Any = None,
    ) -> None:
        self.d_model = d_model
        self.num_layers = num_layers
        self.num_heads = num_heads
        self.pooling = pooling
        self.positions = positions
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.weight_decay = weight_decay
        self.validation_fraction = validation_fraction
        self.device = device
        self.random_state = random_state

    def _build(self, X: NDArray[Any], n_classes: int) -> nn.Module:
        if self.d_model % self.num_heads or self.num_layers < 0:
            raise ValueError(
                f"num_heads={self.num_heads} must divide d_model={self.d_model}, and "
                f"num_layers={self.num_layers} must not be negative."
            )
        if self.pooling not in ("mean", "attention"):
            raise ValueError(f'pooling={self.pooling!r} is neither "mean" nor "attention".')
        return TokenTransformer(
            X,
            n_classes,
            d_model=self.d_model,
            num_layers=self.num_layers,
            num_heads=self.num_heads,
            num_tokens=X.shape[1] if self.positions else None,
            pooling=self.pooling,
        )

    def _checked(self, X: Any, y: Any = None, *, reset: bool = False) -> Any:
        checked = super()._checked(X, y, reset=reset)
        shape = (checked if y is None else checked[0]).shape[1:]
        if reset:
            self._token_shape = shape
        elif shape != self._token_shape:
            seen, fitted = (
                f"{n} tokens of width {width}" for n, width in (shape, self._token_shape)
            )
            raise ValueError(f"Rows of X have {seen}; {fitted} were fitted on.")
        return checked


class MLPProbe(NetworkProbe):
    """A network of one hidden layer on frozen feature vectors.

    Parameters
    ----------
    hidden : int, default=512
    epochs, batch_size, lr, weight_decay, validation_fraction, device, random_state
        As for `TransformerProbe`.

    Attributes
    ----------
    classes_, n_features_in_, choice_, network_, history_, n_parameters_
        As for `TransformerProbe`.
    """

    def __init__(
        self,
        hidden: int = 512,
        *,
        epochs: int = 30,
        batch_size: int = 128,
        lr: float | Literal["val"] = "val",
        weight_decay: float = 0.05,
        validation_fraction: float = 0.1,
        device: str = "cpu",
        random_state: Any = None,
    ) -> None:
        self.hidden = hidden
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.weight_decay = weight_decay
        self.validation_fraction = validation_fraction
        self.device = device
        self.random_state = random_state

    def _build(self, X: NDArray[Any], n_classes: int) -> nn.Module:
        return nn.Sequential(
            Standardized(X),
            nn.Linear(X.shape[1], self.hidden),
            nn.GELU(),
            nn.Dropout(2 * _DROPOUT),
            nn.Linear(self.hidden, n_classes),
        )


def _log_proba(network: nn.Module, X: NDArray[Any]) -> Tensor:
    """Return log-probabilities (n, n_classes) in eval mode, on the network's device."""
    device = next(network.parameters()).device
    network.eval()
    with torch.no_grad():
        parts = [
            torch.log_softmax(network(part.to(device)), dim=1)
            for part in torch.from_numpy(X).split(_CHUNK)
        ]
    return torch.cat(parts)
