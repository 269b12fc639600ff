"""Vision transformers by the published flags: data, layers, files, resuming, evaluation."""

import json
import math
import re

import nearwise_lab.nn as layers
import numpy as np
import pytest
import torch
from nearwise_lab.experiments.vit import VitSettings, evaluate_vit, load_vit_encoder, train_vit
from nearwise_lab.experiments.vit.data import ImageFiles, load_vit_data
from nearwise_lab.experiments.vit.learner import augmentation
from nearwise_lab.experiments.vit.model import build_vit, idle_settings, layer_options
from nearwise_lab.probing import open_encoder
from nearwise_lab.training.runs import RunLoss

from nearwise.probes import extract_features

SMALL = {
    "dataset": "digits",
    "resize": 0,
    "patch_size": 2,
    "num_layers": 1,
    "num_heads": 2,
    "d_hidden": 16,
    "d_mlp": 16,
    "num_epochs": 3,
    "batch_size": 64,
    "lr": 3e-3,
    "train_limit": 256,
    "test_limit": 64,
    "device": "cpu",
}
LAYERS = (
    "Attention", "ConvNNAttention", "KvtAttention", "LocalAttention", "NeighborhoodAttention",
    "BranchConv", "BranchAttention", "KNNAttention", "NeighborhoodAttention2D", "SparseAttention",
    "TokenConvolution",
)  # fmt: skip


def settings(**changes):
    return VitSettings(**{**SMALL, **changes})


@pytest.mark.parametrize(
    ("layer", "parameters"),  # as counted of the published model of 10 classes, one head, K = 9
    [
        ("Attention", 5_479_306),
        ("KvtAttention", 5_479_306),
        ("ConvNNAttention", 5_500_042),
        ("BranchAttention", 5_049_610),
        ("LocalAttention", 5_479_306 - 12 * 4 * 192 * (192 - 64)),  # inner width: heads of 64
    ],
)
def test_the_published_recipe_builds_the_published_model(layer, parameters):
    own = VitSettings(recipe="published", layer=layer)
    model = build_vit(own, image_size=224, channels=3, n_classes=10)
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == parameters
    assert isinstance(model.norm, torch.nn.Identity)
    assert isinstance(model.patch_embed.norm, torch.nn.LayerNorm)
    assert 0.9 < float(model.prefix_tokens.detach().std()) < 1.1


def test_the_published_recipe_decays_every_parameter_and_gives_way_to_what_is_given():
    own = VitSettings(recipe="published", num_epochs=10, lr=3e-4)
    assert (own.num_heads, own.lr, own.weight_decay, own.num_epochs) == (1, 3e-4, 1e-2, 10)
    model = build_vit(settings(recipe="published", num_heads=1), 8, 1, 10)

    def decays(settings):
        config = settings.engine()
        optimizer = RunLoss(model, dict, 1, None, config).make_optimizer(config)
        return {group["weight_decay"] for group in optimizer.param_groups}

    assert decays(own) == {1e-2}
    assert decays(VitSettings(weight_decay=1e-2)) == {0.0, 1e-2}


@pytest.mark.parametrize("layer", LAYERS)
def test_every_layer_learns_by_the_published_recipe(layer, tmp_path):
    given = {k: v for k, v in SMALL.items() if k not in ("num_heads", "lr")}
    own = VitSettings(
        **{**given, "num_epochs": 1, "layer": layer, "recipe": "published", "K": 3,
           "kernel_size": 3, "output_dir": str(tmp_path / "run")}
    )  # fmt: skip
    assert math.isfinite(train_vit(own).summary["nll"])


