"""Routes of the page; the HTML frame is public, its content needs a key.

Parts are HTML fragments from the templates for notebooks; htmx inserts them.
"""

import json
from collections.abc import Callable
from hashlib import sha256
from importlib.resources import files
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Depends, FastAPI, Path, Query, Request
from pydantic import RootModel
from starlette.responses import FileResponse, RedirectResponse, Response

from nearwise.estimators import LiveModel
from nearwise.estimators.memory_map import MapMethod
from nearwise.estimators.noise.review import KINDS, IssueKind
from nearwise.estimators.online.feedback import judged_rows
from nearwise.html import STYLE, environment
from nearwise.memory import Change
from nearwise.serve import classes
from nearwise.serve.bodies import reader
from nearwise.serve.page import asking
from nearwise.serve.page.asking import Form, answer, empty_form, predicted, several
from nearwise.serve.problems import PlainJSON, ProblemError
from nearwise.serve.service import Service

View = Literal["ask", "map", "review", "trust"]
_VIEWS = {"ask": "Ask", "map": "Map", "review": "Review", "trust": "Trust"}
_STATIC = files("nearwise.serve.page").joinpath("static")
_MOST_LISTED = 200  # rows of a table
_MOST_PICTURES = 60
_MOST_POINTS = 400  # of the curve at the slider
_WINDOW = 50  # feedback rows per accuracy
RowId = Annotated[int, Path(ge=0, lt=2**63)]


def add_page(app: FastAPI, read: APIRouter, write: APIRouter, service: Service) -> None:
    """Add the page to the application of a service."""
    _add_shell(app, service)
    _add_ask(read, write, service)
    _add_map(read, service)
    _add_review(read, write, service)
    _add_trust(read, service)


def _part(template: str, headers: dict[str, str] | None = None, **values: Any) -> Response:
    made = environment("nearwise.serve.page").get_template(template).render(**values)
    return Response(made.encode("utf-8", "replace"), media_type="text/html", headers=headers)


class PageForm(RootModel[Form]):
    """Form fields by name: a text, or a list of texts if a name occurs several times."""


Body = Annotated[PageForm, Depends(reader(PageForm))]


async def _patiently(service: Service, where: str, work: Callable[[], Response]) -> Response:
    """Do work that may exceed the deadline; until it is done, the part of the page polls."""
    try:
        return await service.read(work)
    except TimeoutError:
        return _waiting(service, where)


def _waiting(service: Service, where: str, fields: list[tuple[str, str]] | None = None) -> Response:
    """Return a part that sends the request again, optionally with form fields."""
    return _part("waiting.html", where=where, fields=fields, step=service.getting_ready)


# --- the frame of all views ---------------------------------------------------------------------


def _add_shell(app: FastAPI, service: Service) -> None:
    views = {one: _VIEWS[one] for one in _VIEWS if one != "trust" or service.task is classes}

    @app.get("/", include_in_schema=False)
    async def home() -> Response:
        return RedirectResponse("/page/ask")

    @app.get("/page/{view}", include_in_schema=False)
    async def shell(
        view: View, row: Annotated[int | None, Query(ge=0, lt=2**63)] = None
    ) -> Response:
        if view not in views:
            raise ProblemError(404, "The page of numbers has no view of trust: see GET /feedback.")
        return _part("shell.html", view=view, views=views, row=row)

    @app.get("/page/static/nearwise.css", include_in_schema=False)
    async def style() -> Response:
        page = _STATIC.joinpath("page.css").read_text(encoding="utf-8")
        return Response(STYLE + page, media_type="text/css")

    @app.get("/page/static/{name}", include_in_schema=False)
    async def static(name: Literal["htmx.min.js", "page.js", "map.js"]) -> Response:
        return FileResponse(str(_STATIC.joinpath(name)), media_type="text/javascript")


# --- ask ----------------------------------------------------------------------------------------


def _add_ask(read: APIRouter, write: APIRouter, service: Service) -> None:
    @read.get("/page/ask/form", include_in_schema=False)
    async def form(
        row: Annotated[int | None, Query(ge=0, lt=2**63)] = None,
        draw: Annotated[bool, Query(description="Take a remembered row at random.")] = False,
    ) -> Response:
        def work() -> Response:
            version = service.live.now
            fitted = version.fitted
            chosen = fitted.draw_id(np.random.default_rng()) if draw else row
            return _part(
                "form.html",
                form=empty_form(version, chosen),
                last=fitted.next_id - 1,
                n_rows=fitted.n_remembered,
            )

        return await service.ask(work)

    @read.post("/page/ask/answer", include_in_schema=False)
    async def answered(request: Request, body: Body) -> Response:
        of_numbers = service.task is not classes  # for classes only "Review" makes changes
        may_change = of_numbers and not service.read_only and request.state.holder.may("write")

        def work() -> Response:
            version = service.live.now
            return _part(
                "answer.html",
                found=answer(version, body.root),
                classes=[] if of_numbers else version.fitted.classes.tolist(),
                may_change=may_change,
                version=version.number,
            )

        try:
            await service.until_ready()  # otherwise its results would be computed twice
            question = json.dumps(body.root, sort_keys=True)
            return await service.ask_again(sha256(question.encode()).hexdigest(), work)
        except TimeoutError:
            switched = [
                (name, value)
                for name in body.root
                if name == "off" or name.startswith("as.")
                for value in several(body.root, name)
            ]
            return _waiting(service, "/page/ask/answer", switched)

    @write.post("/page/ask/remember", include_in_schema=False)
    async def remember(body: Body) -> Response:
        def make(live: LiveModel) -> Change:
            return live.add(*asking.remembered_as(live.now, body.root))

        change = await service.change(make)
        return _decided(f"Remembered as row {change.ids[0]}", change.version, can_undo=True)


