"""What the head for numbers is given: nothing of a query's own target."""

import numpy as np
import pytest
import torch

from nearwise.functional import topk_neighbors
from nearwise.nn import NumberSet, PretrainedNumberHead, RememberedNumbers
from nearwise.nn.neighbor_trunk import FOLDER

N, K, M = 40, 8, 6


def keys_and_targets(seed=0):
    generator = torch.Generator().manual_seed(seed)
    keys = torch.randn(N, 3, generator=generator)
    return keys, (keys[:, 0] + torch.randn(N, generator=generator)).double()


def remembered(keys, targets, *, locations=None, weight=None, groups=None):
    ids = torch.arange(len(keys)) if groups is None else groups
    own = topk_neighbors(keys, keys, M, query_ids=ids, key_ids=ids)
    parts = {"locations": locations, "weight": weight, "groups": groups}
    return RememberedNumbers(targets, own.indices, own.distances, 1.0, 3, **parts)


def left_out(keys, ids=None):
    ids = torch.arange(len(keys)) if ids is None else ids
    return topk_neighbors(keys, keys, K, query_ids=ids, key_ids=ids)


@pytest.mark.parametrize("with_base", [False, True], ids=["no base", "base"])
@pytest.mark.parametrize("weighted", [False, True], ids=["unweighted", "weighted"])
def test_a_rows_own_target_does_not_reach_what_the_head_is_given(with_base, weighted):
    keys, targets = keys_and_targets()
    weight = torch.linspace(0.5, 2, N) if weighted else None
    locations = targets.roll(1) if with_base else None
    every = torch.arange(N)
    of_base = locations if with_base else None

    def given(y):
        space = remembered(keys, y, locations=locations, weight=weight)
        return space.describe(left_out(keys), of_base, every)

    before, changed = given(targets), targets.clone()
    changed[7] += 100.0
    after = given(changed)
    skipped = {"summary"} if with_base else set()  # of a base it compares with the targets' spread
    for name, one, other in zip(NumberSet._fields, before, after, strict=True):
        if name not in skipped:
            torch.testing.assert_close(one[7], other[7], msg=name)
    assert not torch.equal(before.residuals, after.residuals)


def test_a_left_out_row_sees_what_a_memory_without_it_holds():
    keys, targets = keys_and_targets()
    every = remembered(keys, targets).describe(left_out(keys), None, torch.arange(N))
    rest = torch.tensor([row for row in range(N) if row != 7])
    own = topk_neighbors(keys[rest], keys[rest], M - 1, query_ids=rest, key_ids=rest)
    wider = topk_neighbors(keys[rest], keys[rest], M, query_ids=rest, key_ids=rest)
    alone = RememberedNumbers(targets[rest], wider.indices, wider.distances, 1.0, 3)
    expected = alone.describe(topk_neighbors(keys[7:8], keys[rest], K))
    assert own.indices.shape[1] == M - 1
    for name in ("location", "unit", "distances", "residuals", "own_mean", "own_spread", "atoms"):
        torch.testing.assert_close(getattr(every, name)[7], getattr(expected, name)[0], msg=name)


def test_rows_of_a_group_are_left_out_together():
    keys, targets = keys_and_targets()
    groups = torch.arange(N) // 2
    found = left_out(keys, groups)

    def given(y):
        return remembered(keys, y, groups=groups).describe(found, None, torch.arange(N))

    changed = targets.clone()
    changed[6] += 100.0  # of the same group as row 7
    for name, one, other in zip(NumberSet._fields, given(targets), given(changed), strict=True):
        torch.testing.assert_close(one[7], other[7], msg=name)


def test_atoms_are_weighted_quantiles():
    keys, targets = keys_and_targets()
    weight = torch.randint(1, 4, (N,), generator=torch.Generator().manual_seed(1))
    found = topk_neighbors(keys[:5], keys, K)
    weighed = remembered(keys, targets, weight=weight.float()).describe(found)
    again = torch.arange(N).repeat_interleave(weight)
    repeated = remembered(keys[again], targets[again]).describe(topk_neighbors(keys[:5], keys, K))
    torch.testing.assert_close(
        weighed.atoms * weighed.unit[:, None].float() + weighed.location[:, None].float(),
        repeated.atoms * repeated.unit[:, None].float() + repeated.location[:, None].float(),
    )


def test_mixtures_move_and_stretch_with_the_targets():
    keys, targets = keys_and_targets()
    head, found = PretrainedNumberHead.load(), topk_neighbors(keys[:5], keys, K)
    plain = remembered(keys, targets).describe(found)
    moved = remembered(keys, 1000 * targets - 5e4).describe(found)
    one, other = head.predict([plain]), head.predict([moved])
    torch.testing.assert_close(one.atoms, other.atoms, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(moved.unit, 1000 * plain.unit)


def test_weights_sum_to_one_whatever_the_number_of_neighbors():
    keys, targets = keys_and_targets()
    head = PretrainedNumberHead.load()
    for k in (1, 5, 30):
        given = remembered(keys, targets).describe(topk_neighbors(keys[:9], keys, k))
        output = head.predict([given])
        np.testing.assert_allclose(output.weights.sum(1).numpy(), 1.0, atol=1e-5)
        assert bool((output.bandwidth > 0).all())


def test_padding_changes_nothing():
    keys, targets = keys_and_targets()
    head = PretrainedNumberHead.load()
    given = remembered(keys, targets).describe(topk_neighbors(keys[:9], keys, K))
    padded = {
        name: torch.nn.functional.pad(getattr(given, name), (0, 3))
        for name in NumberSet._fields[2:8]
    }
    log_weight = torch.nn.functional.pad(given.log_weight, (0, 3), value=-torch.inf)
    wider = given._replace(**padded, log_weight=log_weight)
    y = torch.linspace(-2, 2, 9)
    torch.testing.assert_close(
        head.predict([wider]).crps(y), head.predict([given]).crps(y), atol=1e-5, rtol=1e-4
    )


def test_constant_targets_are_predicted_as_they_are():
    keys, _ = keys_and_targets()
    given = remembered(keys, torch.full((N,), 7.0).double()).describe(left_out(keys))
    output = PretrainedNumberHead.load().predict([given])
    reached = given.location[:, None] + given.unit[:, None] * output.atoms
    torch.testing.assert_close(reached, torch.full_like(reached, 7.0))


def test_weights_of_the_package_are_small():
    assert (FOLDER / PretrainedNumberHead.file).stat().st_size < 2e6
