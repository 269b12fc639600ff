"""Presets: the study's settings, their defects, and changes with hints."""

from contextlib import nullcontext
from functools import partial

import pytest
from nearwise_lab.experiments.study import PRESET_NAMES, PRESETS, get_preset, resolve_preset
from nearwise_lab.experiments.study.presets import change_preset
from nearwise_lab.experiments.study.settings import read_config, split_settings

from nearwise.nn.backbones import IMAGENET_MODELS

# One value for all versions, or one per version, in the order of PRESETS: v0.1, v0.2, v0.3, v0.4,
# v0.5, v0.5-notebook, v0.6, v0.6-notebook.
START_OF_TEMPERATURE = [1.0, 1.0, 1.0, 0.5, 0.5, 1.0, 0.5, 1.0]
WIDE, NARROW = (0.05, 5.0), (0.05, 2.0)
REPORTED = {
    "name": ["v0.1", "v0.2", "v0.3", "v0.4", "v0.5", "v0.5-notebook", "v0.6", "v0.6-notebook"],
    "backbone": ["resnet18"] * 3 + ["resnet50"] + ["resnet18"] * 4,
    "pretrained": "local",
    "projection_norm": ["batch"] * 3 + ["layer", "layer", "batch", "layer", "batch"],
    "image_size": None,
    "channels": None,
    "dim": [128] * 3 + [256] * 5,
    "num_heads": [1] * 3 + [4] * 5,
    "temperature": START_OF_TEMPERATURE,
    "temperature_bounds": [WIDE if start == 1 else NARROW for start in START_OF_TEMPERATURE],
    "distance_bias": True,
    "learn_temperature": True,
    "learned_k": False,
    "objective": ["classifier"] * 2 + ["neighbors"] * 6,
    "n_neighbors": [10] * 4 + [16] * 4,
    "leave_self_out": False,
    "refresh_every": 5,
    "epochs": [30] * 3 + [50] + [20] * 4,
    "batch_size": [256] * 4 + [512] * 4,
    "lr": [1e-3] * 4 + [2e-4, 1e-3] * 2,
    "embedder_lr_ratio": 0.1,
    "weight_decay": 1e-4,
    "warmup_epochs": [0] * 3 + [5] + [0] * 4,
    "gradient_clip": [1.0] * 5 + [None, 1.0, None],
    "knn_weight": 1.0,
    "contrastive_weight": [0] * 3 + [0.5] * 5,
    "contrastive_kind": ["supervised"] * 3 + ["margin"] + ["supervised", "pairs"] * 2,
    "contrastive_temperature": 0.1,
    "contrastive_margin": 0.5,
    "entropy_weight": [0] * 4 + [0.01, 0] * 2,
    "selective_weight": 0,
    "label_smoothing": [0] * 4 + [0.1, 0] * 2,
    "mixup_alpha": [0] * 4 + [0.4, 0] * 2,
    "mixup_probability": 0.5,
    "hard_negative_weight": [1] * 3 + [2] + [1] * 4,
    "hard_negative_fraction": 0.3,
    "hard_negative_neighbors": 10,
    "augment": [True] * 4 + [False] * 4,
    "precision": "float32",
    "compile": False,
    "split_seed": 42,
    "seed_offset": [0, 100, 0, 0, 0, 0, 100, 100],
    "cnn_epochs": 30,
    "cnn_lr": 1e-3,
    "cnn_weight_decay": 1e-4,
    "cnn_label_smoothing": 0.1,
    "cnn_batch_size": 256,
    "held_out": 0.1,
    "distance_temperature": 1.0,
    "views": ["mirror-and-crops"] * 5 + ["random", "mirror-and-crops", "random"],
    "ensemble_k": (5, 10, 20),
    "adaptive_k_max": 50,
    "sweep_k": (1, 3, 5, 10, 20, 50),
    "noise_rates": (0, 0.1, 0.2, 0.3),
    "tail_ratios": (1, 0.1, 0.01),
    "human_labels": ("worse", "aggregate"),
    "ablations": None,
    "max_rows": None,
    "max_test_rows": None,
}


def test_the_presets_have_the_settings_that_the_study_reported():
    for place, preset in enumerate(PRESETS.values()):
        reported = {
            field: value[place] if isinstance(value, list) else value
            for field, value in REPORTED.items()
        }
        assert preset.model_dump() == reported, preset.name


@pytest.mark.parametrize(
    ("version", "held", "backbone", "pretrained"),
    [
        ("v0.5-notebook", "resnet18", None, True),
        ("v0.1", "resnet18", None, True),
        ("v0.4", "resnet50", None, True),
        ("v0.5", "resnet50", None, False),
        ("v0.6", "resnet18", "fast-cnn", False),
    ],
)
def test_runs_start_from_weights_that_are_at_hand_and_say_where_there_are_none(
    tmp_path, monkeypatch, version, held, backbone, pretrained
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
        preset = resolve_preset(version, "cifar10", "images", 60_000, overrides=changes)
    assert preset.pretrained is pretrained


def test_every_version_names_its_defects():
    for name, preset in PRESETS.items():
        assert {"leak", "collapse", "nothing-held-out"} <= set(preset.defects)
        assert {"noise-in-memory-only", "tail-in-memory-only"} <= set(preset.defects)
        assert ("misaligned" in preset.defects) == (name in ("v0.1", "v0.2"))
        assert ("mixup-neighbors" in preset.defects) == (name in ("v0.5", "v0.6"))
    mended = change_preset(PRESETS["v0.3"], {"leave_self_out": True})
    assert "leak" not in mended.defects


@pytest.mark.parametrize(("n_rows", "batch"), [(150, 32), (1599, 64), (48842, 512)])
def test_tables_take_the_tabular_embedder_and_the_batches_of_the_study(n_rows, batch):
    preset = resolve_preset("v0.5", "some", "table", n_rows)
    assert (preset.backbone, preset.batch_size, preset.augment) == ("mlp", batch, False)


@pytest.mark.filterwarnings("ignore:.*starts from scratch here")
def test_data_set_size_and_user_change_a_preset_in_this_order():
    mnist = resolve_preset("v0.3", "mnist", "images", 70_000)
    assert (mnist.image_size, mnist.channels, mnist.split_seed) == (32, 3, 42)
    cifar10 = partial(resolve_preset, "v0.4", "cifar10", "images", 60_000, small=True)
    assert (cifar10().backbone, cifar10().max_rows) == ("resnet-small", 800)
    assert cifar10(overrides={"epochs": 3}).epochs == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epoch": 3}, "Unknown study setting 'epoch'. Did you mean 'epochs'"),
        ({"epochs": 0}, r"epochs: .*greater than or equal to 1 \(got 0\)"),
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


def test_a_yaml_file_gives_settings_and_one_that_holds_none_is_refused(tmp_path):
    path = tmp_path / "settings.yaml"
    for text, found in (("epochs: 2\nk: [1, 2]\n", {"epochs": 2, "k": [1, 2]}), ("", {})):
        path.write_text(text)
        assert read_config(path) == found
    for text, message in (("- 1\n- 2", "holds list"), ("a: [1", "is not YAML")):
        path.write_text(text)
        with pytest.raises(ValueError, match=message):
            read_config(path)
