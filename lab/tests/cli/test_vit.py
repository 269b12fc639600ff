"""``nearwise vit train``: the published flags, as they are written in scripts."""

import json

import pytest
from nearwise_lab.cli.vit_flags import usual_arguments
from nearwise_lab.experiments.vit.settings import NEVER_EXISTED, VitSettings

SMALL = (
    "--dataset", "digits", "--resize", "0", "--patch_size", "2", "--num_layers", "1",
    "--num_heads", "2", "--d_hidden", "16", "--d_mlp", "16", "--num-epochs", "2",
    "--train-limit", "128", "--test-limit", "32", "--device", "cpu",
)  # fmt: skip
PUBLISHED = {
    "layer": "Attention", "patch_size": 16, "num_layers": 12, "num_heads": 3, "d_hidden": 192,
    "d_mlp": 768, "dropout": 0.1, "attention_dropout": 0.1, "convolution_type": "depthwise",
    "softmax_topk_val": True, "K": 9, "sampling_type": "all", "num_samples": -1,
    "sample_padding": 0, "magnitude_type": "matmul", "coordinate_encoding": False,
    "kernel_size": 9, "branch_ratio": 0.5, "dataset": "cifar10", "data_path": "./Data",
    "resize": 224, "augment": False, "noise": 0.0, "batch_size": 256, "num_epochs": 150,
    "use_amp": False, "use_compiled": False, "compile_mode": "default", "clip_grad_norm": 1.0,
    "criterion": "CrossEntropy", "optimizer": "adamw", "lr": 1e-3, "weight_decay": 1e-6,
    "momentum": 0.9, "scheduler": "none", "lr_step": 20, "lr_gamma": 0.1, "seed": 0,
    "test_only": False,
}  # fmt: skip
SWITCHES = {"--augment", "--no-augment", "--test-only", "--no-test-only"}


def test_published_flags_have_their_defaults():
    assert PUBLISHED.items() <= VitSettings().model_dump().items()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["--d_hidden", "8"], ["--d-hidden", "8"]),
        (["--data_path=./My_Data"], ["--data-path=./My_Data"]),
        (["--augment"], ["--augment"]),
        (["--augment", "True", "--lr", "1"], ["--augment", "--lr", "1"]),
        (["--augment", "False"], ["--no-augment"]),
        (["--no-augment", "False"], ["--augment"]),
        (["--test_only=false"], ["--no-test-only"]),
        (["--no_augment"], ["--no-augment"]),
        (["--", "--d_hidden"], ["--", "--d_hidden"]),
    ],
)
def test_underscores_dashes_and_truth_values_are_understood(given, expected):
    assert usual_arguments(given, SWITCHES) == expected


def test_a_switch_takes_no_other_value():
    with pytest.raises(ValueError, match="'maybe' is neither True nor False"):
        usual_arguments(["--augment=maybe"], SWITCHES)
    with pytest.raises(ValueError, match="--augment is on or off; 'maybe' is neither"):
        usual_arguments(["--augment", "maybe"], SWITCHES)


def test_all_names_that_never_existed_are_told_at_once():
    names = ("similarity_type", "aggregation_type")
    given = [
        "--d_hidden",
        "8",
        "--similarity_type",
        "1",
        "--aggregation-type=2",
        "--similarity-type",
    ]
    with pytest.raises(ValueError) as told:
        usual_arguments(given, SWITCHES)
    assert str(told.value) == " ".join(
        f"There is no --{name}: it is --{NEVER_EXISTED[name]}." for name in names
    )


def test_training_writes_figures_and_says_where_everything_is(nearwise, tmp_path):
    out = tmp_path / "run"
    common = ("vit", "train", *SMALL, "--layer", "ConvNNAttention", "--K", "3", "--output_dir", out)
    result = nearwise(*common, "--softmax_topk_val", "False", "--augment", "True")
    assert result.exit_code == 0, result.err
    assert "top-1 %" in result.out and "[Epoch 002]" in result.err
    assert (out / "curves.png").read_bytes()[:4] == b"\x89PNG"
    settings = json.loads((out / "settings.json").read_text())
    assert (settings["softmax_topk_val"], settings["augment"], settings["K"]) == (False, True, 3)
    tested = nearwise("vit", "train", "--test_only", "True", "--output-dir", out, "-q")
    assert (tested.exit_code, tested.err) == (0, "")
    assert tested.out == result.out
    other = nearwise("vit", "train", "--test_only", "--output-dir", out, "--K", "4")
    assert other.exit_code == 2 and "trained with K=3, not 4" in other.err


