"""Tasks in processes side by side: what is done, reported, raised and lost."""

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from nearwise_lab.experiments.side_by_side import number_of_jobs, run_side_by_side

pytestmark = pytest.mark.slow  # processes start one after the other, a minute in all


def leave_pid(folder, item, progress):
    progress(f"doing {item}")
    time.sleep(0.8)
    seen = sorted(p.name for p in Path(folder).iterdir())
    (Path(folder) / item).write_text(f"{os.getpid()} {','.join(seen)}", encoding="utf-8")


BURNT = 0.5  # seconds


def burn(item, progress):
    end = time.process_time() + BURNT
    while time.process_time() < end:
        pass


def leave_pid_and_stay(folder, item, progress):
    (Path(folder) / item).write_text(str(os.getpid()), encoding="utf-8")
    time.sleep(300)


def runs(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def wait_until(true, seconds=60):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.1)


def fail(item, progress):
    raise ValueError(f"{item} does not fit.")


def be_killed(item, progress):
    os.kill(os.getpid(), signal.SIGKILL)


def test_rounds_follow_one_another_in_other_processes_that_tell_what_they_do(tmp_path):
    said = []
    work = partial(leave_pid, str(tmp_path))
    run_side_by_side(work, [["a", "b"], ["c"]], 2, said.append)
    left = {p.name: p.read_text(encoding="utf-8").split(" ") for p in tmp_path.iterdir()}
    assert set(left) == {"a", "b", "c"}
    assert str(os.getpid()) not in {pid for pid, _ in left.values()}
    assert left["a"][0] != left["b"][0]  # at once
    assert left["c"][1] == "a,b"
    assert "doing c" in said and any("doing a" in words for words in said)


def test_processor_time_of_the_processes_is_known_behind_it():
    before = os.times()
    run_side_by_side(burn, [["a", "b"]], 2, print)
    after = os.times()
    assert after.children_user - before.children_user > 2 * BURNT


def test_what_a_task_raises_is_raised(tmp_path):
    with pytest.raises(ValueError, match="does not fit"):
        run_side_by_side(fail, [["a", "b"]], 2, print)


def test_what_the_listener_raises_is_raised(tmp_path):
    def refuse(words):
        raise OSError("nobody listens")

    with pytest.raises(OSError, match="nobody listens"):
        run_side_by_side(partial(leave_pid, str(tmp_path)), [["a", "b"]], 2, refuse)


def test_a_killed_process_is_told_of():
    with pytest.raises(ChildProcessError, match="One of 2 processes was killed"):
        run_side_by_side(be_killed, [["a", "b"]], 2, print)


def test_one_task_alone_is_done_here(tmp_path):
    run_side_by_side(partial(leave_pid, str(tmp_path)), [["a"], [], ["b"]], 4, print)
    assert {p.read_text(encoding="utf-8").split(" ")[0] for p in tmp_path.iterdir()} == {
        str(os.getpid())
    }


@pytest.mark.slow
def test_processes_end_with_the_one_that_started_them(tmp_path):
    code = (
        "import sys; from functools import partial\n"
        "from nearwise_lab.experiments.side_by_side import run_side_by_side\n"
        "import test_side_by_side as tasks\n"
        "work = partial(tasks.leave_pid_and_stay, sys.argv[1])\n"
        "run_side_by_side(work, [['a', 'b']], 2, print)\n"
    )
    here = str(Path(__file__).parent)
    parent = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([here, *sys.path])},
    )
    wait_until(lambda: len(list(tmp_path.iterdir())) == 2)
    parent.kill()
    parent.wait()
    pids = [int(p.read_text(encoding="utf-8")) for p in tmp_path.iterdir()]
    wait_until(lambda: not any(map(runs, pids)))


def test_processes_by_device_and_number():
    assert number_of_jobs("auto", "cuda") == 1
    assert 1 <= number_of_jobs("auto", "cpu") <= (os.cpu_count() or 1)
    assert number_of_jobs(3, "cuda") == 3
    for wrong in (0, -1, True, "many", 1.5):
        with pytest.raises(ValueError, match="not a number of processes"):
            number_of_jobs(wrong, "cpu")
