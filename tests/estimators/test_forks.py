"""Children that are forked from a process with a loaded model answer as their parent does."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from nearwise.estimators import AttnKNNClassifier, LiveModel
from nearwise.memory import Journal, locked_folder
from tests.estimators.cases import attn_knn, blobs, fit_once, fitted
from tests.estimators.image_cases import BRIEF, patches
from tests.forks import FORK, in_a_child

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
INSTANT = {"preset": "instant", "random_state": 0}
TABLE = blobs(600, n_features=20)
KINDS = {
    "no base": (INSTANT | {"estimator": None}, TABLE),
    "a base": (INSTANT, TABLE),
    "cells": (INSTANT | {"estimator": None, "index": "ivf-flat"}, TABLE),
    "networks": (
        {"estimator": None, "cv": 2, "train": {"epochs": 1}, "head": {"epochs": 1}},
        TABLE,
    ),
    "images": (BRIEF, patches(90)),
}


SELDOM = ("no base", "networks", "images")  # what differs is tested with the other kinds


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=[pytest.mark.slow] * (k in SELDOM)) for k in KINDS]
)
def test_every_way_of_forking_gives_children_that_predict_as_the_parent(kind, tmp_path):
    settings, (X, y) = KINDS[kind]
    if "index" in settings:
        pytest.importorskip("faiss")
    fit_once(attn_knn(**settings), X, y).save(tmp_path / "m")
    np.save(tmp_path / "X.npy", X)
    source = Path(__file__).parents[2] / "src"
    # On a loaded machine, one of these hung in three of some sixty runs (limits.md).
    left_out = [] if kind in SELDOM else ["in threads of a child", "in a child of a child"]
    environment = os.environ | {"OMP_NUM_THREADS": "2", "PYTHONPATH": str(source)}
    run = subprocess.run(
        [
            sys.executable,
            Path(__file__).with_name("forked.py"),
            tmp_path / "m",
            tmp_path / "X.npy",
            *left_out,
        ],
        env=environment,
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert len(found) == 8 - len(left_out) and found == dict.fromkeys(found, "")


@pytest.fixture
def folder(tmp_path):
    fitted().save(tmp_path / "m")
    return tmp_path / "m"


X, Y = blobs(12, seed=5)


@pytest.mark.parametrize("held", ["the model's", "the live model's", "an index's"])
def test_a_child_changes_a_model_whose_lock_a_thread_of_the_parent_holds(held, folder):
    live = LiveModel(folder)
    views = live.model._predictor.views
    locks = {
        "the model's": lambda: live.model._lock,
        "the live model's": lambda: live._lock,
        "an index's": lambda: views._index(views.specs[0])[0]._lock.write(),
    }
    holding, done = threading.Event(), threading.Event()

    def hold():
        with locks[held]():
            holding.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    holding.wait()

    def work():
        live.add(X[:2], Y[:2])
        assert len(live.model.predict(X)) == 12

    try:
        in_a_child(work)
    finally:
        done.set()
        thread.join()
    assert live.catch_up() == 1
    live.close()


def test_parent_and_child_change_one_folder_in_turns(folder):
    with LiveModel(folder) as live:
        live.add(X[:1], Y[:1])

        def work():
            live.relabel([0], [1])
            assert [change.kind for change in live.history()] == ["add", "relabel"]
            live.close()

        in_a_child(work)
        live.remove([3])
        assert [change.kind for change in live.history()] == ["add", "relabel", "remove"]
        expected = live.model.predict_proba(X)
    assert np.array_equal(AttnKNNClassifier.load(folder).predict_proba(X), expected)


def test_a_child_that_closes_a_journal_leaves_the_parents_connection(folder):
    with LiveModel(folder) as live:
        live.add(X[:1], Y[:1])
        with Journal(folder) as journal:
            state = journal.state()
            in_a_child(journal.close)
            assert journal.state() == state


def test_a_child_that_was_forked_during_a_change_does_not_keep_the_folder_locked(folder):
    go_on = FORK.Event()
    with locked_folder(folder):
        child = FORK.Process(target=go_on.wait, args=(90,))
        child.start()
    try:
        with LiveModel(folder, wait=0.5) as live:
            assert live.add(X[:1], Y[:1]).version == 1
    finally:
        go_on.set()
        child.join()