def test_settings_of_a_file_are_taken_and_options_win(nearwise, tmp_path):
    config = tmp_path / "settings.yaml"
    config.write_text("layer: KvtAttention\nK: 4\nlr: 0.5\n")
    out = tmp_path / "run"
    options = ("--config", config, "--lr", "0.01", "--output-dir", out, "-q")
    result = nearwise("vit", "train", *SMALL, *options)
    assert result.exit_code == 0, result.err
    settings = json.loads((out / "settings.json").read_text())
    assert (settings["layer"], settings["K"], settings["lr"]) == ("KvtAttention", 4, 0.01)


@pytest.mark.parametrize("command", ["train", "summary"])
@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("missing.yaml", "missing.yaml: No such file"),
        (".", "Is a directory"),
        ("torn.yaml", "torn.yaml, line 2 is not YAML"),
    ],
)
def test_a_file_of_settings_that_cannot_be_read_is_an_error(
    nearwise, tmp_path, command, config, message
):
    (tmp_path / "torn.yaml").write_text("lr: [1\nK")
    result = nearwise("vit", command, "--config", tmp_path / config)
    assert result.exit_code == 2
    assert result.err.startswith("error: ") and message in result.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--layer", "ConvNAttention"), "Did you mean 'ConvNNAttention'"),
        (("--similarity_type", "Loc"), "--magnitude_type"),
        (("--aggregation_type", "Col"), "--convolution_type"),
        (("--laier", "x"), "--layer"),
        (("--compile_mode", "reduce-memory"), "max-autotune"),
        (("--dropout", "1.5"), "dropout"),
    ],
)
def test_wrong_flags_say_which_is_right(nearwise, arguments, message):
    result = nearwise("vit", "train", *arguments)
    assert result.exit_code == 2
    assert message in result.err


def test_a_flag_that_does_not_count_for_the_layer_gets_one_line(nearwise, tmp_path):
    given = ("--layer", "MultiHeadKvtAttention", "--K", "3", "--magnitude_type", "cosine")
    result = nearwise("vit", "train", *SMALL, *given, "--output_dir", tmp_path / "run", "-q")
    assert result.exit_code == 0, result.err
    (line,) = result.err.splitlines()
    assert line.startswith("warning: magnitude_type changes nothing with layer='MultiHeadKvt")


def test_the_published_name_of_a_grid_is_taken(nearwise):
    small = ("--d_hidden", "24", "--num_layers", "1", "--num_heads", "3")
    common = ("vit", "summary", *small, "--layer", "ConvNNAttention", "--num_samples", "2")
    results = [nearwise(*common, "--sampling-type", kind) for kind in ("spatial", "grid")]
    assert [result.exit_code for result in results] == [0, 0], results[0].err
    assert results[0].out == results[1].out


def test_help_names_every_flag_its_choices_and_what_it_is_for(nearwise, monkeypatch):
    result = nearwise("vit", "train", "--help")
    flags = {"--" + name.replace("_", "-") for name in VitSettings.model_fields}
    assert result.exit_code == 0
    assert {flag for flag in flags if flag[:25] not in result.out} == set()
    assert "train" in nearwise("vit", "--help").out
    assert all(VitSettings.model_fields[name].description for name in VitSettings.model_fields)
    assert not set(NEVER_EXISTED) & set(VitSettings.model_fields)
    monkeypatch.setenv("COLUMNS", "80")
    shown = " ".join(nearwise("vit", "train", "--help").out.replace("│", " ").split())
    assert "One of: standard, depthwise, depthwise-separable." in shown


def test_a_file_as_output_folder_is_refused(nearwise, tmp_path):
    (tmp_path / "taken").write_text("")
    options = ["--dataset", "digits", "--resize", 0, "--patch-size", 2, "--num-epochs", 1]
    result = nearwise("vit", "train", *options, "--output-dir", tmp_path / "taken")
    assert result.exit_code == 2
    assert "is a file. Give a folder" in " ".join(result.err.split())
