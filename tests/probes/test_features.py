"""Features: what one image gives, the cache, and what is refused."""

import numpy as np
import pytest
import torch

from nearwise.data.contexts import Context
from nearwise.data.images.pixels import as_images
from nearwise.probes import FeatureSet, FunctionEncoder, extract_features, pool_tokens
from nearwise.training import Augmentation
from tests.probes.cases import Convolution, Pixels, Points, images

ENCODERS = {
    "pixels": Pixels(8),
    "points": Points(),
    "function": FunctionEncoder(lambda x: x.flatten(2).cumsum(2), torch.zeros(1, 1, 8, 8)),
}


@pytest.fixture(params=ENCODERS)
def encoder(request):
    return ENCODERS[request.param]


@pytest.mark.parametrize("context", ["full", "0.3", "0.3:fixed"])
def test_what_an_image_gives_depends_on_neither_batch_nor_order(encoder, context):
    x = images(30, side=8)
    order = np.random.default_rng(1).permutation(30)
    options = {"pool": "flatten", "context": context}
    one = extract_features(encoder, x, **options)
    other = extract_features(encoder, x[order], rows=order, batch_size=7, **options)
    assert np.allclose(one.X[order], other.X, atol=1e-6)
    assert (other.index == order).all()


def test_contexts_depend_on_the_draw_and_where_that_is_asked_for_on_the_batch():
    def seen(**options):
        return extract_features(Pixels(), images(30), pool="flatten", **options).X != 0

    assert (seen(context="0.3") != seen(context="0.3", draw=1)).any()
    whole, parts = (seen(context="0.3:batch", batch_size=size) for size in (30, 7))
    assert (whole != parts).any()


@pytest.mark.parametrize(
    ("how", "wanted"),
    [("mean", [[2.0, 3.0]]), ("max", [[3.0, 4.0]]), ("flatten", [[1, 2, 3, 4]]), ("cls", [[1, 2]])],
)
def test_pooling(how, wanted):
    tokens = torch.tensor([[[1.0, 2.0], [3.0, 4.0]]])
    assert pool_tokens(tokens, how).tolist() == wanted


@pytest.mark.parametrize("killed_after", [1, 2])
def test_a_killed_extraction_goes_on_where_it_was(tmp_path, killed_after):
    x = images(40, side=8)
    encoder = Convolution()
    whole = extract_features(encoder, x, batch_size=1024).X

    def stop(done, total):
        if done >= killed_after * 2048:
            raise KeyboardInterrupt

    many = np.concatenate([x] * 150)  # 6,000 rows: three pieces
    with pytest.raises(KeyboardInterrupt):
        extract_features(encoder, many, batch_size=1024, cache=tmp_path, progress=stop)
    encoder.calls = 0
    again = extract_features(encoder, many, batch_size=1024, cache=tmp_path)
    assert encoder.calls == 6 - 2 * killed_after
    encoder.calls = 0
    extract_features(encoder, many, batch_size=1024, cache=tmp_path)
    assert encoder.calls == 0
    assert np.allclose(again.X[:40], whole, atol=1e-6)


def test_the_cache_tells_weights_images_contexts_and_settings_apart(tmp_path):
    x = images(12, side=8)
    encoder, other = Convolution(), Convolution()

    def folders(encoder=encoder, x=x, **options):
        extract_features(encoder, x, cache=tmp_path, **options)
        return len(list(tmp_path.iterdir()))

    assert folders() == 1
    assert folders(batch_size=5) == 2  # the pieces are others
    assert folders() == 2
    assert folders(other) == 3
    assert folders(x=x[::-1]) == 4
    assert folders(pool="max") == 5
    assert folders(views=2) == 6
    assert folders(dtype="float16") == 7


def test_views_are_of_training_rows_and_repeat():
    x = images(10, side=8)
    options = {"pool": "flatten", "views": 3}
    one = extract_features(Pixels(8), x, np.arange(10), **options)
    other = extract_features(
        Pixels(8), x[5:], np.arange(5, 10), rows=np.arange(5, 10), batch_size=2, **options
    )
    assert one.X.shape == (30, 64) and one.index.tolist() == list(range(10)) * 3
    assert np.array_equal(one.X[:10], extract_features(Pixels(8), x, pool="flatten").X)
    assert not np.array_equal(one.X[10:20], one.X[:10])
    for view in range(3):
        assert np.array_equal(one.X[10 * view + 5 : 10 * view + 10], other.X[5 * view :][:5])
    assert one.y.tolist() == list(range(10)) * 3


