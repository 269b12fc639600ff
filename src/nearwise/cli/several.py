"""Models of several targets: their columns, predictions, scores and changes."""

import hashlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nearwise.cli.answer_columns import TrustOptions, joined_labels, number_columns
from nearwise.cli.console import say, typed
from nearwise.cli.options import refuse
from nearwise.cli.rows.frames import named
from nearwise.cli.rows.scored_rows import MANY_REPEATS, by_chance
from nearwise.cli.rows.targets import class_positions
from nearwise.cli.tables import grid, percent

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    import rich.table

    from nearwise.memory import Change

_SHOWN = 6  # targets named in a message
_SCORES = {
    "macro_brier": "Brier score (mean over labels)",
    "macro_nll": "NLL (nats per label)",
    "mean_average_precision": "mean average precision",
    "macro_f1": "macro F1",
    "micro_f1": "micro F1",
    "subset_accuracy": "all labels right",
    "hamming_loss": "wrong labels",
}


def models_in(folder: Path) -> dict[str, Path]:
    """Return the folder of each target's model."""
    from nearwise.estimators.storage.targets_folder import target_folders

    return target_folders(folder)


def refuse_targets(folder: Path) -> None:
    """Raise ValueError for a folder of several targets that names the models inside."""
    inside = [str(path) for path in models_in(folder).values()]
    more = f" and {len(inside) - _SHOWN} more" if len(inside) > _SHOWN else ""
    raise ValueError(
        f"{folder} has {len(inside)} targets, each with a model of its own. Name one of these: "
        f"{', '.join(inside[:_SHOWN])}{more}."
    )


def predicted_columns(
    learned: Any,
    folder: Path,
    features: Any,
    trust: TrustOptions,
    *,
    proba: bool,
    output: Any,
    quantiles: str | None,
    explain: bool,
) -> "dict[str, Any]":
    """Columns of predictions for each target: prediction_TARGET and, on request, more."""
    why = f"is for one target, and {folder} has {len(learned.target_names_)}"
    advice = f"Name the model of one target, such as {next(iter(models_in(folder).values()))}"
    one_only = {
        "explain": explain,
        "coverage": trust.coverage,
        "max_risk": trust.max_risk,
        "novelty": trust.novelty,
    }
    refuse(why, one_only, **dict.fromkeys(one_only, advice))
    queries = learned.query(features)
    columns: dict[str, Any] = {}
    if not hasattr(learned, "classes_"):
        refuse(
            f"is for classes, and {folder} predicts numbers", {"proba": proba, "sets": trust.sets}
        )
        for name, query in zip(learned.target_names_, queries, strict=True):
            found = number_columns(query, trust, output, quantiles)
            columns |= {f"{part}_{name}": values for part, values in found.items()}
        return columns
    refuse(
        f"is for numbers, and {folder} predicts classes", {"output": output, "quantiles": quantiles}
    )
    each = list(zip(learned.target_names_, queries, learned.classes_, strict=True))
    for name, query, classes in each:
        columns[f"prediction_{name}"] = classes[query.proba().argmax(axis=1)]
    if proba:
        for name, query, classes in each:
            shown = list(enumerate(classes))[1:] if _is_label(classes) else list(enumerate(classes))
            for at, label in shown:
                head = f"proba_{name}" if len(shown) == 1 else f"proba_{name}_{label}"
                columns[head] = query.proba()[:, at]
    wide = [name for name, _, classes in each if len(classes) != 2]
    if trust.sets and wide:
        one = typed("predict", models_in(folder)[wide[0]], "NEW_DATA")
        raise ValueError(
            f"--sets of several targets is for labels of two classes, and {wide[0]!r} has others. "
            f"Take the sets of single targets: {one} --sets"
        )
    if trust.sets:
        sets = learned.predict_set(features, trust.set_confidence)
        columns["labels"] = [joined_labels(held) for held in sets.labels()]
    return columns


def _is_label(classes: "np.ndarray") -> bool:
    """Whether two classes mean the absence and presence of a label."""
    return len(classes) == 2 and set(classes.tolist()) <= {0, 1}


