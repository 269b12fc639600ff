"""Image embedders: pixels in, keys out, whatever the backbone; rebuilt without its folder."""

import json
import shutil
import warnings

import pytest
import torch
from safetensors.torch import load_file

from nearwise.nn import ImageEmbedder, NeighborNetwork, build_network, network_config
from nearwise.nn import backbones as backbones_module

transformers = pytest.importorskip("transformers")
COMMON = {
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "image_size": 16,
    "patch_size": 4,
}
TEXT = {"vocab_size": 100, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
MODELS = {
    "resnet": ("ResNetConfig", {"hidden_sizes": [8, 16], "depths": [1, 1], "embedding_size": 8}),
    "vit": ("ViTConfig", COMMON),
    "dinov2": ("Dinov2Config", COMMON),
    "dinov3": ("DINOv3ViTConfig", COMMON),
    "clip": ("CLIPConfig", {"text_config": TEXT, "vision_config": COMMON}),
}


def images(n=6, channels=3, height=8, width=None, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shape = (n, channels, height, width or height)
    return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)


def small(**options):
    settings = {"dim": 8, "image_size": 8, **options}
    return ImageEmbedder("resnet-small", **settings).eval()


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Local folders of small transformers models with random weights, by model type."""
    transformers.logging.disable_progress_bar()
    root = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    for name, (config, fields) in MODELS.items():
        model = transformers.AutoModel.from_config(getattr(transformers, config)(**fields))
        model.save_pretrained(root / name)
        pixels = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6], "resample": 3}
        pixels |= {"size": {"shortest_edge": 18}, "crop_size": {"height": 16, "width": 16}}
        text = json.dumps(pixels | {"do_center_crop": True})
        (root / name / "preprocessor_config.json").write_text(text)
    return root


@pytest.mark.parametrize("name", ["resnet18", "resnet-small"])
@pytest.mark.parametrize("norm", ["batch", "layer"])
def test_keys_have_unit_length_and_the_width_asked_for(name, norm):
    embedder = ImageEmbedder(name, dim=12, image_size=8, channels=1, projection_norm=norm)
    keys = embedder(images(channels=1))
    assert keys.shape == (6, 12)
    torch.testing.assert_close(keys.norm(dim=1), torch.ones(6))


def test_study_projection_is_the_one_of_the_original():
    projection = ImageEmbedder("resnet18", dim=128, image_size=32).trunk.projection
    kinds = [type(layer).__name__ for layer in projection]
    assert kinds == ["Linear", "BatchNorm1d", "GELU", "Dropout", "Linear"]
    assert [tuple(projection[i].weight.shape) for i in (0, 4)] == [(512, 512), (128, 512)]
    assert projection[3].p == 0.1


@pytest.mark.parametrize(
    ("name", "side", "kernel", "stride", "max_pool"),
    [
        ("resnet18", 32, 3, 1, False),
        ("resnet18", 64, 3, 1, False),
        ("resnet18", 96, 7, 2, True),
        ("resnet-small", 8, 3, 1, False),
        ("resnet-small", 32, 3, 2, False),
    ],
)
def test_stem_fits_the_side(name, side, kernel, stride, max_pool):
    stem = ImageEmbedder(name, dim=4, image_size=side).backbone.model.embedder
    assert stem.embedder.convolution.kernel_size == (kernel, kernel)
    assert stem.embedder.convolution.stride == (stride, stride)
    assert isinstance(stem.pooler, torch.nn.MaxPool2d) == max_pool


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "resnet-small"])
def test_small_network_is_small_and_the_others_are_the_standard_ones(name):
    sizes = {"resnet18": (11.1e6, 11.3e6), "resnet50": (23.4e6, 23.6e6), "resnet-small": (2e5, 7e5)}
    backbone = ImageEmbedder(name, dim=4).backbone
    low, high = sizes[name]
    assert low < sum(parameter.numel() for parameter in backbone.parameters()) < high


def test_inputs_are_normalised_by_the_training_images_once():
    embedder, given = small(), images(50)
    given[:, 0] //= 2
    embedder.fit_inputs(given)
    pixels = embedder.embed(given)
    torch.testing.assert_close(pixels.mean(dim=(0, 2, 3)), torch.zeros(3), atol=1e-4, rtol=0)
    torch.testing.assert_close(pixels.std(dim=(0, 2, 3)), torch.ones(3), atol=1e-3, rtol=0)
    embedder.fit_inputs(images(seed=1) // 3)
    assert torch.equal(embedder.embed(given), pixels)


def test_images_of_one_colour_stay_finite():
    embedder = small(channels=1)
    black = torch.zeros(4, 1, 8, 8, dtype=torch.uint8)
    embedder.fit_inputs(black)
    assert embedder(black).isfinite().all()


def test_mixup_mixes_normalised_pixels():
    embedder, given = small(), images()
    partner, share = torch.tensor([1, 0, 3, 2, 5, 4]), torch.rand(6, 1)
    mixed = embedder.embed_mixed(given, None, partner, share)
    pixels = embedder.embed(given)
    for i in range(6):
        expected = share[i] * pixels[i] + (1 - share[i]) * pixels[partner[i]]
        torch.testing.assert_close(mixed[i], expected)


def test_stages_go_from_the_stem_to_the_features():
    embedder, given = small(), images()
    stages = embedder.vector_and_stages(given)[1]
    assert {name: part.shape[1] for name, part in stages.items()} == {
        "stem": 32,
        "stage1": 32,
        "stage2": 64,
        "stage3": 128,
    }
    torch.testing.assert_close(stages["stage3"], embedder.backbone(embedder.embed(given)))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("channels", [1, 3])
def test_local_folder_brings_its_weights_and_pixels_and_is_not_needed_again(
    folders, tmp_path, name, channels
):
    folder = shutil.copytree(folders / name, tmp_path / name)
    embedder = ImageEmbedder(f"hf:{folder}", dim=4, channels=channels).eval()
    given = images(channels=channels, height=20)
    assert embedder.image_size == (16, 16)
    assert embedder.embed(given).shape == (6, 3, 16, 16)
    torch.testing.assert_close(embedder.mean.flatten(), torch.tensor([0.1, 0.2, 0.3]))
    mean = embedder.mean.clone()
    embedder.fit_inputs(given)
    assert torch.equal(embedder.mean, mean)
    stages = embedder.vector_and_stages(given)[1]
    assert len(stages) >= 3
    assert all(len(part) == 6 for part in stages.values())
    assert all(parameter.dtype == torch.float32 for parameter in embedder.parameters())

    shutil.rmtree(folder)
    again = build_network(network_config(NeighborNetwork(embedder, 3)), seed=5).embedder
    again.load_state_dict(embedder.state_dict())
    assert torch.equal(again.eval()(given), embedder(given))


def test_pretrained_weights_are_those_of_the_folder(folders):
    model = transformers.ViTModel.from_pretrained(folders / "vit", add_pooling_layer=False).eval()
    embedder = ImageEmbedder(str(folders / "vit"), dim=4).eval()
    pixels = embedder.embed(images(height=16))
    expected = model(pixel_values=pixels).last_hidden_state[:, 0]
    torch.testing.assert_close(embedder.backbone(pixels), expected)


def test_transformer_sees_another_size_where_asked(folders):
    for name in ("vit", "dinov2", "clip"):
        embedder = ImageEmbedder(str(folders / name), dim=4, image_size=(24, 16))
        assert embedder(images(height=20)).shape == (6, 4)


def test_frozen_backbone_stays_as_it_is(folders):
    embedder = ImageEmbedder(str(folders / "resnet"), dim=4, frozen=True).train()
    before = {name: tensor.clone() for name, tensor in embedder.backbone.state_dict().items()}
    optimizer = torch.optim.SGD([p for p in embedder.parameters() if p.requires_grad], lr=1.0)
    embedder(images(height=16)).square().sum().backward()
    embedder(images(height=16))[:, 0].sum().backward()
    optimizer.step()
    after = embedder.backbone.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    assert not embedder.backbone.training
    assert embedder.trunk.projection.training


def test_imagenet_weights_that_cannot_be_had_are_said_and_trained_from_scratch(monkeypatch):
    def offline(*args, **kwargs):
        raise OSError("We couldn't connect to the hub.\nCheck your connection.")

    monkeypatch.setattr(backbones_module, "at_commit", offline)
    with pytest.warns(UserWarning, match=r"couldn't connect to the hub\. The backbone starts"):
        embedder = ImageEmbedder("resnet18", dim=4, pretrained=True, image_size=8)
    assert embedder(images()).shape == (6, 4)
    assert not embedder.fitted


def test_imagenet_weights_come_with_their_pixels_and_a_fresh_stem(monkeypatch, tmp_path):
    fields = backbones_module.NAMED["resnet18"]
    saved = transformers.ResNetModel(transformers.ResNetConfig(**fields))
    saved.save_pretrained(tmp_path)
    monkeypatch.setitem(backbones_module.IMAGENET_MODELS, "resnet18", str(tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        embedder = ImageEmbedder("resnet18", dim=4, pretrained=True, image_size=8, channels=1)
    model = embedder.backbone.model
    key = "encoder.stages.3.layers.1.layer.1.convolution.weight"
    assert torch.equal(model.state_dict()[key], saved.state_dict()[key])
    assert model.embedder.embedder.convolution.weight.shape == (64, 3, 3, 3)
    assert embedder.fitted
    assert embedder(images(channels=1)).shape == (6, 4)


def test_bad_images_and_arguments_are_named(folders, tmp_path):
    embedder = small()
    for wrong in (images(channels=1), images().float(), images()[0], torch.zeros(2, 3)):
        with pytest.raises(ValueError, match=r"images must be uint8 of shape \(n, 3, height"):
            embedder(wrong)
    for options, message in [
        ({"backbone": "resnet17"}, "Unknown backbone 'resnet17'. Did you mean 'resnet18'"),
        ({"backbone": str(tmp_path)}, "No vision model could be loaded"),
        ({"backbone": "resnet-small", "pretrained": True}, "no ImageNet weights"),
        ({"channels": 4}, "channels must be 1 .* or 3"),
        ({"dim": 0}, "dim must be at least 1"),
        ({"stem": "big"}, "stem must be"),
        ({"projection_norm": "group"}, "projection_norm must be"),
        ({"image_size": 0}, "image_size must be"),
    ]:
        with pytest.raises(ValueError, match=message):
            ImageEmbedder(**options)


def test_damaged_or_foreign_model_folders_are_named(folders, tmp_path):
    torn = shutil.copytree(folders / "vit", tmp_path / "torn")
    weights = torn / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ValueError, match="No vision model could be loaded"):
        ImageEmbedder(str(torn))
    text = transformers.BertModel(
        transformers.BertConfig(
            hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
        )
    )
    text.save_pretrained(tmp_path / "bert")
    with pytest.raises(ValueError, match="takes 'input_ids', not images"):
        ImageEmbedder(str(tmp_path / "bert"))


@pytest.fixture
def hub(folders, tmp_path, monkeypatch):
    """Stand in for what was downloaded from a hub: two commits of a model, "main" the new one."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    repository = tmp_path / "hub" / "models--some--vit"
    (repository / "refs").mkdir(parents=True)
    for seed, commit in enumerate((OLD, NEW)):
        snapshot = repository / "snapshots" / commit
        shutil.copytree(folders / "vit", snapshot)
        torch.manual_seed(seed)
        transformers.ViTModel(transformers.ViTConfig(**COMMON)).save_pretrained(snapshot)
    (repository / "refs" / "main").write_text(NEW)
    return repository


OLD, NEW = "a" * 40, "b" * 40


def test_a_hub_model_is_taken_at_a_revision_and_its_commit_is_kept(hub):
    newest, old = ImageEmbedder("hf:some/vit", dim=4), ImageEmbedder(f"hf:some/vit@{OLD}", dim=4)
    for embedder, commit in ((newest, NEW), (old, OLD)):
        assert embedder.config["backbone_spec"]["source"] == f"some/vit@{commit}"
        stored = load_file(hub / "snapshots" / commit / "model.safetensors")
        weights = embedder.backbone.model.state_dict()
        assert torch.equal(weights["embeddings.cls_token"], stored["embeddings.cls_token"])
        assert torch.equal(weights["layernorm.weight"], stored["layernorm.weight"])
    assert small().config["backbone_spec"]["source"] is None
    again = build_network(network_config(NeighborNetwork(old, 3)), seed=5).embedder
    assert again.config == old.config


def test_pickled_weights_are_never_read(folders, tmp_path):
    folder = shutil.copytree(folders / "vit", tmp_path / "vit")
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    said = r"no file named model\.safetensors .*Pickled weights \(\.bin\) can run code and are not"
    with pytest.raises(ValueError, match=said):
        ImageEmbedder(str(folder))


def test_code_of_a_model_is_never_run(folders, tmp_path):
    folder = shutil.copytree(folders / "vit", tmp_path / "vit")
    fields = json.loads((folder / "config.json").read_text())
    fields |= {"model_type": "own", "auto_map": {"AutoConfig": "own.Own", "AutoModel": "own.Own"}}
    (folder / "config.json").write_text(json.dumps(fields))
    (folder / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Own: pass\n")
    with pytest.raises(ValueError, match="No vision model could be loaded"):
        ImageEmbedder(str(folder))
    assert not (tmp_path / "ran").exists()


def test_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(ImportError, match=r"pip install nearwise\[vision\]"):
        small()
