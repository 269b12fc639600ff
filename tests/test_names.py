"""Promises of the names that are suggested for wrong ones."""

import pytest

from nearwise.names import did_you_mean, nearest_names


@pytest.mark.parametrize(
    ("given", "known", "meant"),
    [
        ("KNN", ["Kvt", "KNNAttention", "SparseKNN"], "KNNAttention"),  # its beginning
        ("knn_att", ["Kvt", "KNNAttention"], "KNNAttention"),  # case and underscores do not count
        ("rate", ["rat", "learning_rate"], "learning_rate"),  # a part before a few letters
        ("attention", ["LongAttention", "attention-loss"], "attention-loss"),  # beginning first
        ("cat", ["catalogue", "cats"], "cats"),  # of two beginnings the more alike
        ("wieght_decay", ["weight_decay", "epochs"], "weight_decay"),  # letters changed places
        ("EPOCHS", ["epoch", "epochs"], "epochs"),  # the very name, but for its case
    ],
)
def test_a_beginning_comes_before_a_part_and_a_part_before_a_few_letters(given, known, meant):
    assert nearest_names(given, known) == [meant]
    assert nearest_names(given, known[::-1]) == [meant]


def test_one_letter_is_no_beginning_and_unknown_names_are_not_guessed():
    assert nearest_names("k", ["kind", "knn"]) == []
    assert nearest_names("k", ["k1", "knn"]) == ["k1"]
    assert nearest_names("zebra", ["epochs", "lr"]) == []
    assert did_you_mean("zebra", ["epochs", "lr"]) == ""
    assert nearest_names("", ["epochs"]) == []


def test_several_names_are_told_once_each_and_best_first():
    known = ["mnist", "cifar100", "cifar10", "cifar10"]
    assert nearest_names("CIFAR", known, n=3) == ["cifar10", "cifar100"]
    assert did_you_mean("CIFAR", known, n=3) == " Did you mean 'cifar10' or 'cifar100'?"
