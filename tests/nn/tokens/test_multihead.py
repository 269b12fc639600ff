"""k-NN attention with the interface of `torch.nn.MultiheadAttention`."""

import pytest
import torch
from torch import nn

from nearwise.nn import KNNAttention, KNNMultiheadAttention
from tests.nn.tokens.cases import tokens

CLOSE = {"atol": 1e-5, "rtol": 1e-5}
PADDING = torch.arange(34).view(2, 17) % 5 == 3
CAUSAL = nn.Transformer.generate_square_subsequent_mask(17)


def pair(n_neighbors, **options):
    """Ours and torch's with the same weights."""
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(24, 3, **options)
    ours = KNNMultiheadAttention(24, 3, n_neighbors, **options)
    ours.load_state_dict(theirs.state_dict())
    return ours.eval(), theirs.eval()


@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize(
    "masks",
    [
        {},
        {"attn_mask": CAUSAL},
        {"attn_mask": torch.isneginf(CAUSAL)},
        {"attn_mask": torch.randn(6, 17, 17, generator=torch.Generator().manual_seed(0))},
        {"key_padding_mask": PADDING},
        {"key_padding_mask": torch.zeros(2, 17).masked_fill(PADDING, -torch.inf)},
    ],
    ids=["none", "float", "bool", "each head", "padding", "float padding"],
)
def test_with_all_neighbors_it_is_torchs(masks, average):
    ours, theirs = pair(17, batch_first=True)
    x = tokens()
    found, weights = ours(x, x, x, average_attn_weights=average, **masks)
    expected, expected_weights = theirs(x, x, x, average_attn_weights=average, **masks)
    torch.testing.assert_close(found, expected, **CLOSE)
    torch.testing.assert_close(weights, expected_weights, **CLOSE)


@pytest.mark.parametrize("options", [{}, {"bias": False}, {"kdim": 8, "vdim": 10}])
def test_layouts_widths_and_single_examples(options):
    ours, theirs = pair(50, **options)
    query = torch.randn(5, 2, 24)
    key = torch.randn(9, 2, options.get("kdim", 24))
    value = torch.randn(9, 2, options.get("vdim", 24))
    torch.testing.assert_close(ours(query, key, value), theirs(query, key, value), **CLOSE)
    one = query[:, 0], key[:, 0], value[:, 0]
    torch.testing.assert_close(ours(*one), theirs(*one), **CLOSE)
    assert ours(query, key, value, need_weights=False)[1] is None


def test_only_the_nearest_have_weight():
    ours, theirs = pair(4, batch_first=True)
    x = tokens()
    weights = ours(x, x, x, average_attn_weights=False)[1]
    full = theirs(x, x, x, average_attn_weights=False)[1]
    assert ((weights > 0).sum(-1) == 4).all()
    kept = full.masked_fill(weights == 0, 0.0)
    torch.testing.assert_close(weights, kept / kept.sum(-1, keepdim=True), **CLOSE)
    torch.testing.assert_close(kept.sum(-1), full.topk(4).values.sum(-1), **CLOSE)


@pytest.mark.parametrize("training", [True, False])
def test_inside_a_transformer_encoder_layer(training):
    layer = nn.TransformerEncoderLayer(24, 3, 48, dropout=0.0, batch_first=True)
    x = tokens()
    full = layer.eval()(x)
    nearest = KNNMultiheadAttention(24, 3, 3, batch_first=True)
    nearest.load_state_dict(layer.self_attn.state_dict())
    layer.self_attn = nearest
    layer.train(training)
    with torch.set_grad_enabled(training):
        output = layer(x)
    expected = layer.norm1(x + nearest(x, x, x)[0])
    expected = layer.norm2(expected + layer._ff_block(expected))
    torch.testing.assert_close(output, expected, **CLOSE)
    assert (output - full).abs().max() > 1e-3


