"""``nearwise probe``: frozen features of an encoder, measured with several probes."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from nearwise.cli.console import reported, say, show, steps
from nearwise.cli.options import QuietOption
from nearwise.cli.outputs import check_folder
from nearwise.cli.rows.parsing import split_list
from nearwise.conditions import require_extra
from nearwise_lab.cli.needs import DataRootOption
from nearwise_lab.cli.settings_text import parse_limit, parse_seeds, paths_among

if TYPE_CHECKING:
    from nearwise.data import Dataset
    from nearwise.probes import Encoder
    from nearwise_lab.probing import StoredFeatures
    from nearwise_lab.probing.measures import Record


@reported
def probe(
    encoder: Annotated[
        str,
        typer.Argument(
            metavar="ENCODER",
            help="pixels, patches:4, points, random:PRESET, efficientnet-lite0 or "
            "hf:NAME[@REVISION]. Or a model's folder, a file of features (npy, npz), or "
            "MODULE:FUNCTION. Separate several by commas.",
        ),
    ],
    dataset: Annotated[
        str,
        typer.Argument(
            metavar="DATASET",
            help="Images or ready embeddings: a name ('nearwise datasets') or a folder.",
        ),
    ],
    probes: Annotated[
        str,
        typer.Option(
            "--probes",
            "-p",
            metavar="NAMES",
            help="Names of probes; the first is the baseline of the others.",
        ),
    ] = "knn,attention,linear",
    pools: Annotated[
        str,
        typer.Option(
            "--pool",
            metavar="NAMES",
            help="mean, max, flatten, flatten-pca, cls. For pixels only flatten keeps positions.",
        ),
    ] = "mean",
    contexts: Annotated[
        str,
        typer.Option(
            "--context",
            metavar="LIST",
            help="full; 0.2: a share of the pixels, drawn per image; 0.2:fixed: the same for all.",
        ),
    ] = "full",
    draws: Annotated[int, typer.Option(min=1, help="Draws of a partial context.")] = 1,
    seeds: Annotated[str, typer.Option(help="Seeds of the probes: 0-2, or 0,3.")] = "0",
    split_seed: Annotated[int, typer.Option(min=0, help="Seed of the data split.")] = 0,
    limit: Annotated[
        str | None,
        typer.Option(metavar="TRAIN,TEST", help="Maximum number of rows, such as 5000,2000."),
    ] = None,
    views: Annotated[int, typer.Option(min=1, help="Augmented views per training image.")] = 1,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="DIR", help="Folder for records, features, figure."),
    ] = None,
    device: Annotated[Literal["auto", "cpu", "cuda", "mps"], typer.Option()] = "auto",
    data_root: DataRootOption = None,
    quiet: QuietOption = False,
) -> None:
    """Measure the features of a frozen encoder with several probes.

    Probes: knn, knn-20, knn-softmax, knn-distance, knn-euclidean, knn-val, attention,
    attention-features, linear, mlp, transformer, transformer-small, attentive-pooling. All are
    fitted on the same features and tuned on validation rows. k-NN, attention and linear probes are
    then refitted with the validation rows. Test rows are used once. With --out, features and
    records are kept: a stopped run continues, and other encoders and probes are added.

    [bold]Examples[/bold]
      nearwise probe pixels,patches:4 digits-images --pool flatten
      nearwise probe hf:facebook/dinov2-small cifar10 --pool cls,mean --out runs/dino --device cuda
      nearwise probe features.npz cifar10 --probes knn,attention,linear
      nearwise probe mymodels:encoder images/ --probes knn,transformer --context full,0.2
    """
    check_folder("--out", out, paths_among(dataset))
    if out is not None:
        require_extra("The figure of --out", "figures", "matplotlib", of="nearwise-lab")
    from nearwise.functional.devices import choose_device
    from nearwise_lab.probing import evaluate, probe_data, without_seen
    from nearwise_lab.probing.catalog import check_probe_names

    names = split_list(probes)
    check_probe_names(names)
    loaded = _load(dataset, data_root)
    bounds = None if limit is None else parse_limit(limit)
    parts = probe_data(loaded, seed=split_seed, limit=bounds)
    encoders = {name: _encoder(name, loaded) for name in split_list(encoder)}
    n_test = len(parts.test.labels)
    parts, seen = without_seen(parts, encoders)
    for name, n_seen in seen.items():
        say(
            f"{n_seen} of {n_test} test images are among those that {name} was trained on: they "
            f"are left out, for all encoders; {len(parts.test.labels)} remain."
        )
    with steps("Probing", quiet=quiet) as progress:
        records = evaluate(
            encoders,
            parts,
            probes=names,
            contexts=split_list(contexts),
            pools=split_list(pools),
            draws=range(draws),
            seeds=parse_seeds(seeds),
            device=str(choose_device(device)),
            views=views,
            folder=out,
            progress=lambda what, done, total: progress(f"{what} ({done} of {total} done)"),
        )
    _show_records(records)
    for row in _differences(records, names[0]):
        show(_difference_words(row))
    if out is not None:
        _write(out, names[0], quiet)


def _load(name: str, data_root: Path | None) -> "Dataset":
    from nearwise_lab.data import load_dataset

    loaded = load_dataset(name, data_root=data_root)
    if loaded.kind == "table":
        images = " Its images are 'digits-images'." if name == "digits" else ""
        raise ValueError(
            f"{name} is a table; probes read features of images, or ready embeddings.{images} Use "
            "'nearwise compare' for tables."
        )
    return loaded


def _encoder(text: str, loaded: "Dataset") -> "Encoder | StoredFeatures":
    import numpy as np

    from nearwise_lab.probing import StoredFeatures, open_encoder

    if loaded.kind == "embeddings":
        if text != "features":
            raise ValueError(
                f"{loaded.name} holds ready embeddings: probe them as 'features', not {text!r}."
            )
        return StoredFeatures(np.asarray(loaded.X))
    if text == "features":
        raise ValueError(f"{loaded.name} holds images; name an encoder for them.")
    height, width, channels = np.asarray(loaded.X).shape[1:]
    made = open_encoder(text, (height, width), channels)
    if isinstance(made, StoredFeatures) and len(made.X) != len(loaded):
        raise ValueError(
            f"{text} holds features of {len(made.X):,} rows and {loaded.name} has {len(loaded):,}. "
            "Give one for each row of the data set, in its order."
        )
    return made


_COLUMNS = (
    ("accuracy", "acc %", 100, 2),
    ("top5", "top-5 %", 100, 2),
    ("nll", "NLL", 1, 3),
    ("brier", "Brier", 1, 3),
    ("ece", "ECE", 1, 3),
    ("aurc", "AURC", 1, 4),
)


def _show_records(records: "list[Record]") -> None:
    """Print the mean over draws and seeds of each encoder, context, pool and probe."""
    from statistics import fmean

    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True, padding=(0, 1))
    short = _short_names([r["encoder"] for r in records])
    named = [{**r, "encoder": short.get(r["encoder"], r["encoder"])} for r in records]
    # distinguished only where there are differences; the probe always
    titles = [
        title
        for title in ("encoder", "context", "pool", "probe")
        if title == "probe" or len({r[title] for r in records}) > 1
    ]
    for title in titles:
        table.add_column(title, no_wrap=title != "encoder", overflow="fold")
    for title in ("95 %", *(column[1] for column in _COLUMNS)):
        table.add_column(title, justify="right", no_wrap=True)
    groups: dict[tuple[str, ...], list[Record]] = {}
    for r in named:
        groups.setdefault(tuple(r[title] for title in titles), []).append(r)
    for key, rows in groups.items():
        low, high = (100 * fmean(r["intervals"]["accuracy"][end] for r in rows) for end in (0, 1))
        cells = []
        for name, _, scale, digits in _COLUMNS:
            values = [scale * r[name] for r in rows if r[name] is not None]
            cells.append(f"{fmean(values):.{digits}f}" if values else "-")
        table.add_row(*key, f"{low:.1f}-{high:.1f}", *cells)
    show(table)


def _short_names(encoders: list[str]) -> dict[str, str]:
    """Call a folder or file by its own name, where no other encoder has that name."""
    # "/" also occurs in names of the hub, which are recognized by both halves
    last = {name: name if name.startswith("hf:") else Path(name).name for name in set(encoders)}
    shortened = list(last.values())
    return {name: short for name, short in last.items() if short and shortened.count(short) == 1}


def _differences(records: "list[Record]", baseline: str) -> list[dict[str, Any]]:
    """Differences to the baseline: of accuracies, each with that of the NLL under "nll"."""
    from nearwise_lab.probing import paired_differences

    found = paired_differences(records, baseline=baseline)
    of_nll = paired_differences(records, baseline=baseline, measure="nll")
    kept = ("difference", "low", "high", "verdict")
    return [
        {**row, "nll": {name: other[name] for name in kept}}
        for row, other in zip(found, of_nll, strict=True)
    ]


def _difference_words(row: dict[str, Any]) -> str:
    pools = dict.fromkeys((row["pool"], row["baseline_pool"]))
    points = {name: 100 * row[name] for name in ("difference", "low", "high")}
    both = (row["verdict"], row["nll"]["verdict"])
    verdict, of_nll = (found.replace("none", "no difference") for found in both)
    return (
        f"{row['encoder']}, {row['context']}, {' against '.join(pools)}: "
        f"{row['probe']} - {row['baseline']} = {points['difference']:+.2f} points "
        f"[{points['low']:+.2f}, {points['high']:+.2f}] (n = {row['n']}): {verdict}; "
        f"NLL {row['nll']['difference']:+.3f} "
        f"[{row['nll']['low']:+.3f}, {row['nll']['high']:+.3f}]: {of_nll}"
    )


def _write(out: Path, baseline: str, quiet: bool) -> None:
    """Write differences, conditions of the run, and the figure beside the records.

    Both are of all records of the folder, also those of earlier runs.
    """
    from nearwise_lab.records import facts, read_lines
    from nearwise_lab.report.runs import probe_figure

    records = read_lines(out)
    text = json.dumps({"run": facts(), "differences": _differences(records, baseline)}, indent=1)
    (out / "differences.json").write_text(text + "\n", encoding="utf-8")
    figure = probe_figure(records, out / "probes.png")
    if not quiet:
        say(
            f"Records: {out / 'records.jsonl'}. Differences: {out / 'differences.json'}. "
            f"Figure: {figure}"
        )
