"""The methods that are compared: one name, one factory, one documented default each."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal, get_args

from sklearn.base import BaseEstimator
from sklearn.ensemble import RandomForestClassifier
from sklearn.pipeline import Pipeline, make_pipeline

from nearwise.conditions import available_threads, require_extra
from nearwise.data.dataset import Kind
from nearwise.names import did_you_mean
from nearwise_lab.experiments.boosting import Library, SearchedBoosting, StoppedBoosting
from nearwise_lab.experiments.linear import TunedLogistic
from nearwise_lab.experiments.neighbors import PlainKNN, TunedKNN
from nearwise_lab.experiments.network import StoppedMLP
from nearwise_lab.experiments.peers.bag import TemperedBag
from nearwise_lab.experiments.peers.foundation import (
    CLASSES,
    Checkpoint,
    FoundationModel,
    PretrainedClassifier,
)
from nearwise_lab.experiments.peers.networks import Network, TabularNetwork
from nearwise_lab.experiments.peers.without_neighbors import BaseAlone, stack
from nearwise_lab.experiments.preprocess import CompleteEncoder, FeatureEncoder, NativeEncoder

Family = Literal["neighbors", "linear", "trees", "boosting", "network", "ensemble", "attention"]


@dataclass(frozen=True)
class MethodContext:
    """Information that a method's factory gets before the data.

    `seed` is of everything random, `n_train` and `n_classes` are the sizes of the training part,
    `n_threads` those the method may use, `weights` of a foundation model. Embeddings share one
    unit: where `kind` is not "table", columns are scaled by one number.
    """

    seed: int
    n_train: int
    n_classes: int
    kind: Kind = "table"
    n_threads: int = 1
    weights: Checkpoint | None = None

    @property
    def units(self) -> Literal["columns", "overall"]:
        """Scaling mode of a `FeatureEncoder`."""
        return "columns" if self.kind == "table" else "overall"

    @property
    def large(self) -> bool:
        """Whether a cross-fit gets fewer folds."""
        return self.n_train > 20_000

    @property
    def of_fit(self) -> dict[str, Any]:
        """Settings that most estimators of this package take."""
        return {"n_threads": self.n_threads, "random_state": self.seed}

    @property
    def forest(self) -> dict[str, Any]:
        """Settings of a forest of scikit-learn."""
        return {"n_estimators": 300, "n_jobs": self.n_threads, "random_state": self.seed}


@dataclass(frozen=True)
class Method:
    """A named way to build a classifier.

    Attributes
    ----------
    name : str
        Name in records, tables and on the command line.
    build : callable
        Takes a `MethodContext`, returns an unfitted classifier for raw rows.
    family : str
        Groups methods in tables and figures.
    summary : str
        One line for the report: settings and what is tuned, and on what.
    module, extra : str, optional
        Optional package it needs, and the extra that installs it.
    takes_views : bool
        Whether `fit` and `predict_proba` take further views of the rows (`views=`).
    higher : bool
        Whether it is one of the higher peers: tuned, bagged and tempered; minutes on a table of a
        thousand rows, and not run unless it is requested.
    needs_weights : bool
        Whether it is a foundation model, which needs a checkpoint on this machine.
    """

    name: str
    build: Callable[[MethodContext], Any]
    family: Family
    summary: str
    module: str | None = None
    extra: str | None = None
    takes_views: bool = False
    higher: bool = False
    needs_weights: bool = False

    def __call__(
        self, seed: int, n_train: int, n_classes: int = 2, kind: Kind = "table",
        weights: Checkpoint | None = None,
    ) -> BaseEstimator:  # fmt: skip
        """Build the classifier; names the missing extra or package where it is absent."""
        if self.module is not None and self.extra is not None:
            require_extra(f'the method "{self.name}"', self.extra, self.module, of="nearwise-lab")
        if self.needs_weights and weights is None:
            raise ValueError(f"{self.name} {weights_wanted(self.name)}")
        if self.module is not None and find_spec(self.module) is None:
            raise ImportError(
                f'the method "{self.name}" needs the package {self.module}: '
                f"pip install {self.module}"
            )
        context = MethodContext(seed, n_train, n_classes, kind, available_threads(), weights)
        return self.build(context)


def weights_wanted(name: str) -> str:
    """Return a hint how to pass the checkpoint of a foundation model."""
    return (
        f"needs a checkpoint on this machine: --peer-weights {name}=PATH, or "
        f'compare(..., peer_weights={{"{name}": PATH}}).'
    )


def _encoded(build: Callable[[MethodContext], Any], scale: Any = None) -> Callable[..., Any]:
    """Put a `FeatureEncoder` before an estimator, by default with the scale of the data's kind."""
    return lambda c: make_pipeline(FeatureEncoder(scale or c.units), build(c))


