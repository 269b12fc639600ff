"""A slice of the study: trained, probed, looked at, kept, found again."""

import sys

import numpy as np
import pytest
from nearwise_lab.data import load_images
from nearwise_lab.experiments.representations import (
    Cell,
    load_comparison,
    run_comparison,
    study_config,
)
from nearwise_lab.experiments.representations.looking import tsne_map
from nearwise_lab.nn.field import find_models
from nearwise_lab.records import lock_folder

from nearwise.data import Dataset

SLICE = {
    "epochs": 1, "finetune_epochs": 1, "limit": (160, 80), "draws": 1, "probes": ["knn"],
    "map_rows": 50, "shown": 2, "field": {"batch_size": 32},
}  # fmt: skip
ARMS = ("pixels", "sparse", "full", "full+nce")
TRAINED = ARMS[1:]


@pytest.fixture(scope="module")
def digits():
    return load_images("digits-images")


@pytest.fixture(scope="module")
def ran(digits, tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    return folder, run_comparison(digits, folder, config=SLICE, arms=ARMS)


@pytest.mark.slow
def test_every_arm_is_measured_by_every_probe_in_every_context(ran):
    _, found = ran
    assert set(found.encoders) == set(ARMS)
    assert (found.probes, found.contexts, found.seeds) == (["knn"], ["full", "0.2"], [0])
    for encoder in ARMS:
        for probe in found.probes:
            assert len(found.at(Cell(encoder, probe, "full"))) == 1
            assert len(found.at(Cell(encoder, probe, "0.2"))) == 1
            for context in ("0.2:fixed", "0.2", "0.2:batch"):
                assert len(found.at(Cell(encoder, probe, context), "protocol")) == 1


def test_probes_read_as_many_views_of_each_training_image_as_are_set(digits, tmp_path):
    config = {"limit": (160, 80), "views": 3, "probes": ["knn"], "contexts": ["full"]}
    found = run_comparison(digits, tmp_path, config={**SLICE, **config}, arms=("pixels",))
    (record,) = found.at(Cell("pixels", "knn", "full"))
    assert record["n_train"] == 3 * 144 + 16  # the validation rows as they are


@pytest.mark.slow
def test_all_fields_take_as_many_steps_and_a_shared_stage_is_trained_once(ran):
    folder, found = ran
    assert {f["history"][-1]["step"] for f in found.fields} == {10}  # 144 rows in batches of 32
    runs = [model.run for model in find_models(folder / "models", {})]
    assert len(runs) == 5  # two first stages, three second ones
    assert sorted(run["step"] for run in runs) == [5, 5, 10, 10, 10]


@pytest.mark.slow
def test_only_the_contrastive_fields_have_a_contrastive_curve(ran):
    _, found = ran
    told = {f["encoder"]: any("nce" in row for row in f["history"]) for f in found.fields}
    assert told == {name: name.endswith("+nce") for name in TRAINED}


@pytest.mark.slow
def test_geometry_maps_and_reconstructions_are_there(ran):
    _, found = ran
    assert {(g["encoder"], g["context"]) for g in found.geometry} == {
        (a, c) for a in ARMS for c in ("full", "0.2")
    }
    for row in found.geometry:
        assert list(row["purity_curve"]) == ["1", "2", "5", "10", "20", "50"]
        assert row["purity"] == row["purity_curve"]["20"]
    assert {(m["encoder"], m["context"]) for m in found.maps} == {
        (a, c) for a in ARMS for c in ("full", "0.2")
    }
    seen = found.arrays["seen 0.2"]
    assert seen.shape == (2, 1, 8, 8) and (seen == 0).mean() >= 1 - 13 / 64
    assert set(found.pictures["contexts"]["full"]) == set(TRAINED)


@pytest.mark.slow
def test_what_is_kept_is_read_back(ran):
    folder, found = ran
    again = load_comparison(folder)
    place = (Cell("sparse", "knn", "0.2"), Cell("full", "knn", "0.2"))
    assert again.difference(*place) == found.difference(*place)
    assert again.facts["dataset"] == "digits-images"
    assert again.arrays.keys() == found.arrays.keys()
    for name in ("map3", "map3_labels", "seen 0.2", "field full sparse"):
        np.testing.assert_array_equal(again.arrays[name], found.arrays[name])


@pytest.mark.slow
def test_a_second_run_measures_nothing_again(ran, digits, monkeypatch):
    folder, found = ran

    def refuse(*args, **kwargs):
        raise AssertionError("it was measured again")

    monkeypatch.setattr("nearwise_lab.experiments.fields.train_field", refuse)
    # the function of that name hides the module
    monkeypatch.setattr(sys.modules["nearwise_lab.probing.protocol"], "_measured", refuse)
    study = "nearwise_lab.experiments.representations"
    monkeypatch.setattr(f"{study}.looking.geometry", refuse)
    monkeypatch.setattr(f"{study}.run.run_side_by_side", refuse)
    for n_jobs in (1, 2):
        again = run_comparison(digits, folder, config=SLICE, arms=ARMS, n_jobs=n_jobs)
        assert list(again.records) == list(found.records)


@pytest.mark.slow
def test_processes_side_by_side_give_the_same(ran, digits, tmp_path):
    _, alone = ran
    arms = ("pixels", "full", "full+nce")
    said: list[str] = []
    both = run_comparison(digits, tmp_path, config=SLICE, arms=arms, n_jobs=2, progress=said.append)
    assert any("seed 0, " in words for words in said)

    def measured(records):
        clocks = ("fit_seconds", "query_us")
        kept = (r for r in records if r["encoder"] in arms)
        return [{k: v for k, v in r.items() if k not in clocks} for r in kept]

    assert measured(both.records) == measured(alone.records)
    curves = {f["encoder"]: f["history"] for f in alone.fields}
    assert {f["encoder"]: f["history"] for f in both.fields} == {a: curves[a] for a in arms[1:]}


@pytest.mark.slow
def test_seeds_side_by_side_share_features(digits, tmp_path, capfd):
    config = SLICE | {"contexts": ["full"], "pooling": False}
    found = run_comparison(
        digits, tmp_path, config=config, arms=["pixels"], seeds=[0, 1, 1], n_jobs=2
    )
    assert found.seeds == [0, 1]
    told = capfd.readouterr().err  # of all processes
    assert "cannot be used" not in told and "not kept" not in told


@pytest.mark.slow
def test_the_original_pixels_are_the_flattened_image(ran, digits):
    """Patches hold every pixel once, so that k-NN sees what it sees in the image itself."""
    from nearwise_lab.probing.data import probe_data
    from sklearn.neighbors import KNeighborsClassifier

    _, found = ran
    config = study_config("digits-images", SLICE)
    train, held, test = probe_data(
        digits, seed=0, validation=config.validation, test_size=config.test_size,
        limit=config.limit,
    )  # fmt: skip
    flat = [part.images.reshape(len(part.images), -1) / 255.0 for part in (train, held, test)]
    (record,) = found.at(Cell("pixels", "knn", "full"))
    knn = KNeighborsClassifier(record["choice"]["n_neighbors"], metric="cosine")
    knn.fit(np.concatenate(flat[:2]), np.concatenate([train.labels, held.labels]))
    wanted = (knn.predict(flat[2]) == test.labels).mean()
    assert record["accuracy"] == pytest.approx(wanted, abs=1.5 / 80)  # a tie of votes may differ


def test_hidden_pixels_are_told_from_black_ones_where_tokens_are_read(digits, tmp_path):
    tiny = {"d_model": 8, "epochs": 1, "num_heads": 2}
    config = SLICE | {"probes": ["linear", "transformer"], "transformer": tiny, "protocol": False}
    found = run_comparison(digits, tmp_path, config=config, arms=["pixels"])
    (whole,), (part,) = (found.at(Cell("pixels", "transformer", c)) for c in ("full", "0.2"))
    assert (whole["tokens"], whole["dims"]) == (16, 64)  # patches
    assert (part["tokens"], part["dims"]) == (13, 13 * (1 + 32))  # color and Fourier features
    (flat,) = found.at(Cell("pixels", "linear", "0.2"))
    assert flat["dims"] == 64


def test_other_test_rows_are_looked_at_anew(digits, tmp_path):
    config = SLICE | {"contexts": ["full"], "geometry_rows": 80}
    rows = []
    for n_test in (80, 60):
        found = run_comparison(
            digits, tmp_path, config=config | {"limit": (160, n_test)}, arms=["pixels"]
        )
        rows.append(found.geometry[0]["n"])
    assert rows == [80, 60]


def test_the_command_and_the_study_train_alike():
    """So that the one finds the fields of the other."""
    from nearwise_lab.experiments.fields import stage_configs

    study = study_config("digits-images").stages(["sparse", "sparse-nce"])
    command = stage_configs(["sparse", "sparse-nce"], {"preset": "digits"})
    assert study == command and [stage.epochs for stage in study] == [30, 10]
    assert study_config("cifar10").finetune_epochs == 5
    assert study_config("cifar10", {"preset": "digits"}).finetune_epochs == 10


def test_maps_are_the_same_each_time():
    X = np.random.default_rng(0).normal(size=(60, 5)).astype(np.float32)
    np.testing.assert_array_equal(tsne_map(X, 1), tsne_map(X, 1))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epoch": 3}, "epochs"),
        ({"contexts": ["half"]}, "half"),
        ({"contexts": []}, "empty"),
        ({"draws": 0}, "greater than or equal to 1"),
        ({"probes": []}, "probes is empty"),
        ({"probes": ["knnn"]}, "Unknown probe 'knnn'. Did you mean 'knn'"),
        ({"transformer": {"epoch": 1}}, "Unknown transformer setting 'epoch'.*'epochs'"),
    ],
)
def test_wrong_settings_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        study_config("digits-images", changes)


