"""Which images a model was trained on."""

import numpy as np
from nearwise_lab.data.trained_on import image_digests, keep_digests, kept_digests


def test_a_digest_is_of_the_pixels_alone():
    images = np.random.default_rng(0).integers(0, 256, (20, 6, 4, 3), dtype=np.uint8)
    digests = image_digests(images)
    assert len(np.unique(digests)) == 20
    assert (image_digests(images[::-1]) == digests[::-1]).all()
    assert (image_digests(np.moveaxis(images, -1, 1)) == digests).all()  # channels first
    changed = images.copy()
    changed[3, 0, 0, 0] ^= 1
    assert (image_digests(changed) != digests).tolist() == [i == 3 for i in range(20)]


def test_what_is_noted_is_read_back_and_nothing_is_none(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (5, 4, 4), dtype=np.uint8)
    assert kept_digests(tmp_path) is None
    keep_digests(tmp_path, images)
    assert set(kept_digests(tmp_path)) == set(image_digests(images))
