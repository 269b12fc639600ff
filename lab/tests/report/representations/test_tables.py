"""Captions say what the numbers below them are of."""

from dataclasses import replace

from nearwise_lab.report.representations.tables import (
    accuracy_table,
    calibration_table,
    geometry_table,
)

from lab.tests.report.representations.cases import comparison, everything, flat

HEAVY = ("attention", "transformer")


def test_captions_count_the_draws_of_what_they_stand_over():
    every = comparison(flat(), **everything())
    few = [r for r in every.records if r["probe"] not in HEAVY or r["draw"] == 0]
    found = replace(every, records=few)
    titles = [accuracy_table(found, "0.2"), calibration_table(found, "0.2", "attention")]
    titles += [calibration_table(found, "0.2", "knn"), geometry_table(found, "0.2")]
    endings = [table.caption.split(", ", 1)[1] for table in titles]
    assert "3 draws (knn, linear), 1 draw (attention, transformer) of the context" in endings[0]
    assert "1 draw of the context each" in endings[1]
    assert "3 draws of the context each" in endings[2]
    assert "1 draw of the context each" in endings[3]
    assert "draw" not in accuracy_table(found, "full").caption