def test_nested_settings_change_a_recipe_and_do_not_replace_it():
    recipe = study_config("digits-images").transformer
    changed = study_config("digits-images", {"transformer": {"epochs": 5}}).transformer
    assert changed == recipe | {"epochs": 5} != {"epochs": 5}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"contexts": ["full", "0.001"]}, "0.001 of 64 points leaves no point"),
        ({"limit": (160, 24)}, "24 test images are too few"),
    ],
)
def test_what_does_not_fit_the_images_is_refused_before_anything_is_trained(
    digits, tmp_path, changes, message
):
    with pytest.raises(ValueError, match=message):
        run_comparison(digits, tmp_path / "run", config=SLICE | changes, arms=["full"])
    assert not (tmp_path / "run").exists()


def test_unknown_arms_and_data_without_images_are_refused(digits, tmp_path):
    with pytest.raises(ValueError, match="No encoder is named"):
        run_comparison(digits, tmp_path, arms=[])
    with pytest.raises(ValueError, match="Unknown encoder 'dense'"):
        run_comparison(digits, tmp_path, arms=["dense"])
    with pytest.raises(ValueError, match="which the study uses"):
        run_comparison(digits, tmp_path, others={"full": object()})
    flat = Dataset("rows", np.zeros((4, 2), np.float32), np.arange(4), "y", "embeddings", "here")
    with pytest.raises(ValueError, match="no images"):
        run_comparison(flat, tmp_path)


def test_two_runs_at_once_in_a_folder_are_refused(digits, tmp_path):
    with lock_folder(tmp_path), pytest.raises(ValueError, match="another process is writing"):
        run_comparison(digits, tmp_path, config=SLICE, arms=["pixels"])


@pytest.mark.parametrize("content", ["[]", "{", '{"records": []}'])
def test_a_damaged_comparison_is_named(tmp_path, content):
    (tmp_path / "comparison.json").write_text(content)
    (tmp_path / "comparison.npz").write_bytes(b"PK\x03\x04")
    with pytest.raises(ValueError, match=f"comparison in {tmp_path} is damaged"):
        load_comparison(tmp_path)


def test_a_folder_without_a_comparison_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"comparison\.json is missing"):
        load_comparison(tmp_path)
