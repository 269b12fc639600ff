"""Threads that large work may take, and libraries that are kept to one."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from threadpoolctl import ThreadpoolController, threadpool_info

from nearwise.estimators import AttnKNNClassifier
from nearwise.functional import threads
from nearwise.functional.threads import Threads, coarse_threads, one_thread, own_threads


@pytest.fixture(autouse=True)
def three(monkeypatch):
    """Have three threads for torch, BLAS and OpenMP, on any machine; these start with one."""
    monkeypatch.setattr(threads, "available_threads", lambda: 8)
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")  # nobody needs to be kept from spinning
    set_threads(3)
    yield
    set_threads(1)


def set_threads(n):
    """Set what `of_libraries` reads, without holding it."""
    for library in ThreadpoolController().lib_controllers:
        library.set_num_threads(n)
        if hasattr(library, "clear_controlling_thread"):  # of OpenBLAS, from threadpoolctl 3.8 on
            library.clear_controlling_thread(force=True)
    torch.set_num_threads(n)


def of_libraries():
    """Threads of torch, and of every BLAS and OpenMP that is loaded."""
    return {torch.get_num_threads(), *(library["num_threads"] for library in threadpool_info())}


def test_libraries_have_one_thread_inside_and_theirs_again_outside():
    with one_thread():
        assert of_libraries() == {1}
        with one_thread():
            assert of_libraries() == {1}
        assert of_libraries() == {1}
        with own_threads():
            assert of_libraries() == {3}
            with one_thread():
                assert of_libraries() == {1}
            assert of_libraries() == {3}
        assert of_libraries() == {1}
    assert of_libraries() == {3}


def test_predictions_limit_torch_alone_and_a_fit_inside_limits_all():
    with one_thread(torch_only=True):
        assert torch.get_num_threads() == 1 and of_libraries() == {1, 3}
        with one_thread():
            assert of_libraries() == {1} and coarse_threads() == 3
            with own_threads():
                assert of_libraries() == {3}
        assert torch.get_num_threads() == 1 and of_libraries() == {1, 3}
    assert of_libraries() == {3}


def test_an_error_gives_the_threads_back():
    with pytest.raises(ZeroDivisionError), one_thread(), own_threads():
        _ = 1 / 0
    assert of_libraries() == {3}


@pytest.mark.parametrize("first_to_leave", [0, 1])
def test_libraries_have_their_threads_again_when_two_callers_have_left(first_to_leave):
    entered, leave = threading.Barrier(3), [threading.Event(), threading.Event()]
    seen = {}

    def work(number):
        torch.set_num_threads(3)
        with one_thread():
            seen[number] = torch.get_num_threads()
            entered.wait(60)
            assert leave[number].wait(60)

    both = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for one in both:
        one.start()
    entered.wait(60)
    assert seen == {0: 1, 1: 1}
    for number in (first_to_leave, 1 - first_to_leave):
        leave[number].set()
        both[number].join(60)
    assert of_libraries() == {3}


def test_large_work_is_split_as_torch_would_inside_too(monkeypatch):
    assert coarse_threads() == 3
    with one_thread():
        assert coarse_threads() == 3
        with Threads(2**30) as workers:
            assert workers.n == 3
    for asked, given in ((1, 1), (2, 2), (64, 8), (-1, 3)):
        with one_thread(asked):
            assert coarse_threads() == given
    monkeypatch.setattr(threads, "available_threads", lambda: 2)
    with one_thread():
        assert coarse_threads() == 2
    with own_threads():  # of a container's two processors torch takes no more
        assert torch.get_num_threads() == 2
    assert torch.get_num_threads() == 3


def test_a_fit_keeps_libraries_to_one_thread_but_not_a_classifier_of_the_users(monkeypatch):
    from sklearn.linear_model import LogisticRegression
    from sklearn.neural_network import MLPClassifier

    seen = []

    def spy(cls):
        plain = cls.fit

        def fit(self, *args, **kwargs):
            seen.append(of_libraries())
            return plain(self, *args, **kwargs)

        monkeypatch.setattr(cls, "fit", fit)

    spy(MLPClassifier)
    spy(LogisticRegression)
    generator = np.random.default_rng(0)
    X = generator.normal(size=(120, 4))
    y = (X[:, 0] > 0).astype(int)
    AttnKNNClassifier(random_state=0).fit(X, y)
    assert seen and all(one == {1} for one in seen)
    seen.clear()
    AttnKNNClassifier(estimator=LogisticRegression(), random_state=0).fit(X, y)
    assert seen and all(one == {3} for one in seen)
    assert of_libraries() == {3}


COUNT = """
import os, torch
from nearwise.functional.threads import one_thread
torch.set_num_threads(2)
before = len(os.listdir("/proc/self/task"))
with one_thread():
    pass
print(len(os.listdir("/proc/self/task")) - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="GNU's OpenMP, and /proc")
@pytest.mark.parametrize("told", [{}, {"OMP_WAIT_POLICY": "ACTIVE"}, {"GOMP_SPINCOUNT": "9"}])
def test_more_threads_than_processors_keep_openmp_from_spinning_unless_told(told):
    plain = {k: v for k, v in os.environ.items() if k not in ("OMP_WAIT_POLICY", "OMP_NUM_THREADS")}
    run = subprocess.run(
        [sys.executable, "-c", COUNT], env=plain | told, capture_output=True, text=True, check=True
    )
    sleepers = 0 if told else len(os.sched_getaffinity(0)) + 1
    assert int(run.stdout) == sleepers
