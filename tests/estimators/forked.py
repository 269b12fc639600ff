"""Loads a model and asks children for predictions, in every way that forks; for test_forks.py.

``python forked.py FOLDER QUERIES.npy [WAY_TO_LEAVE_OUT ...]`` prints for each way what was wrong
with its answers, as JSON; "" where nothing was.
"""

import json
import multiprocessing
import os
import pickle
import select
import signal
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import numpy as np
import torch

from nearwise import AttnKNNClassifier, LiveModel

PATIENCE = 100  # seconds; of a machine that is busy
FORK = multiprocessing.get_context("fork")
torch.set_num_threads(2)  # on a machine with one processor, too
MODEL = AttnKNNClassifier.load(sys.argv[1])
X = np.load(sys.argv[2])


def predict(_=None):
    return MODEL.predict_proba(X)


def in_child(work):
    """Give what a forked child returns or raises; TimeoutError if it never answers."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            answer = work()
        except BaseException as error:
            answer = error
        with os.fdopen(writing, "wb") as pipe:
            pickle.dump(answer, pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        ready, _, _ = select.select([pipe], [], [], PATIENCE)
        if not ready:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise TimeoutError("the child never answered")
        answer = pickle.load(pipe)
    os.waitpid(child, 0)
    if isinstance(answer, BaseException):
        raise answer
    return answer


def from_a_thread():
    def work():
        predict()
        return in_child(predict)

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def in_threads():
    with ThreadPoolExecutor(2) as pool:
        return [predict(), *pool.map(predict, range(4))]


def by_pool():
    pool = FORK.Pool(2)
    try:
        return pool.map_async(predict, range(4)).get(PATIENCE)
    finally:
        pool.terminate()


def by_executor():
    with ProcessPoolExecutor(2, mp_context=FORK) as pool:
        answers = [pool.submit(predict) for _ in range(4)]
        try:
            return [answer.result(PATIENCE) for answer in answers]
        except TimeoutError:
            for process in pool._processes.values():
                process.kill()
            raise


def of_a_live_model():
    with LiveModel(sys.argv[1]) as live:
        return in_child(lambda: live.model.predict_proba(X))


WAYS = {
    "before a prediction": lambda: in_child(predict),
    "after a prediction": lambda: (predict(), in_child(predict))[1],
    "from a thread": from_a_thread,
    "in threads of a child": lambda: in_child(in_threads),
    "in a child of a child": lambda: in_child(lambda: in_child(predict)),
    "multiprocessing.Pool": by_pool,
    "ProcessPoolExecutor": by_executor,
    "of a live model": of_a_live_model,
}


def main():
    found, answers = {}, {}
    for name, way in WAYS.items():
        if name in sys.argv[3:]:
            continue
        try:
            answers[name] = way()
            found[name] = ""
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    expected = predict()
    for name, answer in answers.items():
        several = answer if isinstance(answer, list) else [answer]
        if not all(np.array_equal(one, expected) for one in several):
            found[name] = "other numbers than the parent's"
    print(json.dumps(found))


if __name__ == "__main__":
    main()
