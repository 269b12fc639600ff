"""Requests of the lab's commands that would write over what is read: refused, nothing is harmed."""

import pytest

from tests.intake.test_command_line import IN_MODEL, contents, place, refused

__all__ = ["place"]
REQUESTS = {
    "compare train.csv:label -o .": "holds train.csv, which is read",
    "compare iris -o m": IN_MODEL,
    "compare iris -o into/runs": IN_MODEL,
    "demo -o m": IN_MODEL,
    "experiment main -d ./images -o images/runs": "lies in the folder images, which is read",
    "experiment main -o m": IN_MODEL,
    "probe pixels digits-images -o m": IN_MODEL,
    "field train -o m": IN_MODEL,
    "field compare -o m": IN_MODEL,
    "vit train --dataset digits --output-dir m": IN_MODEL,
}


@pytest.mark.parametrize("request_", REQUESTS)
def test_a_bad_request_is_answered_in_a_line_and_harms_nothing(nearwise, place, request_):
    before = contents(place)
    assert refused(nearwise(*request_.split()), REQUESTS[request_])
    assert contents(place) == before
