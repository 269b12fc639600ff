"""`cv`: folds, a share that is held out once, or a splitter of scikit-learn."""

import inspect

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.model_selection import (
    KFold,
    LeaveOneOut,
    PredefinedSplit,
    ShuffleSplit,
    StratifiedKFold,
)

from nearwise.estimators import AttnKNNClassifier
from nearwise.estimators.fit.parameter_checks import check_checkpoint, check_settings
from nearwise.estimators.fit.problem import given_folds
from nearwise.estimators.storage.model_schema import replace_former
from nearwise.safe_files import plain
from tests.estimators.cases import CHEAP, attn_knn, blobs, fit_once, reopened, same, sums_to_one

X, Y = blobs(60)
ROWS = np.arange(60)
FAST = {**CHEAP, "embedder": "identity"}


def fitted(cv, **settings):
    return attn_knn(**{**FAST, **settings, "cv": cv}).fit(X, Y)


def settings_of(cv, n_rows=60, **parameters):
    folds = given_folds(cv, X[:n_rows], Y[:n_rows])
    return check_settings(AttnKNNClassifier(cv=cv, **parameters), n_rows, 3, 0, folds=folds)


@pytest.mark.parametrize(
    "cv", [None, "auto", np.int64(3), 100, 0.2, np.float32(0.2), np.float64(0.5)]
)
def test_a_number_of_folds_is_cross_fitted_and_a_share_is_held_out_once(cv):
    settings = settings_of(cv)
    assert settings.cv == ("auto" if cv is None else cv)
    assert isinstance(settings.cv, float) == isinstance(cv, float | np.floating)


def test_splits_of_a_splitter_and_its_positions_fit_the_same_and_are_used_as_given():
    splitter = StratifiedKFold(3, shuffle=True, random_state=7)
    first, second = fitted(splitter), fitted(list(splitter.split(X, Y)))
    assert same(first.predict_proba(X), second.predict_proba(X))
    assert "held_out" not in first.report_.choice
    other = fitted(StratifiedKFold(3, shuffle=True, random_state=8))
    assert first.report_.oof_nll != other.report_.oof_nll


@pytest.mark.parametrize("cv", [ShuffleSplit(1, test_size=20, random_state=0), "pair"])
def test_a_single_split_is_held_out_once(cv):
    held_out = ROWS // 3 % 3 == 0
    if isinstance(cv, str):
        cv = [(ROWS[~held_out], ROWS[held_out])]
    model = fitted(cv)
    ((_, held_out),) = given_folds(cv, X, Y)
    assert model.report_.choice["held_out"] == len(held_out)
    assert sums_to_one(model.predict_proba(X))


@pytest.mark.parametrize("cv", [KFold(3, shuffle=True, random_state=0), LeaveOneOut()])
def test_splitters_of_few_rows_are_learned_on(cv):
    model = attn_knn(**{**FAST, "cv": cv}).fit(X[:30], Y[:30])
    assert "head" in model.report_.choice  # what cv="auto" does not do with fewer than 32 rows
    assert sums_to_one(model.predict_proba(None))


@pytest.mark.filterwarnings("ignore:One class has a single row")
@pytest.mark.parametrize("cv", [KFold(4, shuffle=True, random_state=0), LeaveOneOut()])
def test_the_only_row_of_a_class_is_learned_from_in_every_split(cv):
    labels = np.where(ROWS[:40] == 5, "alone", np.array(["a", "b"])[Y[:40] % 2])
    folds = given_folds(cv, X[:40], labels)
    assert all(5 in train and 5 not in held_out for train, held_out in folds)
    assert sorted(np.concatenate([held_out for _, held_out in folds])) == [
        row for row in range(40) if row != 5
    ]
    assert all(len(held_out) for _, held_out in folds)
    if isinstance(cv, KFold):
        model = attn_knn(**{**FAST, "cv": cv}).fit(X[:40], labels)
        assert sums_to_one(model.predict_proba(X))


HALF = ROWS[:30], ROWS[30:]


