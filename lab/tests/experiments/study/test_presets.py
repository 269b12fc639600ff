"""Presets: the study's settings, their defects, and changes with hints."""

from contextlib import nullcontext

import pytest
from nearwise_lab.experiments.study import PRESET_NAMES, PRESETS, get_preset, resolve_preset
from nearwise_lab.experiments.study.corrected_session import split_settings
from nearwise_lab.experiments.study.presets import change_preset
from nearwise_lab.experiments.study.settings import read_config

from nearwise.nn.backbones import IMAGENET_MODELS


def test_the_presets_have_the_settings_that_the_study_reported():
    first, fourth, fifth = PRESETS["v0.3"], PRESETS["v0.4"], PRESETS["v0.5"]
    assert (first.backbone, first.dim, first.num_heads, first.epochs) == ("resnet18", 128, 1, 30)
    assert (first.batch_size, first.n_neighbors, first.lr) == (256, 10, 1e-3)
    assert (fourth.backbone, fourth.dim, fourth.epochs, fourth.warmup_epochs) == (
        "resnet50", 256, 50, 5,
    )  # fmt: skip
    assert (fourth.contrastive_kind, fourth.hard_negative_weight) == ("margin", 2.0)
    assert (fifth.batch_size, fifth.n_neighbors, fifth.lr, fifth.epochs) == (512, 16, 2e-4, 20)
    assert (fifth.mixup_alpha, fifth.label_smoothing, fifth.entropy_weight) == (0.4, 0.1, 0.01)
    assert not fifth.augment


@pytest.mark.parametrize(
    ("version", "start", "bounds"),
    [
        ("v0.3", 1.0, (0.05, 5.0)), ("v0.4", 0.5, (0.05, 2.0)), ("v0.5", 0.5, (0.05, 2.0)),
        ("v0.6", 0.5, (0.05, 2.0)), ("v0.5-notebook", 1.0, (0.05, 5.0)),
        ("v0.6-notebook", 1.0, (0.05, 5.0)),
    ],
)  # fmt: skip
def test_the_heads_start_at_the_temperature_of_their_version(version, start, bounds):
    preset = PRESETS[version]
    assert (preset.temperature, preset.temperature_bounds) == (start, bounds)


def test_v06_is_v05_again_with_other_seeds():
    again = PRESETS["v0.6"].model_copy(update={"name": "v0.5", "seed_offset": 0})
    assert again == PRESETS["v0.5"]
    assert PRESETS["v0.6"].seed_offset > 0


@pytest.mark.parametrize("version", ["v0.5", "v0.6"])
def test_the_notebook_ran_without_what_the_study_described_beside_it(version):
    described, ran = PRESETS[version], PRESETS[f"{version}-notebook"]
    assert (ran.lr, ran.lr * ran.embedder_lr_ratio) == (1e-3, pytest.approx(1e-4))
    assert (ran.mixup_alpha, ran.label_smoothing, ran.entropy_weight) == (0, 0, 0)
    assert (ran.gradient_clip, ran.pretrained) == (None, "local")
    same = set(ran.model_dump()) - {
        "name", "lr", "mixup_alpha", "label_smoothing", "entropy_weight", "gradient_clip",
        "pretrained", "temperature", "temperature_bounds",
    }  # fmt: skip
    assert ran.model_dump(include=same) == described.model_dump(include=same)


@pytest.mark.parametrize(
    ("held", "backbone", "pretrained"),
    [("resnet18", None, True), ("resnet50", None, False), ("resnet18", "fast-cnn", False)],
)
def test_the_notebooks_runs_start_from_weights_that_are_at_hand(
    tmp_path, monkeypatch, held, backbone, pretrained
):
    folder = tmp_path / f"models--{IMAGENET_MODELS[held].replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("abc")
    (folder / "snapshots" / "abc").mkdir(parents=True)
    (folder / "snapshots" / "abc" / "model.safetensors").touch()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    changes = {} if backbone is None else {"backbone": backbone}
    warned = nullcontext() if pretrained else pytest.warns(UserWarning, match="starts from scratch")
    with warned:
        preset = resolve_preset("v0.5-notebook", "cifar10", "images", 60_000, overrides=changes)
    assert preset.pretrained is pretrained


