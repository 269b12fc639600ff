"""What made the records: hardware, versions, commands, times."""

from collections.abc import Sequence
from typing import Any

from nearwise_lab.experiments import Record
from nearwise_lab.report.commands import readable_command


def record_facts(records: Sequence[Record]) -> list[tuple[str, str]]:
    """Hardware, versions and commands, each variant once."""

    def distinct(values: Sequence[dict[str, Any]]) -> str:
        texts = [", ".join(f"{k} {v}" for k, v in value.items()) for value in values if value]
        return "; or ".join(dict.fromkeys(texts))

    commands = dict.fromkeys(readable_command(r.command) for r in records if r.command)
    return [
        ("Hardware", distinct([r.hardware for r in records])),
        ("Versions", distinct([r.versions for r in records])),
        ("Commands", "; ".join(commands)),
        ("Finished", f"{min(r.time for r in records)} to {max(r.time for r in records)}"),
    ]
