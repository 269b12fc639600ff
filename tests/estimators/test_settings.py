"""Rare settings: one object, checked with hints, cloned, searched, shown and saved."""

import inspect
import json

import pytest
from sklearn.base import clone

from nearwise.estimators import AttnKNNClassifier, Settings
from nearwise.training import HeadConfig, TrainConfig
from tests.estimators.cases import blobs, reopened, same

RARE = Settings(head={"epochs": 3}, calibration=None)
CHEAPEST = {"estimator": None, "cv": 2, "random_state": 0}


def test_the_constructor_has_few_parameters():
    assert len(inspect.signature(AttnKNNClassifier).parameters) <= 18


def test_settings_a_dict_and_one_list_of_names_fit_the_same():
    X, y = blobs()
    models = [
        AttnKNNClassifier(**CHEAPEST, settings=RARE),
        AttnKNNClassifier(**CHEAPEST, settings={"head": {"epochs": 3}, "calibration": None}),
        AttnKNNClassifier(**CHEAPEST).set_params(
            settings__head=HeadConfig(epochs=3), settings__calibration=None
        ),
    ]
    first, *others = [model.fit(X, y).predict_proba(X) for model in models]
    assert all(same(first, other) for other in others)


def test_an_unknown_setting_is_refused_with_the_nearest_name():
    with pytest.raises(ValueError, match=r"setting 'indx'\. Did you mean 'index'"):
        Settings(indx="exact")
    model = AttnKNNClassifier(settings={"pooling": "mixture"})
    with pytest.raises(ValueError, match=r"'pooling'\. Here the head weighs base and neighbors"):
        model.fit(*blobs())
    with pytest.raises(ValueError, match=r"Did you mean 'head'\?"):
        AttnKNNClassifier().set_params(settings__heads=2)
    with pytest.raises(ValueError, match="settings=7 must be a Settings or a dict"):
        AttnKNNClassifier(settings=7).fit(*blobs())


MOVED = {
    "index": r"It is one of the settings: settings=Settings\(index=\.\.\.\)",
    "base": r"estimator=\.\.\.",
    **{
        name: rf"settings=Settings\({name}="
        for name in ("embedder", "tta", "device", "capacity", "eviction", "checkpoint_dir")
    },
    "class_weight": r"Here class_prior=\"uniform\" counts .* sample_weight=",
    "weights": "the attention learns the weights",
    "algorithm": r'index="exact"',
    "seed": "the seed is random_state",
    "n_neighbours": r"Did you mean 'n_neighbors'\?",
    "colums": r"Did you mean 'columns'\?",
    **dict.fromkeys(["n_members", "n_splits", "validation_fraction", "test_size"], "cv="),
    "pooling": "the head weighs base and neighbors itself",
    "num_heads": "the head comes trained",
    "head_params": r"settings=Settings\(head=\{\.\.\.\}\)",
    "train_params": r"settings=Settings\(train=\{\.\.\.\}\)",
    "embedder_params": r"settings=Settings\(embedder_options=\{\.\.\.\}\)",
    "k_ensemble": "showed no gain",
    "adaptive_k": "showed no gain",
    "spaces": "showed no gain",
    "max_per_clas": r"Did you mean 'max_per_class'\?",
    "memory_budget": "a search works in 256 MiB",
    "cache_dir": r"settings=Settings\(checkpoint_dir=\.\.\.\) keeps what a frozen backbone",
}


@pytest.mark.parametrize("name", MOVED)
def test_a_parameter_that_moved_says_where_it_is(name):
    with pytest.raises(TypeError, match=rf"unexpected argument '{name}'\..*{MOVED[name]}"):
        AttnKNNClassifier(**{name: 1})
    with pytest.raises(ValueError, match=rf"Invalid parameter '{name}' for .*{MOVED[name]}"):
        AttnKNNClassifier().set_params(**{name: 1})


def test_settings_do_not_change_and_show_what_differs_from_the_defaults():
    with pytest.raises(ValueError, match="frozen"):
        RARE.calibration = None
    assert repr(Settings()) == "Settings()"
    assert repr(Settings(calibration=None, index="auto")) == "Settings(calibration=None)"
    shown = repr(AttnKNNClassifier(settings=Settings(calibration=None)))
    assert "Settings(calibration=None)" in shown


def test_single_settings_are_parameters_by_name():
    model = AttnKNNClassifier(settings=Settings(max_per_class=2))
    params = model.get_params()
    assert params["settings__max_per_class"] == 2 and params["settings__calibration"] == "auto"
    assert "settings__calibration" not in model.get_params(deep=False)
    assert clone(model).get_params() == params
    model.set_params(settings__calibration=None)
    assert model.settings == Settings(max_per_class=2, calibration=None)
    model.set_params(settings=Settings(), settings__index="exact")
    assert model.settings == Settings(index="exact")


def test_settings_come_back_from_a_folder_without_those_of_this_machine(tmp_path):
    X, y = blobs()
    settings = RARE.changed(index="exact", checkpoint_dir=tmp_path / "checkpoints")
    model = AttnKNNClassifier(**CHEAPEST, settings=settings).fit(X, y)
    again = reopened(model, tmp_path / "model")
    assert again.settings == RARE.changed(index="exact")
    meta = json.loads(next((tmp_path / "model").glob("meta-*.json")).read_text())
    stored = {"calibration": None, "index": "exact", "head": {"epochs": 3}}
    assert meta["params"]["settings"] == stored
    assert same(again.fit(X, y).predict_proba(X), model.predict_proba(X))


MADE = {
    "a setting": lambda: Settings(capacity=1.5),
    "an unknown one": lambda: Settings(indx="exact"),
    "a network": lambda: Settings(train={"epochs": -1}),
    "a head": lambda: Settings(head={"epochs": -1}),
    "a head's unknown one": lambda: Settings.of({"head": {"epoch": 1}}),
    "training": lambda: TrainConfig(optimizer="sdg"),
    "augmentation": lambda: TrainConfig(augment={"flp": True}),
    "terms that cancel": lambda: TrainConfig(knn_weight=0, ce_weight=0),
}


@pytest.mark.parametrize("case", MADE)
def test_settings_that_do_not_fit_are_refused_in_words_of_ours(case):
    with pytest.raises(ValueError) as caught:
        MADE[case]()
    said = str(caught.value)
    assert not any(word in said for word in ("Value error", "pydantic", "validation error", "\n"))
