"""A model answers alike wherever its memory is."""

import numpy as np
import pytest
from sklearn.datasets import load_iris

from nearwise.estimators import AttnKNNClassifier, LiveModel, move_memory
from tests.estimators.cases import fit_once
from tests.memory.stores.servers import require

X, Y = load_iris(return_X_y=True)
NEW = X[::3] + 0.05
PARAMETERS = {"estimator": None, "preset": "instant", "random_state": 0}


def model():
    return fit_once(AttnKNNClassifier(**PARAMETERS), X, Y)


def answers(asked):
    """Probabilities of some rows, and the ids of the neighbors behind them."""
    query = asked.query(NEW, explain=8)
    found = [[n.id for n in one.neighbors] for one in query.explanations()]
    return asked.predict_proba(NEW), found


def change(live):
    """Make one change of each kind."""
    added = live.add(NEW[:6], Y[::3][:6]).ids
    live.relabel([3, 60, added[0]], [1, 2, 2])
    live.remove([5, 6, 100, added[1]])
    live.remove(live.add(NEW[10:12], [0, 2]).ids[:1])


def moved(uri, folder):
    """Answers of a model as it was moved, after changes, and after a snapshot, opened anew."""
    move_memory(model(), folder, uri)
    found = [answers(AttnKNNClassifier.load(folder, trusted_store=uri))]
    with LiveModel(folder, trusted_store=uri) as live:
        change(live)
        found.append(answers(live.model))
        kinds = [made.kind for made in live.history()]
        assert kinds == ["add", "relabel", "remove", "add", "remove"]
        live.compact()
        found.append(answers(live.model))
    found.append(answers(AttnKNNClassifier.load(folder, trusted_store=uri)))
    return found


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory):
    require("lance", "faiss")
    return moved(None, tmp_path_factory.mktemp("engines") / "m")


def test_a_model_answers_alike_wherever_its_memory_is(place, on_disk, tmp_path):
    found = moved(place.new_uri(), tmp_path / "m")
    own = answers(model())
    for ours, theirs in zip([*found, found[0]], [*on_disk, own], strict=True):
        np.testing.assert_allclose(ours[0], theirs[0], atol=1e-5)
        assert ours[1] == theirs[1]
    assert np.abs(found[0][0] - found[1][0]).max() > 1e-3
