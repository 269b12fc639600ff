"""Hundreds of kill -9 during writes, through the service and the command line, in one run.

Claim: every acknowledged change is there once, none twice, and predictions equal those after making
the changes from scratch.

    python benchmarks/kills.py
    python benchmarks/kills.py --kills 50

Two small models, one that holds its memory and one whose memory is on disk; half of the kills hit
`nearwise serve` while a client adds, relabels and removes rows as fast as it is answered, the other
half `nearwise add`, whose command is then sent again under its key. Writes
benchmarks/results/kills.json and RESULTS.md.
"""

import contextlib
import json
import random
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pandas as pd
from keeping import HERE, RESULTS, conditions, keep, options_of
from results_page import write_page

from nearwise import AttnKNNClassifier
from nearwise.estimators import LiveModel, move_memory

COLUMNS = list("abcd")
LONGEST = 1.5  # seconds of writes before a service is killed
COMMAND = [sys.executable, "-m", "nearwise"]


def rows(n_rows: int, seed: int) -> tuple[pd.DataFrame, np.ndarray]:
    """Rows of three overlapping classes."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n_rows) % 3
    values = np.eye(4)[labels] * 2 + rng.normal(size=(n_rows, 4))
    return pd.DataFrame(values, columns=COLUMNS), np.array(["x", "y", "z"])[labels]


@dataclass
class Target:
    """A model's folder, requested changes by key, and acknowledged ones by version."""

    folder: Path
    asked: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    acknowledged: dict[int, tuple[int, ...]] = field(default_factory=dict)
    kills: int = 0

    def killed_service(self, chance: random.Random, number: int) -> None:
        """Kill a service while a client changes the model."""
        service = subprocess.Popen(
            [*COMMAND, "serve", str(self.folder), "--port", "0"], stderr=subprocess.PIPE, text=True
        )
        assert service.stderr is not None  # a pipe was asked for
        address = None
        for line in service.stderr:
            if line.startswith("Serving"):
                address = line.partition(" at ")[2].split()[0]
                break
        if address is None:
            raise RuntimeError(f"the service of {self.folder} did not start")
        end = time.monotonic() + chance.uniform(0.05, LONGEST)
        with httpx.Client(base_url=address, timeout=10) as client:
            own: list[int] = []
            step = 0
            while time.monotonic() < end:
                step += 1
                self._acknowledge(self._change(client, chance, own, f"{number}-{step}"), own)
            # one more is on its way when the service is killed
            subprocess.Popen(
                ["sh", "-c", f"sleep {chance.uniform(0, 0.02)}; kill -9 {service.pid}"]
            )
            with contextlib.suppress(httpx.HTTPError):  # it was killed before it had answered
                self._acknowledge(self._change(client, chance, own, f"{number}-last"), own)
        self.kills += 1
        service.wait()

    def _acknowledge(self, response: httpx.Response, own: list[int]) -> None:
        response.raise_for_status()
        found = response.json()
        self.acknowledged[found["memory_version"]] = tuple(found["ids"])
        if response.status_code == httpx.codes.CREATED:
            own += found["ids"]

    def _change(
        self, client: httpx.Client, chance: random.Random, own: list[int], key: str
    ) -> httpx.Response:
        """Ask for a change under a key, and note what it is."""
        draw, headers = chance.random(), {"Idempotency-Key": key}
        if draw < 0.6 or len(own) < 3:
            X, y = rows(2, chance.randrange(2**31))
            self.asked[key] = "add", X, y
            body = {"rows": X.to_dict("records"), "labels": y.tolist()}
            return client.post("/rows", json=body, headers=headers)
        row = own[chance.randrange(len(own))]
        if draw < 0.8:
            label = chance.choice("xyz")
            self.asked[key] = "relabel", [row], [label]
            return client.patch(f"/rows/{row}", json={"label": label}, headers=headers)
        own.remove(row)
        self.asked[key] = "remove", [row]
        return client.delete(f"/rows/{row}", headers=headers)

    def killed_command(self, chance: random.Random, number: int, usual: float) -> None:
        """Kill `nearwise add`, and send the same command again."""
        X, y = rows(3, chance.randrange(2**31))
        table = self.folder.with_name(f"{number}.csv")
        X.assign(label=y).to_csv(table, index=False)
        self.asked[f"c{number}"] = "add", pd.read_csv(table)[COLUMNS], y
        command = [*COMMAND, "add", str(self.folder), str(table), "--key", f"c{number}", "-q"]
        adding = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            code = adding.wait(chance.uniform(0.4, 1.05) * usual)
        except subprocess.TimeoutExpired:
            adding.send_signal(signal.SIGKILL)
            adding.wait()
            self.kills += 1
            code = subprocess.call(command, stderr=subprocess.DEVNULL)
        table.unlink()
        if code:
            raise RuntimeError(f"{shlex.join(command)} ended with {code}")
        with LiveModel(self.folder) as live:
            made = live._find(key=f"c{number}")
        self.acknowledged[made.version] = made.ids

    def checked(self, original: Path) -> dict[str, Any]:
        """Count what was lost or doubled, and compare predictions with changes from scratch."""
        with LiveModel(self.folder) as live:
            listed = live.history()
            added = [row for c in listed if c.kind == "add" for row in c.ids]
            by_version = {change.version: change.ids for change in listed}
            lost = [v for v, ids in self.acknowledged.items() if by_version.get(v) != ids]
            n_expected = 150 + len(added) - sum(len(c.ids) for c in listed if c.kind == "remove")
            X, _ = rows(200, 7)
            found = {
                "kills": self.kills,
                "acknowledged": len(self.acknowledged),
                "changes": len(listed),
                "lost": len(lost),
                "doubled": len(added) - len(set(added)) + len(listed) - len(by_version),
                "rows_as_expected": live.model.fitted_.n_remembered == n_expected,
                "keys_twice": len(listed) - len({change.key for change in listed}),
            }
            proba = live.model.predict_proba(X)
        with LiveModel(original) as again:  # all changes once more, one by one
            for change in listed:
                kind, *arguments = self.asked[change.key or ""]
                getattr(again, kind)(*arguments)
            gap = np.abs(again.model.predict_proba(X) - proba).max()
        return found | {"largest_gap": float(gap)}


