"""Masks of every layer: which kinds are refused, and what goes on where a token has no key at all.

What masks mean is in test_mask_contract.py.
"""

import pytest
import torch
from torch import nn

from nearwise.functional import attention_implementation, knn_attention
from nearwise.memory import TokenMemory
from nearwise.nn import KNNAttention, KNNMultiheadAttention, MemoryAttention
from tests.nn.tokens.cases import DIM, HEADS, N_TOKENS, tokens

CLOSE = {"atol": 2e-5, "rtol": 2e-5}
each_implementation = pytest.mark.parametrize("implementation", ["plain", "cpu"])


def remembering(**options):
    layer = MemoryAttention(DIM, HEADS, n_neighbors=5, n_recalled=4, **options)
    return lambda x, **masks: layer(x, memory=TokenMemory(HEADS), **masks)


def multihead(n_neighbors=5):
    torch.manual_seed(1)
    return KNNMultiheadAttention(DIM, HEADS, n_neighbors, batch_first=True)


CALLS = {
    "knn_attention": lambda x, **masks: knn_attention(x, x, x, 3, **masks),
    "memory": remembering(),
    "memory alone": remembering(attend_local=False),
    "multihead": lambda x, **masks: multihead()(x, x, x, **masks)[0],
}
each_integer = pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8], ids=str)


@each_integer
def test_masks_of_integers_are_refused(layer_case, dtype):
    refuses_integers(layer_case.make(), dtype)


@each_integer
@pytest.mark.parametrize("name", CALLS)
def test_calls_refuse_masks_of_integers_too(name, dtype):
    refuses_integers(CALLS[name], dtype, 0 if name == "multihead" else 1)


def refuses_integers(call, dtype, kept=1):
    padding = torch.ones(2, N_TOKENS, dtype=dtype)
    with pytest.raises(ValueError, match=rf"True: leave out.*{dtype}.*key_padding_mask == 0"):
        call(tokens(), key_padding_mask=padding)
    mask = torch.ones(N_TOKENS, N_TOKENS, dtype=dtype)
    with pytest.raises(ValueError, match=rf"attn_mask must be .*{dtype}.*attn_mask == {kept}; whe"):
        call(tokens(), attn_mask=mask)


def test_other_things_than_tensors_are_refused_as_masks():
    with pytest.raises(ValueError, match="got a list"):
        knn_attention(*(tokens(),) * 3, 3, attn_mask=[[True] * N_TOKENS] * N_TOKENS)


def holes(is_causal):
    """Left padding in the first item, nothing but padding in the second, none in the third."""
    padding = torch.zeros(3, N_TOKENS, dtype=torch.bool)
    padding[0, :4] = padding[1] = True
    return {"key_padding_mask": padding, "is_causal": is_causal}


@each_implementation
def test_tokens_without_any_key_give_finite_numbers_and_gradients(case, implementation):
    layer, x = case.make(), tokens(3).requires_grad_()
    with attention_implementation(implementation):
        output = layer(x, **holes(case.causal))
        output.square().sum().backward()
        alone = layer(x[2:], is_causal=case.causal)
    assert output.isfinite().all()
    assert x.grad.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in layer.parameters())
    if "random" not in case.name:  # these draw other tokens
        torch.testing.assert_close(output[2:], alone, **CLOSE)


def test_the_weights_of_a_query_without_any_key_are_zero():
    x = tokens(3)
    output, weights = multihead()(x, x, x, key_padding_mask=holes(False)["key_padding_mask"])
    assert (weights[1] == 0).all()
    torch.testing.assert_close(output[1], multihead().out_proj.bias.expand(N_TOKENS, DIM))


def test_a_compiled_layer_gives_the_same_without_any_key():
    compiles_without_any_key(KNNAttention)


def compiles_without_any_key(layer):
    torch.compiler.reset()
    torch.manual_seed(0)
    made, x, masks = layer(DIM, HEADS), tokens(3), holes(True)
    compiled = torch.compile(made, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, **masks), made(x, **masks), **CLOSE)


@each_implementation
def test_empty_batches_and_sequences_pass(case, implementation):
    for shape in ((0, N_TOKENS, DIM), (2, 0, DIM)):
        layer, x = case.make(), torch.randn(shape, requires_grad=True)
        with attention_implementation(implementation):
            output = layer(x, key_padding_mask=torch.zeros(shape[:2], dtype=torch.bool))
        assert output.shape == shape
        output.sum().backward()
        assert all(parameter.grad is not None for parameter in layer.parameters())
        assert not any(parameter.grad.any() for parameter in layer.parameters())


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize(
    ("n_queries", "n_keys", "batch"), [(0, 5, 2), (5, 0, 2), (0, 0, 2), (5, 5, 0)]
)
def test_nothing_to_attend_gives_what_torch_gives(n_queries, n_keys, batch, need_weights):
    ours, theirs = multihead(), nn.MultiheadAttention(DIM, HEADS, batch_first=True)
    theirs.load_state_dict(ours.state_dict())
    query, key = torch.randn(batch, n_queries, DIM), torch.randn(batch, n_keys, DIM)
    found = ours(query, key, key, need_weights=need_weights)
    expected = theirs(query, key, key, need_weights=need_weights)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("attend_local", [True, False])
def test_a_memory_that_holds_nothing_gives_finite_numbers(attend_local):
    call = remembering(attend_local=attend_local)
    masks = {"key_padding_mask": torch.ones(2, N_TOKENS, dtype=torch.bool)}
    assert call(tokens(), **masks).isfinite().all()
    for shape in ((0, N_TOKENS, DIM), (2, 0, DIM)):
        assert call(torch.randn(shape)).shape == shape


@each_implementation
def test_a_single_token_that_may_not_attend_to_itself_attends_to_zeros(implementation):
    x = torch.randn(2, 1, 8)
    with attention_implementation(implementation):
        assert (knn_attention(x, x, x, 1, include_self="never") == 0).all()
