"""A token far from all others that is padded, masked or ahead changes no other, in any layer."""

import pytest
import torch

from nearwise.functional import attention_implementation
from nearwise.memory import TokenMemory
from nearwise.nn import KNNAttention, KNNMultiheadAttention, MemoryAttention
from tests.nn.tokens.cases import DIM, HEADS, N_TOKENS, tokens

each_implementation = pytest.mark.parametrize("implementation", ["plain", "cpu"])
EUCLIDEAN = {"n_neighbors": 3, "metric": "euclidean"}
LAYERS = {
    "knn": (KNNAttention, EUCLIDEAN),
    "knn learned": (
        KNNAttention,
        {**EUCLIDEAN, "learned_temperature": True, "null_neighbor": True},
    ),
    "knn never": (KNNAttention, {**EUCLIDEAN, "include_self": "never"}),
    "knn always": (KNNAttention, {**EUCLIDEAN, "include_self": "always"}),
    "memory": (MemoryAttention, {**EUCLIDEAN, "n_recalled": 4}),
    "multihead": (KNNMultiheadAttention, {**EUCLIDEAN, "batch_first": True}),
}
LAST = torch.arange(N_TOKENS) == N_TOKENS - 1


@pytest.fixture(params=LAYERS)
def layer(request):
    torch.manual_seed(0)
    kind, options = LAYERS[request.param]
    return kind(DIM, HEADS, **options).eval()


def run(layer, x, how):
    """Output of all tokens but the last, which is left out as a key."""
    is_torchs = isinstance(layer, KNNMultiheadAttention)
    masks = {
        "padding": {"key_padding_mask": LAST.expand(2, -1)},
        "mask": {"attn_mask": LAST.expand(N_TOKENS, -1) ^ (not is_torchs)},
        "future": {"is_causal": True},
    }[how]
    if is_torchs:
        return layer(x, x, x, need_weights=False, **masks)[0][:, :-1]
    if isinstance(layer, MemoryAttention):
        memory = TokenMemory(HEADS, n_streams=2, metric="euclidean")
        layer(tokens(seed=3), memory=memory)
        masks |= {"memory": memory, "remember": False}
    return layer(x, **masks)[:, :-1]


@each_implementation
@pytest.mark.parametrize("how", ["padding", "mask", "future"])
@pytest.mark.parametrize("factor", [1e4, 1e6, 1e15])
def test_a_far_token_that_is_left_out_changes_no_other(layer, factor, how, implementation):
    near, grads = tokens(), []
    far = torch.where(LAST[:, None], near * factor, near)
    with attention_implementation(implementation):
        for x in (near, far):
            x.requires_grad_()
            output = run(layer, x, how)
            output.square().sum().backward()
            grads.append((output.detach(), x.grad[:, :-1]))
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)