def _logistic(c: MethodContext) -> TunedLogistic:
    sizes = (6, 3, 500) if c.large else (11, 5, 2000)
    return TunedLogistic(*sizes, random_state=c.seed)


def _boosting(kind: type[StoppedBoosting], library: Library) -> Callable[[MethodContext], Any]:
    return lambda c: kind(library, 0.05 if c.n_classes == 2 else 0.1, **c.of_fit)


def _mlp(c: MethodContext) -> TemperedBag:
    hidden = (256, 128) if c.kind == "table" else (512, 256)
    return TemperedBag(StoppedMLP(hidden), n_folds=3 if c.large else 5, random_state=c.seed)


def _tempered_forest(c: MethodContext) -> TemperedBag:
    forest = RandomForestClassifier(oob_score=True, **c.forest)
    return TemperedBag(forest, "out-of-bag", stops=False, random_state=c.seed)


def _tabular_network(network: Network) -> Callable[[MethodContext], Pipeline]:
    def build(c: MethodContext) -> Pipeline:
        member = TabularNetwork(network, n_threads=c.n_threads)
        return make_pipeline(CompleteEncoder(), TemperedBag(member, random_state=c.seed))

    return build


def _pretrained(model: FoundationModel) -> Callable[[MethodContext], Pipeline]:
    def build(c: MethodContext) -> Pipeline:
        assert c.weights is not None  # Method.__call__ requires them
        one = PretrainedClassifier(model, c.weights, c.n_threads)
        bag = TemperedBag(one, "folds, refitted", stops=False, n_folds=3, random_state=c.seed)
        return make_pipeline(NativeEncoder("category"), bag)

    return build


def _modern_nca(c: MethodContext) -> Any:
    from nearwise_lab.experiments.modern_nca import ModernNCAClassifier

    rates = (0.01, 0.003) if c.n_train < 5_000 else (0.01,)
    return ModernNCAClassifier(learning_rates=rates, scale=c.units, random_state=c.seed)


def _attention(**settings: Any) -> Callable[[MethodContext], Any]:
    def build(context: MethodContext) -> Any:
        from nearwise.estimators import AttnKNNClassifier

        return AttnKNNClassifier(random_state=context.seed, **settings)

    return build


