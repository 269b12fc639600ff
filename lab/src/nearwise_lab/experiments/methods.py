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
from nearwise_lab.experiments.boosting import StoppedBoosting
from nearwise_lab.experiments.linear import TunedLogistic
from nearwise_lab.experiments.neighbors import PlainKNN, TunedKNN
from nearwise_lab.experiments.network import StoppedMLP
from nearwise_lab.experiments.peers.bag import TemperedBag
from nearwise_lab.experiments.peers.boosting_search import Library, SearchedBoosting
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
    """What a factory may use before it gets the data.

    Attributes
    ----------
    seed : int
        Seed of everything random in the method.
    n_train, n_classes : int
        Size of the training part and number of classes.
    kind : {"table", "embeddings", "images"}
        Embeddings share one unit: they are scaled by one number, not column by column.
    n_threads : int
        Threads the method may use.
    weights : Checkpoint, optional
        Weights of a foundation model on this machine.
    """

    seed: int
    n_train: int
    n_classes: int
    kind: Kind = "table"
    n_threads: int = 1
    weights: Checkpoint | None = None


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
        self,
        seed: int,
        n_train: int,
        n_classes: int = 2,
        kind: Kind = "table",
        weights: Checkpoint | None = None,
    ) -> BaseEstimator:
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
    """Report how the checkpoint of a foundation model is given."""
    return (
        f"needs a checkpoint on this machine: --peer-weights {name}=PATH, or "
        f'compare(..., peer_weights={{"{name}": PATH}}).'
    )


def _units(context: MethodContext) -> Literal["columns", "overall"]:
    return "columns" if context.kind == "table" else "overall"


def _plain_knn(weights: Literal["uniform", "distance"]) -> Callable[[MethodContext], Pipeline]:
    def build(context: MethodContext) -> Pipeline:
        return make_pipeline(FeatureEncoder(_units(context)), PlainKNN(16, weights))

    return build


def _tuned_knn(context: MethodContext) -> Pipeline:
    powers = (1.0,) if context.kind == "table" else (0.0, 0.5, 1.0)
    return make_pipeline(FeatureEncoder(_units(context)), TunedKNN(powers, context.seed))


def _logistic(context: MethodContext) -> Pipeline:
    large = context.n_train > 20_000
    tuned = TunedLogistic(
        n_penalties=6 if large else 11,
        n_folds=3 if large else 5,
        max_iter=500 if large else 2000,
        random_state=context.seed,
    )
    return make_pipeline(FeatureEncoder(_units(context)), tuned)


def _random_forest(context: MethodContext) -> Pipeline:
    forest = RandomForestClassifier(
        n_estimators=300, n_jobs=context.n_threads, random_state=context.seed
    )
    return make_pipeline(FeatureEncoder("none"), forest)


def _boosting(
    library: Literal["sklearn", "lightgbm", "catboost"],
) -> Callable[[MethodContext], Any]:
    def build(context: MethodContext) -> StoppedBoosting:
        return StoppedBoosting(
            library,
            learning_rate=0.05 if context.n_classes == 2 else 0.1,
            n_threads=context.n_threads,
            random_state=context.seed,
        )

    return build


def _mlp(context: MethodContext) -> Pipeline:
    n_folds = 3 if context.n_train > 20_000 else 5
    hidden = (256, 128) if context.kind == "table" else (512, 256)
    bag = TemperedBag(StoppedMLP(hidden), n_folds=n_folds, random_state=context.seed)
    return make_pipeline(FeatureEncoder(_units(context)), bag)


def _tempered_forest(context: MethodContext) -> Pipeline:
    forest = RandomForestClassifier(
        n_estimators=300, oob_score=True, n_jobs=context.n_threads, random_state=context.seed
    )
    bag = TemperedBag(forest, "out-of-bag", stops=False, random_state=context.seed)
    return make_pipeline(FeatureEncoder("none"), bag)


def _searched(library: Library) -> Callable[[MethodContext], SearchedBoosting]:
    def build(context: MethodContext) -> SearchedBoosting:
        return SearchedBoosting(
            library,
            default_rate=0.05 if context.n_classes == 2 else 0.1,
            n_threads=context.n_threads,
            random_state=context.seed,
        )

    return build


def _tabular_network(network: Network) -> Callable[[MethodContext], Pipeline]:
    def build(context: MethodContext) -> Pipeline:
        member = TabularNetwork(network, n_threads=context.n_threads)
        return make_pipeline(CompleteEncoder(), TemperedBag(member, random_state=context.seed))

    return build


def _pretrained(model: FoundationModel) -> Callable[[MethodContext], Pipeline]:
    def build(context: MethodContext) -> Pipeline:
        assert context.weights is not None  # Method.__call__ requires them
        one = PretrainedClassifier(model, context.weights, context.n_threads)
        bag = TemperedBag(one, "folds, refitted", stops=False, n_folds=3, random_state=context.seed)
        return make_pipeline(NativeEncoder("category"), bag)

    return build


def _stack(context: MethodContext) -> Pipeline:
    n_folds = 3 if context.n_train > 20_000 else 5
    stacked = stack(n_folds, context.n_train, context.n_threads, context.seed)
    return make_pipeline(FeatureEncoder(_units(context)), stacked)


def _base_alone(context: MethodContext) -> BaseAlone:
    return BaseAlone(n_threads=context.n_threads, random_state=context.seed)


