"""``nearwise verify``: check a folder saved by nearwise, and report its content."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nearwise.cli import options
from nearwise.cli.console import reported, say, show, show_json
from nearwise.cli.tables import fact_table

if TYPE_CHECKING:
    from nearwise.estimators.model.fitted_model import FittedClassifier

_NAMED = 4  # number of largest parts to list


@reported
def verify(
    folder: Annotated[Path, typer.Argument(metavar="MODEL", help="A folder that nearwise saved.")],
    trusted: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TYPE",
            help="Python type that may be loaded, if the base is an estimator of your own. May be "
            "repeated.",
        ),
    ] = None,
    store: options.StoreOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Check a saved model from the first byte to a few predictions, and report what it holds.

    The check reads the manifest, the size and checksum of every file, and every JSON entry. It
    covers the shape, type and range of every tensor, and the base's trees and weights. Then it
    predicts a few training rows, and repeats the changes in the journal. Nothing on disk is
    changed.

    If the rows are in a store ('nearwise move'), all of them are read. Parts for which the store
    keeps no checksums are named. Saved memory banks (tables of embeddings) are checked as well. Of
    other folders only manifest and checksums are: checkpoints, neural fields, vision transformers.

    The exit code is 0 if the model is sound, else 2. Then the damaged part is named.

    [bold]Examples[/bold]
      nearwise verify iris.model
      nearwise verify iris.model --json
    """
    facts = verified(folder, trusted or [], store)
    if as_json:
        show_json(facts)
        return
    show(fact_table(facts, str(folder)))
    say(f"{folder} is sound.")


def verified(folder: Path, trusted: list[str], store: str | None = None) -> dict[str, Any]:
    """Check a folder and return its facts as JSON-ready data; StoreError names a bad part.

    holds, format version, files (number and bytes), checked; for a model also written with
    (versions), rows, classes or numbers, columns, base, networks; for a memory bank rows, classes,
    spaces.
    """
    from nearwise.estimators.storage import class_parts, number_parts
    from nearwise.estimators.storage.targets_folder import KIND as TARGETS
    from nearwise.estimators.storage.targets_folder import target_folders
    from nearwise.estimators.stored.folder import STORED_KIND, refuse_trusted_store
    from nearwise.memory import MemoryBank, verify_folder
    from nearwise.memory.bank import KIND as BANK

    found = verify_folder(folder)
    if found.kind == TARGETS:
        each = {name: verified(path, trusted) for name, path in target_folders(folder).items()}
        return {"holds": found.kind, "targets": each}
    largest = sorted(found.sizes, key=found.sizes.__getitem__, reverse=True)[:_NAMED]
    facts: dict[str, Any] = {
        "holds": found.kind,
        "format version": found.version,
        "files": {"number": len(found.sizes), "bytes": sum(found.sizes.values())}
        | {f"bytes of {part}": found.sizes[part] for part in largest},
        "checked": ["manifest", "sizes", "checksums"],
    }
    if found.kind in (class_parts.KIND, number_parts.KIND, STORED_KIND):
        facts |= _model(folder, trusted, store)  # checks the JSON part too
        facts["written with"] = found.meta["versions"]
        facts["checked"] += ["JSON", "tensors", "base", "rows", "predictions"]
        facts["checked"] += facts.pop("checked in the store", [])
        return facts
    refuse_trusted_store(folder, store)
    if found.kind == BANK:
        bank = MemoryBank.load(folder)
        spaces = {name: f"{keys.shape[1]} columns" for name, keys in bank.keys.items()}
        facts |= {"rows": len(bank), "classes": bank.n_classes, "spaces": spaces}
        facts["checked"] += ["JSON", "tensors"]
    return facts


def _model(folder: Path, trusted: list[str], store: str | None) -> dict[str, Any]:
    import numpy as np

    from nearwise.estimators import LiveModel
    from nearwise.estimators.model.fitted_model import FittedClassifier
    from nearwise.estimators.storage.stored_parts import part_of_folder

    with LiveModel(folder, trusted=trusted, trusted_store=store) as live:
        fitted = live.now.fitted
        in_store: dict[str, Any] = {}
        if not fitted.holds_memory and isinstance(fitted, FittedClassifier):
            in_store = _store(fitted)
        with part_of_folder(f"{folder}: predictions"):
            if fitted.numbers is not None:
                if not np.isfinite(live.model.predict_quantiles(fitted.rows[:4])).all():
                    raise ValueError("some are not finite")
            elif not np.allclose(live.model.predict_proba(fitted.rows[:4]).sum(axis=1), 1):
                raise ValueError("some do not sum to 1")
        model, n_changes, n_pending = live.model, len(live.history()), live.n_pending
    models, numbers = model.fitted_.predictor.row_models, model.fitted_.numbers
    held: dict[str, Any] = {"classes": [str(label) for label in getattr(model, "classes_", ())]}
    if numbers is not None:
        held = {"numbers": {"least": float(numbers.min()), "largest": float(numbers.max())}}
    base = getattr(models, "base", None)
    return {
        "rows": model.fitted_.n_remembered,
        **held,
        "columns": len(model.report_.columns),
        "base": [] if base is None else [candidate.name for candidate in base.candidates],
        "networks": len(models.networks),
        "changes": {"in the journal": n_changes, "not compacted yet": n_pending},
    } | in_store


def _store(fitted: "FittedClassifier") -> dict[str, Any]:
    """Read a whole store; StoreError for any detectable damage."""
    import numpy as np

    from nearwise.estimators.stored.memory import stored
    from nearwise.estimators.stored.row_codec import RowCodec
    from nearwise.memory import StoreError

    views, wanted = stored(fitted), fitted.rows_per_class
    codec = RowCodec(views.summary.row_schemas)
    try:
        found, last = views.store.verify(), -1
        n_rows = np.zeros(len(wanted), np.int64)
        for batch in views.reader.scan():
            if (np.diff(batch.ids, prepend=last) <= 0).any():
                raise ValueError("the same id comes twice, or ids are not in order")
            if batch.rows:
                codec.unpack(batch.rows)
            last = batch.ids[-1] if len(batch) else last
            n_rows += np.bincount(batch.labels, minlength=len(wanted))
        if last >= views.summary.next_id:
            raise ValueError(f"the next row would have the id {views.summary.next_id} again")
    except StoreError:
        raise
    except (OSError, ValueError, RuntimeError) as error:
        raise StoreError("torn", f"Rows of the store cannot be read: {error}") from error
    if n_rows.tolist() != wanted.tolist():
        raise StoreError(
            "torn",
            f"The store holds {n_rows.tolist()} rows of the classes, and should hold "
            f"{wanted.tolist()}.",
        )
    more = {"not checked": found.unchecked} if found.unchecked else {}
    return {"checked in the store": ["rows per class", *found.checked]} | more