def test_every_version_names_its_defects():
    for name, preset in PRESETS.items():
        assert {"leak", "collapse", "nothing-held-out"} <= set(preset.defects)
        assert ("misaligned" in preset.defects) == (name in ("v0.1", "v0.2"))
        assert ("mixup-neighbors" in preset.defects) == (name in ("v0.5", "v0.6"))
    mended = change_preset(PRESETS["v0.3"], {"leave_self_out": True})
    assert "leak" not in mended.defects


@pytest.mark.parametrize(("n_rows", "batch"), [(150, 32), (1599, 64), (48842, 512)])
def test_tables_take_the_tabular_embedder_and_the_batches_of_the_study(n_rows, batch):
    preset = resolve_preset("v0.5", "some", "table", n_rows)
    assert (preset.backbone, preset.batch_size, preset.augment) == ("mlp", batch, False)


def test_mnist_is_taken_at_32_pixels_and_3_channels():
    preset = resolve_preset("v0.3", "mnist", "images", 70_000)
    assert (preset.image_size, preset.channels, preset.split_seed) == (32, 3, 42)


def test_changes_win_over_the_small_size():
    small = resolve_preset("v0.4", "cifar10", "images", 60_000, small=True)
    changed = resolve_preset(
        "v0.4", "cifar10", "images", 60_000, small=True, overrides={"epochs": 3}
    )
    assert small.backbone == "resnet-small"
    assert small.max_rows is not None
    assert changed.epochs == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epoch": 3}, "Unknown study setting 'epoch'. Did you mean 'epochs'"),
        ({"epochs": 0}, "epochs=0"),
        ({"dim": 10, "num_heads": 4}, "not a multiple of num_heads"),
        ({"temperature": 9.0}, "outside temperature_bounds"),
        ({"knn_weight": 0, "contrastive_weight": 0}, "nothing to train"),
        ({"sweep_k": []}, "sweep_k"),
    ],
)
def test_settings_that_do_not_fit_are_refused_with_a_hint(changes, message):
    with pytest.raises(ValueError, match=message):
        change_preset(PRESETS["v0.5"], changes)


def test_an_unknown_preset_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"unknown preset 'v0.55'.*v0.5.*v1"):
        get_preset("v0.55")
    with pytest.raises(ValueError, match="AttnKNNClassifier"):
        get_preset("v1")
    assert PRESET_NAMES == (
        "v0.1", "v0.2", "v0.3", "v0.4", "v0.5", "v0.5-notebook", "v0.6", "v0.6-notebook", "v1",
    )  # fmt: skip


def test_settings_of_v1_are_the_classifiers_or_the_frames():
    study, parameters = split_settings({"max_rows": 50, "n_neighbors": 2})
    assert (study, parameters) == ({"max_rows": 50}, {"n_neighbors": 2})
    with pytest.raises(ValueError, match="Did you mean 'n_neighbors'"):
        split_settings({"n_neighbor": 2})


@pytest.mark.parametrize(
    ("text", "message"), [("- 1\n- 2", "holds list"), ("a: [1", "is not YAML")]
)
def test_a_file_that_holds_no_settings_is_refused(tmp_path, text, message):
    path = tmp_path / "settings.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_config(path)


def test_a_yaml_file_gives_settings(tmp_path):
    path = tmp_path / "settings.yaml"
    path.write_text("epochs: 2\nsweep_k: [1, 2]\n")
    assert read_config(path) == {"epochs": 2, "sweep_k": [1, 2]}
    path.write_text("")
    assert read_config(path) == {}