def _modern_nca(context: MethodContext) -> Any:
    from nearwise_lab.experiments.modern_nca import ModernNCAClassifier

    rates = (0.01, 0.003) if context.n_train < 5_000 else (0.01,)
    return ModernNCAClassifier(
        learning_rates=rates, scale=_units(context), random_state=context.seed
    )


def _attention(**settings: Any) -> Callable[[MethodContext], Any]:
    def build(context: MethodContext) -> Any:
        from nearwise.classifier import AttnKNNClassifier

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
_ALL = (
    Method(
        "knn-uniform",
        _plain_knn("uniform"),
        "neighbors",
        "k = 16, 1/k each, Euclidean on standardised columns (embeddings: one scale for all)",
    ),
    Method(
        "knn-distance",
        _plain_knn("distance"),
        "neighbors",
        "k = 16, softmax of -distance / 1, Euclidean on standardised columns (embeddings: one "
        "scale for all)",
    ),
    Method(
        "knn-tuned",
        _tuned_knn,
        "neighbors",
        "k in 5..64, weights, smoothing (embeddings: also scaling) by leave-one-out NLL on "
        "the training part",
    ),
    Method(
        "logistic",
        _logistic,
        "linear",
        "multinomial logistic regression, standardised and one-hot, C by cross-validated NLL",
    ),
    Method("random-forest", _random_forest, "trees", "300 trees, scikit-learn's defaults"),
    Method(
        "hgb",
        _boosting("sklearn"),
        "boosting",
        f"scikit-learn's HistGradientBoosting, {_STOPPED}",
    ),
    Method(
        "lightgbm",
        _boosting("lightgbm"),
        "boosting",
        f"LightGBM, {_STOPPED}",
        "lightgbm",
        "peers",
    ),
    Method(
        "catboost",
        _boosting("catboost"),
        "boosting",
        f"CatBoost, {_STOPPED}",
        "catboost",
        "peers",
    ),
    Method(
        "mlp",
        _mlp,
        "network",
        "256-128 hidden units (embeddings: 512-256), standardised and one-hot, cross-fitted bag "
        "stopped on held-out NLL, out-of-fold temperature",
    ),
    Method(
        "modern-nca",
        _modern_nca,
        "neighbors",
        "ModernNCA: PLR-lite, linear encoder, un-squared distance, half of the candidates a "
        "step, all at inference; stopped on held-out NLL, which also chooses the learning rate "
        "of small tables",
    ),
    Method(
        "random-forest-tempered",
        _tempered_forest,
        "trees",
        f"300 trees, scikit-learn's defaults; temperature by out-of-bag NLL{_PULL}",
        higher=True,
    ),
    Method(
        "lightgbm-tuned",
        _searched("lightgbm"),
        "boosting",
        f"LightGBM, {_SEARCHED}",
        "lightgbm",
        "peers",
        higher=True,
    ),
    Method(
        "catboost-tuned",
        _searched("catboost"),
        "boosting",
        f"CatBoost, {_SEARCHED}",
        "catboost",
        "peers",
        higher=True,
    ),
    Method(
        "realmlp",
        _tabular_network("realmlp"),
        "network",
        f"RealMLP-TD of pytabkit, its tuned defaults without label smoothing; {_BAG}",
        "pytabkit",
        "peers-neural",
        higher=True,
    ),
    Method(
        "tabm",
        _tabular_network("tabm"),
        "network",
        f"TabM-D of pytabkit, its defaults (32 in one network), batches as in its paper; {_BAG}",
        "pytabkit",
        "peers-neural",
        higher=True,
    ),
    Method(
        "xrfm",
        _tabular_network("xrfm"),
        "network",
        f"xRFM-D of pytabkit, its defaults; {_BAG}",
        "xrfm",
        "peers-neural",
        higher=True,
    ),
    Method(
        "stack",
        _stack,
        "ensemble",
        "scikit-learn's StackingClassifier of a logistic regression, 300 random and 300 extremely "
        "random trees, HistGradientBoosting and, up to 5,000 rows, a logistic regression on a "
        "kernel map and an MLP; a logistic regression on their out-of-fold probabilities, C by "
        "cross-validated NLL",
        higher=True,
    ),
    Method(
        "base-alone",
        _base_alone,
        "ensemble",
        "the base of AttnKNNClassifier without neighbors: cross-fitted classifiers in a log-linear "
        "pool by out-of-fold NLL, mean over the folds; out-of-fold temperature"
        f"{_PULL}",
        higher=True,
    ),
    *(
        Method(
            name,
            _pretrained(name),
            "network",
            f"{CLASSES[name]}, its defaults, with weights of this machine on the CPU; temperature "
            f"out of 3 folds{_PULL}; all rows as context",
            name,
            needs_weights=True,
        )
        for name in get_args(FoundationModel)
    ),
    Method(
        "attention",
        _attention(),
        "attention",
        "AttnKNNClassifier, defaults: the pretrained head, trained further where that helps, and a "
        "base",
    ),
    Method(
        "attention-instant",
        _attention(preset="instant"),
        "attention",
        'AttnKNNClassifier(preset="instant"): one forest and the pretrained head',
    ),
    Method(
        "attention-no-base",
        _attention(estimator=None),
        "attention",
        "AttnKNNClassifier(estimator=None): the class shares stand in for the base",
    ),
    Method(
        "attention-views",
        _attention(),
        "attention",
        "AttnKNNClassifier with all views of the rows that the data set has, a tenth of the rows "
        "held out once",
        takes_views=True,
    ),
)

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
