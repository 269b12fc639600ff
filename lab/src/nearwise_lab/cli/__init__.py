"""The commands of the lab, registered in ``nearwise`` by an entry point."""

import typer

from nearwise.cli.console import flowing
from nearwise_lab.cli.compare_commands import compare, demo
from nearwise_lab.cli.datasets_command import datasets
from nearwise_lab.cli.experiment_command import experiment
from nearwise_lab.cli.field_commands import field
from nearwise_lab.cli.probe_command import probe
from nearwise_lab.cli.report_command import report
from nearwise_lab.cli.vit_commands import vit

_SIDE_BY_SIDE = "Methods side by side"
_LAYERS = "Layers and representations"


def register(app: typer.Typer) -> None:
    """Add the commands of the lab.

    Parameters
    ----------
    app : Typer
        The ``nearwise`` command.
    """
    for command in (demo, compare, experiment, report, probe, datasets):
        app.command(rich_help_panel=_SIDE_BY_SIDE, help=flowing(command.__doc__))(command)
    app.add_typer(field, rich_help_panel=_LAYERS)
    app.add_typer(vit, rich_help_panel=_LAYERS)