# --- map ----------------------------------------------------------------------------------------


def _add_map(read: APIRouter, service: Service) -> None:
    @read.get("/page/map/view", include_in_schema=False)
    async def view() -> Response:
        left_out = service.live.now.fitted.predictor.encoder.left_out
        return _part("map.html", left_out=json.dumps(left_out), label=service.task.LABEL)

    @read.post("/page/map/query", include_in_schema=False)
    async def place(
        request: Request, body: Body, method: Annotated[MapMethod, Query()] = "pca"
    ) -> Response:
        def work() -> Response:
            version, laid = service.laid_out(method)
            rows, label = predicted(version, body.root)
            keys = version.fitted.predictor.feature_keys(version.encoded(rows)[0])
            ((x, y),) = laid.project(keys.float().numpy()).tolist()
            return PlainJSON({"x": x, "y": y, "label": label})

        return await service.read_map(method, work, request.is_disconnected)

    @read.get("/page/map/progress", include_in_schema=False)
    async def progress() -> Response:
        return PlainJSON({"progress": service.layout_progress})

    @read.post("/page/map/rows", include_in_schema=False)
    async def rows(body: Body) -> Response:
        def work() -> Response:
            ids = [int(one) for one in str(body.root.get("ids", "")).split(",") if one.isdecimal()]
            return _part("rows.html", known_as=service.task.LABEL, **_listed(service, ids))

        return await service.ask(work)


def _listed(service: Service, ids: list[int]) -> dict[str, Any]:
    """Remembered rows for a table; removed ids are left out."""
    fitted = service.live.now.fitted
    there = set(fitted.bank.ids.tolist())
    found = [one for one in ids if one in there]
    shown = found[: _MOST_PICTURES if _is_image(service) else _MOST_LISTED]
    rows = [(one.id, one.label, one.row) for one in fitted.look_up(shown)]
    is_image, left_out = _is_image(service), fitted.predictor.encoder.left_out
    return {"rows": rows, "n_rows": len(found), "is_image": is_image, "left_out": left_out}


def _is_image(service: Service) -> bool:
    return service.live.now.fitted.predictor.encoder.kind == "images"


# --- review -------------------------------------------------------------------------------------


def _add_review(read: APIRouter, write: APIRouter, service: Service) -> None:
    @read.get("/page/review/table", include_in_schema=False)
    async def table(request: Request, kind: IssueKind | Literal["all"] = "all") -> Response:
        may_decide = not service.read_only and request.state.holder.may("write")

        def work() -> Response:
            version, found = service.review()
            counts = {one: int((found["kind"] == one).sum()) for one in KINDS}
            of_kind = found if kind == "all" else found[found["kind"] == kind]
            issues = [one._asdict() for one in of_kind[:_MOST_LISTED].itertuples(index=False)]
            fitted = version.fitted
            known = [one["id"] for one in issues if one["kind"] != "group"]
            return _part(
                "review.html",
                kind=kind,
                counts=counts,
                issues=issues,
                rows={one.id: one.row for one in fitted.look_up(known)},
                n_issues=len(of_kind),
                classes=fitted.classes.tolist() if service.task is classes else None,
                may_decide=may_decide,
                is_image=_is_image(service),
                left_out=fitted.predictor.encoder.left_out,
            )

        return await _patiently(service, f"/page/review/table?kind={kind}", work)

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
        return _decided(f"Row {id}: {_SAID[str(action)]}", change.version, can_undo=True)

    @write.post("/page/undo/{version}", include_in_schema=False)
    async def undo(version: Annotated[int, Path(ge=1, lt=2**63)]) -> Response:
        change = await service.undo(version)
        again = f" It is row {change.ids[0]} now." if change.kind == "add" else ""
        return _decided(f"Undone.{again}", change.version, can_undo=False)

    @read.get("/page/review/effect", include_in_schema=False)
    async def effect() -> Response:
        def work() -> Response:
            return _part("effect.html", effect=service.effect(), task=service.task)

        return await _patiently(service, "/page/review/effect", work)


_SAID = {"keep": "label kept", "remove": "removed", "relabel": "relabelled"}


def _decided(said: str, version: int, *, can_undo: bool) -> Response:
    values = {"said": said, "version": version, "can_undo": can_undo}
    return _part("decided.html", {"HX-Trigger-After-Settle": "decided"}, **values)


# --- trust --------------------------------------------------------------------------------------


def _add_trust(read: APIRouter, service: Service) -> None:
    @read.get("/page/trust/view", include_in_schema=False)
    async def view() -> Response:
        def work() -> Response:
            version, trust = service.trust()
            curve = trust.risk
            at = np.unique(np.linspace(0, trust.n_rows - 1, _MOST_POINTS).astype(int))
            points = np.column_stack([curve.coverage, curve.risk, curve.threshold])[at]
            correct = judged_rows(service.live.history(), "correct")
            return _part(
                "trust_view.html",
                trust=trust,
                points=json.dumps(points.round(6).tolist()),
                feedback=_rolling(correct),
                n_feedback=len(correct),
                window=_WINDOW,
                version=version.number,
            )

        return await _patiently(service, "/page/trust/view", work)


def _rolling(correct: np.ndarray) -> tuple[list[int], list[float]] | None:
    """Return the rolling mean after each row of feedback; None for fewer than two rows."""
    if len(correct) < 2:
        return None
    total = np.cumsum(np.concatenate([[0.0], correct]))
    ends = np.arange(1, len(total))
    starts = np.maximum(0, ends - _WINDOW)
    return ends.tolist(), ((total[ends] - total[starts]) / (ends - starts)).tolist()