_STOPPED = (
    "rate 0.05 (0.1 for three or more classes), native categories, rounds stopped on held-out "
    "training rows, refitted on all of them"
)
_PULL = " (pulled towards 1 by two rows)"
_BAG = f"bag of 5 folds, each member stopped on its fold; out-of-fold temperature{_PULL}"
_SEARCHED = (
    "30 trials (the defaults, then random search over the space of TabArena) by the NLL of folds "
    f"left out, on which the rounds are stopped too; then a {_BAG}"
)
_KNN = "Euclidean on standardised columns (embeddings: one scale for all)"
# Name of a method in the table of boosting, the library, and the package that it needs.
_LIBRARIES: tuple[tuple[str, Library, str], ...] = (
    ("hgb", "sklearn", "scikit-learn's HistGradientBoosting"),
    ("lightgbm", "lightgbm", "LightGBM"),
    ("catboost", "catboost", "CatBoost"),
)
# Estimator and settings of the networks of pytabkit.
_NETWORKS: tuple[tuple[Network, str, str], ...] = (
    ("realmlp", "RealMLP-TD of pytabkit, its tuned defaults without label smoothing", "pytabkit"),
    ("tabm", "TabM-D of pytabkit, its defaults (32 in one network), batches as in its paper",
     "pytabkit"),
    ("xrfm", "xRFM-D of pytabkit, its defaults", "xrfm"),
)  # fmt: skip
_ALL = (
    Method(
        "knn-uniform", _encoded(lambda c: PlainKNN(16, "uniform")), "neighbors",
        f"k = 16, 1/k each, {_KNN}",
    ),
    Method(
        "knn-distance", _encoded(lambda c: PlainKNN(16, "distance")), "neighbors",
        f"k = 16, softmax of -distance / 1, {_KNN}",
    ),
    Method(
        "knn-tuned",
        _encoded(lambda c: TunedKNN((1.0,) if c.kind == "table" else (0.0, 0.5, 1.0), c.seed)),
        "neighbors",
        "k in 5..64, weights, smoothing (embeddings: also scaling) by leave-one-out NLL on "
        "the training part",
    ),
    Method(
        "logistic", _encoded(_logistic), "linear",
        "multinomial logistic regression, standardised and one-hot, C by cross-validated NLL",
    ),
    Method(
        "random-forest", _encoded(lambda c: RandomForestClassifier(**c.forest), "none"), "trees",
        "300 trees, scikit-learn's defaults",
    ),
    *(
        Method(
            name, _boosting(StoppedBoosting, library), "boosting", f"{title}, {_STOPPED}",
            *(() if library == "sklearn" else (library, "peers")),
        )
        for name, library, title in _LIBRARIES
    ),
    Method(
        "mlp", _encoded(_mlp), "network",
        "256-128 hidden units (embeddings: 512-256), standardised and one-hot, cross-fitted bag "
        "stopped on held-out NLL, out-of-fold temperature",
    ),
    Method(
        "modern-nca", _modern_nca, "neighbors",
        "ModernNCA: PLR-lite, linear encoder, un-squared distance, half of the candidates a "
        "step, all at inference; stopped on held-out NLL, which also chooses the learning rate "
        "of small tables",
    ),
    Method(
        "random-forest-tempered", _encoded(_tempered_forest, "none"), "trees",
        f"300 trees, scikit-learn's defaults; temperature by out-of-bag NLL{_PULL}", higher=True,
    ),
    *(
        Method(
            f"{name}-tuned", _boosting(SearchedBoosting, library), "boosting",
            f"{title}, {_SEARCHED}", library, "peers", higher=True,
        )
        for name, library, title in _LIBRARIES[1:]
    ),
    *(
        Method(name, _tabular_network(name), "network", f"{what}; {_BAG}", module, "peers-neural",
               higher=True)
        for name, what, module in _NETWORKS
    ),
    Method(
        "stack",
        _encoded(lambda c: stack(3 if c.large else 5, c.n_train, c.n_threads, c.seed)),
        "ensemble",
        "scikit-learn's StackingClassifier of a logistic regression, 300 random and 300 extremely "
        "random trees, HistGradientBoosting and, up to 5,000 rows, a logistic regression on a "
        "kernel map and an MLP; a logistic regression on their out-of-fold probabilities, C by "
        "cross-validated NLL",
        higher=True,
    ),
    Method(
        "base-alone", lambda c: BaseAlone(**c.of_fit), "ensemble",
        "the base of AttnKNNClassifier without neighbors: cross-fitted classifiers in a log-linear "
        f"pool by out-of-fold NLL, mean over the folds; out-of-fold temperature{_PULL}",
        higher=True,
    ),
    *(
        Method(
            name, _pretrained(name), "network",
            f"{CLASSES[name]}, its defaults, with weights of this machine on the CPU; temperature "
            f"out of 3 folds{_PULL}; all rows as context",
            name, needs_weights=True,
        )
        for name in get_args(FoundationModel)
    ),
    *(
        Method(name, _attention(**settings), "attention", summary, takes_views="views" in name)
        for name, settings, summary in (
            ("attention", {},
             "AttnKNNClassifier, defaults: the pretrained head, trained further where that helps, "
             "and a base"),
            ("attention-instant", {"preset": "instant"},
             'AttnKNNClassifier(preset="instant"): one forest and the pretrained head'),
            ("attention-no-base", {"estimator": None},
             "AttnKNNClassifier(estimator=None): the class shares stand in for the base"),
            ("attention-views", {},
             "AttnKNNClassifier with all views of the rows that the data set has, a tenth of the "
             "rows held out once"),
        )
    ),
)  # fmt: skip

METHODS: dict[str, Method] = {method.name: method for method in _ALL}
PEERS: tuple[str, ...] = tuple(
    m.name for m in _ALL if m.family != "attention" and not (m.higher or m.needs_weights)
)
HIGHER_PEERS: tuple[str, ...] = tuple(m.name for m in _ALL if m.higher)
FOUNDATION_MODELS: tuple[str, ...] = tuple(m.name for m in _ALL if m.needs_weights)
GROUPS: dict[str, tuple[str, ...]] = {
    "peers": PEERS,
    "higher-peers": HIGHER_PEERS,
    "foundation-models": FOUNDATION_MODELS,
}


def get_method(method: str | Method) -> Method:
    """Look a method up by name; a wrong name lists the right ones and the nearest guess."""
    if isinstance(method, Method):
        return method
    if method in METHODS:
        return METHODS[method]
    hint = did_you_mean(method, (*METHODS, *GROUPS))
    raise ValueError(
        f"unknown method {method!r}.{hint} Known methods: {', '.join(METHODS)}; groups of them: "
        f"{', '.join(GROUPS)}."
    )


def get_methods(methods: Iterable[str | Method]) -> list[Method]:
    """Look several methods up, duplicates dropped, order kept.

    The name of a group in `GROUPS` means its methods.
    """
    names = [
        name
        for one in methods
        for name in (GROUPS.get(one, (one,)) if isinstance(one, str) else (one,))
    ]
    return list({m.name: m for m in map(get_method, names)}.values())