@pytest.mark.filterwarnings("ignore:.*nested tensors")
def test_an_encoder_that_leaves_padding_out_by_nested_tensors():
    layer = nn.TransformerEncoderLayer(24, 4, 48, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2).eval()
    for one in encoder.layers:
        nearest = KNNMultiheadAttention(24, 4, 3, batch_first=True)
        nearest.load_state_dict(one.self_attn.state_dict())
        one.self_attn = nearest
    x, padding = torch.randn(2, 6, 24), torch.zeros(2, 6, dtype=torch.bool)
    padding[0, 4:] = True
    expected = encoder(x, src_key_padding_mask=padding)
    with torch.no_grad():
        output = encoder(x, src_key_padding_mask=padding)
    torch.testing.assert_close(output[~padding], expected[~padding], **CLOSE)


@pytest.mark.parametrize("widths", [{}, {"kdim": 5, "vdim": 3}], ids=["one width", "three"])
def test_weights_are_drawn_anew_as_torchs(widths):
    ours, theirs = KNNMultiheadAttention(8, 2, **widths), nn.MultiheadAttention(8, 2, **widths)
    torch.manual_seed(0)
    theirs._reset_parameters()
    torch.manual_seed(0)
    ours.reset_parameters()
    for name, weight in theirs.named_parameters():
        if "out_proj.weight" not in name:  # which torch draws in its constructor alone
            assert torch.equal(ours.get_parameter(name), weight), name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_weights_have_the_dtype_of_the_layer_and_sum_to_one(dtype):
    x = tokens(dtype=dtype)
    weights = KNNMultiheadAttention(24, 3, 5, batch_first=True, dtype=dtype)(x, x, x)[1]
    assert weights.dtype == dtype
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 17, dtype=dtype), atol=2e-2, rtol=0)


REFUSED = (
    ({"n_neighbors": 0}, "n_neighbors=0 must be an integer"),
    ({"n_neighbors": 2.5}, "n_neighbors=2.5 must be an integer"),
    ({"metric": "dot"}, "metric='dot' is not one of matmul"),
    ({"include_self": "x"}, "include_self='x' is not one of"),
)


@pytest.mark.parametrize("layer", [KNNAttention, KNNMultiheadAttention])
@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_options_that_do_not_fit_are_refused(layer, options, message):
    with pytest.raises(ValueError, match=message):
        layer(24, 3, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sampling": "random"}, "sampling='random' must be a Sampl"),
        ({"head_dim": 0}, "head_dim=0 must be an integer of at"),
        ({"head_dim": -2}, "head_dim=-2 must be an integer of at"),
    ],
)
def test_options_of_token_layers_alone_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        KNNAttention(24, 3, **options)


def test_mistakes_are_named():
    x = tokens()
    layer = KNNMultiheadAttention(24, 3, 4, batch_first=True)
    with pytest.raises(
        ValueError, match=r"does not divide embed_dim=24\. Take one of 1, 2, 3, 4, 6, 8, 12\.$"
    ):
        KNNMultiheadAttention(24, 5)
    with pytest.raises(ValueError, match=r"must be of shape \(batch, N, 24\)"):
        KNNAttention(24, 3).neighbors(x[0])
    for wrong in (
        (x[..., :20], x, x),
        (x, x[:1], x[:1]),
        (x, x[0], x[0]),
        (x, x, x[:, :5]),
        (x[None], x[None], x[None]),
    ):
        with pytest.raises(ValueError, match=r"query must be of shape \(B, N, 24\), key"):
            layer(*wrong)
    with pytest.raises(ValueError, match="key must be a tensor; got a ndarray"):
        layer(x, x.numpy(), x)
    with pytest.raises(ValueError, match=r"must be of shape \(17,\).*got \(1, 17\)"):
        layer(x[0], x[0], x[0], key_padding_mask=torch.zeros(1, 17, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"needs batch \* num_heads = 6 entries; got 4"):
        layer(x, x, x, attn_mask=torch.zeros(4, 17, 17))
    with pytest.raises(ValueError, match=r"key_padding_mask must be of shape \(2, 17\)"):
        layer(x, x, x, key_padding_mask=torch.zeros(2, 5, dtype=torch.bool))
    with pytest.raises(ValueError, match="cannot be broadcast"):
        layer(x, x, x, attn_mask=torch.zeros(5, 17))
