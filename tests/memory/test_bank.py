"""The memory bank keeps what it is given and refuses what does not fit."""

import copy

import numpy as np
import pytest
import torch

from nearwise.memory import MemoryBank


def hard_bank(n=6):
    return MemoryBank(
        {"raw": torch.randn(n, 4), "learned": torch.randn(n, 3).bfloat16()},
        torch.arange(n) % 3,
        ids=torch.arange(n) * 10,
        sample_weight=torch.rand(n),
    )


def soft_bank(n=6):
    return MemoryBank(torch.randn(n, 4), torch.rand(n, 3).softmax(1))


def unordered_bank():
    return MemoryBank(torch.randn(3, 4), torch.tensor([2, 0, 1]), ids=torch.tensor([40, 10, 50]))


def rows_like(bank, n):
    return {name: torch.randn(n, rows.shape[1]) for name, rows in bank.keys.items()}


def test_defaults():
    bank = MemoryBank(np.ones((3, 2), dtype=np.float32), np.array([0, 2, 1]))
    assert len(bank) == 3 and bank.n_classes == 3 and list(bank.keys) == ["default"]
    assert bank.ids.tolist() == [0, 1, 2] and bank.ids.dtype == torch.int64
    assert bank.labels.dtype == torch.int64 and bank.sample_weight.tolist() == [1, 1, 1]
    assert not bank.is_soft
    assert "n_rows=3" in repr(bank) and "'default': 2" in repr(bank)


def test_iteration_yields_the_rows():
    bank = hard_bank()
    seen = list(bank)
    assert [row.id for row in seen] == bank.ids.tolist()
    assert [row.label for row in seen] == bank.labels.tolist()
    assert torch.equal(torch.stack([row.keys["raw"] for row in seen]), bank.keys["raw"])
    assert torch.equal(torch.tensor([row.sample_weight for row in seen]), bank.sample_weight)
    soft = soft_bank()
    assert torch.equal(torch.stack([row.label for row in soft]), soft.labels)


def test_added_rows_get_new_ids_that_never_come_back():
    bank = hard_bank()
    new = bank.add(rows_like(bank, 2), torch.tensor([0, 1]))
    assert new.tolist() == [51, 52] and len(bank) == 8
    assert bank.sample_weight[-2:].tolist() == [1, 1] and bank.labels[-2:].tolist() == [0, 1]
    bank.remove(new)
    assert bank.add(rows_like(bank, 1), torch.tensor([0])).tolist() == [53]
    assert bank.keys["learned"].dtype == torch.bfloat16


def test_adding_new_classes_is_asked_for_by_name():
    bank = hard_bank()
    with pytest.raises(ValueError, match="larger n_classes"):
        bank.add(rows_like(bank, 1), torch.tensor([3]))
    assert len(bank) == 6
    bank.add(rows_like(bank, 1), torch.tensor([3]), n_classes=4)
    assert bank.n_classes == 4
    soft = soft_bank()
    soft.add(torch.randn(1, 4), torch.tensor([3]), n_classes=4)
    assert soft.labels.shape == (7, 4) and soft.labels[-1].tolist() == [0, 0, 0, 1]
    torch.testing.assert_close(soft.labels.sum(1), torch.ones(7))
    with pytest.raises(ValueError, match="below the bank's 4"):
        soft.add(torch.randn(1, 4), torch.tensor([0]), n_classes=3)


def test_removing_keeps_the_order_and_ids_of_the_others():
    bank = hard_bank()
    before = bank.keys["raw"]
    bank.remove([30, 0])
    assert bank.ids.tolist() == [10, 20, 40, 50]
    assert torch.equal(bank.keys["raw"], before[[1, 2, 4, 5]])
    assert bank.labels.tolist() == [1, 2, 1, 2]
    bank.remove(bank.ids)
    assert len(bank) == 0 and list(bank) == [] and bank.n_classes == 3
    bank.add(rows_like(bank, 1), torch.tensor([2]), ids=[7])
    assert bank.ids.tolist() == [7]


