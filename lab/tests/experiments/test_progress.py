"""Progress of a comparison where no bar can be drawn."""

from nearwise_lab.experiments.progress import shown_bar

from nearwise.estimators.progress import Progress
from tests.test_progress_bar import log

__all__ = ["log"]


def test_a_comparison_shows_the_stages_of_the_fits_in_it(log):
    with shown_bar(4, True, "runs") as bar:
        bar.show("iris · attention · seed 0")
        with Progress(0) as progress:
            progress.stage("forest")
            log.wait_for("iris · attention · seed 0 · forest (0 of 4)")
            progress.epoch("network", {"epoch": 3}, 10)
            log.wait_for("seed 0 · network, epoch 3 of 10")
        bar.skip()
        log.wait_for("(1 of 4)")
