"""What holds for implementations that a package registers: chosen by name, checked, or replaced."""

import os
import subprocess
import sys
import threading
import warnings
from types import SimpleNamespace

import pytest
import torch

import nearwise
from nearwise.functional import attention_implementation, knn_attention
from nearwise.functional.tokens import attend, checked, implementation
from nearwise.functional.tokens.cpu import attend_cpu, backward_cpu
from tests.functional.tokens.cases import random_tokens


@pytest.fixture
def other(monkeypatch):
    """An implementation registered as "other", which counts its calls; nothing is checked yet."""
    calls = []

    def attend_other(tokens):
        calls.append("attend")
        return attend_cpu(tokens)

    def backward_other(*arguments):
        calls.append("backward")
        return backward_cpu(*arguments)

    plugin = SimpleNamespace(
        attend=attend_other, backward=backward_other, fault=lambda tokens: "", calls=calls
    )
    monkeypatch.setitem(implementation._registered, "other", plugin)
    monkeypatch.setattr(checked, "_verdicts", {})
    monkeypatch.setattr(checked, "_warned", set())
    return plugin


def run(call, name="other"):
    """Output and gradients of a call under an implementation, and the warnings it gave."""
    inputs = [x.clone().requires_grad_() for x in random_tokens((2, 2, 12, 8), dtype=torch.float32)]
    with warnings.catch_warnings(record=True) as caught, attention_implementation(name):
        warnings.simplefilter("always")
        output = call(*inputs)
        output.square().sum().backward()
    results = [output.detach(), *(x.grad for x in inputs)]
    return results, [str(w.message) for w in caught if w.category is RuntimeWarning]


def nearest(*tokens):
    return knn_attention(*tokens, 3, metric="euclidean")


def test_each_pass_of_a_class_is_checked_once_and_then_used(other):
    for _ in range(2):
        assert run(nearest)[1] == []
    checks = ["attend"] * 4 + ["backward"] * 4  # as many queries as keys, fewer, more; and the pass
    assert other.calls == [*checks, "attend", "backward"]
    other.calls.clear()
    with attention_implementation("other"), torch.no_grad():
        nearest(*random_tokens((1, 1, 30, 7), dtype=torch.float32))  # of the same class
        assert other.calls == ["attend"]
        knn_attention(*random_tokens((1, 1, 30, 7), dtype=torch.float32), 4, metric="euclidean")
        assert other.calls == ["attend"] * 2
        nearest(*random_tokens((1, 1, 30, 17), dtype=torch.float32))
        assert other.calls == ["attend"] * 6


def twice_attended(tokens):
    found = attend_cpu(tokens)
    return found._replace(output=2 * found.output)


def twice_as_steep(*arguments):
    return tuple(2 * x for x in backward_cpu(*arguments))


def failing(*_):
    raise RuntimeError("no such instruction")


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize(
    ("part", "broken", "why"),
    [
        ("attend", twice_attended, "output by up to"),
        ("backward", twice_as_steep, "gradients of query by up to"),
        ("attend", failing, "RuntimeError: no such instruction"),
        ("backward", failing, "RuntimeError: no such instruction"),
        ("fault", lambda tokens: "its kernels take no l2", "its kernels take no l2"),
    ],
)
def test_what_fails_runs_plain_with_one_warning(other, compiled, part, broken, why):
    setattr(other, part, broken)
    call = torch.compile(nearest, fullgraph=True, backend="aot_eager") if compiled else nearest
    found, caught = run(call)
    assert len(caught) == 1
    assert '"other"' in caught[0]
    assert why in caught[0]
    for text in (f"torch {torch.__version__}", "metric=euclidean", "report this message"):
        assert (text in caught[0]) == (part != "fault")
    again, silent = run(call)
    assert silent == []
    expected, _ = run(nearest, "plain")
    for results in (found, again):
        for one, other_one in zip(results, expected, strict=True):
            torch.testing.assert_close(one, other_one, atol=1e-5, rtol=1e-5)


def first_item_for_all(tokens):
    return attend_cpu(tokens._replace(key=tokens.key[:1].expand_as(tokens.key)))


def nan_in_empty_slots(tokens, indices, *arguments):
    grads = backward_cpu(tokens, indices, *arguments)
    grads[3][indices < 0] = torch.nan
    return grads