def test_both_layouts_and_types_of_images_are_understood():
    x = images(5, side=6, channels=3)
    as_float = x.astype(np.float32).transpose(0, 3, 1, 2) / 255
    encoder = Pixels(6, 3)
    one = extract_features(encoder, x, pool="flatten").X
    assert np.allclose(one, extract_features(encoder, as_float, pool="flatten").X)
    assert as_images(images(2, 5)[..., 0]).shape == (2, 1, 5, 5)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (np.zeros((3, 6, 6, 4), np.uint8), "1 or 3 channels"),
        (np.full((3, 1, 6, 6), -0.5, np.float32), r"must lie in \[0, 1\]"),
        (np.full((3, 1, 6, 6), np.nan, np.float32), r"must lie in \[0, 1\]"),
        (np.zeros((3, 1, 6, 6), np.int64), "dtype"),
    ],
)
def test_bad_images_are_refused(bad, message):
    with pytest.raises(ValueError, match=message):
        extract_features(Pixels(), bad)


class Wrong:
    token_dim, num_tokens = 4, 3

    def __init__(self, tokens):
        self.tokens = tokens

    def encode(self, x, context=None):
        return self.tokens


@pytest.mark.parametrize(
    "tokens", [torch.zeros(5, 3, 9), torch.zeros(5, 2, 4), torch.zeros(5, 4), torch.zeros(1, 3, 4)]
)
def test_an_encoder_that_returns_another_shape_is_refused(tokens):
    with pytest.raises(ValueError, match=r"returned shape .* and \(5, 3, 4\) was announced"):
        extract_features(Wrong(tokens), images(5))


def test_an_encoder_that_takes_a_context_and_does_not_use_it_is_refused():
    encoder = FunctionEncoder(lambda x, context=None: x.flatten(2), torch.rand(2, 1, 8, 8))
    images = torch.rand(6, 1, 8, 8)
    assert extract_features(encoder, images).X.shape == (6, 64)
    with pytest.raises(ValueError, match=r"same tokens from the context 0\.2 .* does not use it"):
        extract_features(encoder, images, context="0.2")


def test_what_a_function_raises_is_told_as_its_own():
    def broken(x):
        return x[:, :, :, 99]

    with pytest.raises(ValueError, match="The encoder broken raised IndexError"):
        FunctionEncoder(broken, torch.rand(2, 1, 8, 8))


def test_nan_features_are_refused_with_their_rows():
    tokens = torch.zeros(5, 3, 4)
    tokens[[1, 4], 2, 0] = torch.nan
    with pytest.raises(ValueError, match=r"2 of 5 rows of features .*: rows 1, 4"):
        extract_features(Wrong(tokens), images(5))
    with pytest.raises(ValueError, match=r"rows 70, 10"):  # numbers in the data set
        extract_features(Wrong(tokens), images(5), rows=[90, 70, 50, 30, 10])


def test_views_of_floats_lie_as_the_module_gets_them():
    x = np.random.default_rng(0).random((4, 8, 8, 3), dtype=np.float32)
    with pytest.raises(ValueError, match=r"shape \(4, 8, 8, 3\).*as they lie.*\(n, C, H, W\)"):
        extract_features(torch.nn.Flatten(), x, views=2)
    x = np.ascontiguousarray(np.moveaxis(x, 3, 1))
    one, two = (extract_features(torch.nn.Flatten(), x, views=views).X for views in (1, 2))
    assert (two[:4] == one).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"labels": np.zeros(4)}, r"labels have shape \(4,\) for 3 images"),
        ({"pool": "cls"}, "no token of the whole image"),
        ({"pool": "median"}, "pool='median' is not known"),
        ({"context": Context("per-image", 0.001)}, "leaves no point"),
        ({"views": 2, "augmentation": Augmentation(cutout=2)}, "crops and flips only"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        extract_features(Pixels(), images(3), **options)


def test_parts_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="y has 4 rows and X has 5"):
        FeatureSet(np.zeros((5, 2)), np.zeros(4))
    with pytest.raises(ValueError, match="Return a Tensor of shape"):
        FunctionEncoder(lambda x: x, torch.zeros(1, 1, 6, 6))