def rows_to_score(
    learned: Any, features: Any, y: "pd.DataFrame", data: str
) -> "tuple[np.ndarray, str]":
    """Mask of the rows to score, bool (n,), and a sentence about rows that are left out.

    Rows that equal training rows are left out, unless rows repeat so often that as many new ones
    do. ValueError if no row is left.
    """
    from nearwise import review

    first = learned.estimators_[0]
    found = review(first).learned(features)
    n_known = int((~found.new).sum())
    if not n_known:
        return found.new, ""
    repeat = found.repeats >= MANY_REPEATS and not found.compared
    if repeat and by_chance(first, found, y[learned.target_names_[0]]):
        return found.new | True, (
            f"{n_known} of {len(found.new)} rows equal training rows. As many new ones may, since "
            f"{percent(found.repeats, 0)} of the rows in memory have a duplicate: they are scored."
        )
    if n_known == len(found.new):
        raise ValueError(
            f"{named(data)}: all {n_known} rows equal training rows, so that scores would be too "
            "good. Give rows that the model has not learned from."
        )
    return found.new, f"{n_known} of {len(found.new)} rows equal training rows and are left out."


def scores_of(learned: Any, features: Any, y: "pd.DataFrame", data: str) -> dict[str, Any]:
    """Scores of every target, and of all labels together; of numbers R2 and CRPS."""
    import numpy as np

    from nearwise.metrics import evaluate_labels, evaluate_numbers, evaluate_probabilities

    found: dict[str, Any] = {"n": len(y), "by_target": {}}
    if not hasattr(learned, "classes_"):
        predictions, crps = learned.predict(features), learned.crps(features, y)
        for at, name in enumerate(learned.target_names_):
            found["by_target"][name] = evaluate_numbers(
                y[name].to_numpy(), predictions[:, at], crps=crps[:, at]
            )
        return found
    each = zip(
        learned.target_names_, learned.classes_, learned.predict_proba(features), strict=True
    )
    present, of_present = [], []
    for name, classes, proba in each:
        codes = class_positions(y[name], classes, data)
        found["by_target"][name] = evaluate_probabilities(codes, proba)
        if len(classes) == 2:
            # evaluate_probabilities sums over both classes
            found["by_target"][name]["label_brier"] = found["by_target"][name]["brier"] / 2
            found["by_target"][name]["share"] = float((codes == 1).mean())
            present.append(codes)
            of_present.append(proba[:, 1])
    if len(present) == len(learned.classes_):
        truth, proba = np.column_stack(present), np.column_stack(of_present)
        shares = np.tile([_share_in_memory(one) for one in learned.estimators_], (len(truth), 1))
        found["metrics"] = evaluate_labels(truth, proba)
        found["shares_alone"] = evaluate_labels(truth, shares)
    return found


def _share_in_memory(model: Any) -> float:
    """Share of the second class among the remembered rows of one target."""
    return float((model.fitted_.codes == 1).mean())


def score_tables(found: dict[str, Any], title: str) -> "Iterator[rich.table.Table]":
    """Tables of the result of `scores_of`: all labels together, then each target."""
    if "metrics" in found:
        rows = [
            [_SCORES[name], f"{value:.4f}", f"{found['shares_alone'][name]:.4f}"]
            for name, value in found["metrics"].items()
        ]
        yield grid(title, ["all labels", "model", "shares"], rows)
    first = next(iter(found["by_target"].values()))
    of_label = "label_brier" if "metrics" in found else "brier"
    wanted = ("share", "accuracy", of_label, "nll", "macro_f1", "rmse", "r2", "crps")
    names = [name for name in wanted if name in first]
    rows = [
        [target, *(f"{scores[name]:.4f}" if name in scores else "" for name in names)]
        for target, scores in found["by_target"].items()
    ]
    heads = ["target", *("brier" if name == of_label else name for name in names)]
    yield grid(title if "metrics" not in found else "by target", heads, rows)


def described(learned: Any, folder: Path) -> dict[str, Any]:
    """Facts about a model of several targets: rows, targets, and the folder of each."""
    classes = getattr(learned, "classes_", None)
    targets = {}
    each = zip(models_in(folder).items(), learned.estimators_, strict=True)
    for at, ((name, path), one) in enumerate(each):
        held: dict[str, Any] = {"model": str(path)}
        if classes is not None:
            counts = zip(classes[at].tolist(), one.fitted_.rows_per_class, strict=True)
            held["classes"] = {str(label): int(n) for label, n in counts}
        targets[name] = held
    task = "regression" if classes is None else "classification"
    return {"rows": learned.fitted_.n_remembered, "task": task, "targets": targets}


