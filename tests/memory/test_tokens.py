"""A memory of tokens recalls the nearest, forgets what it should, and survives a disk."""

import math

import pytest
import torch

from nearwise.functional import pairwise_distances
from nearwise.memory import StoreError, TokenMemory, verify_folder, write_folder

HEADS, DIM, VALUE = 2, 5, 3


def made(seed, batch=1, n=12):
    own = torch.Generator().manual_seed(seed)
    key = torch.randn(batch, HEADS, n, DIM, generator=own)
    return key, torch.randn(batch, HEADS, n, VALUE, generator=own)


def filled(n_streams=1, segments=4, **options):
    memory = TokenMemory(HEADS, n_streams=n_streams, **options)
    parts = [made(seed, n_streams) for seed in range(segments)]
    for key, value in parts:
        memory.add(key, value)
    return memory, *(torch.cat(rows, dim=2) for rows in zip(*parts, strict=True))


@pytest.mark.parametrize("metric", ["inner_product", "cosine", "euclidean"])
@pytest.mark.parametrize("index", ["exact", "hnsw"])
@pytest.mark.parametrize("n_streams", [1, 3])
def test_each_head_of_each_stream_recalls_its_own_nearest(metric, index, n_streams):
    if index != "exact":
        pytest.importorskip("faiss")
    memory, key, value = filled(n_streams, metric=metric, index=index)
    query, _ = made(99, 3, n=4)
    found = memory.recall(query, 6)
    for b in range(3):
        stream = b if n_streams > 1 else 0
        for h in range(HEADS):
            far = pairwise_distances(query[b, h], key[stream, h], metric)
            nearest = far.argsort(dim=1)[:, :6]
            assert torch.equal(found.ids[b, h], nearest)
            assert torch.equal(found.key[b, h], key[stream, h][nearest])
            assert torch.equal(found.value[b, h], value[stream, h][nearest])
    assert (found.log_counts == 0).all()


@pytest.mark.parametrize("eviction", ["age", "reservoir"])
def test_a_full_memory_recalls_only_what_it_kept(eviction):
    memory, key, value = filled(2, capacity=20, eviction=eviction)
    assert memory.n_tokens == [20, 20]
    ids = memory.ids(1)
    if eviction == "age":
        assert ids.tolist() == list(range(28, 48))
    else:
        assert ids.min() < 28
    query, _ = made(7, 2, n=3)
    found = memory.recall(query, 20)
    assert all(sorted(row) == ids.tolist() for row in found.ids[1].flatten(0, 1).tolist())
    for h in range(HEADS):
        assert torch.equal(found.key[1, h], key[1, h][found.ids[1, h]])
        assert torch.equal(found.value[1, h], value[1, h][found.ids[1, h]])


def test_a_reservoir_keeps_every_token_with_the_same_probability():
    kept = torch.zeros(40)
    key, value = made(0, n=40)
    for seed in range(600):
        memory = TokenMemory(HEADS, capacity=10, eviction="reservoir", seed=seed)
        memory.add(key[:, :, :25], value[:, :, :25])
        memory.add(key[:, :, 25:], value[:, :, 25:])
        kept[memory.ids()] += 1
    z = (kept / 600 - 0.25) / math.sqrt(0.25 * 0.75 / 600)
    assert z.abs().max() < 4
    assert kept.sum() == 6000


def test_a_segment_longer_than_the_capacity_fits():
    memory = TokenMemory(HEADS, capacity=5)
    memory.add(*made(0, n=3))
    memory.add(*made(1, n=12))
    assert memory.ids().tolist() == list(range(10, 15))
    key = made(1, n=12)[0]
    found = memory.recall(key[:, :, -1:], 5)
    assert torch.equal(found.key.sort(dim=3).values, key[:, :, None, -5:].sort(dim=3).values)


def test_streams_forget_apart_and_may_be_of_different_length():
    memory, key, _ = filled(3, segments=1)
    memory.clear([1])
    keep = torch.tensor([[True] * 2 + [False] * 10, [False] * 12, [True] * 12])
    memory.add(*made(5, 3), keep)
    assert memory.n_tokens == [14, 0, 24]
    memory.remove([0, 3], stream=2)
    assert memory.n_tokens == [14, 0, 22]
    found = memory.recall(made(6, 3, n=2)[0], 16)
    assert (found.ids >= 0).sum(-1)[:, 0, 0].tolist() == [14, 0, 16]
    assert not torch.isin(found.ids[2], torch.tensor([0, 3])).any()
    assert (found.log_counts.isneginf() == (found.ids < 0)).all()
    assert torch.equal(found.key[0, 1, 0, 0], key[0, 1][found.ids[0, 1, 0, 0]]) or (
        found.ids[0, 1, 0, 0] >= 12
    )


def test_an_empty_memory_recalls_empty_slots():
    found = TokenMemory(HEADS, n_streams=2).recall(made(0, 2)[0], 4, 3)
    assert found.key.shape == (2, HEADS, 12, 7, DIM)
    assert (found.ids == -1).all()
    assert found.log_counts.isneginf().all()


