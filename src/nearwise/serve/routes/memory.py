"""Routes of the tag "memory": remembered rows, feedback, and changes."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query
from starlette.responses import Response

from nearwise.estimators import LiveModel
from nearwise.estimators.online.feedback import feedback_summary
from nearwise.memory import Change
from nearwise.serve import answers, classes
from nearwise.serve.bodies import reader
from nearwise.serve.problems import PlainJSON
from nearwise.serve.routes.parts import IdempotencyKey, Limit, RowId, changed, typed
from nearwise.serve.rows import labels_for, rows_for
from nearwise.serve.service import Service
from nearwise.warn import collected_warnings


class PNG(Response):
    """A picture."""

    media_type = "image/png"


def add_memory(read: APIRouter, write: APIRouter, service: Service) -> None:
    """Add routes of rows, of feedback, and of the changes so far."""
    _add_rows(read, write, service)
    _add_additions(write, service)
    _add_changes(read, write, service)


def _add_additions(write: APIRouter, service: Service) -> None:
    task = service.task
    LabeledRows = Annotated[Any, Depends(reader(task.LabeledRows))]

    async def added(body: Any, key: str | None, *details: str) -> Response:
        service.check_rows(body.n_rows)
        warnings: list[str] = []

        def make(live: LiveModel) -> Change:
            X = rows_for(live.now, body)
            y = labels_for(live.now, body.labels, new_classes=body.new_classes)
            take = live.feedback if "judged" in details else live.add
            before = live.version
            with collected_warnings() as said:
                change = take(X, y, groups=body.groups, show=body.show, key=key)
                if change.version <= before:  # a repeated request, whose rows were not read again
                    live.now.encoded(X)
            warnings.extend(dict.fromkeys(said))
            return change

        change = await service.change(make, key)
        found = {name: change.details[name] for name in details}
        return changed(change, 201, **found, warnings=warnings)

    @write.post("/rows", tags=["memory"], status_code=201, **typed(task.LabeledRows, answers.Added))
    async def add_rows(body: LabeledRows, key: IdempotencyKey) -> Response:
        """Remember rows; the next prediction may use them. Nothing is trained."""
        return await added(body, key)

    @write.post(
        "/feedback", tags=["memory"], status_code=201, **typed(task.LabeledRows, task.Feedback)
    )
    async def add_feedback(body: LabeledRows, key: IdempotencyKey) -> Response:
        """Predict rows with known labels, record the errors, and remember the rows."""
        return await added(body, key, "judged")


def _add_rows(read: APIRouter, write: APIRouter, service: Service) -> None:
    task = service.task
    NewLabel = Annotated[Any, Depends(reader(task.NewLabel))]
    Decision = Annotated[Any, Depends(reader(task.Decision))]

    async def decided(id: int, action: str, label: Any, forget: bool, key: str | None) -> Response:
        def make(live: LiveModel) -> Change:
            if action == "keep":
                return live.keep([id], key=key)
            if action == "remove":
                return live.remove([id], forget_classes=forget, key=key)
            y = labels_for(live.now, [label], new_classes=False)
            return live.relabel([id], y, forget_classes=forget, key=key)

        return changed(await service.change(make, key))

    @read.get("/rows/{id}", tags=["memory"], response_model=task.RememberedRow)
    async def get_row(id: RowId) -> Response:
        """Show a remembered row."""
        version, found = service.remembered(id)
        return PlainJSON(found | {"memory_version": version.number})

    @read.get("/rows/{id}/picture", tags=["memory"], response_class=PNG)
    async def get_picture(id: RowId) -> Response:
        """Show the picture of a remembered row: at most 256 x 256 pixels."""
        return PNG(await service.picture(id))

    @write.patch("/rows/{id}", tags=["memory"], **typed(task.NewLabel, answers.Changed))
    async def relabel_row(id: RowId, body: NewLabel, key: IdempotencyKey) -> Response:
        """Replace the label or target of a remembered row."""
        return await decided(id, "relabel", body.label, body.forget_classes, key)

    @write.delete("/rows/{id}", tags=["memory"], response_model=answers.Changed)
    async def remove_row(
        id: RowId,
        key: IdempotencyKey,
        forget_classes: Annotated[
            bool,
            Query(
                description="Even if a class loses its last row.",
                include_in_schema=task is classes,
            ),
        ] = False,
    ) -> Response:
        """Remove a remembered row."""
        return await decided(id, "remove", None, forget_classes, key)

    @write.post("/issues/{id}", tags=["review"], **typed(task.Decision, answers.Changed))
    async def decide_row(id: RowId, body: Decision, key: IdempotencyKey) -> Response:
        """Decide about a row's label: replace it, keep it, or remove the row."""
        return await decided(id, body.action, body.label, body.forget_classes, key)


def _add_changes(read: APIRouter, write: APIRouter, service: Service) -> None:
    @read.get("/feedback", tags=["memory"], response_model=service.task.FeedbackSummary)
    async def get_feedback(
        last: Annotated[int | None, Query(ge=1, description="Only the newest rows.")] = None,
    ) -> Response:
        """Measure the predictions of all feedback, and the evidence of drift."""
        history = await service.ask(service.live.history)
        version = history[-1].version if history else service.live.version
        found = feedback_summary(history, last, of_numbers=service.task is not classes)
        return PlainJSON(found | {"memory_version": version})

    @read.get("/changes", tags=["memory"], response_model=answers.Changes)
    async def list_changes(limit: Limit = 100) -> Response:
        """List the newest changes, newest first."""
        found = await service.ask(lambda: service.live.history(limit))
        version = found[-1].version if found else service.live.version
        listed = [_listed(change) for change in reversed(found)]
        return PlainJSON({"changes": listed, "memory_version": version})

    @write.post("/changes/{version}/undo", tags=["memory"], response_model=answers.Changed)
    async def undo_change(
        version: Annotated[int, Path(ge=1, lt=2**63, description="Version after the change.")],
        key: IdempotencyKey,
    ) -> Response:
        """Reverse a change."""
        return changed(await service.undo(version, key))


def _listed(change: Change) -> dict[str, Any]:
    return {
        "version": change.version,
        "time": change.time,
        "kind": change.kind,
        "ids": change.ids[: answers.MOST_IDS],
        "n_ids": len(change.ids),
        "undoes": change.details.get("undoes"),
    }
