"""Attention to earlier tokens is attention to a longer sequence, cut where it is told to."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from nearwise.memory import TokenMemory
from nearwise.nn import KNNAttention, MemoryAttention

DIM, HEADS, BATCH, N = 12, 3, 2, 7
NEAR = {"matmul": "inner_product", "cosine": "cosine", "euclidean": "euclidean"}
LEARNED = {"learned_temperature": True, "null_neighbor": True}


def layer_of(kind=MemoryAttention, **options):
    torch.manual_seed(1)
    layer = kind(DIM, HEADS, **{"n_neighbors": N, **options})
    with torch.no_grad():
        for parameter in layer.parameters():  # no zeros that could hide a mistake
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return layer


def segments(count=3, batch=BATCH, n=N, seed=0):
    return torch.randn(count, batch, n, DIM, generator=torch.Generator().manual_seed(seed))


def dense(layer, x, n_earlier, n_nearest=None, local=True):
    """Attend with torch alone: the last tokens to themselves, causally, and to earlier ones.

    Earlier tokens are detached, and only the `n_nearest` of largest score are kept.
    """
    query, key, value = layer._split(layer.qkv(x))
    query = layer.q_norm(query)[:, :, n_earlier:]
    key = layer.k_norm(key)
    key = torch.cat([key[:, :, :n_earlier].detach(), key[:, :, n_earlier:]], 2)
    value = torch.cat([value[:, :, :n_earlier].detach(), value[:, :, n_earlier:]], 2)
    if layer.metric == "cosine":
        query, key = F.normalize(query, dim=-1), F.normalize(key, dim=-1)
    factor = layer.log_scale.exp()[:, None, None] if layer.learned_temperature else 1.0
    if layer.metric == "euclidean":
        scores = -(query[..., None, :] - key[..., None, :, :]).square().sum(-1).sqrt()
    else:
        scores = query @ key.mT
    scores = scores * factor * layer.scale
    earlier, here = scores[..., :n_earlier], scores[..., n_earlier:]
    if n_nearest is not None:
        least = earlier.topk(n_nearest, dim=-1).values[..., -1:]
        earlier = earlier.masked_fill(earlier < least, -math.inf)
    earlier = earlier + layer.memory_score[:, None, None]
    future = torch.ones(here.shape[-2:]).triu(1).bool() | (not local)
    scores = torch.cat([earlier, here.masked_fill(future, -math.inf)], -1)
    if layer.null_neighbor:
        null = (query * factor * layer.null_key[:, None]).sum(-1) * layer.scale
        null = null + layer.null_score[:, None]
        scores = torch.cat([scores, null[..., None]], -1)
        empty = layer.null_value[:, None].expand(len(x), -1, 1, -1)
        value = torch.cat([value, empty], 2)
    heads = torch.softmax(scores, -1) @ value
    return layer.proj(heads.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("metric", ["matmul", "cosine", "euclidean"])
@pytest.mark.parametrize("options", [{}, {**LEARNED, "qk_norm": True}], ids=["bare", "learned"])
@pytest.mark.parametrize(("n_recalled", "n_nearest"), [(50, None), (4, 4)])
def test_it_is_one_softmax_over_both_with_its_gradients(metric, options, n_recalled, n_nearest):
    layer = layer_of(metric=metric, n_recalled=n_recalled, **options)
    x = segments()
    memory = TokenMemory(HEADS, n_streams=BATCH, metric=NEAR[metric])
    with torch.no_grad():
        for segment in x[:2]:
            layer(segment, memory=memory, is_causal=True)
    last = x[2].clone().requires_grad_()
    own = layer(last, memory=memory, is_causal=True)
    whole = torch.cat([x[0], x[1], x[2]], 1).requires_grad_()
    truth = dense(layer, whole, 2 * N, n_nearest)
    assert torch.allclose(own, truth, atol=1e-5)
    slope = torch.randn(truth.shape, generator=torch.Generator().manual_seed(4))
    mine = torch.autograd.grad((own * slope).sum(), (last, *layer.parameters()))
    true = torch.autograd.grad((truth * slope).sum(), (whole, *layer.parameters()))
    assert torch.allclose(mine[0], true[0][:, 2 * N :], atol=1e-4)
    assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(mine[1:], true[1:], strict=True))
    assert all(part.abs().max() > 0 for part in mine)


@pytest.mark.parametrize("options", [{}, LEARNED], ids=["bare", "learned"])
def test_without_a_memory_it_is_knn_attention(options):
    layer = layer_of(n_neighbors=3, **options)
    plain = layer_of(KNNAttention, n_neighbors=3, **options)
    plain.load_state_dict({k: v for k, v in layer.state_dict().items() if k != "memory_score"})
    x = segments()[0]
    assert torch.equal(layer(x, is_causal=True), plain(x, is_causal=True))
    empty = layer(x, memory=TokenMemory(HEADS, n_streams=BATCH), is_causal=True)
    assert torch.allclose(empty, plain(x, is_causal=True), atol=1e-6)


@pytest.mark.parametrize("options", [{}, LEARNED], ids=["bare", "learned"])
def test_cross_attention_leaves_the_tokens_at_hand_out(options):
    layer = layer_of(attend_local=False, n_recalled=4, **options)
    x = segments(2)
    memory = TokenMemory(HEADS)  # one memory that the whole batch shares
    _, key, value = layer._split(layer.qkv(x[0]))
    memory.add(layer.k_norm(key)[:1], value[:1])
    own = layer(x[1], memory=memory, remember=False)
    shared = torch.cat([x[0][:1].expand(BATCH, -1, -1), x[1]], 1)
    assert torch.allclose(own, dense(layer, shared, N, 4, local=False), atol=1e-5)
    assert memory.n_tokens == [N]


@pytest.mark.parametrize("metric", ["matmul", "euclidean"])
def test_a_sampled_tail_brings_it_to_the_whole_memory(metric):
    layer = layer_of(metric=metric, n_recalled=3, tail_samples=100)
    memory = TokenMemory(HEADS, n_streams=BATCH, metric=NEAR[metric])
    x = segments()
    layer(x[0], memory=memory)
    layer(x[1], memory=memory)
    own = layer(x[2], memory=memory, is_causal=True, remember=False)
    truth = dense(layer, torch.cat(list(x), 1), 2 * N)
    assert torch.allclose(own, truth, atol=1e-5)
    layer.tail_samples = 4
    drawn = [
        layer(x[2], memory=memory, remember=False, generator=torch.Generator().manual_seed(seed))
        for seed in (0, 0, 1)
    ]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    layer.eval()
    steady = [layer(x[2], memory=memory, remember=False) for _ in range(2)]
    assert torch.equal(*steady)


def test_it_remembers_what_it_is_told_and_never_padding():
    layer, x = layer_of(), segments()[0]
    memory = TokenMemory(HEADS, n_streams=BATCH)
    padding = torch.zeros(BATCH, N, dtype=torch.bool)
    padding[1, 4:] = True
    layer(x, memory=memory, key_padding_mask=padding, is_causal=True)
    assert memory.n_tokens == [7, 4]
    layer(x, memory=memory, remember=torch.arange(N).expand(BATCH, N) < 2)
    assert memory.n_tokens == [9, 6]
    layer(x, memory=memory, remember=False)
    assert memory.n_tokens == [9, 6]


@pytest.mark.parametrize("value", [99.0, math.nan, math.inf])
def test_padding_may_hold_anything(value):
    layer = layer_of(**LEARNED)
    padding = torch.zeros(BATCH, N, dtype=torch.bool)
    padding[1, 4:] = True
    outputs = []
    for filling in (0.0, value):
        memory = TokenMemory(HEADS, n_streams=BATCH)
        x = segments(2).masked_fill(padding[..., None], filling)
        for segment in x:  # the second recalls the first
            output = layer(segment, memory=memory, key_padding_mask=padding)
        assert memory.n_tokens == [14, 8]
        outputs.append(output[~padding])
    assert torch.equal(*outputs)


KEPT = [[True, False] + [False] * 5, [True] * 3 + [False] * 4]


@pytest.mark.parametrize(
    ("remember", "n_tokens"),
    [
        (torch.tensor(KEPT), [1, 3]),
        (np.broadcast_to(np.array(KEPT), (BATCH, N)), [1, 3]),
        (KEPT, [1, 3]),
        (np.True_, [N, N]),
        (np.False_, [0, 0]),
    ],
    ids=["tensor", "read-only array", "lists", "true", "false"],
)
def test_masks_and_truth_values_of_any_kind_say_what_is_remembered(remember, n_tokens):
    memory = TokenMemory(HEADS, n_streams=BATCH)
    layer_of()(segments()[0], memory=memory, remember=remember)
    assert memory.n_tokens == n_tokens


@pytest.mark.parametrize(
    "remember",
    [None, 0, 1, "no", [True], [[True], [True, False]], np.ones((BATCH, N)), torch.ones(3).bool()],
    ids=repr,
)
@pytest.mark.parametrize("memory", [TokenMemory(HEADS, n_streams=BATCH), None], ids=["with", "no"])
def test_what_is_neither_a_truth_value_nor_a_mask_is_refused(remember, memory):
    with pytest.raises(ValueError, match="remember must be a bool, or boolean of shape"):
        layer_of()(segments()[0], memory=memory, remember=remember)
    assert memory is None or memory.n_tokens == [0, 0]


def test_a_single_token_at_a_time_may_come():
    layer = layer_of(n_neighbors=3, n_recalled=2).eval()
    memory = TokenMemory(HEADS, n_streams=BATCH, capacity=4)
    for token in segments(6, n=1):
        assert layer(token, memory=memory).shape == (BATCH, 1, DIM)
    assert memory.n_tokens == [4, 4]


def test_it_tells_whom_it_recalls():
    layer, x = layer_of(n_recalled=3), segments()
    memory = TokenMemory(HEADS, n_streams=BATCH)
    layer(x[0], memory=memory)
    ids, weights = layer.recall(x[1], memory)
    query, key = layer._split(layer.qkv(x[1]))[0], layer._split(layer.qkv(x[0]))[1]
    scores = query @ key.mT * layer.scale
    best = scores.topk(3, dim=-1)
    assert torch.equal(ids, best.indices)
    assert torch.allclose(weights, torch.softmax(best.values, -1), atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_go_in_and_come_out(dtype):
    layer = layer_of(n_recalled=4, **LEARNED).to(dtype)
    memory = TokenMemory(HEADS, n_streams=BATCH)
    x = segments().to(dtype)
    layer(x[0], memory=memory, is_causal=True)
    y = layer(x[1], memory=memory, is_causal=True)
    y.sum().backward()
    assert y.dtype == dtype
    assert y.isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())


def test_what_does_not_fit_is_refused():
    layer, x = layer_of(), segments()[0]
    with pytest.raises(ValueError, match="needs 'inner_product'"):
        layer(x, memory=TokenMemory(HEADS, n_streams=BATCH, metric="cosine"))
    with pytest.raises(ValueError, match="Make it with num_heads=3"):
        layer(x, memory=TokenMemory(2, n_streams=BATCH))
    with pytest.raises(ValueError, match="with 5 streams"):
        layer(x, memory=TokenMemory(HEADS, n_streams=5))
    alone = layer_of(attend_local=False)
    with pytest.raises(ValueError, match="needs a memory"):
        alone(x)
    for options in ({"n_recalled": 0}, {"tail_samples": -1}):
        with pytest.raises(ValueError, match=next(iter(options))):
            MemoryAttention(DIM, HEADS, **options)
