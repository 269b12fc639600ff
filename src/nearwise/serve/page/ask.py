"""View "Ask": a form, its answer, and what the answer would be without some neighbors."""

import json
from hashlib import sha256
from typing import Annotated

import numpy as np
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from nearwise.estimators import LiveModel
from nearwise.estimators.live import Version
from nearwise.estimators.storage.journaling import ADD
from nearwise.memory import Change
from nearwise.serve import classes
from nearwise.serve.page import asking
from nearwise.serve.page.asking import answer, several
from nearwise.serve.page.decisions import decide, said_of
from nearwise.serve.page.forms import form_of, numbers_of_neighbors, row_id
from nearwise.serve.page.parts import Body, part, waiting
from nearwise.serve.page.snippets import snippets
from nearwise.serve.service import Service


def add_form(read: APIRouter, service: Service) -> None:
    """Add the form: empty, or with a remembered row."""

    @read.get("/page/ask/form", include_in_schema=False)
    async def form(
        row: Annotated[int | None, Query(ge=0, lt=2**63)] = None,
        draw: Annotated[bool, Query(description="Take a remembered row at random.")] = False,
    ) -> Response:
        def work() -> Response:
            version = service.live.now
            fitted = version.fitted
            chosen = fitted.draw_id(np.random.default_rng()) if draw else row
            return part(
                "form.html",
                form=form_of(version).content(chosen),
                last=fitted.next_id - 1,
                around=_around(version, chosen),
            )

        return await service.ask(work)


def add_ask(read: APIRouter, write: APIRouter, service: Service, *, needs_key: bool) -> None:
    """Add the form, its answers, and changes: remember a row, decide about one, undo."""
    add_form(read, service)

    @read.post("/page/ask/answer", include_in_schema=False)
    async def answered(request: Request, body: Body) -> Response:
        of_numbers = service.task is not classes  # for classes only "Review" makes changes
        may_change = of_numbers and not service.read_only and request.state.holder.may("write")

        def work() -> Response:
            version = service.live.now
            found = answer(version, body.root)
            return part(
                "answer.html",
                found=found,
                columns=numbers_of_neighbors(version, found.before.neighbors),
                snippets=snippets(str(request.base_url), found.rows, needs_key=needs_key),
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
            return waiting(service, "ask/answer", switched)

    @write.post("/page/ask/change", include_in_schema=False)
    async def change(body: Body) -> Response:
        form = body.root
        if "undo" in form:
            made = await service.undo(row_id(str(form["undo"])))
            again = f" It is row {made.ids[0]} now." if made.kind == ADD else ""
            return _decided(f"Undone.{again}", made, can_undo=False)

        def make(live: LiveModel) -> Change:
            if "row" in form:
                return decide(live, None, [row_id(str(form["row"]))], form)
            return live.add(*asking.remembered_as(live.now, form))

        made = await service.change(make)
        said = f"Remembered as row {made.ids[0]}" if made.kind == ADD else said_of(made)
        return _decided(said, made, can_undo=True)


def _decided(said: str, made: Change, *, can_undo: bool) -> Response:
    """Report a change, with a button to undo it."""
    values = {"said": said, "version": made.version, "can_undo": can_undo}
    return part("decided.html", {"HX-Trigger-After-Settle": "decided"}, **values)


def _around(version: Version, row: int | None) -> tuple[int | None, int | None]:
    """Ids of the remembered rows before and after a row; None where there is none."""
    if row is None or not version.fitted.holds_memory:
        return None, None
    ids = np.sort(version.fitted.bank.ids.numpy())
    at = int(np.searchsorted(ids, row))
    before = int(ids[at - 1]) if at > 0 else None
    return before, int(ids[at + 1]) if at + 1 < len(ids) else None
