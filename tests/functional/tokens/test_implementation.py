"""Which implementation attends: chosen for the process, for a block, or before Python starts."""

import os
import subprocess
import sys
import threading

import pytest
import torch

import nearwise
from nearwise.functional import attention_implementation, knn_attention
from nearwise.functional.tokens import implementation
from tests.functional.tokens.cases import random_tokens


def nearest(*tokens):
    return knn_attention(*tokens, 3, metric="euclidean")


def test_the_choice_of_the_process_holds_until_changed_and_is_compiled_anew():
    fused = []

    def record(graph, _):
        fused.append("nearwise.knn_attention" in str(graph.code))
        return graph

    compiled = torch.compile(nearest, fullgraph=True, backend=record)
    tokens = random_tokens((1, 1, 12, 8), dtype=torch.float32)
    try:
        nearwise.set_attention_implementation("plain")
        compiled(*tokens)
        with attention_implementation("cpu"):
            compiled(*tokens)
        compiled(*tokens)
        with pytest.raises(ValueError, match="'plian' is not known"):
            nearwise.set_attention_implementation("plian")
    finally:
        nearwise.set_attention_implementation("auto")
    assert fused == [False, True]


def in_force():
    return implementation.implementation_for(torch.zeros(1))


def test_blocks_that_overlap_end_in_any_order_and_leave_the_choice_of_the_process():
    one, two, three = (attention_implementation(name) for name in ("plain", "cpu", "plain"))
    for block in (one, two, three):
        block.__enter__()
    for block, left in ((two, "plain"), (three, "plain"), (one, "cpu")):
        block.__exit__(None, None, None)
        assert in_force() == left
    one, two = attention_implementation("plain"), attention_implementation("cpu")
    one.__enter__()
    two.__enter__()
    one.__exit__(None, None, None)
    assert in_force() == "cpu"
    two.__exit__(None, None, None)
    assert implementation._forced == "auto"


def test_a_block_of_one_thread_holds_in_all_and_ends_with_it():
    entered, may_end = threading.Event(), threading.Event()

    def other_thread():
        with attention_implementation("plain"):
            entered.set()
            may_end.wait()

    thread = threading.Thread(target=other_thread)
    try:
        with attention_implementation("cpu"):
            thread.start()
            assert entered.wait(60)
            assert in_force() == "plain"
        assert in_force() == "plain"
    finally:
        may_end.set()
        thread.join()
    assert implementation._forced == "auto"


def test_a_choice_for_the_process_inside_a_block_counts_from_its_end_on():
    try:
        with attention_implementation("cpu"):
            nearwise.set_attention_implementation("plain")
            assert in_force() == "cpu"
        assert in_force() == "plain"
    finally:
        nearwise.set_attention_implementation("auto")


def test_a_block_inside_a_compiled_function_is_compiled_with_it_once():
    graphs = []

    def count(graph, _):
        graphs.append(str(graph.code))
        return graph

    def call(x):
        with attention_implementation("plain"):
            return knn_attention(x, x, x, 3)

    compiled, x = torch.compile(call, fullgraph=True, backend=count), torch.randn(1, 12, 8)
    for _ in range(3):
        compiled(x)
    assert len(graphs) == 1
    assert "nearwise.knn_attention" not in graphs[0]
    assert implementation._forced == "auto"


@pytest.mark.parametrize(("name", "error"), [("plain", ""), ("flash", "NEARWISE_ATTENTION")])
def test_the_environment_chooses_what_a_process_begins_with(name, error):
    code = (
        "import torch\n"
        "from nearwise.functional.tokens import attend, implementation\n"
        "assert implementation.only_plain() == (implementation._forced == 'plain')\n"
        "attend(*(torch.randn(1, 8, 4) for _ in range(3)), 3)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "NEARWISE_ATTENTION": name},
        capture_output=True,
        text=True,
    )
    assert (done.returncode == 0) == (not error), done.stderr
    last = done.stderr.splitlines()[-1] if error else ""
    assert error in last
    assert ("'flash'" in last) == bool(error)
