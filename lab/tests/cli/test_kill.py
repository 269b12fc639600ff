"""kill -9 during a comparison loses no finished run."""

import pytest
from nearwise_lab.experiments import read_records

from tests.cli.test_kill import KILLS, kill_at_random, run, seconds


@pytest.mark.slow
def test_kill_9_during_compare_keeps_the_finished_rows(tmp_path):
    methods = "knn-uniform,knn-distance,logistic"
    command = ("compare", "iris", "--seeds", "0-9", "--methods", methods, "-q", "--out")
    longest = seconds(*command, tmp_path / "whole")
    out = tmp_path / "killed"
    finished: list[set] = [set()]

    def rows() -> set:
        if not (out / "records.jsonl").exists():
            return set()
        return {(record.method, record.seed) for record in read_records(out)}

    def check():
        now = rows()
        assert finished[0] <= now
        finished[0] = now

    kill_at_random(KILLS, longest, (*command, out), lambda: None, check)
    run(*command, out)
    assert len(rows()) == 30
