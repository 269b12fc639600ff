"""Train a head that ships with the package, on tables of many families and synthetic ones.

    python benchmarks/pretrain_head.py tasks --data-root DATA --until 4000  # resumable
    python benchmarks/pretrain_head.py tasks --data-root DATA --part dev --until 300
    python benchmarks/pretrain_head.py train --run long --steps 20000          # resumable
    python benchmarks/pretrain_head.py ship --run long

`--head numbers` is the one of the regressor. Tasks and checkpoints are kept in runs/pretrain;
`ship` writes the weights of the package. Families kept aside judge them:
`benchmarks/judge_head.py`.
"""

import argparse
import copy
import json
import math
import os
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from pretrain_numbers import NumberTasks
from pretrain_tasks import Table, Task, draw_task, family_split, read_mnist, read_table
from safetensors.torch import save_file
from torch import Tensor

from nearwise.nn import NeighborSet, PretrainedNeighborHead
from nearwise.nn.neighbor_trunk import FOLDER

RUNS = Path("runs/pretrain")
_SHARD = 40  # tasks per file
LR = 3e-3
_FACTS = 7  # float facts of a neighbor: all of a NeighborSet's but its labels


def generate(
    subject: Any, data_root: Path, part: str, until: int, seed: int, shards: slice
) -> None:
    """Draw tasks and write what is known of their queries, shard by shard; goes on where it was."""
    folder = RUNS / subject.folder / part
    folder.mkdir(parents=True, exist_ok=True)
    tables = data_root / "tables"
    names = [name for name in family_split(tables)[part] if subject.may_use(name)]
    read: dict[str, Table] = {name: read_table(tables, name) for name in names}
    families = sorted({name.split("-")[0] for name in names})
    if part == "train":
        read["mnist-pca"] = read_mnist(data_root / "mnist")
        families.append("mnist")
    for shard in range(-(-until // _SHARD))[shards]:
        path, start = folder / f"{shard:05d}.npz", time.perf_counter()
        if path.exists():
            continue
        rng = np.random.default_rng([seed, shard, part == "train"])
        tasks: list[Any] = []
        while len(tasks) < _SHARD:
            table = None
            if rng.random() < 0.6 or part != "train":
                family = rng.choice(families)
                table = read[rng.choice([name for name in read if name.split("-")[0] == family])]
            task = subject.draw(rng, table, part)
            if task is not None:
                tasks.append(task)
        arrays: dict[str, Any] = {
            f"{at}/{key}": v
            for at, task in enumerate(tasks)
            for key, v in subject.packed(task).items()
        }
        aside = path.with_suffix(".tmp.npz")
        np.savez(aside, **arrays)
        os.replace(aside, path)
        print(f"{part} shard {shard}: {time.perf_counter() - start:.0f} s", flush=True)


class ClassTasks:
    """The head of the classifier."""

    folder, head = ".", PretrainedNeighborHead

    @staticmethod
    def may_use(name: str) -> bool:
        """Whether a table may be drawn from."""
        return True

    @staticmethod
    def draw(rng: np.random.Generator, table: Table | None, part: str) -> Task | None:
        """Draw a task."""
        return draw_task(rng, table, relabel=0.3 if part == "train" else 0.0)

    @staticmethod
    def packed(task: Task) -> dict[str, np.ndarray]:
        """A task as small arrays."""
        arrays = {"labels": task.labels.numpy().astype(np.int16), "source": np.array(task.source)}
        arrays["log_prior"] = task.spaces[0].log_prior[0].numpy().astype(np.float32)
        if task.base_log_proba is not None:
            arrays["base"] = task.base_log_proba.numpy().astype(np.float16)
        for at, space in enumerate(task.spaces):
            floats = [t.numpy() for name, t in space._asdict().items() if name != "labels"][:_FACTS]
            arrays[f"facts{at}"] = np.stack(floats, axis=1).clip(-6e4, 6e4).astype(np.float16)
            arrays[f"voters{at}"] = space.labels.numpy().astype(np.int16)
            arrays[f"summary{at}"] = space.summary.numpy().astype(np.float16)
        return arrays

    @staticmethod
    def group(task: dict[str, Any]) -> tuple[Any, ...]:
        """Tasks of one group need little padding beside each other."""
        width = len(task["log_prior"])
        edges = sum(width > edge for edge in (2, 4, 8, 16))
        return ("base" in task, edges, task["facts0"].shape[2] > 32)

    @staticmethod
    def batch(rng: np.random.Generator, corpus: "Corpus", n_tasks: int, n_queries: int) -> Any:
        """Draw a batch: spaces, base log-probabilities or None, labels."""
        mode = rng.choice(["full", "neighbors", "one space"], p=[0.55, 0.35, 0.1])
        groups = [key for key in corpus.groups if key[0] or mode == "neighbors"]
        some = corpus.some(rng, groups, n_tasks, n_queries)
        k = int(rng.integers(4, 32)) if rng.random() < 0.2 else 64
        return batch_of(some, n_spaces=2 if mode == "full" else 1, base=mode != "neighbors", k=k)

    @staticmethod
    def loss(head: PretrainedNeighborHead, batch: Any) -> tuple[Tensor, Tensor]:
        """NLL of a batch, and what is minimised."""
        spaces, base, labels = batch
        output = head(spaces, base)
        loss = F.nll_loss(output.log_proba, labels)
        if base is None:
            return loss, loss
        return loss, loss + 0.2 * F.nll_loss(output.neighbor_log_proba, labels)

    @staticmethod
    @torch.no_grad()
    def development(head: PretrainedNeighborHead, dev: "Corpus") -> dict[str, float]:
        """Mean NLL over the tasks kept for development, each way that the head is used."""
        found = {}
        for mode, (n_spaces, base) in MODES.items():
            losses = []
            for task in dev.tasks:
                if base and "base" not in task:
                    continue
                every = torch.arange(len(task["labels"]))
                spaces, log_proba, labels = batch_of([(task, every)], n_spaces=n_spaces, base=base)
                losses.append(float(F.nll_loss(head.predict(spaces, log_proba).log_proba, labels)))
            found[mode] = float(np.mean(losses))
        return found


SUBJECTS: dict[str, Any] = {"classes": ClassTasks, "numbers": NumberTasks}


class Corpus:
    """Tasks as they were written, grouped so that batches need little padding."""

    def __init__(self, subject: Any, part: str) -> None:
        self.folder, self.tasks = RUNS / subject.folder / part, list[dict[str, Any]]()
        self.subject, self.read = subject, set[str]()
        self.groups: dict[tuple[Any, ...], list[int]] = defaultdict(list)
        self.refresh()

    def refresh(self) -> None:
        """Read the shards that came since."""
        for path in sorted(self.folder.glob("?????.npz")):
            if path.name in self.read:
                continue
            self.read.add(path.name)
            named: dict[int, dict[str, Any]] = defaultdict(dict)
            with np.load(path) as arrays:
                for key in arrays.files:
                    at, name = key.split("/")
                    named[int(at)][name] = arrays[key]
            for one in named.values():
                source = str(one.pop("source"))
                task: dict[str, Any] = {name: torch.from_numpy(v) for name, v in one.items()}
                task["source"] = source
                self.groups[self.subject.group(task)].append(len(self.tasks))
                self.tasks.append(task)

    def some(
        self, rng: np.random.Generator, groups: list[Any], n_tasks: int, n_queries: int
    ) -> list[tuple[dict[str, Any], Tensor]]:
        """Draw tasks of one of the groups, and positions of queries of each."""
        sizes = np.array([len(self.groups[key]) for key in groups], dtype=float)
        group = self.groups[groups[rng.choice(len(groups), p=sizes / sizes.sum())]]
        chosen = [self.tasks[at] for at in rng.choice(group, size=n_tasks)]
        lengths = [len(task["labels"]) for task in chosen]
        return [
            (task, torch.from_numpy(rng.permutation(length)[:n_queries]))
            for task, length in zip(chosen, lengths, strict=True)
        ]


def batch_of(
    some: list[tuple[dict[str, Tensor], Tensor]], *, n_spaces: int, base: bool, k: int = 64
) -> tuple[list[NeighborSet], Tensor | None, Tensor]:
    """Queries of several tasks side by side, neighbors and classes padded."""
    k = min(k, max(task["facts0"].shape[2] for task, _ in some))
    n_classes = max(len(task["log_prior"]) for task, _ in some)

    def wide(rows: Tensor, size: int, value: float) -> Tensor:
        return F.pad(rows[..., :size], (0, max(0, size - rows.shape[-1])), value=value)

    log_prior = torch.cat(
        [wide(t["log_prior"], n_classes, -math.inf).expand(len(at), -1) for t, at in some]
    )
    spaces = []
    for space in range(n_spaces):
        facts = torch.cat([wide(t[f"facts{space}"][at].float(), k, math.nan) for t, at in some])
        voters = torch.cat([wide(t[f"voters{space}"][at].long(), k, 0) for t, at in some])
        summary = torch.cat([t[f"summary{space}"][at].float() for t, at in some])
        gone = facts[:, 0].isnan()
        facts = facts.nan_to_num(0.0)
        facts[:, 6].masked_fill_(gone, -math.inf)
        if k < 64:
            summary[:, 14] = torch.log((~gone).sum(1).float()) / 4
        if not base:
            facts[:, 3:6], summary[:, 10:14] = 0.0, 0.0
        distances, own, reliable, opinion, own_opinion, like, log_weight = facts.unbind(1)
        rest = own, reliable, opinion, own_opinion, like, log_weight, summary, log_prior
        spaces.append(NeighborSet(distances, voters, *rest))
    log_proba = None
    if base:
        log_proba = torch.cat([wide(t["base"][at].float(), n_classes, -30.0) for t, at in some])
    return spaces, log_proba, torch.cat([t["labels"][at].long() for t, at in some])


MODES = {"neighbors": (1, False), "one space": (1, True), "full": (2, True)}


def train(subject: Any, name: str, steps: int, seed: int, config: dict[str, int]) -> None:
    """Train, or go on from the checkpoint; the mean of the weights over time is kept."""
    folder = RUNS / subject.folder / name
    folder.mkdir(parents=True, exist_ok=True)
    corpus, dev = Corpus(subject, "train"), Corpus(subject, "dev")
    torch.manual_seed(seed)
    head = subject.head(**config)
    mean = copy.deepcopy(head)
    optimizer = torch.optim.AdamW(head.parameters(), lr=LR, weight_decay=0.01)
    step, seconds, history = 0, 0.0, list[dict[str, Any]]()
    checkpoint = folder / "checkpoint.pt"
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        head.load_state_dict(state["head"])
        mean.load_state_dict(state["mean"])
        optimizer.load_state_dict(state["optimizer"])
        step, seconds, history = state["step"], state["seconds"], state["history"]
    losses, start = list[float](), time.perf_counter()
    while step < steps:
        rng = np.random.default_rng([seed, step])
        batch = subject.batch(rng, corpus, 24, 32)
        warm = min(1.0, (step + 1) / 300)
        for group in optimizer.param_groups:
            group["lr"] = LR * warm * (0.5 + 0.5 * math.cos(math.pi * step / steps)) + 1e-5
        loss, total = subject.loss(head, batch)
        optimizer.zero_grad()
        total.backward()
        torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        optimizer.step()
        with torch.no_grad():
            for kept, new in zip(mean.parameters(), head.parameters(), strict=True):
                kept.lerp_(new, max(0.002, 1 / (step + 1)))
        step += 1
        losses.append(loss.item())
        if step % 250 == 0 or step == steps:
            seconds += time.perf_counter() - start
            record: dict[str, Any] = {"step": step, "seconds": seconds, "tasks": len(corpus.tasks)}
            record |= {"loss": float(np.mean(losses)), "dev": subject.development(mean, dev)}
            history.append(record)
            state = {"head": head.state_dict(), "mean": mean.state_dict(), "step": step}
            state |= {"config": head.config, "optimizer": optimizer.state_dict()}
            state |= {"seconds": seconds, "history": history}
            torch.save(state, checkpoint.with_suffix(".tmp"))
            os.replace(checkpoint.with_suffix(".tmp"), checkpoint)
            (folder / "history.json").write_text(json.dumps(history, indent=1))
            print(json.dumps(record), flush=True)
            corpus.refresh()
            losses, start = [], time.perf_counter()


def ship(subject: Any, name: str, path: Path | None) -> None:
    """Write the mean weights of a training, as the package reads them."""
    checkpoint = RUNS / subject.folder / name / "checkpoint.pt"
    path = path or FOLDER / subject.head.file
    state = torch.load(checkpoint, weights_only=True)
    metadata = {"version": subject.head.version, "config": json.dumps(state["config"])}
    metadata |= {"steps": str(state["step"]), "tasks": str(state["history"][-1]["tasks"])}
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(state["mean"], path, metadata=metadata)
    print(f"{path}: {path.stat().st_size / 1e6:.2f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("step", choices=["tasks", "train", "ship"])
    parser.add_argument("--head", choices=SUBJECTS, default="classes")
    parser.add_argument("--data-root", type=Path, default=os.environ.get("NEARWISE_DATA"))
    parser.add_argument("--part", choices=["train", "dev"], default="train")
    parser.add_argument("--until", type=int, default=4000)
    parser.add_argument("--run", default="first", help="name of a training")
    parser.add_argument("--steps", type=int, default=8000)
    parser.add_argument("--config", default="{}", help="of PretrainedNeighborHead, as JSON")
    parser.add_argument("--out", type=Path, help="of ship; by default the package's")
    parser.add_argument("--every", default="1/1", help="of tasks: shards i of n, as 1/2 and 2/2")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    subject = SUBJECTS[args.head]
    torch.set_num_threads(1)
    if args.step == "tasks":
        first, step = map(int, args.every.split("/"))
        shards = slice(first - 1, None, step)
        generate(subject, args.data_root, args.part, args.until, args.seed, shards)
    elif args.step == "train":
        train(subject, args.run, args.steps, args.seed, json.loads(args.config))
    elif args.step == "ship":
        ship(subject, args.run, args.out)


if __name__ == "__main__":
    main()
