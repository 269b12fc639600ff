"""`VisionTransformer`: any layer, seeded, and nothing left out silently."""

import pytest
import torch
from nearwise_lab.nn.dense import MultiHeadAttention
from nearwise_lab.nn.layers import TOKEN_LAYERS
from nearwise_lab.nn.vit import DropPath, VisionTransformer

from lab.tests.reference.vision_transformer import positions
from nearwise.nn import KNNAttention

SMALL = {"image_size": 32, "patch_size": 8, "n_classes": 5, "dim": 24, "depth": 2}
OPTIONS = {
    "KNNAttention": {"n_neighbors": 4},
    "KvtAttention": {"n_neighbors": 4},
    "NeighborhoodAttention2D": {"kernel_size": 3},
    "LocalAttention": {"window_size": 4},
}


def images(batch=2):
    return torch.randn(batch, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def make(**options):
    return VisionTransformer(**{**SMALL, "random_state": 0, **options})


@pytest.mark.parametrize("name", TOKEN_LAYERS)
@pytest.mark.parametrize("pooling", ["token", "mean"])
def test_any_layer_learns(name, pooling):
    model = make(layer=name, layer_options=OPTIONS.get(name), pooling=pooling)
    model(images()).square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_layers_may_differ_and_be_classes():
    model = make(
        layer=["MultiHeadAttention", KNNAttention],
        layer_options=[{"qkv_bias": True}, {"n_neighbors": 3}],
    )
    assert type(model.blocks[0].attn) is MultiHeadAttention
    assert model.blocks[1].attn.n_neighbors == 3
    assert model(images()).shape == (2, 5)


def test_the_grid_and_the_prefix_reach_the_layers_that_want_them():
    model = make(
        image_size=(32, 64), layer="NeighborhoodAttention2D", layer_options={"kernel_size": 3}
    )
    assert model.blocks[0].attn.grid_size == (4, 8)
    assert model.blocks[0].attn.num_prefix_tokens == 1
    registers = make(layer="ConvNNAttention", num_registers=2)
    assert registers.blocks[0].attn.sampling.num_prefix_tokens == 3
    free = make(layer="ConvNNAttention", layer_options={"num_prefix_tokens": 0})
    assert free.blocks[0].attn.sampling.num_prefix_tokens == 0
    assert registers.forward_features(images()).shape == (2, 19, 24)


def test_a_seed_fixes_the_first_weights_and_leaves_the_random_state():
    before = torch.get_rng_state()
    first, again, other = make(), make(), make(random_state=1)
    assert torch.equal(before, torch.get_rng_state())
    for name, weight in first.state_dict().items():
        assert torch.equal(weight, again.state_dict()[name])
    assert not torch.equal(first.head.weight, other.head.weight)
    drawn = VisionTransformer(**SMALL)
    assert not torch.equal(drawn.head.weight, VisionTransformer(**SMALL).head.weight)


def test_first_weights_are_small_and_biases_zero():
    model = make(dim=192)
    weight = model.blocks[0].mlp.fc1.weight
    assert abs(weight.std().item() - 0.02) < 0.002
    assert not model.blocks[0].mlp.fc1.bias.any()
    convolution = make(layer="ConvNNAttention").blocks[0].attn.conv.weight
    assert (convolution == 1).all()


@pytest.mark.parametrize("kind", ["learned", "sincos", "sincos-2d", "none"])
def test_positions_tell_patches_apart(kind):
    model = make(positions=kind, pooling="mean", layer="MultiHeadAttention").eval()
    turned = images().flip(2)
    moved = (model(turned.unflatten(2, (4, 8)).flip(3).flatten(2, 3)) - model(images())).abs()
    assert (moved.max() > 1e-6) == (kind != "none")


def test_sincos_positions_are_the_table():
    torch.testing.assert_close(make(positions="sincos").positions.table[0], positions(17, 24))
    table = make(positions="sincos-2d", pooling="mean").positions.table[0]
    rows, columns = table.unflatten(0, (4, 4)).split(12, dim=-1)
    assert torch.equal(rows, rows[:, :1].expand(-1, 4, -1))
    assert torch.equal(columns, columns[:1].expand(4, -1, -1))
    assert len(torch.unique(table, dim=0)) == 16


def test_dropped_paths_keep_the_mean_and_rest_in_evaluation():
    drop, x = DropPath(0.25), torch.ones(20000, 2)
    output = drop(x)
    torch.testing.assert_close(output.unique(), torch.tensor([0.0, 1 / 0.75]))
    assert torch.equal(output[:, 0], output[:, 1])
    assert abs(output.mean().item() - 1) < 0.02
    assert drop.eval()(x) is x
    rates = [block.drop_path.rate for block in make(depth=3, drop_path=0.4).blocks]
    assert rates == pytest.approx([0, 0.2, 0.4])


def test_dropout_reaches_attention_and_evaluation_is_deterministic():
    model = make(attn_drop=0.3, dropout=0.2, drop_path=0.1)
    assert [block.attn.attn_drop for block in model.blocks] == [0.3, 0.3]
    assert not torch.equal(model(images()), model(images()))
    model.eval()
    assert torch.equal(model(images()), model(images()))


@pytest.mark.parametrize(
    "layer",
    [
        "KNNAttention",  # the others compile alone in tests/nn/tokens
        pytest.param("ConvNNAttention", marks=pytest.mark.slow),
        pytest.param("NeighborhoodAttention2D", marks=pytest.mark.slow),
    ],
)
def test_it_compiles_into_one_graph(layer):
    torch.compiler.reset()
    options = {"kernel_size": 3} if "Neighborhood" in layer else {"n_neighbors": 4}
    model = make(layer=layer, layer_options=options).eval()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(images()), model(images()), atol=1e-5, rtol=1e-5)


WRONG = [
    ({"layer": "KnnAtention"}, "'KnnAtention' is not known. Did you mean 'KNNAttention'"),
    ({"layer": ["Attention"]}, "layer names 1 layers, but depth=2"),
    ({"layer_options": [{}]}, "layer_options names 1 layers, but depth=2"),
    ({"patch_size": 5}, "patch_size=5 does not divide the image of 32 x 32"),
    ({"num_heads": 5}, "num_heads=5 does not divide dim=24"),
    ({"pooling": "max"}, "pooling='max' is not one of token, mean"),
    ({"positions": "fourier"}, "positions='fourier' is not one of"),
    ({"positions": "sincos-2d", "dim": 6, "num_heads": 1}, "need a dim that 4 divides; got 6"),
    ({"drop_path": 1.0}, "drop_path=1.0 must lie in"),
    ({"depth": 0}, "depth=0 must be positive"),
]


@pytest.mark.parametrize(("options", "message"), WRONG, ids=lambda x: "")
def test_mistakes_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)


def test_empty_batches_pass_and_images_of_another_size_are_refused():
    with pytest.raises(ValueError, match=r"\(batch, 3, 32, 32\); got \(2, 3, 28, 28\)"):
        make()(torch.zeros(2, 3, 28, 28))
    logits = make()(torch.zeros(0, 3, 32, 32))
    assert logits.shape == (0, 5)
    logits.sum().backward()
