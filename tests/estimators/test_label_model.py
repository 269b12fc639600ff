"""Label models: what fits, pools and memory ask, with labels as given and with wrong labels."""

import numpy as np
import pytest
import torch

from nearwise.estimators.model.label_model import AS_GIVEN
from nearwise.estimators.noise.noisy_labels import (
    LOG_PROBA,
    NoisyLabels,
    TrainingRows,
    label_model_from_state,
    label_model_state,
)
from nearwise.estimators.noise.transition import known_transition
from nearwise.memory import MemoryBank
from tests.estimators.cases import same

LABELS = np.array([0, 1, 2, 2, 1, 0, 0, 2])
N, C = len(LABELS), 3
FOLDS = [(np.arange(1, N, 2), np.arange(0, N, 2)), (np.arange(0, N, 2), np.arange(1, N, 2))]
MATRIX = np.array([[0.8, 0.2, 0.0], [0.1, 0.7, 0.2], [0.0, 0.3, 0.7]])


def log_proba(seed=0):
    return torch.log_softmax(torch.randn(N, C, generator=torch.Generator().manual_seed(seed)), 1)


def noisy(matrix, n_versions=2):
    versions = torch.from_numpy(np.stack([matrix] * n_versions)).float()
    rows = TrainingRows(torch.stack([log_proba(i) for i in range(n_versions)]), np.full(C, 1 / C))
    return NoisyLabels(transition=known_transition(matrix, LABELS), matrices=versions, rows=rows)


def remembered(model):
    columns = model.columns(torch.arange(N))
    labels = torch.from_numpy(LABELS)
    return MemoryBank(torch.randn(N, 2), labels, n_classes=C, columns=columns)


def test_a_transition_without_mistakes_takes_labels_as_given():
    model, scores, truth = noisy(np.eye(C)), log_proba(5), torch.from_numpy(LABELS)
    torch.testing.assert_close(model.given_log_proba(scores), AS_GIVEN.given_log_proba(scores))
    assert same(model.class_weights(LABELS, C), AS_GIVEN.class_weights(LABELS, C))
    found, certainty = model.labels(remembered(model))
    plain, none = AS_GIVEN.labels(remembered(AS_GIVEN))
    assert same(found, plain) and same(plain, truth)
    assert none is None and (certainty > 0.999).all()


def test_class_weights_count_the_true_classes_without_bias():
    counts = np.array([500.0, 300.0, 200.0])
    given = counts @ MATRIX
    weights = noisy(MATRIX).class_weights(np.arange(C), C)
    np.testing.assert_allclose(given @ weights, counts)
    later = noisy(MATRIX).class_weights(np.array([3]), 4)
    assert same(later, np.eye(4)[[3]])  # a class that came after the fit


def test_each_fold_has_its_own_labels_and_all_have_those_of_the_fold_that_left_them_out():
    model = noisy(MATRIX)
    joint = [log_proba(fold).exp().numpy() * MATRIX[:, LABELS].T for fold in range(2)]
    for fold in range(2):
        one = model.of_fold(fold)
        found, certainty = one.labels(remembered(one))
        assert same(found, joint[fold].argmax(axis=1))
        share = joint[fold].max(axis=1) / joint[fold].sum(axis=1)
        np.testing.assert_allclose(certainty, share, rtol=1e-5)
    every = model.of_all(FOLDS)
    own = np.arange(N) % 2
    found, _ = every.labels(remembered(every))
    assert same(found, np.where(own == 0, joint[0].argmax(1), joint[1].argmax(1)))
    assert {*model.columns_of_new(lambda: log_proba(9))} == {LOG_PROBA}


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ({"matrices": torch.eye(C).repeat(3, 1, 1)}, "there are 3 matrices"),
        ({"matrices": torch.eye(C)[None] * 2}, "not stochastic"),
        ({"matrices": torch.eye(4)[None]}, "not stochastic matrices of the classes"),
        ({"matrices": torch.tensor(1.0)}, "not stochastic"),
        ({"n_classes": 4}, "for 4 classes"),
        ({"choice": {}}, "choice has no label_noise"),
        ({"meta": None}, "no transition"),
    ],
)
def test_stored_parts_that_do_not_fit_are_refused(broken, said):
    meta, tensors = label_model_state(noisy(MATRIX, 1))
    parts = {"meta": meta, "choice": {"label_noise": {}}, "n_classes": C} | broken
    tensors = {"matrices": parts.pop("matrices", tensors["matrices"])}
    with pytest.raises(ValueError, match=said):
        label_model_from_state(tensors=tensors, **parts)
