"""What the comparison of an implementation with plain operations finds, and what it lets pass."""

import itertools

import pytest
import torch

from nearwise.functional.tokens.cpu import attend_cpu, backward_cpu
from nearwise.functional.tokens.plain import attend_plain
from nearwise.functional.tokens.plain_backward import backward_plain
from nearwise.functional.tokens.self_test import (
    TOLERANCES,
    ShapeClass,
    differences,
    small_problem,
    small_problems,
)

SELF = ("candidate", "always", "never")
FLAGS = ("is_causal", "has_bias", "has_padding", "has_candidates", "has_keep")


def shapes():
    """Every flag with every other, over metrics and what a token's own key may be."""
    for euclidean, include_self in itertools.product((False, True), SELF):
        for on in itertools.combinations(FLAGS, 2):
            yield ShapeClass(
                euclidean=euclidean, include_self=include_self, **dict.fromkeys(on, True)
            )


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize(("attend", "backward"), [(attend_cpu, backward_cpu), (attend_plain, None)])
def test_right_implementations_pass_in_every_dtype(attend, backward, dtype):
    for euclidean in (False, True):
        shape = ShapeClass(dtype=dtype, value_dtype=dtype, euclidean=euclidean, width=64)
        assert differences(small_problem(shape), attend, backward or backward_plain) == ""


def test_right_implementations_pass_with_every_pair_of_masks():
    for shape in shapes():
        for problem in small_problems(shape):
            assert differences(problem, attend_cpu, backward_cpu) == "", shape


@pytest.mark.parametrize("n_neighbors", [1, 2, 9, 100])
@pytest.mark.parametrize("euclidean", [False, True])
def test_right_implementations_pass_with_any_number_of_neighbors(n_neighbors, euclidean):
    shape = ShapeClass(n_neighbors=n_neighbors, euclidean=euclidean, has_padding=True)
    for problem in small_problems(shape):
        assert differences(problem, attend_cpu, backward_cpu) == ""


def test_there_are_more_queries_and_fewer_unless_the_class_is_about_a_token_itself():
    def lengths(**parts):
        problems = small_problems(ShapeClass(**parts))
        return [(x.query.shape[2], x.key.shape[2]) for x in problems]

    for n_neighbors in (9, 200):
        (same, n_keys), (fewer, _), (more, _) = lengths(n_neighbors=n_neighbors)
        assert fewer < same == n_keys < more
        for parts in ({"is_causal": True}, {"include_self": "never"}, {"include_self": "always"}):
            assert lengths(n_neighbors=n_neighbors, **parts) == [(n_keys, n_keys)]


def test_a_backward_pass_gets_empty_slots_in_every_number():
    problem, seen = small_problem(ShapeClass()), []

    def backward(tokens, indices, *arguments):
        seen.append(indices)
        return backward_cpu(tokens, indices, *arguments)

    assert differences(problem, None, backward) == ""
    assert (seen[0] < 0).sum(-1).unique().tolist() == list(range(10))
    assert seen[0].dtype == torch.int32


def test_padding_leaves_an_item_fewer_keys_than_slots():
    problem = small_problem(ShapeClass(has_padding=True))
    n_empty = (attend_plain(problem).indices < 0).sum(-1)
    assert not n_empty[0].any()
    assert n_empty[1].all()


def test_values_may_be_of_half_precision_beside_float32():
    problem = small_problem(ShapeClass(value_dtype=torch.bfloat16))
    assert differences(problem, attend_cpu, backward_cpu) == ""


def ignoring(**parts):
    return lambda tokens: attend_cpu(tokens._replace(**parts))


