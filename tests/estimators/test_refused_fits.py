"""A fit that cannot be is refused before anything is learned: what is wrong, seen, and to do."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.cluster import KMeans
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import (
    GroupKFold,
    KFold,
    LeaveOneOut,
    PredefinedSplit,
    StratifiedKFold,
    TimeSeriesSplit,
)
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from nearwise.data import Dataset
from nearwise.estimators.fit import pipeline
from tests.estimators.cases import attn_knn, blobs, table
from tests.estimators.image_cases import QUICK, patches

X, CODES = blobs()
Y = np.array(list("abc"))[CODES]
ROWS = np.arange(90)
FRAME, ANSWERS = table(90)
IMAGES, SIDES = patches()
FOLDS = KFold(3, shuffle=True, random_state=0)
OTHER_CV = [1, 0, -3, 1.0, 1.5, 0.0, True, "5", "Auto", float("nan"), 101, KFold, b"ab", 1j]
NO_BASE = [LinearRegression(), KMeans(), SVC(), LogisticRegression, object(), StandardScaler()]


def even(rate, n=3):
    return (1 - rate) * np.eye(n) + rate / (n - 1) * (1 - np.eye(n))


# settings and what is said of them
SETTINGS = [
    ({"preset": "quick"}, "preset='quick' is not known. Use one of 'default', 'instant'"),
    ({"preset": "fast"}, r'"fast" is no preset any more: take "instant", or cv=3'),
    ({"preset": ["instant"]}, "preset=.*not known"),
    ({"embedder": "resnet"}, "embedder='resnet' is not known. Use one of 'auto', 'identity'"),
    ({"metric": "euclidian"}, "metric='euclidian' is not known. Use one of 'euclidean'"),
    ({"metric": np.array([1, 2])}, "metric=.*not known"),
    ({"calibration": "platt"}, "calibration: Input should be 'auto' or 'per-class'.*got 'platt'"),
    ({"index": "faiss"}, "index: Input should be 'auto', 'exact'.*got 'faiss'"),
    ({"estimator": "forest"}, "estimator='forest' is not known. Use \"auto\", None or a classif"),
    *[({"estimator": one}, r'is not usable\. Give None, "auto", or a scikit-') for one in NO_BASE],
    ({"n_neighbors": "five"}, "n_neighbors='five' must be a whole number of at least 1"),
    *[({"n_neighbors": k}, f"n_neighbors={k} must be a whole number") for k in (0, 2.5, True)],
    ({"n_neighbors": 65}, "more than the 64 that the attention was trained with.*Use fewer"),
    ({"max_per_class": 1}, "max_per_class: Input should be greater than or equal to 2.*got 1"),
    *[({"max_per_class": cap}, "max_per_class: Input should be .*got") for cap in (0, 2.5, "ten")],
    ({"capacity": 1}, "capacity: .*greater than or equal to 2 .got 1"),
    ({"capacity": 50.0}, "capacity: .*valid integer .got 50.0"),
    ({"eviction": "fifo"}, "eviction: .*'reservoir' or 'age' .got 'fifo'"),
    ({"device": "gpu"}, 'device=\'gpu\' is not known. Use "auto", "cpu"'),
    ({"head": {"epoch": 3}}, "Unknown head setting 'epoch'. Did you mean 'epochs'"),
    ({"train": {"epoch": 3}}, "Unknown training setting 'epoch'. Did you mean 'epochs'"),
    ({"embedder": "deep", "train": {"ce_weight": 0.0}}, r'ce_weight.*"deep" network'),
    ({"checkpoint_dir": "there"}, "checkpoint_dir needs a random_state"),
    ({"tta": ("flip",)}, "tta and embedder_options are for images"),
    ({"embedder": "resnet18"}, "image embedders take X as uint8"),
    *[({"cv": cv}, 'must be "auto", a number of folds from 2 to 100, a sh') for cv in OTHER_CV],
    ({"class_prior": "balanced"}, 'class_prior=\'balanced\' is not known. Use "train", "uniform"'),
    ({"class_prior": [0.5, 0.5]}, r"class_prior has shape \(2,\) but there are 3 classes"),
    ({"class_prior": [[0.5, 0.25, 0.25]]}, r"class_prior has shape \(1, 3\) but there are 3"),
    ({"class_prior": 0.3}, r"class_prior has shape \(\) but there are 3 classes"),
    ({"class_prior": None}, "class_prior has shape"),
    ({"class_prior": [0.5, 0.5, 0.0]}, "class_prior holds 0.0; every share must be positive"),
    ({"class_prior": [0.7, 0.5, -0.2]}, "class_prior holds -0.2; every share must be positive"),
    ({"class_prior": [0.5, 0.5, np.nan]}, "class_prior holds nan; every share must be positive"),
    ({"class_prior": [0.5, 0.3, 0.1]}, "class_prior sums to 0.9 and must sum to 1. Divide it"),
    *[({"label_noise": rate}, "not a share") for rate in (1.0, -0.1, float("nan"))],
    ({"label_noise": 2 / 3}, "do not tell them apart"),
    *[({"label_noise": one}, "not usable") for one in ("much", object())],
    ({"label_noise": np.ones((3, 2)) / 2}, "is square"),
    ({"label_noise": even(0.2, 4)}, "1 have no row"),
    ({"label_noise": even(0.2, 2)}, "a row and a column for each"),
    ({"label_noise": np.full((3, 3), 0.5)}, "not stochastic: the row of class a sums to 1.5"),
    ({"label_noise": np.eye(3) * 2 - np.full((3, 3), 1 / 3)}, "not probabilities"),
    ({"label_noise": [[0.5, 0.5, 0], [0.4, 0.6, 0], [0.5, 0.5, 0]]}, "never gives|tell them apart"),
]  # fmt: skip
INSTANT = [
    ({"embedder": "table"}, "embedder='table' does not fit preset=\"instant\", which trains"),
    ({"estimator": KNeighborsClassifier()}, "estimator=KNeighborsClassifier"),
    ({"cv": 3}, "cv=3 does not fit preset"),
    ({"cv": 0.2}, "cv=0.2 does not fit preset"),
    ({"cv": FOLDS}, 'does not fit preset="instant"'),
    ({"label_noise": "auto"}, "label_noise='auto'"),
    ({"max_per_class": 5}, "settings max_per_class"),
    ({"n_neighbors": 65}, "n_neighbors=65 is more than the 64"),
]
HALF = ROWS[:45], ROWS[45:]
SPLITS = [
    ([HALF, (ROWS[50:], ROWS[:50])], "several splits hold out row"),
    (TimeSeriesSplit(4), "no split holds out row 0 .18 such rows of 90"),
    (GroupKFold(2), r"needs to know the groups of the rows: give them to fit\(groups="),
    ((pair for pair in [HALF]), r"used up by one fit. Give a list"),
    ([], "gives no split"),
    ([(ROWS, [])], "split 1 of .* has an empty test part"),
    ([(ROWS, ROWS[5:8])], "has row 5 in both parts"),
    ([1, 2], "split 1 of .* is not a pair of row positions"),
    ({"n_splits": 3}, "is not a pair of row positions"),
    ([(CODES < 2, CODES == 2)], "is no list of row positions .* bool of shape"),
    ([(ROWS[:30], [30, 90])], "holds row 90 in its test part, and there are 90 rows"),
    ([(ROWS[:30], [-1])], "holds row -1 in its test part"),
    ([(ROWS[:30], [40, 41, 41])], "has row 41 twice in its test part"),
    (PredefinedSplit([0, 1] * 50), "holds row 99|holds row 98"),
    (StratifiedKFold(40), "cannot split 90 rows: n_splits=40"),
]
# settings, what is said, and what is given in place of rows and labels, or beside them
GIVEN = [
    *[({"cv": cv}, said, {}) for cv, said in SPLITS],
    ({"cv": KFold(3)}, r"split 1 of cv=KFold.*learns from no row of 'a'", {"y": np.sort(Y)}),
    ({"cv": LeaveOneOut()}, "more than 100 splits of 120 rows",
     {"X": np.eye(120), "y": np.arange(120) % 3}),
    *[({"preset": "instant", **one}, f"{said}.*(Use|Leave|Ask) ", {}) for one, said in INSTANT],
    ({"preset": "instant"}, "tables and ready embeddings in one view", {"views": [X]}),
    ({"preset": "instant"}, "tables and ready embeddings in one view", {"X": IMAGES, "y": SIDES}),
    ({"n_neighbors": 60}, r"n_neighbors=60 exceeds the 60 samples in the memory bank \(59 after le",
     {"X": X[:60], "y": Y[:60]}),
    ({}, "View 1 has 7 rows but X has 90", {"views": [X[:7]]}),
    ({}, r"write views=\[view\]", {"views": X}),
    ({"cv": 3}, "Rows with several views are not cross-fitted", {"views": [X]}),
    ({"cv": FOLDS}, "Rows with several views are not cross-fitted", {"views": [X]}),
    ({"cv": 0.05}, r"0\.05 of 90 rows holds out 4 .*at least 20 are needed: .*a share of 0\.23 or",
     {"views": [X]}),
    ({"cv": [(ROWS[:80], ROWS[80:])]}, r"0\.111 of 90 rows holds out 10 .*, or a share of 0\.23",
     {"views": [X]}),
    ({}, r"further views \(flip\).*views=\[\.\.\.\]",
     {"X": Dataset("d", X, CODES, "label", "embeddings", "here", views={"flip": X}), "y": None}),
    ({}, "X has 90 rows but groups has 2", {"groups": [1, 2]}),
    ({}, "no value in 90 of 90 rows .first in row 0", {"groups": [None] * 90}),
    ({}, "groups has text. Give one value per row", {"groups": "patient"}),
    ({}, r"groups has shape \(90, 2\)", {"groups": np.zeros((90, 2))}),
    ({}, "Every class is in one group alone", {"groups": [7] * 90}),
    ({"label_noise": "auto"}, "groups and label_noise do not go together", {"groups": ROWS // 3}),
    ({}, r"sample_weight has shape \(89,\) but X has 90 rows", {"sample_weight": np.ones(89)}),
    ({}, "negative, infinite or missing", {"sample_weight": -np.ones(90)}),
    ({}, "negative, infinite or missing", {"sample_weight": np.full(90, np.nan)}),
    ({}, "Every sample_weight is zero", {"sample_weight": np.zeros(90)}),
    ({}, "All 90 rows belong to one class, 0.*at least 2 classes", {"y": CODES * 0}),
    ({}, "Each of the 90 rows is the only one of its class", {"y": ROWS}),
    ({}, "X has 90 rows but y has 89 labels", {"y": CODES[:-1]}),
    ({}, "missing labels in 30 of 90 rows", {"y": np.where(CODES == 2, np.nan, CODES)}),
    ({}, r"such as 0\.5, a quantity.*3 different.*pandas\.cut", {"y": CODES + 0.5}),
    ({}, r"From 2\*\*53 on a float stands", {"y": 1e22 + CODES * 1e8}),
    ({}, "requires y to be passed, but the target y is None", {"y": None}),
    ({}, "one column per target", {"y": np.zeros((90, 2, 2))}),
    ({}, "X is a Series of 90 values", {"X": FRAME["age"]}),
    ({}, r"X\.collect\(\)", {"X": pl.from_pandas(FRAME[["age"]]).lazy()}),
    ({}, r"holds text \('a'\) where", {"X": np.array([["a", 1]] * 90, dtype=object)}),
    ({}, "contains infinity in 90 of 90 rows, first in row 0", {"X": X * np.inf}),
    ({}, r"hold numbers too large .* up to .*e\+3.*Rescale", {"X": X * 1e300}),
    ({}, "Expected 2D array, got 1D array", {"X": X[:, 0]}),
    ({}, r"Found array with 0 sample\(s\): the table is empty", {"X": FRAME[:0], "y": []}),
    ({}, r"Found array with 0 sample\(s\)", {"X": X[:0], "y": []}),
    ({}, "no columns but the target", {"X": FRAME[[]]}),
    ({}, "'age' holds infinity in 90 rows", {"X": FRAME.assign(age=np.inf)}),
    ({}, r"\['age', 'income'\] hold numbers too large to compute with in 32 bits, up to .*e\+300",
     {"X": FRAME.assign(age=FRAME["age"] * 1e300, income=FRAME["income"] * 1e60)}),
    ({}, r"All 2 columns are empty \('age', 'town'\): no cell holds a value",
     {"X": FRAME[["age", "town"]].assign(age=np.nan, town=None)}),
    ({}, "'age' holds list values", {"X": FRAME.assign(age=[[1]] * 90)}),
    ({}, "'age' holds complex numbers", {"X": FRAME.assign(age=1j)}),
    ({}, r"^Columns \['age'\] occur more than once. Rename or drop them",
     {"X": pd.concat([FRAME, FRAME[["age"]]], axis=1)}),
    ({}, r"\['1'\] occur", {"X": FRAME.assign(**{"1": 0}).rename(columns={"age": 1})}),
    ({}, "expected as uint8 from 0 to 255, got float64", {"X": np.zeros((90, 8, 8, 3))}),
    ({}, r"float64 from 0.0 to 0.0. Convert them: \(255 \* X\)", {"X": np.zeros((90, 8, 8, 3))}),
    ({}, r"int64 from 0 to 200. Convert them: X.astype\(np.uint8\)\.$",
     {"X": np.arange(201).repeat(90).reshape(90, 67, 3)}),
    ({}, r"from 0.0 to 200.0. Convert them: X.round\(\)",
     {"X": np.arange(201.0).repeat(90).reshape(90, 67, 3)}),
    ({}, r"Convert them: bring them to 0 to 255", {"X": np.full((90, 8, 8, 3), -7)}),
    ({}, r"Convert them: 255 \* X.astype", {"X": np.ones((90, 8, 8), bool)}),
    ({}, r"image 0 is 8 x 9 x 3, image 1 is 9 x 8 x 3\. Bring them to one size, or give their f",
     {"X": [np.zeros(s, np.uint8) for s in ((8, 9, 3), (9, 8, 3)) * 45]}),
    ({}, "with 1 or 3 channels, got shape", {"X": np.zeros((90, 8, 8, 4), np.uint8)}),
    ({}, "there are no images", {"X": IMAGES[:0], "y": []}),
]  # fmt: skip
OF_IMAGES = [
    ({"embedder": "table"}, "is for tables and ready embeddings, but X holds images"),
    ({"embedder": "resnet81"}, "Unknown backbone 'resnet81'. Did you mean 'resnet18'"),
    ({"embedder": "no/folder"}, "is not a folder here. A model on the hub is written 'hf:no"),
    ({"embedder_options": {"frozn": True}}, "'frozn' is not known. Did you mean 'frozen'"),
    ({"cv": 0.1}, r"0\.1 of 120 rows holds out 12 .*, or a share of 0\.17"),
    ({"tta": ("rotate",)}, "names an unknown view"),
    ({"cv": 5}, "Images are not cross-fitted"),
    ({}, "Images get further views from tta", {"views": [IMAGES]}),
    ({"cv": "auto"}, r'0\.5 of 38 rows holds out 19 .*"auto" needs 40\)\.$',
     {"X": IMAGES[:38], "y": SIDES[:38]}),
]  # fmt: skip
ALL = [({"random_state": None} | one[0], one[1], {"X": X, "y": Y}, *one[2:]) for one in SETTINGS]
ALL += [(one, said, {"X": X, "y": Y} | given) for one, said, given in GIVEN]
ALL += [({**QUICK, **one[0]}, one[1], {"X": IMAGES, "y": SIDES}, *one[2:]) for one in OF_IMAGES]


@pytest.mark.parametrize("case", ALL, ids=lambda case: case[1][:40])
def test_what_cannot_be_fitted_is_refused_with_what_to_do(case, monkeypatch):
    settings, message, given, *other = case
    monkeypatch.setattr(pipeline, "fit_forest", pytest.fail)
    monkeypatch.setattr(pipeline, "shared_head", pytest.fail)
    with pytest.raises(ValueError, match=message):
        attn_knn(**settings).fit(**(given | dict(*other)))
