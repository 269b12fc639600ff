"""View "Review": rows to check, decisions about them, and their effect."""

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from nearwise.estimators import LiveModel
from nearwise.estimators.noise.findings import KINDS, IssueKind
from nearwise.memory import Change
from nearwise.serve import classes
from nearwise.serve.page import asking
from nearwise.serve.page.parts import (
    MOST_LISTED,
    Body,
    RowId,
    decided,
    is_image,
    part,
    patiently,
)
from nearwise.serve.problems import ProblemError
from nearwise.serve.service import Service


def add_review(read: APIRouter, write: APIRouter, service: Service) -> None:
    """Add the list of findings, decisions, undo, and the effect."""

    @read.get("/page/review/table", include_in_schema=False)
    async def table(request: Request, kind: IssueKind | Literal["all"] = "all") -> Response:
        may_decide = not service.read_only and request.state.holder.may("write")

        def work() -> Response:
            version, found = service.review()
            counts = {one: int((found["kind"] == one).sum()) for one in KINDS}
            of_kind = found if kind == "all" else found[found["kind"] == kind]
            issues = [one._asdict() for one in of_kind[:MOST_LISTED].itertuples(index=False)]
            fitted = version.fitted
            known = [one["id"] for one in issues if one["kind"] != "group"]
            return part(
                "review.html",
                kind=kind,
                counts=counts,
                issues=issues,
                rows={one.id: one.row for one in fitted.look_up(known)},
                n_issues=len(of_kind),
                classes=fitted.classes.tolist() if service.task is classes else None,
                may_decide=may_decide,
                is_image=is_image(service),
                left_out=fitted.predictor.encoder.left_out,
            )

        return await patiently(service, f"/page/review/table?kind={kind}", work)

    @write.post("/page/review/{id}", include_in_schema=False)
    async def decide(id: RowId, body: Body) -> Response:
        action = body.root.get("action")

        def make(live: LiveModel) -> Change:
            if action == "keep":
                return live.keep([id])
            if action == "remove":
                return live.remove([id])
            if action != "relabel":
                raise ProblemError(422, "Choose a label, or keep or remove the row.")
            return live.relabel([id], asking.label_in(live.now, body.root.get("label", "")))

        change = await service.change(make)
        return decided(f"Row {id}: {_SAID[str(action)]}", change.version, can_undo=True)

    @write.post("/page/undo/{version}", include_in_schema=False)
    async def undo(version: Annotated[int, Path(ge=1, lt=2**63)]) -> Response:
        change = await service.undo(version)
        again = f" It is row {change.ids[0]} now." if change.kind == "add" else ""
        return decided(f"Undone.{again}", change.version, can_undo=False)

    @read.get("/page/review/effect", include_in_schema=False)
    async def effect() -> Response:
        def work() -> Response:
            return part("effect.html", effect=service.effect(), task=service.task)

        return await patiently(service, "/page/review/effect", work)


_SAID = {"keep": "label kept", "remove": "removed", "relabel": "relabelled"}
