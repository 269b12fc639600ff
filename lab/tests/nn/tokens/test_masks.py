"""Masks of the lab's layers are those of the library."""

from nearwise_lab.nn.dense import MultiHeadAttention

from tests.nn.tokens.test_masks import (
    compiles_without_any_key,
    test_empty_batches_and_sequences_pass,
    test_masks_of_integers_are_refused,
    test_tokens_without_any_key_give_finite_numbers_and_gradients,
)

__all__ = [
    "test_empty_batches_and_sequences_pass",
    "test_masks_of_integers_are_refused",
    "test_tokens_without_any_key_give_finite_numbers_and_gradients",
]


def test_a_compiled_layer_gives_the_same_without_any_key():
    compiles_without_any_key(MultiHeadAttention)