def test_relabelling():
    bank = hard_bank()
    given = bank.labels
    bank.relabel([50, 0], torch.tensor([0, 2]))
    assert bank.labels.tolist() == [2, 1, 2, 0, 1, 0]
    assert given.tolist() == [0, 1, 2, 0, 1, 2]
    soft = soft_bank()
    soft.relabel([1], torch.tensor([2]))
    assert soft.labels[1].tolist() == [0, 0, 1]
    soft.relabel([1], torch.tensor([[0.5, 0.25, 0.25]]))
    assert soft.labels[1].tolist() == [0.5, 0.25, 0.25]
    with pytest.raises(ValueError, match="holds hard ones"):
        bank.relabel([0], torch.tensor([[0.5, 0.25, 0.25]]))
    as_soft = MemoryBank(bank.keys, bank.soft_labels(), bank.ids, bank.sample_weight)
    assert torch.equal(as_soft.labels.argmax(1), bank.labels)


def test_a_fork_is_a_bank_of_its_own():
    bank = hard_bank()
    part = bank.fork()
    part.remove([0, 20, 30, 50])
    part.relabel([10], torch.tensor([0]))
    assert part.ids.tolist() == [10, 40] and part.n_classes == 3
    assert torch.equal(part.keys["raw"], bank.keys["raw"][[1, 4]])
    assert len(bank) == 6 and int(bank.labels[1]) == 1


def test_positions_follow_ids():
    bank = unordered_bank()
    assert bank.positions([10, 50, 10]).tolist() == [1, 2, 1]


def test_what_the_caller_does_to_labels_and_ids_later_does_not_matter():
    labels, ids = np.array([0, 1]), np.array([5, 6])
    bank = MemoryBank(torch.ones(2, 2), labels, ids)
    labels[:], ids[:] = 9, 9
    assert bank.labels.tolist() == [0, 1] and bank.ids.tolist() == [5, 6]


@pytest.mark.filterwarnings("error")
def test_read_only_arrays_are_fine():
    keys = np.ones((2, 2))
    keys.flags.writeable = False
    assert MemoryBank(keys, np.array([0, 1])).keys["default"].dtype == torch.float64


@pytest.mark.parametrize("make", [hard_bank, soft_bank, unordered_bank, lambda: hard_bank(0)])
def test_a_round_trip_is_equal_bit_for_bit(tmp_path, make):
    bank = make()
    bank.save(tmp_path / "bank")
    again = MemoryBank.load(tmp_path / "bank")
    assert again == bank and list(again.keys) == list(bank.keys)
    new = rows_like(bank, 1), torch.tensor([0])
    given = bank.add(*new, n_classes=3)
    assert again != bank
    assert torch.equal(again.add(*new, n_classes=3), given) and again == bank


def test_equality_sees_every_part():
    bank = hard_bank()
    assert bank == bank.fork() and bank != "bank"
    for change in ("labels", "ids", "sample_weight", "n_classes"):
        other = bank.fork()
        setattr(other, change, getattr(other, change) + 1)
        assert other != bank
    renamed = MemoryBank(
        {"raw": bank.keys["raw"], "x": bank.keys["learned"]},
        bank.labels,
        bank.ids,
        bank.sample_weight,
    )
    assert renamed != bank


