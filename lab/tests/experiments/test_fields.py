"""Fields trained stage by stage: found by what they say, gone on with, never mixed up."""

import pytest
import torch
from nearwise_lab.data import load_images
from nearwise_lab.data.trained_on import image_digests
from nearwise_lab.experiments.fields import STAGES, find_field, run_field
from nearwise_lab.field_training import FieldConfig
from nearwise_lab.nn.field import PRESETS
from nearwise_lab.probing import open_encoder
from nearwise_lab.probing.data import probe_data, without_seen

TINY = {
    "model": {"latent_dims": (8,), "num_latents": 4, "head_dim": 4, "num_process_layers": 0},
    "epochs": 2, "n_anchors": 4, "n_candidates": 8, "nce_dim": 4,
}  # fmt: skip


@pytest.fixture(scope="module")
def data():
    return probe_data(load_images("digits-images"), limit=(100, 20))


def stages(objective, **changes):
    return [FieldConfig(**{**TINY, "objective": name, **changes}) for name in STAGES[objective]]


def test_stages_that_two_runs_share_are_trained_once(data, tmp_path):
    first = run_field(data, stages("reconstruction"), tmp_path, dataset="digits-images")
    told = []
    second = run_field(data, stages("nce"), tmp_path, progress=told.append)
    assert told[0] == "nce, step 0 of 4" and told[3].startswith("nce, step 2 of 4; epoch 1: train")
    assert told[-1].startswith("nce; epoch 2: train MSE ") and "held-out PSNR" in told[-1]
    assert second.history[:2] == first.history
    assert [row["step"] for row in second.history] == [2, 4, 6, 8]
    assert second.model.run["stages"] == ["reconstruction:2", "nce:2"]
    assert first.model.run["dataset"] == "digits-images"
    again = run_field(data, stages("nce"), tmp_path)
    assert again.found and again.folder == second.folder
    assert len(list(tmp_path.iterdir())) == 2


def test_a_model_is_found_whatever_its_folder_is_called(data, tmp_path):
    first = run_field(data, stages("sparse"), tmp_path)
    first.folder.rename(tmp_path / "moved")
    assert run_field(data, stages("sparse"), tmp_path).folder == tmp_path / "moved"


def test_a_field_notes_which_images_it_was_trained_on(data, tmp_path):
    run = run_field(data, stages("nce"), tmp_path)
    opened = open_encoder(str(run.folder), (8, 8), 1)
    assert set(opened.trained_on) == set(image_digests(data.train.images))
    assert without_seen(data, {"field": opened})[1] == {}


@pytest.mark.parametrize("other", [{"seed": 1}, {"lr": 0.1}, {"context": 0.4}, {"compile": True}])
def test_another_seed_or_setting_is_another_model(data, tmp_path, other):
    run_field(data, stages("sparse"), tmp_path)
    seed = other.pop("seed", 0)
    assert find_field(data, stages("sparse"), tmp_path) is not None
    assert find_field(data, stages("sparse", **other), tmp_path, seed=seed) is None


def test_a_folder_from_before_compiling_counted_is_gone_on_with(data, tmp_path):
    run = run_field(data, stages("sparse"), tmp_path)
    assert "compile" not in run.model.run["study"]["stages"][0]


def test_other_sizes_under_a_presets_name_are_another_model(data, tmp_path, monkeypatch):
    run_field(data, stages("sparse"), tmp_path)
    assert find_field(data, stages("sparse"), tmp_path) is not None
    monkeypatch.setitem(PRESETS, "digits", PRESETS["digits"] | {"fourier_scale": 2.0})
    assert find_field(data, stages("sparse"), tmp_path) is None
    assert not run_field(data, stages("sparse"), tmp_path).found


def test_other_images_are_another_model(data, tmp_path):
    run_field(data, stages("sparse"), tmp_path)
    fewer = data._replace(train=data.train._replace(
        images=data.train.images[5:], labels=data.train.labels[5:], rows=data.train.rows[5:]
    ))  # fmt: skip
    assert not run_field(fewer, stages("sparse"), tmp_path).found


def test_a_run_broken_off_goes_on_to_the_same_weights(data, tmp_path):
    def stop(words):
        if words.startswith("sparse; epoch 1"):
            raise KeyboardInterrupt

    with pytest.warns(UserWarning, match="interrupted"), pytest.raises(KeyboardInterrupt):
        run_field(data, stages("sparse"), tmp_path / "a", progress=stop)
    told = []
    on = run_field(data, stages("sparse"), tmp_path / "a", progress=told.append)
    whole = run_field(data, stages("sparse"), tmp_path / "b")
    assert told[0] == "sparse, step 2 of 4"
    pairs = zip(on.model.parameters(), whole.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