def test_sampled_tokens_stand_for_all_that_are_not_nearest():
    memory, key, _ = filled()
    query, _ = made(9, n=4)
    own = torch.Generator().manual_seed(0)
    found = memory.recall(query, 5, 7, generator=own)
    assert torch.allclose(found.log_counts.exp().sum(-1), torch.tensor(48.0))
    ids = found.ids[0]
    assert all(len(set(row)) == 12 for row in ids.flatten(0, 1).tolist())
    for h in range(HEADS):
        assert torch.equal(found.key[0, h], key[0, h][ids[h]])
    assert not torch.equal(memory.recall(query, 5, 7, generator=own).ids, found.ids)
    steady = [memory.recall(query, 5, 7, jitter=False).ids for _ in range(2)]
    assert torch.equal(*steady)


def test_what_is_remembered_has_no_gradient():
    memory = TokenMemory(HEADS)
    key, value = (x.requires_grad_() for x in made(0))
    memory.add(key, value)
    found = memory.recall(key, 3)
    assert not any(part.requires_grad for part in found)
    with torch.no_grad():
        key.zero_()
    assert memory.recall(made(0)[0], 3).key.abs().min() > 0


@pytest.mark.parametrize("eviction", ["age", "reservoir"])
def test_a_round_trip_recalls_the_same_and_goes_on_the_same(tmp_path, eviction):
    memory, *_ = filled(2, capacity=17, eviction=eviction, metric="cosine", seed=3)
    memory.clear([0])
    memory.save(tmp_path / "m")
    loaded = TokenMemory.load(tmp_path / "m")
    for one in (memory, loaded):
        one.add(*made(21, 2, n=9))
    query, _ = made(22, 2)
    both = zip(
        memory.recall(query, 8, 2, jitter=False),
        loaded.recall(query, 8, 2, jitter=False),
        strict=True,
    )
    assert all(torch.equal(a, b) for a, b in both)
    assert repr(loaded) == repr(memory)
    with pytest.raises(StoreError):
        TokenMemory.load(tmp_path / "none")


@pytest.mark.parametrize("part", [0, 1], ids=["key", "value"])
def test_only_tokens_to_remember_must_be_finite(part):
    memory, tokens = TokenMemory(HEADS), made(0, n=3)
    tokens[part][0, :, 1] = math.nan
    memory.add(*tokens, torch.tensor([[True, False, True]]))
    assert memory.n_tokens == [2]
    with pytest.raises(ValueError, match="holds NaN or infinity"):
        memory.add(*tokens, torch.tensor([[True, True, False]]))


def test_what_does_not_fit_is_refused_and_changes_nothing():
    memory, *_ = filled(2, segments=1)
    key, value = made(1, 2)
    for wrong in ((key[:1], value[:1]), (key[:, :1], value[:, :1]), (key[0], value[0])):
        with pytest.raises(ValueError, match="2 streams and 2 heads"):
            memory.add(*wrong)
    with pytest.raises(ValueError, match="must agree"):
        memory.add(key, value[:, :, :3])
    with pytest.raises(ValueError, match="are 5 and 5 wide, the remembered ones 5 and 3"):
        memory.add(key, key)
    with pytest.raises(ValueError, match="key holds NaN or infinity"):
        memory.add(key / 0, value)
    with pytest.raises(ValueError, match="value holds NaN or infinity"):
        memory.add(key, value / 0)
    with pytest.raises(ValueError, match="keep must be boolean"):
        memory.add(key, value, torch.ones(2, 3).bool())
    with pytest.raises(ValueError, match="n_neighbors=0"):
        memory.recall(key, 0)
    with pytest.raises(ValueError, match="query is 3 wide, the remembered keys 5"):
        memory.recall(key[..., :3], 4)
    with pytest.raises(ValueError, match="77"):
        memory.remove([0, 77])
    for call in (memory.ids, lambda at: memory.remove([0], at), lambda at: memory.clear([0, at])):
        for at in (5, "1"):
            with pytest.raises(ValueError, match=f"stream={at!r} is not one of the 2 streams"):
                call(at)
    with pytest.raises(ValueError, match=r"streams=1 is no sequence. Pass \[1\]"):
        memory.clear(1)
    assert memory.n_tokens == [12, 12]
    for options in (
        {"num_heads": 2.5},
        {"capacity": 0},
        {"capacity": True},
        {"n_streams": 0},
        {"eviction": "fifo"},
        {"index": "annoy"},
    ):
        with pytest.raises(ValueError, match=next(iter(options))):
            TokenMemory(**{"num_heads": HEADS, **options})


@pytest.mark.parametrize(
    "damage",
    [
        lambda meta, tensors: meta.clear(),
        lambda meta, tensors: meta["options"].update(n_streams=10**12),
        lambda meta, tensors: meta["options"].update(other=1),
        lambda meta, tensors: meta.update(n_seen=5),
        lambda meta, tensors: tensors.clear(),
        lambda meta, tensors: tensors.update({"ids.0": torch.zeros(3)}),
    ],
)
def test_a_file_that_holds_something_else_is_refused(tmp_path, damage):
    filled()[0].save(tmp_path / "kept")
    found = verify_folder(tmp_path / "kept")
    damage(found.meta, found.tensors)
    write_folder(
        tmp_path / "m", kind=found.kind, format_version=1, tensors=found.tensors, meta=found.meta
    )
    with pytest.raises(StoreError, match="never writes") as caught:
        TokenMemory.load(tmp_path / "m")
    assert caught.value.reason == "invalid"