def no_more_keys_than_queries(tokens):
    n = tokens.query.shape[2]
    return attend_cpu(tokens._replace(key=tokens.key[:, :, :n], value=tokens.value[:, :, :n]))


def no_more_queries_than_keys(tokens):
    found = attend_cpu(tokens)
    found.output[:, :, tokens.key.shape[2] :] = 0
    return found


@pytest.mark.parametrize(
    ("part", "broken"),
    [
        ("attend", first_item_for_all),
        ("backward", nan_in_empty_slots),
        ("attend", no_more_keys_than_queries),
        ("attend", no_more_queries_than_keys),
    ],
)
def test_a_fault_that_one_square_full_problem_does_not_show_is_found(other, part, broken):
    setattr(other, part, broken)
    _, (text,) = run(nearest)
    assert "differs from plain operations" in text


def test_every_length_gives_the_same_reason_once(other):
    other.fault = lambda tokens: "its kernels take no l2"
    with attention_implementation("other"), pytest.warns(RuntimeWarning) as caught:
        for n_tokens in range(2, 9):
            knn_attention(*random_tokens((1, 1, n_tokens, 8), dtype=torch.float32), 9)
    assert len(caught) == 1


def test_a_limit_inside_a_class_holds_whichever_problem_comes_first(other):
    other.fault = lambda t: "its kernels take 3 neighbors" if t.n_neighbors > 3 else ""
    tokens = random_tokens((1, 1, 12, 8), dtype=torch.float32)
    with attention_implementation("other"):
        knn_attention(*tokens, 3)
        other.calls.clear()
        with pytest.warns(RuntimeWarning, match="3 neighbors"):
            knn_attention(*tokens, 4)
    assert other.calls == []


def test_deterministic_algorithms_run_plain_and_leave_the_check_to_be_made(other):
    other.backward = twice_as_steep
    torch.use_deterministic_algorithms(True)
    try:
        found, caught = run(nearest)
    finally:
        torch.use_deterministic_algorithms(False)
    assert caught == []
    for one, expected in zip(found, run(nearest, "plain")[0], strict=True):
        torch.testing.assert_close(one, expected, atol=1e-5, rtol=1e-5)
    assert "gradients of query" in run(nearest)[1][0]


def test_out_of_memory_is_raised_and_the_class_is_checked_again(other):
    right = other.attend

    def short(tokens):
        raise torch.OutOfMemoryError("7 GiB")

    other.attend = short
    with pytest.raises(torch.OutOfMemoryError):
        run(nearest)
    other.attend = right
    assert run(nearest)[1] == []


def test_threads_check_a_class_once_between_them(other):
    tokens = random_tokens((1, 1, 12, 8), dtype=torch.float32)
    threads = [threading.Thread(target=nearest, args=tokens) for _ in range(4)]
    with attention_implementation("other"):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert other.calls == ["attend"] * 7


def test_a_check_leaves_the_random_state_and_works_in_inference_mode_and_autocast(other):
    tokens = random_tokens((1, 1, 12, 8), dtype=torch.float32)
    before = torch.get_rng_state()
    with (
        attention_implementation("other"),
        torch.inference_mode(),
        torch.autocast("cpu", torch.bfloat16),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("error")
        nearest(*tokens)
    assert torch.equal(before, torch.get_rng_state())


def test_the_choice_of_the_process_holds_until_changed_and_blocks_nest_over_it(other):
    tokens = random_tokens((1, 1, 12, 8), dtype=torch.float32)
    compiled = torch.compile(nearest, fullgraph=True, backend="aot_eager")
    try:
        nearwise.set_attention_implementation("other")
        compiled(*tokens)
        used = len(other.calls)
        assert used
        with attention_implementation("plain"):
            compiled(*tokens)
            assert len(other.calls) == used
        compiled(*tokens)
        assert len(other.calls) == used + 1
        with pytest.raises(ValueError, match="'othre' is not known"):
            nearwise.set_attention_implementation("othre")
    finally:
        nearwise.set_attention_implementation("auto")
    compiled(*tokens)
    assert len(other.calls) == used + 1


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


def test_values_of_half_precision_are_a_class_of_their_own(other):
    query, key, value = random_tokens((1, 1, 12, 8), dtype=torch.float32)
    with attention_implementation("other"):
        for dtype in (torch.float32, torch.bfloat16):
            attend(query, key, value.to(dtype), 3)
    assert len(checked._verdicts) == 2
