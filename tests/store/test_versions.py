"""Models that were saved before open now, and the version moves with what is stored."""

import inspect
import json

import numpy as np
import pytest

from nearwise.estimators import AttnKNNClassifier, Settings
from nearwise.estimators.storage.class_parts import KIND
from nearwise.estimators.storage.model_schema import replace_former
from nearwise.estimators.storage.persistence import VERSION
from nearwise.memory import StoreError, read_folder, write_folder
from tests.store.versions import FOLDERS, stored_form

KEPT = sorted(path.name for path in FOLDERS.iterdir())


def expected_of(name):
    return json.loads((FOLDERS / name / "expected.json").read_text())


@pytest.mark.parametrize("name", KEPT)
def test_a_folder_of_every_version_opens_and_predicts_as_it_did(name):
    model = AttnKNNClassifier.load(FOLDERS / name / "model")
    assert model.cv == 2  # up to version 6 two parameters held it
    # Other processors round the last digits otherwise.
    np.testing.assert_allclose(
        model.predict_proba(None), expected_of(name)["left out"], rtol=1e-4, atol=1e-6
    )


def test_a_folder_of_the_preset_that_went_is_fitted_again_as_the_default():
    content = read_folder(FOLDERS / "v7" / "model", kind=KIND, newest_version=7)
    assert content.meta["params"]["preset"] == "fast"
    model = AttnKNNClassifier.load(FOLDERS / "v7" / "model")
    assert (model.preset, model.estimator) == ("default", "auto")
    model.refresh()
    assert {*model.report_.choice["base"]} & {"mlp", "boosting"}  # which the former preset left out
    assert model.predict_proba(None).shape == (48, 2)


def test_what_were_parameters_are_settings():
    former = {"base": None, "embedder": "table", "tta": ["flip"], "device": "cpu", "capacity": 90}
    params = former | {"eviction": "age", "settings": {"index": "exact"}}
    replace_former(params, inspect.signature(AttnKNNClassifier).parameters)
    assert params.pop("estimator") is None
    settings = Settings.of(params.pop("settings"))
    assert (settings.embedder, settings.tta, settings.device) == ("table", ("flip",), "cpu")
    assert (settings.capacity, settings.eviction, settings.index) == (90, "age", "exact")
    assert not params


def test_a_folder_with_settings_that_went_opens_without_them(tmp_path):
    content = read_folder(FOLDERS / "v8" / "model", kind=KIND, newest_version=VERSION)
    train = {"epochs": 3, "momentum": 0.8, "augment": {"flip": True, "rotation": 10}}
    head = {"epochs": 2, "batch_size": 64}
    former = {"memory_budget": 10**8, "index": "exact", "train": train, "head": head}
    meta = content.meta | {
        "memory_budget": 10**8,
        "params": content.meta["params"] | {"settings": former},
    }
    parts = {"tensors": content.tensors, "meta": meta, "blobs": content.blobs}
    write_folder(tmp_path / "m", kind=KIND, format_version=8, **parts)
    with pytest.warns(UserWarning, match="trained with momentum, batch_size, rotation, which"):
        model = AttnKNNClassifier.load(tmp_path / "m")
    kept = {"epochs": 3, "augment": {"flip": True}}
    assert model.settings == Settings(index="exact", train=kept, head={"epochs": 2})
    np.testing.assert_allclose(
        model.predict_proba(None), expected_of("v8")["left out"], rtol=1e-4, atol=1e-6
    )


def test_heads_that_were_trained_from_scratch_are_refused_with_what_to_do(tmp_path):
    content = read_folder(FOLDERS / "v6" / "model", kind=KIND, newest_version=6)
    options = {"n_spaces": 2, "has_base": True, "num_heads": 4, "hidden": 16, "null": "auto"}
    meta = content.meta | {"head": options | {"pooling": "mixture"}}
    parts = {"tensors": content.tensors, "meta": meta, "blobs": content.blobs}
    write_folder(tmp_path / "m", kind=KIND, format_version=6, **parts)
    with pytest.raises(StoreError, match=r"NeighborHead.* Fit the model again, or open it"):
        AttnKNNClassifier.load(tmp_path / "m")


def test_the_version_moves_with_the_stored_form():
    assert f"v{VERSION}" in KEPT, "Run python -m tests.store.versions and commit the folder."
    kept = expected_of(f"v{VERSION}")
    now = stored_form()
    for part in ("parameters", "settings", "json"):
        assert kept[part] == now[part], (
            "The parameters or the JSON part of a model folder have changed. Raise VERSION in "
            "classifier/storage/persistence.py, decide whether older folders can still be read, "
            "and run python -m tests.store.versions."
        )