@pytest.mark.parametrize(
    ("shape", "attend"),
    [
        (ShapeClass(has_bias=True), ignoring(bias=None)),
        (ShapeClass(has_padding=True), ignoring(padding=None)),
        (ShapeClass(is_causal=True), ignoring(is_causal=False)),
        (ShapeClass(include_self="never"), ignoring(include_self="candidate")),
        (ShapeClass(include_self="always"), ignoring(include_self="candidate")),
        (ShapeClass(has_candidates=True), ignoring(candidates=None)),
        (ShapeClass(has_keep=True), ignoring(keep=None)),
        (ShapeClass(euclidean=True), ignoring(euclidean=False)),
        (ShapeClass(), ignoring(scale=0.3)),
    ],
)
def test_a_part_of_the_problem_that_is_ignored_is_found(shape, attend):
    assert differences(small_problem(shape), attend)


def test_ties_in_another_order_are_found_and_counted():
    def last_first(tokens):
        turned = tokens._replace(key=tokens.key.flip(2), value=tokens.value.flip(2))
        found = attend_cpu(turned)
        return found._replace(indices=tokens.key.shape[2] - 1 - found.indices)

    assert "of 2880 indices differ" in differences(small_problem(ShapeClass()), last_first)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, 7.0])
def test_one_wrong_number_is_found_wherever_it_is(bad):
    problem = small_problem(ShapeClass())

    def attend(tokens):
        found = attend_cpu(tokens)
        found.output[0, 1, -1, -1] = bad
        return found

    text = differences(problem, attend)
    assert text.startswith("output by up to ")
    assert ";" not in text
    for i, name in enumerate(("query", "key", "value", "scores")):

        def backward(*arguments, i=i):
            grads = backward_cpu(*arguments)
            grads[i][0, 1, -1, -1] = bad
            return grads

        assert differences(problem, None, backward).startswith(f"gradients of {name} by up to")


def test_results_of_another_shape_are_found():
    def attend(tokens):
        found = attend_cpu(tokens)
        return found._replace(weights=found.weights[:, :1])

    assert differences(small_problem(ShapeClass()), attend) == (
        "weights of shape (2, 1, 80, 9), not (2, 2, 80, 9)"
    )


def test_a_class_rounds_sizes_and_its_problem_is_of_the_class():
    shape = ShapeClass(width=64, value_width=16, n_neighbors=256, include_self="never")
    for flag in FLAGS:
        shape = shape._replace(**{flag: True})
    assert ShapeClass.of(small_problem(shape)) == shape
    narrow = small_problem(shape._replace(width=33, value_width=3, n_neighbors=129))
    assert narrow.query.shape[-1] == 33
    assert narrow.n_neighbors == 129
    assert ShapeClass.of(narrow) == shape


def test_a_default_device_of_the_process_does_not_matter():
    with torch.device("meta"):
        assert differences(small_problem(ShapeClass()), attend_plain, backward_plain) == ""


def test_the_global_random_state_stays():
    before = torch.get_rng_state()
    differences(small_problem(ShapeClass(has_keep=True)), attend_cpu, backward_cpu)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("euclidean", [False, True])
def test_plain_gradients_are_those_of_autograd(euclidean):
    problem = small_problem(ShapeClass(dtype=torch.float64, euclidean=euclidean, has_keep=True))
    problem = problem._replace(value=problem.value.double(), is_causal=True)
    inputs = [x.clone().requires_grad_() for x in problem[:3]]
    bias = torch.zeros(2, 2, 80, 80, dtype=torch.float64, requires_grad=True)
    found = attend_plain(
        problem._replace(query=inputs[0], key=inputs[1], value=inputs[2], bias=bias)
    )
    sent = [torch.randn_like(x) for x in (found.output, found.weights)]
    expected = torch.autograd.grad((found.output, found.weights), (*inputs, bias), sent)
    with torch.no_grad():
        ours = backward_plain(problem, found.indices, found.weights, *sent)
    for one, other in zip(ours[:3], expected[:3], strict=True):
        torch.testing.assert_close(one, other)
    at = found.indices.long().clamp_min(0)
    filled = torch.zeros_like(bias).scatter_add_(-1, at, ours[3])
    torch.testing.assert_close(filled, expected[3])