ONE = torch.ones(2, 3)
LABELS = torch.tensor([0, 1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"keys": torch.ones(3)}, "shape"),
        ({"keys": torch.ones(2, 0)}, "at least one feature"),
        ({"keys": torch.ones(2, 3).long()}, "dtype"),
        ({"keys": {}}, "name no space"),
        ({"keys": {"": ONE}}, "not empty"),
        ({"keys": {"a": ONE, "b": torch.ones(3, 3)}}, "differ in length"),
        ({"keys": torch.tensor([[1.0], [float("nan")]])}, "first in row 1"),
        ({"keys": torch.tensor([[float("inf")], [1.0]])}, "first in row 0"),
        ({"labels": torch.tensor([0, 1, 2])}, "for 2 rows"),
        ({"labels": torch.tensor([0, -1])}, r"lie in \[-1, 0\]"),
        ({"labels": torch.tensor([True, False])}, "dtype"),
        ({"labels": torch.tensor([0, 5]), "n_classes": 3}, "n_classes=3"),
        ({"labels": torch.tensor([0.0, 1.0])}, "soft labels have shape"),
        ({"labels": torch.tensor([[0.5, 0.5], [0.5, 0.6]])}, "row 1 sum to 1.1"),
        ({"labels": torch.tensor([[1.5, -0.5], [0.5, 0.5]])}, "row 0 .* minimum -0.5"),
        ({"labels": torch.full((2, 2), float("nan"))}, "NaN"),
        ({"labels": torch.full((2, 2), 0.5), "n_classes": 3}, "one column per class"),
        ({"ids": torch.tensor([1, 1])}, "1 appears more than once"),
        ({"ids": torch.tensor([1])}, "one id per row"),
        ({"ids": torch.tensor([1.0, 2.0])}, "dtype"),
        ({"sample_weight": torch.tensor([1.0, -1.0])}, "row 1 is -1"),
        ({"sample_weight": torch.tensor([1.0])}, "one weight per row"),
        ({"sample_weight": torch.tensor([1.0, float("nan")])}, "NaN"),
    ],
)
def test_what_does_not_fit_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        MemoryBank(**({"keys": ONE, "labels": LABELS} | arguments))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda b: b.add(torch.ones(1, 4), LABELS[:1]), "Pass the same key spaces"),
        (lambda b: b.add({"raw": torch.ones(1, 4)}, LABELS[:1]), "Pass the same key spaces"),
        (lambda b: b.add(rows_like(b, 1), LABELS), "for 1 rows"),
        (lambda b: b.add(rows_like(b, 1), LABELS[:1], ids=[10]), "already in the memory bank"),
        (lambda b: b.add(rows_like(b, 2), LABELS, ids=[7, 7]), "more than once"),
        (lambda b: b.add(rows_like(b, 1), torch.full((1, 3), 1 / 3)), "holds hard ones"),
        (lambda b: b.add(rows_like(b, 1), LABELS[:1], sample_weight=-LABELS[1:]), "at least 0"),
        (lambda b: b.remove([0, 3]), "1 of 2 ids are not among the 6 rows .* first 3"),
        (lambda b: b.relabel([0, 0], LABELS), "more than once"),
        (lambda b: b.relabel([1], LABELS[:1]), "not among"),
        (lambda b: b.relabel([0], torch.tensor([3])), "n_classes=3"),
        (lambda b: b.positions([99]), "not among"),
    ],
)
def test_a_refused_change_leaves_the_bank_as_it_was(change, message):
    bank = hard_bank()
    before = copy.deepcopy(bank)
    with pytest.raises(ValueError, match=message):
        change(bank)
    assert bank == before


def test_columns_follow_their_rows(tmp_path):
    columns = {"fold": torch.tensor([2, 0, 1]), "seen": torch.tensor([True, False, True])}
    bank = MemoryBank(torch.eye(3), torch.tensor([0, 1, 1]), columns=columns)
    more = {"fold": torch.tensor([-1]), "seen": torch.tensor([False])}
    fork = bank.fork()
    fork.add(torch.ones(1, 3), torch.tensor([0]), columns=more)
    fork.remove([1])
    assert fork.columns["fold"].tolist() == [2, 1, -1]
    assert fork.columns["seen"].dtype == torch.bool
    assert bank.columns["fold"].tolist() == [2, 0, 1]
    fork.save(tmp_path / "bank")
    assert MemoryBank.load(tmp_path / "bank") == fork
    with pytest.raises(ValueError, match="Pass the same columns"):
        fork.add(torch.ones(1, 3), torch.tensor([0]))
    with pytest.raises(ValueError, match="one entry per row"):
        MemoryBank(torch.eye(3), torch.tensor([0, 1, 1]), columns={"fold": torch.zeros(2)})