def timeless(history):
    return [{k: v for k, v in record.items() if "seconds" not in k} for record in history]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return a run of three epochs, and its settings."""
    own = settings(output_dir=str(tmp_path_factory.mktemp("vit") / "run"), augment=True, mixup=0.2)
    return train_vit(own), own


def test_a_run_writes_the_three_text_files_and_json_lines(trained):
    run, own = trained
    given = dict(line.split(": ", 1) for line in (run.folder / "args.txt").read_text().splitlines())
    assert {name: str(value) for name, value in own.model_dump().items()}.items() <= given.items()
    assert given["num_classes"] == "10" and given["img_size"] == "(1, 8, 8)"
    text = (run.folder / "model.txt").read_text()
    assert "VisionTransformer(" in text and f"{run.summary['parameters']:,}" in text
    lines = (run.folder / "train_eval_results.txt").read_text().splitlines()
    assert re.fullmatch(
        r"Model Complexity: GFLOPs: [\d.]+, Trainable Parameters: [\d.]+ M", lines[0]
    )
    numbers = r"Loss: [\d.]+ Accuracy: Top1: [\d.]+%, Top5: [\d.]+%"
    epoch = rf"\[Epoch 00(\d)\] Time: [\d.]+s \| \[Train\] {numbers} \| \[Test\] {numbers}"
    assert [re.fullmatch(epoch, line)[1] for line in lines[1:4]] == ["1", "2", "3"]
    assert lines[4] == "" and re.fullmatch(r"Average Epoch Time: [\d.]+s", lines[5])
    best = max(run.history, key=lambda record: record["evaluation"]["test_top1"])
    top1 = best["evaluation"]["test_top1"]
    assert lines[6] == f"Max Accuracy: {top1:.4f}% at Epoch {best['epoch']}"
    records = (run.folder / "epochs.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in records] == run.history
    summary = json.loads((run.folder / "summary.json").read_text())
    assert summary["top1"] == pytest.approx(run.history[-1]["evaluation"]["test_top1"])


def test_a_finished_run_has_learned_and_is_returned_as_it_is(trained):
    run, own = trained
    assert run.history[-1]["train"]["loss"] < run.history[0]["train"]["loss"] < 1.1 * math.log(10)
    again = train_vit(own, on_step=lambda step: pytest.fail("a step was taken"))
    assert again.history == run.history
    assert again.summary == json.loads(json.dumps(run.summary))


def test_a_broken_run_goes_on_to_the_result_of_an_unbroken_one(trained, tmp_path):
    run, own = trained
    other = own.model_copy(update={"output_dir": str(tmp_path / "run")})

    def stop(record):
        raise KeyboardInterrupt

    with pytest.warns(UserWarning, match="interrupted in epoch 2 of 3"):
        part = train_vit(other, on_epoch=stop)
    assert len(part.history) == 1 and part.summary["interrupted"]
    finished = []
    whole = train_vit(other, on_resume=finished.append)
    assert finished == [1]
    assert timeless(whole.history) == timeless(run.history)
    assert whole.summary["nll"] == run.summary["nll"]
    assert (tmp_path / "run" / "epochs.jsonl").read_text().count("\n") == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lr": 0.01}, "lr=0.003, not 0.01"),
        ({"use_compiled": True}, "use_compiled=False, not True"),
    ],
)
def test_a_folder_of_another_run_is_refused_and_says_what_differs(trained, change, message):
    with pytest.raises(ValueError, match=message):
        train_vit(trained[1].model_copy(update=change))


def test_files_of_somebody_else_are_not_replaced(trained, tmp_path):
    (tmp_path / "args.txt").write_text("mine")
    own = trained[1].model_copy(update={"output_dir": str(tmp_path)})
    with pytest.raises(ValueError, match=r"has a args.txt but no settings.json"):
        train_vit(own)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]


def test_a_trained_model_is_evaluated_as_at_the_end_of_its_training(trained):
    run, own = trained
    found = evaluate_vit(VitSettings(output_dir=own.output_dir, device="cpu"))
    assert found["nll"] == run.summary["nll"] and found["n_test"] == 64
    noisy = VitSettings(output_dir=own.output_dir, noise=3.0, noise_on="test")
    other = evaluate_vit(noisy, {"noise", "noise_on"})
    assert other["noise"] == 3.0 and other["nll"] != found["nll"]
    assert other["nll"] == evaluate_vit(noisy, {"noise", "noise_on"})["nll"]
    with pytest.raises(ValueError, match="trained with num_heads=2, not 4"):
        evaluate_vit(VitSettings(output_dir=own.output_dir, num_heads=4), {"num_heads"})
    with pytest.raises(ValueError, match="holds no trained model"):
        evaluate_vit(VitSettings(output_dir=own.output_dir + "-not"))


def test_a_trained_model_is_an_encoder_of_the_tokens_that_it_classifies(trained):
    run, own = trained
    encoder = load_vit_encoder(own.output_dir)
    assert (encoder.num_tokens, encoder.token_dim, encoder.has_cls) == (17, 16, True)
    test = load_vit_data(own).test
    whole = extract_features(encoder, test.pixels, pool=None)
    first = extract_features(encoder, test.pixels, pool="cls", batch_size=5)
    assert np.allclose(first.X, whole.X[:, 0], atol=1e-5)
    logits = encoder.model.head(torch.from_numpy(first.X))
    loss = torch.nn.functional.cross_entropy(logits, test.labels)
    assert loss.item() == pytest.approx(run.summary["nll"], abs=1e-5)
    larger = torch.from_numpy(np.random.default_rng(0).random((2, 1, 16, 16), np.float32))
    assert encoder.encode(larger).shape == (2, 17, 16)
    with pytest.raises(ValueError, match="takes 1 channels and the images have 3"):
        encoder.encode(torch.zeros(1, 3, 8, 8))


def test_encoders_leave_registers_out_and_draw_nothing(tmp_path):
    changes = {"layer": "ConvNNAttention", "K": 3, "sampling_type": "random", "num_samples": 5}
    own = settings(
        **changes, num_epochs=1, pooling="mean", num_registers=2, sample_in_eval=True,
        output_dir=str(tmp_path / "run"),
    )  # fmt: skip
    train_vit(own)
    encoder = load_vit_encoder(tmp_path / "run")
    assert (encoder.num_tokens, encoder.has_cls) == (16, False)
    x = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    tokens = encoder.encode(x)
    assert torch.equal(tokens, encoder.encode(x))
    assert torch.allclose(tokens[2:], encoder.encode(x[2:]), atol=1e-6)
    inner = open_encoder(str(tmp_path / "run" / "model"), (8, 8), 1)
    assert torch.equal(tokens, inner.encode(x))
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "args.txt").write_text("layer: Attention\n")
    with pytest.raises(ValueError, match=r"holds no trained model\. Let 'nearwise vit train'"):
        open_encoder(str(tmp_path / "begun"), (8, 8), 1)
    with pytest.raises(ValueError, match="holds no model: neither one of transformers nor"):
        open_encoder(str(tmp_path), (8, 8), 1)


def test_the_epoch_is_chosen_on_validation_images_only(tmp_path):
    own = settings(validation=0.25, lr=0.03, num_epochs=4, output_dir=str(tmp_path))
    run = train_vit(own)
    losses = [record["evaluation"]["validation_loss"] for record in run.history]
    assert run.summary["best_epoch"] == 1 + losses.index(min(losses))
    assert run.summary["n_train"] == 192
    kept = run.history[run.summary["best_epoch"] - 1]["evaluation"]["test_top1"]
    assert run.summary["top1"] == pytest.approx(kept)


@pytest.mark.parametrize("layer", ["Attention", "ConvNNAttention", "KNNAttention"])
@pytest.mark.parametrize("sampling", ["all", "grid"])
def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_what_was_good(layer, sampling, tmp_path):
    chosen = {"layer": layer, "K": 3, "sampling_type": sampling}
    chosen |= {"num_samples": -1 if sampling == "all" else 3, "output_dir": str(tmp_path)}
    own = settings(**chosen, lr=1e30, optimizer="sgd", clip_grad_norm=0)
    with pytest.raises(ValueError, match=r"no longer finite in step \d of 4 of epoch 1"):
        train_vit(own)
    assert (tmp_path / "checkpoint").is_dir() and not (tmp_path / "model").exists()


@pytest.mark.parametrize("layer", LAYERS)
def test_every_layer_is_built_with_its_flags_and_learns(layer):
    model = build_vit(settings(layer=layer, K=3, kernel_size=3, window_size=4), 8, 1, 10)
    images = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    model(images).square().mean().backward()
    attention = model.blocks[0].attn
    assert type(attention).__name__ == settings(layer=layer).layer_name
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in attention.parameters())


def test_flags_reach_the_layer_under_its_own_names():
    convnn = settings(
        layer="ConvNNAttention", K=4, sampling_type="spatial", num_samples=3, sample_padding=1,
        magnitude_type="euclidean", convolution_type="standard", softmax_topk_val=False,
    )  # fmt: skip
    with pytest.raises(ValueError, match="padding"):  # 4 x 4 tokens less one at each edge
        build_vit(convnn, 8, 1, 10)
    layer = build_vit(convnn.model_copy(update={"sample_padding": 0}), 8, 1, 10).blocks[0].attn
    assert isinstance(layer, layers.ConvNNAttention)
    assert (layer.n_neighbors, layer.metric, layer.weighting) == (4, "euclidean", "raw")
    assert (layer.sampling.kind, layer.sampling.num_samples) == ("grid", 3)
    knn = settings(layer="KNNAttention", K=4, magnitude_type="euclidean", learned_temperature=True)
    layer = build_vit(knn, 8, 1, 10).blocks[0].attn
    assert (layer.n_neighbors, layer.metric) == (4, "euclidean")
    assert "log_scale" in dict(layer.named_parameters())


@pytest.mark.parametrize(
    ("published", "own"),
    [
        ("MultiHeadAttention", "Attention"),
        ("MultiHeadConvNNAttention", "ConvNNAttention"),
        ("MultiHeadKvtAttention", "KvtAttention"),
        ("MultiHeadLocalAttention", "LocalAttention"),
        ("NeighborhoodAttention1D", "NeighborhoodAttention"),
        ("MultiHeadBranchingConv", "BranchConv"),
        ("MultiHeadBranchingAttention", "BranchAttention"),
    ],
)
def test_the_class_names_of_the_published_readme_are_understood(published, own):
    named = settings(layer=published)
    assert named.layer_name == settings(layer=own).layer_name
    assert layer_options(named, 8) == layer_options(settings(layer=own), 8)


def test_weights_and_samples_follow_the_seed():
    one, same, other = (build_vit(settings(seed=seed), 8, 1, 10).head.weight for seed in (0, 0, 1))
    assert torch.equal(one, same) and not torch.equal(one, other)


MANY = {"layer": "KNNAttention", "sampling_type": "random", "num_samples": 40, "K": 3}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer": "ConvNAttention"}, "Did you mean 'ConvNNAttention'"),
        ({"layr": "Attention"}, "Did you mean 'layer'"),
        ({"similarity_type": "Loc"}, "it is magnitude_type"),
        ({"aggregation_type": "Col"}, "it is convolution_type"),
        ({"num_samples": 0}, "must be positive, or -1"),
        ({"scheduler": "plateau", "validation": 0}, "Give a share"),
        # What does not fit the images is said before training.
        ({"layer": "NeighborhoodAttention", "K": 18}, "The setting for kernel_size is K"),
        ({"num_heads": 3}, "num_heads=3 does not divide dim.*The setting for dim is d_hidden"),
        ({"patch_size": 3}, "does not divide the image"),
        (MANY, "num_samples=40"),
    ],
)
def test_wrong_settings_say_what_to_do(changes, message):
    with pytest.raises(ValueError, match=message):
        build_vit(settings(**changes), 8, 1, 10)


def test_parts_are_disjoint_and_digits_are_not_mirrored():
    data = load_vit_data(settings(train_limit=None, test_limit=None, validation=0.1, augment=True))
    sizes = [len(part) for part in (data.train, data.validation, data.test)]
    assert sizes == [1293, 144, 360] and len(data.classes) == 10
    seen = {part.pixels.numpy().tobytes() for part in (data.train, data.test)}
    assert len(seen) == 2
    assert augmentation(settings(augment=True), 8).flip is False
    assert augmentation(settings(), 8) is None


@pytest.fixture
def folder(tmp_path):
    """Return class folders as ImageNet has them, red and blue images of different sizes."""
    image = pytest.importorskip("PIL.Image")
    for part, n in (("train", 6), ("val", 3)):
        for name, color in (("n01", (250, 0, 0)), ("n02", (0, 0, 250))):
            place = tmp_path / "imagenet" / part / name
            place.mkdir(parents=True)
            for i in range(n):
                image.new("RGB", (10 + i, 12), color).save(place / f"{i}.JPEG", format="JPEG")
    return tmp_path


def test_imagenet_is_read_from_class_folders(folder, monkeypatch):
    own = settings(dataset="imagenet", data_path=str(folder), resize=8, train_limit=8)
    held = load_vit_data(own)
    assert (len(held.train), len(held.test), held.classes) == (8, 6, ["n01", "n02"])
    assert set(held.train.labels.tolist()) == {0, 1}  # a limit is no run of one class
    monkeypatch.setattr("nearwise_lab.experiments.vit.data._IN_MEMORY", 0)
    lazy = load_vit_data(own)
    assert isinstance(lazy.train, ImageFiles)
    rows = torch.tensor([5, 0, 3])
    assert torch.equal(lazy.train.images(rows), held.train.images(rows))
    red = lazy.train.images(torch.arange(8)).float().mean(dim=(2, 3))[:, 0] > 100
    assert np.array_equal(red.numpy(), lazy.train.labels.numpy() == 0)


def test_images_from_files_train_as_those_in_memory(folder, monkeypatch, tmp_path):
    common = {"dataset": "imagenet", "data_path": str(folder), "resize": 8, "num_epochs": 1}
    common |= {"train_limit": None, "test_limit": None, "augment": True}
    held = train_vit(settings(**common, output_dir=str(tmp_path / "a")))
    monkeypatch.setattr("nearwise_lab.experiments.vit.data._IN_MEMORY", 0)
    lazy = train_vit(settings(**common, output_dir=str(tmp_path / "b")))
    # the scale differs (ImageNet's own against that of these images): the same steps are taken
    assert [len(r.history) for r in (held, lazy)] == [1, 1]
    assert lazy.summary["n_train"] == held.summary["n_train"] == 12


def test_a_data_path_without_the_set_is_named_and_hides_no_other_place(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match="no data set 'imagenet'"):
        load_vit_data(settings(dataset="imagenet", data_path=str(tmp_path / "none")))
    (tmp_path / "Data").mkdir()
    (tmp_path / "there" / "mnist").mkdir(parents=True)
    asked = []

    def found(name, *, data_root, limit):
        asked.append(data_root)
        raise FileNotFoundError("no images in this test.")

    monkeypatch.setattr("nearwise_lab.experiments.vit.data.load_images", found)
    for folder in ("Data", "there"):
        with pytest.raises(
            FileNotFoundError, match=r"in this test\. The setting for data_root is data_path"
        ):
            load_vit_data(settings(dataset="mnist", data_path=str(tmp_path / folder)))
    assert asked == [None, tmp_path / "there"]


LOCAL_LINE = {"layer": "NeighborhoodAttention", "class_token": "local"}


@pytest.mark.parametrize(
    ("given", "idle"),
    [
        ({"layer": "Attention", "K": 5, "window_size": 4}, ["K", "window_size"]),
        ({"layer": "KvtAttention", "K": 5, "magnitude_type": "cosine"}, ["magnitude_type"]),
        ({"layer": "ConvNNAttention", "num_samples": 5}, ["num_samples"]),
        ({"layer": "ConvNNAttention", "sampling_type": "random", "num_samples": 5}, []),
        ({"layer": "NeighborhoodAttention", "kernel_size": 3}, ["kernel_size"]),
        ({"layer": "SparseAttention", "recipe": "published"}, []),
        ({"layer": "SparseAttention", "sparse_mode": "all", "K": 3}, ["K"]),
        ({"layer": "LocalAttention", "class_token": "local"}, ["class_token"]),
        ({"layer": "KNNAttention", "class_token": "local"}, ["class_token"]),
        (LOCAL_LINE, []),
        ({**LOCAL_LINE, "pooling": "mean"}, ["class_token"]),
    ],
)
def test_settings_that_change_nothing_are_named(given, idle):
    assert idle_settings(VitSettings(**given)) == idle


def test_as_many_neighbors_as_tokens_are_called_dense_attention(tmp_path):
    given = {"layer": "MultiHeadKNNAttention", "K": 50, "num_epochs": 1}
    with pytest.warns(UserWarning, match=r"K=50 is at least the \d+ tokens"):
        train_vit(settings(**given, output_dir=str(tmp_path / "run")))


def test_one_warning_per_setting_that_changes_nothing(tmp_path):
    with pytest.warns(UserWarning, match="changes nothing") as caught:
        train_vit(settings(K=3, window_size=4, num_epochs=1, output_dir=str(tmp_path / "run")))
    told = [str(warning.message) for warning in caught]
    assert [text.partition(" ")[0] for text in told] == ["K", "window_size"]
    assert "layer='Attention'" in told[0]


@pytest.mark.parametrize("layer", LAYERS)
def test_every_layer_knows_which_settings_count(layer):
    usual = settings(layer=layer, sampling_type="line", num_samples=9, d_hidden=12)
    others = {
        "K": 3, "magnitude_type": "cosine", "convolution_type": "standard", "num_samples": 8,
        "softmax_topk_val": False, "coordinate_encoding": True, "sampling_type": "random",
        "sample_padding": 1, "sample_in_eval": True, "include_self": "never", "window_size": 5,
        "learned_temperature": True, "null_neighbor": True, "branch_ratio": 0.3, "kernel_size": 3,
        "sparse_mode": "all", "sparse_context_window": 5, "class_token": "local",
    }  # fmt: skip
    for name, value in others.items():
        changed = usual.model_copy(update={name: value})
        counts = layer_options(changed, 8) != layer_options(usual, 8)
        assert (name not in idle_settings(changed)) == counts, name


@pytest.mark.parametrize("layer", ["ConvNNAttention", "KNNAttention", "NeighborhoodAttention"])
def test_a_local_class_token_is_a_token_of_the_line_and_a_global_one_is_beside_it(layer):
    some = {"layer": layer, "sampling_type": "random", "num_samples": 8, "K": 3, "num_heads": 1}
    for given, more in (
        ({"recipe": "published"}, 0),
        ({"recipe": "published", "class_token": "global"}, 1),
        ({"class_token": "local"}, 0),
        ({}, 1),
    ):
        attn = build_vit(settings(**given, **some), 8, 1, 10).blocks[0].attn
        if layer == "NeighborhoodAttention":  # whether the last patch sees the class token
            tokens = torch.randn(1, 17, 16, requires_grad=True)
            attn.eval()(tokens)[0, -1].sum().backward()
            assert bool(tokens.grad[0, 0].any()) == bool(more)
        else:
            assert len(attn.sampling.draw(17, "cpu", training=True)) == 8 + more
