"""Steps of a fit: the count is right at the end, and the time left is a fair guess."""

import pytest
from rich.console import Console

from nearwise.estimators.progress import Progress, _Line, clocked, spoken
from nearwise.estimators.steps import Steps
from tests.estimators.cases import blobs

PLAN = [{"features": 1}, {"base: a": 3, "base: b": 3}, {"forest": 1}, {"memory": 1}]


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def walk(steps, clock, names, seconds=10.0):
    """Start steps of some seconds each; returns (number, total) after each start."""
    found = []
    for name in names:
        steps.start(name)
        found.append((steps.number, steps.total))
        clock.now += seconds
    return found


def test_steps_of_a_right_plan_are_counted_to_its_total():
    clock, steps = Clock(), Steps(Clock())
    steps.plan(PLAN)
    names = ["features", *(f"base: {n}, fold {i} of 3" for i in (1, 2, 3) for n in "ab")]
    assert walk(steps, clock, [*names, "forest", "memory"]) == [(i, 9) for i in range(1, 10)]


def test_left_out_steps_are_subtracted_once_others_show_it():
    steps = Steps(Clock())
    steps.plan(PLAN)
    firsts = [
        "features",
        "base: a, fold 1",
        "base: a, fold 2",
        "base: b, fold 1",
        "base: b, fold 2",
    ]
    assert [total for _, total in walk(steps, Clock(), firsts)] == [9] * 5
    assert walk(steps, Clock(), ["base: b, fold 3"]) == [(6, 8)]  # a has no third fold
    assert walk(steps, Clock(), ["memory"]) == [(7, 7)]  # and there is no forest


def test_steps_without_a_plan_are_added():
    steps = Steps(Clock())
    assert steps.total is None
    steps.plan(PLAN)
    assert walk(steps, Clock(), ["features", "label noise"]) == [(1, 9), (2, 10)]


def test_time_left_is_that_of_alike_steps():
    clock = Clock()
    steps = Steps(clock)
    steps.plan([{"neighbors": 4}])
    assert steps.seconds_left() is None
    walk(steps, clock, ["neighbors 1", "neighbors 2"])
    steps.start("neighbors 3")
    assert steps.seconds_left() == pytest.approx(20)  # two more of ten seconds
    clock.now += 4
    assert steps.seconds_left() == pytest.approx(16)
    steps.reach(0.5)  # half done in four seconds
    assert steps.seconds_left() == pytest.approx(14)


def test_no_time_left_is_said_before_steps_are_timed_that_tell_of_others():
    clock = Clock()
    steps = Steps(clock)
    steps.plan(PLAN)
    walk(steps, clock, ["features"], seconds=60.0)  # libraries start
    walk(steps, clock, ["base: a, fold 1 of 3"], seconds=4.0)
    assert steps.seconds_left() is None
    walk(steps, clock, ["base: a, fold 2 of 3"], seconds=4.0)
    steps.start("base: b, fold 1 of 3")
    # b, its second fold, .4 of both third folds, forest and memory
    assert steps.seconds_left() == pytest.approx(4.0 * (1 + 1 + 0.8 + 2))


def test_a_kind_that_was_timed_bounds_what_epochs_promise():
    clock = Clock()
    steps = Steps(clock)
    steps.plan([{"head": 2}])
    walk(steps, clock, ["head, member 1"], seconds=8.0)
    steps.start("head, member 2")
    clock.now += 2.0
    steps.reach(1 / 12)  # of the most epochs; the first member stopped long before
    assert steps.seconds_left() == pytest.approx(6.0)


def test_time_left_never_counts_a_late_step_as_done_before_its_time():
    clock = Clock()
    steps = Steps(clock)
    steps.plan([{"neighbors": 2}, {"forest": 1}])
    walk(steps, clock, ["neighbors 1"])
    steps.start("neighbors 2")
    before = steps.seconds_left()
    clock.now += 100
    assert before < steps.seconds_left() * 3 and steps.seconds_left() > 10  # the forest is late too


def test_durations_read_as_on_a_clock_and_as_spoken():
    assert [clocked(one) for one in (0, 59.6, 250, 3850)] == ["0:00", "1:00", "4:10", "1:04:10"]
    expected = {3: "about 10 s", 41: "about 40 s", 60: "about 1 min", 371: "about 6 min"}
    assert {one: spoken(one) for one in expected} == expected
    assert spoken(3 * 3600) == "about 3 h"


def test_the_line_keeps_its_width_and_never_starts_its_clock_again():
    progress = Progress(0)
    progress.plan(PLAN)
    progress.stage("features")
    first = progress.line()
    progress.stage("base: a, fold 1 of 3")
    second = progress.line()
    assert first.startswith("step 1 of 9 · ") and second.startswith("step 2 of 9 · ")
    assert first.index("features") == second.index("base: a")


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_a_line_ends_with_the_last_part_that_fits(width):
    progress = Progress(0)
    progress.plan(PLAN)
    progress.stage("base: a, fold 1 of 3")
    progress.epoch("base: a, fold 1 of 3", {"epoch": 1, "train_loss": 0.5, "held_out_nll": 0.4}, 9)
    whole = progress.line()
    shown = _Line(progress.line, Console(width=width)).render(None).plain
    assert whole.startswith(shown) and len(shown) <= width
    assert whole[len(shown) :].startswith((" · ", ", ")) or shown == whole


@pytest.mark.parametrize("number", [False, True], ids=["classes", "numbers"])
@pytest.mark.parametrize("preset", ["default", "instant"])
def test_a_fit_ends_at_its_last_step(monkeypatch, number, preset):
    from nearwise import AttnKNNClassifier, AttnKNNRegressor

    seen = []
    report = Progress._report
    monkeypatch.setattr(
        Progress,
        "_report",
        lambda self, text: (
            seen.append((self._steps.number, self._steps.total)),
            report(self, text),
        ),
    )
    X, y = blobs(90, 2, 3)
    make = AttnKNNRegressor if number else AttnKNNClassifier
    make(preset=preset, verbose=0).fit(X, y + X[:, 0] if number else y)
    numbers = [number for number, _ in seen]
    assert numbers == sorted(numbers) and numbers[0] == 1
    assert seen[-1][0] == seen[-1][1]
    assert seen[0][1] >= seen[-1][1] * 0.6  # announced from the start, as far as it can be
