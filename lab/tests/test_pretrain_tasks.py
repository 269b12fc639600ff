"""Tasks that the pretrained head learns from: families stay apart, queries stay unknown."""

import numpy as np
import pytest
import torch


@pytest.fixture
def tasks(load_benchmark):
    return load_benchmark("pretrain_tasks")


def test_a_family_is_on_one_side_and_relatives_only_judge(tasks, tmp_path):
    names = [f"{family}-{version}" for family in "abcdefghijklmnopqrstu" for version in (1, 2)]
    names += [f"{family}-x" for family in tasks.RELATIVES]
    (tmp_path / "INDEX.csv").write_text("\n".join(["name", *names]) + "\n")
    parts = tasks.family_split(tmp_path)
    assert sorted(name for part in parts.values() for name in part) == sorted(names)
    families = [{name.split("-")[0] for name in part} for part in parts.values()]
    assert sum(map(len, families)) == len(set.union(*families))
    assert set(tasks.RELATIVES) < {name.split("-")[0] for name in parts["judge"]}


@pytest.mark.parametrize("has_base", [False, True])
def test_what_is_known_of_queries_does_not_depend_on_their_labels(tasks, has_base):
    table = tasks.synthetic_table(np.random.default_rng(3), 140)
    other = tasks.Table(table.frame, table.labels.copy(), table.source)
    other.labels[100:] = other.labels[100]
    made = [
        tasks.make_task(np.random.default_rng(0), one, 100, k=16, has_base=has_base)
        for one in (table, other)
    ]
    assert not torch.equal(made[0].labels, made[1].labels)
    assert len(made[0].spaces) == 1 + has_base
    for one, changed in zip(made[0].spaces, made[1].spaces, strict=True):
        assert all(map(torch.equal, one, changed))
        assert all(fact.isfinite().all() for fact in one)


def test_every_kind_of_synthetic_table_can_be_drawn(tasks):
    kinds = set()
    for seed in range(20):
        rng = np.random.default_rng(seed)
        table = tasks.varied(rng, tasks.synthetic_table(rng, 80), 80)
        assert len(table.frame) == len(table.labels) <= 80
        kinds.add(table.source)
    assert len(kinds) == 4