def main(arguments: list[str]) -> None:
    """Kill, check and write the results."""
    parser = options_of(__doc__, kills=500, seed=101)
    options = parser.parse_args(arguments)
    chance = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        X, y = rows(150, 0)
        model = AttnKNNClassifier(preset="instant", estimator=None, random_state=0)
        model.fit(X, pd.Series(y, name="label"))
        model.save(root / "original")
        move_memory(model, root / "moved original")
        shutil.copytree(root / "original", root / "held")
        shutil.copytree(root / "moved original", root / "moved")
        held, moved = Target(root / "held"), Target(root / "moved")
        begin = time.monotonic()
        subprocess.check_call([*COMMAND, "inspect", str(held.folder)], stdout=subprocess.DEVNULL)
        usual = time.monotonic() - begin
        number = 0
        while held.kills + moved.kills < options.kills:
            number += 1
            target = (held, moved)[number % 2]
            if number % 4 < 2:
                target.killed_service(chance, number)
            else:
                target.killed_command(chance, number, usual)
            if number % 20 == 0:
                print(f"{held.kills + moved.kills} kills", flush=True)
        found = {
            "in the process": held.checked(root / "original"),
            "on disk": moved.checked(root / "moved original"),
        }
    results = [{"memory": name, **one} for name, one in found.items()]
    keep(conditions() | {"results": results}, RESULTS / "kills.json")
    print(json.dumps(found, indent=1))
    print(write_page(RESULTS, HERE / "RESULTS.md"))


if __name__ == "__main__":
    main(sys.argv[1:])