def test_a_splitter_of_ones_own_gets_the_rows_and_labels_as_they_are():
    frame, labels = pd.DataFrame(X, columns=list("abcd")), np.array(["x", "y", "z"])[Y]

    class ByColumn:
        def split(self, X, y):
            assert list(X.columns) == list("abcd") and set(y) == {"x", "y", "z"}
            first = (X["a"].rank() % 2 == 0).to_numpy()
            return [(ROWS[first], ROWS[~first]), (ROWS[~first], ROWS[first])]

    model = AttnKNNClassifier(cv=ByColumn(), **{k: v for k, v in FAST.items() if k == "base"})
    assert model.fit(frame, labels).predict(frame).shape == (60,)
    assert isinstance(clone(model).cv, ByColumn)


def test_images_take_a_single_split():
    images = np.random.default_rng(0).integers(0, 255, (60, 8, 8, 1), dtype=np.uint8)
    settings = {"embedder": "resnet-small", "train": {"epochs": 1}, "head": {"epochs": 1}}
    cv = ShuffleSplit(1, test_size=20, random_state=0)
    model = attn_knn(**settings, cv=cv, random_state=0).fit(images, Y)
    assert model.report_.choice["held_out"] == 20
    assert sums_to_one(model.predict_proba(images))


def test_a_refresh_splits_the_rows_that_are_remembered_then():
    model = fitted(StratifiedKFold(3, shuffle=True, random_state=0))
    model.add(X[:5] + 0.1, Y[:5])
    assert len(model.refresh().memory_) == 65


@pytest.mark.parametrize(
    "cv", [[HALF, HALF[::-1]], PredefinedSplit(ROWS % 2)], ids=["list", "class"]
)
def test_positions_of_the_first_fit_are_not_taken_for_those_of_a_refresh(cv):
    model = fitted(cv)
    model.remove([0])
    before = model.predict_proba(X)
    with pytest.raises(ValueError, match=r"cv holds positions .*set_params\(cv=5\)"):
        model.refresh()
    with pytest.raises(ValueError, match="cv holds positions"):
        model.partial_fit(X[:3], Y[:3])
    assert same(model.predict_proba(X), before)
    assert len(model.set_params(cv=2).refresh().memory_) == 59


def test_other_splits_have_another_checkpoint_folder(tmp_path):
    folders = set()
    splitters = [KFold(3, shuffle=True, random_state=seed) for seed in (0, 0, 1)]
    for cv in [*splitters, 3, 4, 0.2]:
        settings = settings_of(cv, settings={"checkpoint_dir": tmp_path}, random_state=0)
        model = AttnKNNClassifier(cv=cv, random_state=0)
        folders.add(check_checkpoint(model, settings, [X], Y, None).checkpoint)
    for groups in (ROWS, ROWS // 2):  # of which folds are made
        folders.add(check_checkpoint(model, settings, [X], Y, None, groups).checkpoint)
    assert len(folders) == 7


SAVED = [
    4,
    0.4,
    None,
    KFold(3, shuffle=True, random_state=np.int64(1)),
    StratifiedKFold(3),
    ShuffleSplit(1, test_size=0.4, random_state=0),
    PredefinedSplit(ROWS % 3),
]


@pytest.mark.parametrize("cv", SAVED, ids=str)
def test_what_scikit_learn_can_build_is_saved(cv, tmp_path):
    model = fit_once(attn_knn(**FAST), X, Y).set_params(cv=cv)
    loaded = reopened(model, tmp_path / "m")
    assert type(loaded.cv) is type(cv)
    if hasattr(cv, "split"):
        assert plain(vars(loaded.cv)) == plain(vars(cv))
    else:
        assert loaded.cv == cv
    assert same(loaded.predict_proba(X), model.predict_proba(X))


def test_other_splits_are_left_out_of_a_folder_with_a_warning(tmp_path):
    model = fitted([HALF, HALF[::-1]])
    with pytest.warns(UserWarning, match='cv=list is not stored.* the loaded model has cv="auto"'):
        model.save(tmp_path / "m")
    loaded = AttnKNNClassifier.load(tmp_path / "m")
    assert loaded.cv == "auto" and same(loaded.predict_proba(X), model.predict_proba(X))


@pytest.mark.parametrize(
    ("n_members", "share", "cv"),
    [(2, "auto", 2), ("auto", None, "auto"), (1, "auto", "auto"), (3, 0.2, 0.2)],
)
def test_older_folders_hold_cv_as_two_parameters(n_members, share, cv):
    params = {"n_members": n_members, "validation_fraction": share, "estimator": None}
    replace_former(params, inspect.signature(AttnKNNClassifier).parameters)
    assert params == {"cv": cv, "estimator": None}
