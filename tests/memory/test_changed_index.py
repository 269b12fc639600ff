"""An index that was sealed serves rows that came and went since, and is not trained again."""

import pytest
import torch

from nearwise import AttnKNNClassifier
from nearwise.functional import topk_neighbors
from nearwise.memory import make_index
from nearwise.memory.changed_index import ChangedIndex
from nearwise.memory.index import ExactIndex


def rows(n, seed=0, lattice=False):
    drawn = torch.randn(n, 3, generator=torch.manual_seed(seed))
    return drawn.round() if lattice else drawn


@pytest.mark.parametrize("lattice", [False, True], ids=["random", "ties"])
@pytest.mark.parametrize("own", [False, True], ids=["new rows", "rows left out of their own"])
@pytest.mark.parametrize("gone", [[], [0], list(range(40)), [99, 3, 57]], ids=len)
def test_it_finds_what_a_search_of_all_rows_of_now_finds(lattice, own, gone):
    before = rows(100, lattice=lattice)
    sealed = ExactIndex("euclidean").fit(before, torch.arange(100))
    stay = torch.tensor([i for i in range(100) if i not in gone])
    keys = torch.cat([before[stay], rows(7, 1, lattice)])
    ids = torch.cat([stay, torch.arange(100, 107)])
    changed = ChangedIndex(sealed, keys, ids)
    assert changed.share_changed == (len(gone) + 7) / 100
    query, query_ids = (keys, ids) if own else (rows(20, 2, lattice), None)
    found = changed.search(query, 9, query_ids)
    wanted = topk_neighbors(
        query, keys, 9, query_ids=query_ids, key_ids=None if query_ids is None else ids
    )
    torch.testing.assert_close(found.distances, wanted.distances)
    assert torch.equal(found.indices, wanted.indices)


def test_rows_in_another_order_and_no_tail():
    sealed = ExactIndex("euclidean").fit(rows(30), torch.arange(30))
    order = torch.randperm(30, generator=torch.manual_seed(3))
    found = ChangedIndex(sealed, rows(30)[order], order).search(rows(5, 2), 4)
    wanted = topk_neighbors(rows(5, 2), rows(30), 4)
    assert torch.equal(order[found.indices], wanted.indices)


def test_a_trained_index_survives_small_changes_and_is_made_anew_after_large_ones(monkeypatch):
    kind = type(make_index("ivf-flat"))
    X = rows(300).double().numpy()
    y = (X[:, 0] > 0).astype(int)
    model = AttnKNNClassifier(
        estimator=None, cv=3, random_state=0, settings={"embedder": "identity", "index": "ivf-flat"}
    )
    model.fit(X, y).predict_proba(X[:3])
    trained, build = [], kind._build
    monkeypatch.setattr(kind, "_build", lambda index: trained.append(index) or build(index))
    new = rows(30, 5).double().numpy()
    ids = model.add(new[:4], (new[:4, 0] > 0).astype(int))
    assert set(model.kneighbors(new[:4], 1)[1][:, 0]) == set(ids.tolist())  # found at once
    model.remove(ids[:2])
    assert not {*ids[:2].tolist()} & {*model.kneighbors(new[:2], 5)[1].ravel().tolist()}
    model.predict_proba(new)
    assert trained == []
    model.add(new[4:], (new[4:, 0] > 0).astype(int))
    model.predict_proba(new)
    assert len(trained) == 1
