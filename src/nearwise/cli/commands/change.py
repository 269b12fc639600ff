"""``nearwise add``, ``remove``, ``relabel``, ``undo``, ``history`` and ``compact``."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from nearwise.cli import options
from nearwise.cli.console import if_stopped, reported, say, show, show_json, typed
from nearwise.cli.models import in_place, new_model, open_model, require_model
from nearwise.cli.options import named_store
from nearwise.cli.outputs import check_folder, holds_targets, require_data
from nearwise.cli.rows.parsing import parse_numbers, spelled_numbers
from nearwise.cli.rows.rows import Rows, read_for_model, read_for_targets
from nearwise.cli.rows.scored_rows import MANY_REPEATS
from nearwise.cli.several import change_each, changes_of_all, undo_each
from nearwise.cli.tables import grid, percent
from nearwise.names import did_you_mean, spelled_alike

if TYPE_CHECKING:
    from nearwise.estimators import LiveModel
    from nearwise.memory import Change

_LONGEST_REPLAY = 0.5  # seconds to replay the journal when a model is opened
_IDS_SHOWN = 8


@reported
def add(
    model: options.ModelArgument,
    data: options.DataArgument,
    target: options.KnownTargetOption = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FOLDER", help="Write here instead of changing MODEL."),
    ] = None,
    capacity: Annotated[
        int | None,
        typer.Option(
            "--capacity",
            metavar="N",
            help="Maximum number of rows to remember from now on. Others are forgotten.",
        ),
    ] = None,
    eviction: Annotated[
        Literal["reservoir", "age"] | None,
        typer.Option(
            "--eviction",
            help="Rows to forget: reservoir (at random) or age (older ones are more likely).",
        ),
    ] = None,
    refresh: Annotated[
        bool, typer.Option("--refresh", help="Then fit the model again to all remembered rows.")
    ] = False,
    new_only: Annotated[
        bool,
        typer.Option(
            "--new-only",
            help="Leave out rows that equal a row the model learned from. All columns it uses "
            "must be equal, and ids that both have.",
        ),
    ] = False,
    new_classes: Annotated[
        bool,
        typer.Option(
            "--new-classes",
            help="Accept a new class that differs from a known one only in case or blanks.",
        ),
    ] = False,
    groups: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="Column that names the group of each row, if the model was fitted with --groups. "
            "Default: the column of that name.",
        ),
    ] = None,
    resize: options.ResizeOption = False,
    skip_damaged: options.SkipDamagedOption = False,
    skip_unlabelled: options.SkipUnlabelledOption = False,
    header: options.HeaderOption = None,
    sheet: options.SheetOption = None,
    key: options.KeyOption = None,
    store: options.StoreOption = None,
    quiet: options.QuietOption = False,
) -> None:
    """Add rows to a model without training it again, even rows of new classes.

    The next prediction can find the rows as neighbors. Targets may be numbers, too. For images DATA
    is a folder with one folder per class. The change is one transaction in the model's journal, its
    log of changes. Even after a crash all of it is saved, or nothing. 'nearwise undo' reverts it.

    [bold]Examples[/bold]
      nearwise add iris.model more.csv
      nearwise add iris.model more.csv --new-only
      nearwise add iris.model more.csv --out bigger.model
      nearwise add iris.model more.csv --capacity 5000 --eviction age --refresh
      nearwise add flowers.model more_flowers/ --resize
    """
    if out is not None and out.resolve() == model.resolve():
        raise ValueError(
            f"--out {out} is the model itself. Leave --out away to change it in place."
        )
    require_data([data])
    if key is not None and (out is not None or refresh):
        raise ValueError(
            "--key names one change of the journal; --out and --refresh do more. Leave it out."
        )
    reading = options.ReadOptions(
        header, sheet, skip_unlabelled, skip_damaged=skip_damaged, resize=resize, quiet=quiet
    )

    if holds_targets(model):
        of_one: dict[str, object] = {"capacity": capacity, "eviction": eviction, "out": out}
        of_one |= {"refresh": refresh, "new_only": new_only, "target": target, "groups": groups}
        options.refuse("is for a model of one target", of_one)
        _add_to_each(model, data, reading, key, quiet=quiet)
        return

    def rows_for(learned: Any) -> Rows:
        bounds = {"capacity": capacity, "eviction": eviction}
        learned.set_params(**{f"settings__{n}": v for n, v in bounds.items() if v is not None})
        own = groups or (learned.fitted_.holds_memory and learned.fitted_.group_name) or None
        rows = read_for_model(learned, model, data, target, reading, part="train", groups=own)
        if not new_classes:
            _refuse_alike(rows, _classes(learned), data)
        if key is not None and not new_only:
            return rows  # a repeated request has no effect
        return _new_ones(learned, model, rows, new_only=new_only, quiet=quiet)

    if out is None:
        with _changing(model, store, quiet=quiet) as live:
            if refresh:
                live.refuse_refresh()  # fail before rows are added
            before, rows = _classes(live.model), rows_for(live.model)
            if not len(rows):
                return
            former = live.version
            change = live.add(rows.source, key=key)
            n_evicted = len(change.details["evicted"])
            if refresh:
                live.refresh()
            learned, version = live.model, None if refresh else change.version
        if change.version <= former:
            _say_repeated(change, quiet=quiet)
            return
    else:
        require_model(model)
        check_folder("--out", out, [data], for_model=True)
        with in_place(model), new_model(out, overwrite=None):
            learned = open_model(model, store)
            before, rows, version = _classes(learned), rows_for(learned), None
            if not len(rows):
                return
            learned.add(rows.source)
            n_evicted = len(learned.fitted_.evicted)
            if refresh:
                learned.refresh()
            learned.save(out)
    if not quiet:
        new = [str(label) for label in _classes(learned) if label not in before]
        say(
            f"Added {len(rows)} {rows.noun}; {out or model} now holds "
            f"{learned.fitted_.n_remembered} {rows.noun}"
            + (f", and the new classes {', '.join(new)}." if new else ".")
            + (f" {n_evicted} were evicted." if n_evicted else "")
            + ("" if version is None else _way_back(model, version, store))
        )


@reported
def remove(
    model: options.ModelArgument,
    ids: options.IdsArgument,
    forget_classes: options.ForgetOption = False,
    key: options.KeyOption = None,
    store: options.StoreOption = None,
    quiet: options.QuietOption = False,
) -> None:
    """Remove rows from a model without training it again.

    'nearwise predict --explain' shows the ids of neighbors, and 'nearwise inspect --rows' shows the
    rows. 'nearwise undo' brings rows back until 'nearwise compact' deletes them for good.

    [bold]Examples[/bold]
      nearwise remove iris.model 3,17
      nearwise remove iris.model 120-129
    """
    numbers = parse_numbers("IDS", ids)
    if holds_targets(model):
        _remove_from_each(model, numbers, key, forget_classes=forget_classes, quiet=quiet)
        return

    def change(live: "LiveModel") -> "Change":
        return live.remove(numbers, forget_classes=forget_classes, key=key)

    _changed(model, store, change, f"Removed {_count(numbers)}", quiet=quiet)


@reported
def relabel(
    model: options.ModelArgument,
    ids: options.IdsArgument,
    label: Annotated[
        str,
        typer.Argument(
            metavar="LABEL",
            help="One of the model's classes, or a number if it predicts numbers. Write -- before "
            "one that begins with a minus.",
        ),
    ],
    forget_classes: options.ForgetOption = False,
    key: options.KeyOption = None,
    store: options.StoreOption = None,
    quiet: options.QuietOption = False,
) -> None:
    """Correct the label, or the number, of a model's rows without training again.

    'nearwise clean' lists rows whose labels look wrong.

    [bold]Examples[/bold]
      nearwise relabel iris.model 3,17 setosa
      nearwise relabel signs.model 3 -- -1
      nearwise relabel prices.model 3,17 249.90
    """
    numbers = parse_numbers("IDS", ids)

    from nearwise.estimators.inputs.by_text import code_by_text

    def change(live: "LiveModel") -> "Change":
        known = _classes(live.model)
        code = code_by_text(known)(label)
        if known and not code:
            raise ValueError(
                f"{label!r} is not one of the classes {', '.join(map(str, known[:10]))}."
                f"{did_you_mean(label, known)} Add rows of new classes by 'nearwise add'."
            )
        labels = [known[code - 1] if known else label] * len(numbers)
        return live.relabel(numbers, labels, forget_classes=forget_classes, key=key)

    _changed(model, store, change, f"Labelled {_count(numbers)} {label}", quiet=quiet)


@reported
def undo(
    model: options.ModelArgument,
    version: Annotated[
        int,
        typer.Argument(
            metavar="VERSION", help="Version of the change, as 'nearwise history' lists it."
        ),
    ],
    store: options.StoreOption = None,
    quiet: options.QuietOption = False,
) -> None:
    """Undo a change: a new change reverses it.

    Added rows are removed, and relabelled rows get their former labels. Removed rows are added
    again, under new ids. Rows that an addition pushed out of a full memory do not come back. To
    redo a change, undo its undo.

    [bold]Examples[/bold]
      nearwise history iris.model
      nearwise undo iris.model 5
    """
    if holds_targets(model):
        with in_place(model):
            made, n_rows = undo_each(model, version)
        if not quiet:
            say(f"Undid change {version} of {len(made)} targets; they now hold {n_rows} rows.")
        return

    def change(live: "LiveModel") -> "Change":
        try:
            return live.undo(version)
        except KeyError:
            raise ValueError(
                f"{model} has no change {version}; its last is {live.version}. "
                f"To list them: {typed('history', model, *named_store(store))}"
            ) from None

    _changed(model, store, change, f"Undid change {version}", quiet=quiet)


@reported
def history(
    model: options.ModelArgument,
    store: options.StoreOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """List the changes of a model since it was fitted: version, time, kind and rows.

    [bold]Examples[/bold]
      nearwise history iris.model
      nearwise history iris.model --json
    """
    require_model(model, several=True)
    if holds_targets(model):
        each = [next(iter(one.values())) for one in changes_of_all(model)]
        found = [replace(one, version=number) for number, one in enumerate(each, start=1)]
    else:
        from nearwise.estimators.stored.folder import history_of

        found = history_of(model, store)
    if as_json:
        show_json(
            [
                {"version": change.version, "time": change.time, "change": change.kind}
                | {"rows": change.ids, "undoes": change.details.get("undoes"), "key": change.key}
                | {name: change.details.get(name) for name in ("labels", "former")}
                for change in found
            ]
        )
        return
    rows, heads = [], ("version", "time (UTC)", "change", "rows", "ids")
    for change in found:
        undoes, n_rows = change.details.get("undoes"), len(change.ids)
        kind = change.kind + (f" (undoes {undoes})" if undoes else "") + _from_to(change)
        parts = spelled_numbers(change.ids).split(",")
        ids = ",".join(parts[:_IDS_SHOWN]) + (",..." if len(parts) > _IDS_SHOWN else "")
        time = change.time.removesuffix("+00:00").replace("T", " ")
        rows.append([change.version, time, kind, n_rows, ids])
    show(grid(f"Changes of {model}", heads, rows, left=heads))
    if not found:
        say(f"{model} is as it was fitted or last saved from Python: no changes are listed.")


def _from_to(change: "Change") -> str:
    """Describe former and new labels of a change; empty for any other change."""
    former, labels = (change.details.get(name) or [] for name in ("former", "labels"))
    pairs = list(dict.fromkeys(zip(map(str, former), map(str, labels), strict=False)))
    if not pairs:
        return ""
    named = ", ".join(f"{before} to {after}" for before, after in pairs[:_IDS_SHOWN])
    return f": {named}" + (", ..." if len(pairs) > _IDS_SHOWN else "")


@reported
def compact(
    model: options.ModelArgument,
    accept_lost_changes: Annotated[
        bool,
        typer.Option(
            "--accept-lost-changes",
            help="If the journal is damaged, lost or too old: continue without its changes.",
        ),
    ] = False,
    store: options.StoreOption = None,
    quiet: options.QuietOption = False,
) -> None:
    """Merge the logged changes into a model's other files, and delete removed rows for good.

    Before that, 'nearwise undo' can bring removed rows back. Afterwards 'nearwise history' still
    lists which rows were changed, and when. Commands that change a model merge a long log (its
    journal) by themselves, so that it opens fast. They keep removed rows.

    [bold]Examples[/bold]
      nearwise compact iris.model
    """
    require_model(model)
    from nearwise.estimators import LiveModel
    from nearwise.estimators.opening import estimator_of
    from nearwise.estimators.stored.folder import accept_loss

    if accept_lost_changes:
        with in_place(model):
            lost = accept_loss(estimator_of(model), model, store)
        if not quiet:
            as_saved = f"{model} is restored to its last saved state; its history is empty."
            say(as_saved if lost else f"No changes of {model} are lost.")
    with in_place(model), LiveModel(model, trusted_store=store) as live:
        n_changes = live.n_pending
        found = live.compact()
    if not quiet and found is not None:
        shares = ", ".join(f"{percent(share)} in {space}" for space, share in found.recall.items())
        say(
            f"Rewrote {found.n_rows} rows; {model} is at version {live.version}. Recall of the "
            f"search: {shares}. Removed rows are deleted for good."
        )
    elif not quiet:
        say(
            f"Compacted {n_changes} changes of {model}, which is at version {live.version}. "
            "Removed rows are deleted for good."
        )


@contextmanager
def _changing(folder: Path, store: str | None, *, quiet: bool) -> Iterator["LiveModel"]:
    """Open a model for a change, and fold its journal afterwards if it has grown long."""
    require_model(folder)
    listed = typed("history", folder, *named_store(store))
    if_stopped(f"A change is saved as a whole or not at all. To see which are saved: {listed}")

    from nearwise.estimators.live_target import live_kind
    from nearwise.memory import StoreError

    with in_place(folder), live_kind(folder)(folder, trusted_store=store) as live:
        yield live
        if live.replay_seconds < _LONGEST_REPLAY:
            return
        if not quiet:
            say(f"Compacting {live.n_pending} changes of {folder} ...")
        try:
            live.compact(keep_removed=True)
        except (OSError, StoreError) as error:
            say(f"warning: the change is made, but the journal could not be compacted: {error}")


def _changed(
    folder: Path,
    store: str | None,
    change: Callable[["LiveModel"], "Change"],
    done: str,
    *,
    quiet: bool,
) -> None:
    with _changing(folder, store, quiet=quiet) as live:
        before = live.version
        made = change(live)
    if made.version <= before:
        _say_repeated(made, quiet=quiet)
    elif not quiet:
        n_rows = live.model.fitted_.n_remembered
        back = _way_back(folder, made.version, store)
        say(f"{done}; {folder} now holds {n_rows} rows.{back}")


def _add_to_each(
    folder: Path, data: str, reading: options.ReadOptions, key: str | None, *, quiet: bool
) -> None:
    """Add rows to the model of each target."""
    learned = open_model(folder, several=True)
    rows: Any = read_for_targets(learned, folder, data, reading)
    each = {name: Rows(rows.X, rows.y[name]) for name in learned.target_names_}
    for own, one in zip(each.values(), learned.estimators_, strict=True):
        _refuse_alike(own, _classes(one), data)
    content = rows.X.to_csv() + rows.y.to_csv()

    def change(live: "LiveModel", name: str, made: str) -> "Change":
        return live.add(each[name].source, key=made)

    def check(live: "LiveModel", name: str) -> None:
        live.model.fitted_.checked(each[name].y, len(each[name]))

    with in_place(folder):
        changes, n_rows = change_each(folder, change, check, key, content.encode())
    if not quiet:
        said = f"Added {len(changes[0].ids)} rows to each of {len(changes)} targets"
        say(f"{said}; they now hold {n_rows} rows.{_way_back_of_all(folder)}")


def _remove_from_each(
    folder: Path, ids: list[int], key: str | None, *, forget_classes: bool, quiet: bool
) -> None:
    """Remove rows from the model of each target."""
    from nearwise.estimators.online.changes import check_removal

    def change(live: "LiveModel", name: str, made: str) -> "Change":
        return live.remove(ids, forget_classes=forget_classes, key=made)

    def check(live: "LiveModel", name: str) -> None:
        check_removal(live.model.fitted_, ids, forget_classes=forget_classes)

    with in_place(folder):
        changes, n_rows = change_each(folder, change, check, key, f"remove {ids}".encode())
    if not quiet:
        said = f"Removed {_count(ids)} from {len(changes)} targets"
        say(f"{said}; they now hold {n_rows} rows.{_way_back_of_all(folder)}")


def _way_back_of_all(folder: Path) -> str:
    """Say how to undo the last change of all targets."""
    return f"\nTo undo it: {typed('undo', folder, len(changes_of_all(folder)))}"


def _classes(learned: Any) -> list[Any]:
    """Return the classes of a model in order; empty for a regression."""
    return [*learned.classes_.tolist()] if hasattr(learned, "classes_") else []


def _refuse_alike(rows: Rows, known: list[Any], data: str) -> None:
    """Raise ValueError for a new class that differs from a known one only in case or blanks."""
    for label, meant in spelled_alike(rows.y.unique().tolist(), known).items():
        n = int((rows.y == label).sum())
        raise ValueError(
            f"{data}: {n} {rows.noun} have the label {label!r}, which is no class of the model. "
            f"Did you mean {meant!r}? Correct the labels; or, if it is a class of its own, pass "
            "--new-classes."
        )


def _new_ones(learned: Any, folder: Path, rows: Rows, *, new_only: bool, quiet: bool) -> Rows:
    """Remove rows that equal training rows, on request; else report their number.

    Nothing is reported for a memory in a store, since a full scan takes long, nor if remembered
    rows repeat, since new ones then do, too.
    """
    if not learned.fitted_.holds_memory and not new_only:
        return rows
    from nearwise import review

    found = review(learned).learned(rows.X)
    n_known, noun = int((~found.new).sum()), rows.noun
    if not n_known or (found.repeats >= MANY_REPEATS and not new_only):
        return rows
    equal = f"{n_known} of {len(rows)} {noun} equal training {noun}"
    if new_only:
        if not quiet:
            nothing = " Nothing was added." if n_known == len(rows) else ""
            say(f"Left out: {equal}.{nothing}")
        return rows.take(found.new.nonzero()[0])
    if not quiet:
        say(f"note: {equal} and now count twice. --new-only leaves them out.")
    return rows


def _say_repeated(change: "Change", *, quiet: bool) -> None:
    if not quiet:
        say(
            f"Nothing was done: the request {change.key!r} was made before, as change "
            f"{change.version} ({change.time})."
        )


def _way_back(folder: Path, version: int, store: str | None) -> str:
    undo = typed("undo", folder, version, *named_store(store))
    return f"\nThis is version {version}. To undo it: {undo}"


def _count(ids: list[int]) -> str:
    return f"{len(ids)} row" + ("s" if len(ids) > 1 else "")
