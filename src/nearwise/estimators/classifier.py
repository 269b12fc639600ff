"""AttnKNNClassifier: learned attention over nearest neighbors as a scikit-learn classifier."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Self

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from nearwise.estimators import labels, validation
from nearwise.estimators.bounds import check_bound_of_fit
from nearwise.estimators.class_prior import ClassPrior
from nearwise.estimators.column_report import ColumnPlan, ColumnReport, Wish
from nearwise.estimators.columns import plan_columns, warn_of_columns
from nearwise.estimators.held_out import fit_problem
from nearwise.estimators.images import (
    ImageEncoder,
    TTAView,
    check_tta,
    encode_views,
    from_source,
    is_images,
)
from nearwise.estimators.label_issues import FindsLabelIssues
from nearwise.estimators.persistence import load_model_folder, save_model
from nearwise.estimators.pooling import finish
from nearwise.estimators.problem import Problem
from nearwise.estimators.progress import Progress
from nearwise.estimators.settings import (
    check_checkpoint,
    check_settings,
    hinting,
    unknown_hint,
)
from nearwise.estimators.state import LearnedState
from nearwise.estimators.streaming import LearnsStreams
from nearwise.estimators.table import TableEncoder, as_frame
from nearwise.estimators.transition import check_label_noise
from nearwise.estimators.trusting import KnowsItsLimits
from nearwise.functional import DEFAULT_MEMORY_BUDGET, Metric
from nearwise.memory import EvictionName, IndexName


class AttnKNNClassifier(
    LearnsStreams, KnowsItsLimits, FindsLabelIssues, ClassifierMixin, BaseEstimator
):
    """Classify by learned attention over the nearest remembered rows.

    A query's nearest rows are sought in key spaces (the features, a supervised space, a trained
    one); an attention head weighs them beside a null neighbor; neighbors and base are pooled. All
    is cross-fitted: what is learned about a row comes from members that were not fitted on it.

    Parameters
    ----------
    n_neighbors : int or "auto", default="auto"
        Neighbors asked in each key space; "auto" is 32, fewer in a small table.
    columns : mapping of str to str, optional
        What columns of a DataFrame are used as, where that is not left to `fit`: "number",
        "category" (a zip code, say), "date", "left out", or "keep" for one that would be left out.
        By default types decide; text that writes a date in every row is one; and row numbers, row
        ids and text that differs in (nearly) every row are left out. `column_report_` tells.
    embedder : str, default="auto"
        Where the trained key space comes from. Tables: "identity": none, for ready embeddings.
        "table": numeric and categorical embeddings with a linear key. "deep": an MLP with a linear
        head. "mlp": the original study's. "auto": by size and columns, and none in a small table;
        "deep" where rows are held out once.
        Images: "resnet18", "resnet50", "resnet-small", or a transformers vision model as
        "hf:NAME[@REVISION]" or the path of its folder. "auto": a ResNet by the images' size.
    embedder_params : dict, optional
        Further arguments of `nearwise.nn.ImageEmbedder`: dim, pretrained, frozen, ...
    base : "auto", None or classifier, default="auto"
        "auto" cross-fits and pools a few (or the "deep" network); None: the class shares stand in.
    preset : {"default", "fast"}, default="default"
        "fast": 3 members, fewer candidates, no trained space in large tables.
    metric : {"euclidean", "sqeuclidean", "cosine", "inner_product", "manhattan"}
        Of the feature space; "euclidean" by default. "manhattan" is searched exactly.
    pooling : {"auto", "log-linear", "mixture"}, default="auto"
        How neighbors and base meet; "auto" tries both up to 5,000 rows, else takes log-linear.
    null : {"auto", "prior", "parametric"} or None, default="auto"
        What a prediction gets where attention goes to no neighbor: the class shares or the base's
        prediction; "auto" takes the first in log-linear pooling, else the second. None: no null.
    num_heads : int, default=4
        Attention heads, whose weights are averaged.
    n_members : int or "auto", default="auto"
        Cross-fitted members; "auto" is 5, 3 with preset="fast", 4 for many ready embeddings.
        Where rows are held out once: networks that share the memory; "auto" is 3, 1 for images.
    validation_fraction : float, "auto" or None, default="auto"
        Share of the rows held out once, from memory and networks, to stop the networks and to fit
        heads and calibration. None cross-fits. "auto" is None, but for images and with views .1,
        up to .5 where that is fewer than 20 rows.
    tta : sequence of {"flip", "shift"}, optional
        Further views of every image: mirrored; four shifted crops. They are part of the memory's
        keys, of the heads' training and of predictions, which are calibrated after merging.
    tta_merge : {"auto", "probabilities", "logits", "embeddings"}, default="auto"
        How views of a query are merged; "auto" takes the first or second by held-out NLL.
    k_ensemble : sequence of int, optional
        Average the weights of these neighborhood sizes, from one search.
    adaptive_k : {"entropy"}, optional
        The original study's rule, by the entropy of the weights; None asks all `n_neighbors`.
    calibration : {"auto", "per-class", None}, default="auto"
        "auto" shrinks the head towards the base and fits a temperature, each only where it lowers
        the out-of-fold NLL; "per-class" tries biases and scales a class besides.
    class_prior : {"train", "uniform"} or array of shape (n_classes,), default="train"
        Class shares where predictions are used; others than in training correct votes, null, base.
    max_per_class : int, optional
        Most rows a class that may be found, each with the weight of those it stands for.
    spaces : {"all", "chosen"}, default="all"
        "chosen" leaves key spaces out where that lowers the held-out NLL; only of rows held out.
    index : {"auto", "exact", "faiss-flat-l2", "faiss-flat-ip", "hnsw", "ivf-flat"}, default="auto"
        "auto" is exact below 100,000 rows, then IVF-Flat.
    memory_budget : int, default=256 MiB
        Bytes of working memory of a search.
    label_noise : None, "auto", float in [0, 1) or array of shape (n_classes, n_classes)
        Wrong labels in `y`: none; estimated; a share, evenly spread; transition (true -> given).
    capacity : int, optional
        Most rows the memory holds after `fit`, `add` and `partial_fit`; None bounds nothing.
    eviction : {"reservoir", "class-balanced", "importance", "age"}, default="reservoir"
        Who goes: a random row of all ever seen, one of the largest class, the one neighbors lean
        on least, or the oldest, whose votes fade too: by half every `capacity` / 4 rows. The
        second and third change class shares, and with them every probability.
    train_params, head_params : dict, optional
        Settings of `nearwise.training.TrainConfig` and `HeadConfig` to change.
    n_jobs : int, optional
        Processor cores of the base's forests. By default all, but one for 1,000 rows and fewer,
        where threads cost more than they save.
    random_state : int, RandomState or None, default=None
        An int makes the fit repeatable.
    device : str, default="auto"
        Where embedders are trained: "auto", "cpu", "cuda", "mps".
    verbose : {0, 1, 2}, default=0
    checkpoint_dir : path, optional
        Folder for training checkpoints; a fit that was killed goes on from them.
    cache_dir : path, optional
        Folder that keeps what a frozen image backbone makes of images, found again by content.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Sorted; classes that `add` brought stand at the end.
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Where the training table had names.
    memory_ : MemoryBank
        The remembered rows.
    evicted_ : int64 Tensor of shape (n_evicted,)
        Ids that the last `fit`, `add` or `partial_fit` forgot for the capacity.
    choice_ : dict
        What was chosen and the out-of-fold NLL behind it.
    history_ : list of dict
        stage, member, epoch, train_loss, held_out_nll.
    temperature_ : float
    calibration_source_ : str
        Where the calibration comes from.
    oof_nll_ : float
        Out-of-fold NLL of the training rows (of those held out once), in nats.
    target_name_ : str
        Name of `y`, "target" where it had none.
    column_types_ : dict of str to {"number", "category", "date", "left out"}
    column_report_ : list of ColumnReport
        Of each training column: type, gaps, distinct values, its use and why.
    row_names_ : ndarray of str of shape (n_remembered,), or None
        File of every remembered image, where `fit` and `add` were given files.
    noise_rate_, transition_, transition_interval_ : float, two ndarrays
        With `label_noise`: share of wrong labels, probability of each given label (columns) for
        each true one (rows), and its 95 % interval of shape (2, n_classes, n_classes). Of an
        estimate that is not believed, what is taken; `choice_["label_noise"]` says why.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> AttnKNNClassifier(base=None, random_state=0).fit(X, y).predict(X[:2]).tolist()
    [0, 0]
    """

    @hinting
    def __init__(
        self,
        n_neighbors: int | Literal["auto"] = "auto",
        *,
        columns: Mapping[str, Wish] | None = None,
        embedder: str = "auto",
        embedder_params: dict[str, Any] | None = None,
        base: Any = "auto",
        preset: Literal["default", "fast"] = "default",
        metric: Metric = "euclidean",
        pooling: Literal["auto", "log-linear", "mixture"] = "auto",
        null: Literal["auto", "prior", "parametric"] | None = "auto",
        num_heads: int = 4,
        n_members: int | Literal["auto"] = "auto",
        validation_fraction: float | Literal["auto"] | None = "auto",
        tta: Sequence[TTAView] | None = None,
        tta_merge: Literal["auto", "probabilities", "logits", "embeddings"] = "auto",
        k_ensemble: Sequence[int] | None = None,
        adaptive_k: Literal["entropy"] | None = None,
        calibration: Literal["auto", "per-class"] | None = "auto",
        class_prior: ClassPrior = "train",
        max_per_class: int | None = None,
        spaces: Literal["all", "chosen"] = "all",
        index: IndexName = "auto",
        memory_budget: int = DEFAULT_MEMORY_BUDGET,
        label_noise: Any = None,
        capacity: int | None = None,
        eviction: EvictionName = "reservoir",
        train_params: dict[str, Any] | None = None,
        head_params: dict[str, Any] | None = None,
        n_jobs: int | None = None,
        random_state: Any = None,
        device: str = "auto",
        verbose: int = 0,
        checkpoint_dir: str | os.PathLike[str] | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        self.n_neighbors = n_neighbors
        self.columns = columns
        self.embedder = embedder
        self.embedder_params = embedder_params
        self.base = base
        self.preset = preset
        self.metric = metric
        self.pooling = pooling
        self.null = null
        self.num_heads = num_heads
        self.n_members = n_members
        self.validation_fraction = validation_fraction
        self.tta = tta
        self.tta_merge = tta_merge
        self.k_ensemble = k_ensemble
        self.adaptive_k = adaptive_k
        self.calibration = calibration
        self.spaces = spaces
        self.class_prior = class_prior
        self.max_per_class = max_per_class
        self.index = index
        self.memory_budget = memory_budget
        self.label_noise = label_noise
        self.capacity = capacity
        self.eviction = eviction
        self.train_params = train_params
        self.head_params = head_params
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.device = device
        self.verbose = verbose
        self.checkpoint_dir = checkpoint_dir
        self.cache_dir = cache_dir

    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        views: Sequence[Any] | None = None,
    ) -> Self:
        """Learn from training rows.

        Parameters
        ----------
        X : DataFrame, ndarray or Tensor of shape (n, n_features), or images
            A DataFrame may hold text, categories, dates and missing values, and so may what gives
            one: tables of polars and pyarrow, dicts. Arrays hold numbers; NaN is missing.
            Images are uint8 of shape (n, height, width, channels) with 1 or 3 channels. The path
            of a folder of class folders, a `nearwise.data.Dataset` or a `datasets` data set bring
            their labels (a test part they may have is left out), and folders their files' names.
        y : array-like of shape (n,)
            At least 2 classes, each with at least 2 rows.
        sample_weight : array-like of shape (n,), optional
            Non-negative; weighs a row's loss and its vote.
        views : sequence of arrays like `X`, optional
            Further views of the same rows, such as the embeddings of the flipped images. Networks
            are trained on the first as well, keys are averaged over all, and predictions from as
            many views are calibrated as such. Images have theirs by `tta`.

        Returns
        -------
        self : AttnKNNClassifier
        """
        X, y, names = from_source(X, y, training=True)
        rows = validation.check_rows(self, X, reset=True)
        others = validation.check_views(self, views, len(rows))
        classes, codes = labels.check_labels(y, len(rows))
        labels.check_class_sizes(classes, codes)
        weight = validation.check_weight(sample_weight, len(rows))
        weight_unit = 1.0 if weight is None else float(weight.mean())
        weight = None if weight is None else weight / weight_unit
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        encoder: Any = ImageEncoder() if is_images(rows) else TableEncoder()
        plans = () if is_images(rows) else (self._plan_columns(rows),)
        settings = check_settings(
            self,
            len(rows),
            len(classes),
            seed,
            n_views=1 + len(others),
            images=isinstance(encoder, ImageEncoder),
        )
        settings = replace(settings, label_noise=check_label_noise(self.label_noise, classes))
        place = check_checkpoint(self, settings, [rows, *others], codes, weight)
        encoded = encoder.fit(rows, *plans)
        check_bound_of_fit(self, settings, encoder, codes)
        problem = Problem(encoder, encoded, codes, weight, len(classes))
        problem.views = encode_views(encoder, encoded, others, self.tta)
        problem.tta = check_tta(self.tta)
        with Progress(self.verbose) as progress:
            state = fit_problem(problem, self.n_members, place, progress)
        self.classes_ = classes
        self._weight_unit = weight_unit
        self.target_name_ = str(getattr(y, "name", None) or "target")
        kept = state.views.bank.ids.numpy()
        self._rows = (
            rows.iloc[kept].reset_index(drop=True) if isinstance(rows, pd.DataFrame) else rows[kept]
        )
        self.row_names_ = None if names is None else names[kept]
        self._adopt(state)
        self._begin_stream(seed)
        return self

    def _plan_columns(self, rows: pd.DataFrame | np.ndarray) -> list[ColumnPlan]:
        """Decide what the columns are used as; those of an array are numbers, all of them."""
        if isinstance(rows, pd.DataFrame):
            frame = rows.set_axis([str(name) for name in rows.columns], axis=1)
            plans = plan_columns(frame, self.columns)
            warn_of_columns(plans)
            return plans
        if self.columns is not None:
            raise ValueError(
                "columns names columns of a DataFrame, and X is an array. Leave columns out, or "
                "give pd.DataFrame(X, columns=[...])."
            )
        return plan_columns(as_frame(rows), judge=False)

    def _adopt(self, state: LearnedState) -> None:
        self._state = state
        self.choice_, self.history_ = state.choice, state.history
        self.temperature_ = state.acceptance.temperature
        self.calibration_source_ = state.acceptance.source
        self.oof_nll_ = state.acceptance.nll
        self.column_types_ = dict(state.encoder.kinds)
        self.column_report_ = [ColumnReport.from_json(one) for one in state.encoder.report]
        for name in ("noise_rate_", "transition_", "transition_interval_"):
            self.__dict__.pop(name, None)  # of an earlier fit
        if state.transition is not None:
            self.noise_rate_, self.transition_ = state.transition.rate, state.transition.matrix
            self.transition_interval_ = np.stack([state.transition.low, state.transition.high])

    def set_params(self, **params: Any) -> Self:
        """Change parameters by name; see scikit-learn.

        Raises
        ------
        ValueError
            If there is no such parameter.
        """
        known = self._get_param_names()
        strange = [name for name in params if name.partition("__")[0] not in known]
        if strange:
            raise ValueError(
                f"Invalid parameter {strange[0]!r} for estimator {type(self).__name__}."
                f"{unknown_hint(strange[0], known)} Valid parameters are: {known!r}."
            )
        return super().set_params(**params)

    def __sklearn_tags__(self) -> Any:
        """Tell scikit-learn that gaps are welcome."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_state")

    def predict_proba(self, X: Any = None, views: Sequence[Any] | None = None) -> np.ndarray:
        """Class probabilities.

        Parameters
        ----------
        X : DataFrame, ndarray or Tensor of shape (n, n_features), optional
            None means the training rows, each without itself, from the members that left it out.
            Images may be given as a folder that holds them, or as a list of files.
        views : sequence of arrays like `X`, optional
            Further views of the rows, as many as `fit` was given, to be merged with the first.
            Images have theirs by `tta`; an empty list asks for the prediction from one view.

        Returns
        -------
        proba : ndarray of shape (n, n_classes)
            In the order of `classes_`; rows sum to 1.
        """
        answer, _, calibration = self._answers(self._encode(X, views))
        return finish(answer.log_proba, calibration.whole)

    def predict(self, X: Any = None, views: Sequence[Any] | None = None) -> Any:
        """Most probable classes, ndarray of shape (n,); arguments as in `predict_proba`."""
        best = self.predict_proba(X, views).argmax(axis=1)
        return self.classes_[best]

    def save(self, folder: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the classifier to a folder; an older one there stays until the new is complete.

        What was written is opened and predicts a few rows before it takes the old one's place.

        Parameters
        ----------
        folder : path
        overwrite : bool, default=False
            Also replace a model that has been written by somebody else since this one was loaded
            from there.

        Raises
        ------
        StoreError
            If the folder holds something else, or has changed since this model was loaded.
        OSError
            If it cannot be written. What was there before is unchanged.
        """
        check_is_fitted(self)
        save_model(self, folder, overwrite=overwrite)

    @classmethod
    def load(
        cls, folder: str | os.PathLike[str], *, trusted: Sequence[str] = ()
    ) -> "AttnKNNClassifier":
        """Read a classifier that `save` wrote; it predicts bit for bit the same.

        Parameters
        ----------
        folder : path
        trusted : sequence of str, default=()
            Types in a saved base of your own that you trust: they could crash or take over the
            process if the folder comes from somebody else. `save` names them.

        Raises
        ------
        StoreError
            If the folder is missing, torn, foreign, of another format version, or holds what
            `save` never writes; `reason` says which, the message names the part.
        ValueError
            If the base holds types that are not trusted.
        """
        return load_model_folder(cls, folder, trusted)