def summarize_targets(learned: Any, seconds: float, out: Path) -> None:
    """Print a summary of the fit of several targets, and the next commands."""
    facts = described(learned, out)
    shares = [
        f"{name} ({percent(list(held['classes'].values())[1] / facts['rows'], 0)})"
        if len(held.get("classes", ())) == 2
        else name
        for name, held in list(facts["targets"].items())[:_SHOWN]
    ]
    more = len(facts["targets"]) - len(shares)
    say(
        f"Learned {len(facts['targets'])} targets ({facts['task']}) from {facts['rows']} rows in "
        f"{seconds:.0f} s: {', '.join(shares)}{f' and {more} more' if more else ''}."
    )
    first = next(iter(models_in(out).values()))
    proba = "--proba " if facts["task"] == "classification" else ""
    say(
        f"Saved to {out}. Next: {typed('predict', out, 'NEW_DATA')} {proba}--out predictions.csv\n"
        f"Each target has a model of its own in this folder: {typed('explain', first, 'NEW_DATA')}"
    )


def change_each(
    folder: Path, change: Any, check: Any, key: str | None, content: bytes
) -> "tuple[list[Change], int]":
    """Make a change in the model of every target; after a kill the same command completes it.

    `change` takes a `LiveModel`, the name of its target and the key of the change. `check` takes
    the first two and raises ValueError before anything is changed. By default the `key` is made of
    the `content` of the change and the next id. So a repetition after a kill has the same key, and
    a later equal change another. Returns the changes, and the number of rows.
    """
    from nearwise.estimators.live_target import LiveTarget
    from nearwise.estimators.several import has_same_rows, of_target

    with ExitStack() as stack:
        each: dict[str, LiveTarget] = {}
        for name, path in models_in(folder).items():
            each[name] = LiveTarget(path)
            stack.enter_context(each[name])
        models = {name: live.model.fitted_ for name, live in each.items()}
        made = key or f"{hashlib.sha256(content).hexdigest()[:16]}-{_next_id(models)}"
        done = {n for n, live in each.items() if any(one.key == made for one in live.history())}
        if not has_same_rows([*models.values()]) and not done:
            raise ValueError(
                f"The models in {folder} do not remember the same rows: a change was interrupted, "
                f"or made in one of them ({_sizes(models)}). Repeat the command that was "
                "interrupted; if there was none, fit the model again. Nothing was changed."
            )
        for name in (name for name in each if name not in done):
            with of_target(name):
                check(each[name], name)
        changes = []
        for name, live in each.items():
            with live.with_all():
                changes.append(change(live, name, made))
        return changes, next(iter(each.values())).model.fitted_.n_remembered


def changes_of_all(folder: Path) -> "list[dict[str, Change]]":
    """List changes that were made in all targets, oldest first: the change of each target."""
    from nearwise.estimators.stored.folder import history_of

    by_key = {
        name: {change.key: change for change in history_of(path) if change.key}
        for name, path in models_in(folder).items()
    }
    return [
        {name: changes[key] for name, changes in by_key.items()}
        for key in next(iter(by_key.values()))
        if all(key in changes for changes in by_key.values())
    ]


def undo_each(folder: Path, number: int) -> "tuple[list[Change], int]":
    """Undo a change of all targets, by its number in `changes_of_all` from 1; as `change_each`."""
    known = changes_of_all(folder)
    if not 1 <= number <= len(known):
        listed = typed("history", folder)
        raise ValueError(
            f"{folder} has {len(known)} changes of all targets and no change {number}. To list "
            f"them: {listed}"
        )
    versions = {name: change.version for name, change in known[number - 1].items()}

    def change(live: Any, name: str, made: str) -> Any:
        return live.undo(versions[name], key=made)

    content = f"undo {next(iter(known[number - 1].values())).key}".encode()
    return change_each(folder, change, lambda live, name: None, None, content)


def _next_id(models: dict[str, Any]) -> int:
    """Least id of the next row: that before an interrupted addition."""
    return min(int(one.next_id) for one in models.values())


def _sizes(models: dict[str, Any]) -> str:
    """Numbers of rows that the models of the targets remember, in words."""
    counts = [f"{name} {one.n_remembered}" for name, one in models.items()]
    more = f" and {len(counts) - _SHOWN} more" if len(counts) > _SHOWN else ""
    return f"rows of {', '.join(counts[:_SHOWN])}{more}"
