"""Episodes: the same for the same seed, no row on both sides, classes as asked."""

import numpy as np
import pytest
from nearwise_lab.few_shot.episodes import draw_episodes

Y = np.repeat(list("abcdef"), 12)


def test_an_episode_holds_what_was_asked_for():
    for episode in draw_episodes(Y, 20, n_way=3, n_shot=2, n_query=4, seed=1):
        assert np.bincount(episode.support_labels).tolist() == [2, 2, 2]
        assert np.bincount(episode.query_labels).tolist() == [4, 4, 4]
        assert not set(episode.support) & set(episode.query)
        assert len(set(episode.query)) == 12 and len(set(episode.classes)) == 3
        for rows, codes in (episode[:2], episode[2:4]):
            assert [episode.classes[c] for c in codes] == Y[rows].tolist()


def test_the_seed_decides_the_episodes_and_how_many_are_drawn_does_not():
    few, many = (list(draw_episodes(Y, n, n_shot=1, n_query=2, seed=5)) for n in (3, 9))
    other = next(draw_episodes(Y, 1, n_shot=1, n_query=2, seed=6))
    for one, two in zip(few, many[:3], strict=True):
        assert np.array_equal(one.query, two.query) and one.classes == two.classes
    assert not np.array_equal(other.query, few[0].query)


def test_only_the_classes_asked_for_are_drawn():
    drawn = {
        c for e in draw_episodes(Y, 30, n_way=2, n_shot=1, n_query=1, classes="bd") for c in e[4]
    }
    assert drawn == {"b", "d"}


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"n_way": 7, "n_query": 2}, "exceeds the 6 classes"),
        ({"n_way": 1}, "n_way=1 is too small"),
        ({"n_shot": 0}, "n_shot=0 is too small"),
        ({"n_query": 12}, r"has 12 rows; n_shot \+ n_query = 17"),
    ],
)
def test_episodes_that_cannot_be_drawn_are_refused(sizes, message):
    with pytest.raises(ValueError, match=message):
        next(draw_episodes(Y, 1, **sizes))
