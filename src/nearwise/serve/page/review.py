"""View "Review": a queue of cases to check, decisions about them, and their effect."""

from dataclasses import replace
from typing import NamedTuple

from fastapi import APIRouter, Request
from starlette.responses import Response

from nearwise.estimators import LiveModel
from nearwise.estimators.live import Version
from nearwise.memory import Change
from nearwise.serve import numbers
from nearwise.serve.page.asking import several
from nearwise.serve.page.case import case_content
from nearwise.serve.page.decisions import decide, said_of, written
from nearwise.serve.page.forms import row_id
from nearwise.serve.page.parts import Body, is_image, part, patiently, waiting
from nearwise.serve.page.queue import Address, Queue, decided_in
from nearwise.serve.service import Service

_PER_PAGE = 50  # rows of a list


class Made(NamedTuple):
    """A decision `made`, or `undone`, by the version of its change, and what to say of it."""

    said: str = ""
    made: int | str = ""
    undone: int | str = ""


def add_review(read: APIRouter, write: APIRouter, service: Service) -> None:
    """Add the queue, decisions, undo, the effect, and the table to download."""

    @read.post("/page/review/queue", include_in_schema=False)
    async def queue(request: Request, body: Body) -> Response:
        form, address = body.root, Address.of(body.root)
        again = bool(form.get("again"))

        def work() -> Response:
            return _shown(service, request, address, again=again)

        if service.is_reviewed and not again:  # takes no time, so does not wait for slow work
            return await service.ask(work)
        try:
            return await service.read(work)
        except TimeoutError:
            fields = [(name, str(value)) for name, value in form.items() if name != "again"]
            return waiting(service, "review/queue", fields)

    @write.post("/page/review/decide", include_in_schema=False)
    async def make_decision(request: Request, body: Body) -> Response:
        address, rows = Address.of(body.root), [row_id(one) for one in several(body.root, "ids")]
        lane = service.ask if service.is_reviewed else service.read
        _, before = await lane(lambda: _queue_at(service, address))

        def make(live: LiveModel) -> Change:
            return decide(live, before, rows, body.root)

        change = await service.change(make)
        following = before.after(rows) if address.view == "one" else None
        address = replace(address, row=following)
        made = Made(said_of(change), made=change.version)
        return await service.ask(lambda: _shown(service, request, address, made))

    @write.post("/page/review/undo", include_in_schema=False)
    async def take_back(request: Request, body: Body) -> Response:
        address, version = Address.of(body.root), row_id(str(body.root.get("version", "")))
        change = await service.undo(version)
        if address.view == "one" and len(change.ids) == 1:
            address = replace(address, row=change.ids[0])
        rows = f"row {change.ids[0]}" if len(change.ids) == 1 else f"{len(change.ids)} rows"
        made = Made(f"Undone: {rows}.", undone=version)
        return await service.ask(lambda: _shown(service, request, address, made))

    @read.get("/page/review/findings.csv", include_in_schema=False)
    async def findings_file() -> Response:
        def work() -> Response:
            text = written(_queue_at(service, Address())[1])
            return Response(text.encode("utf-8", "replace"), media_type="text/csv; charset=utf-8")

        return await service.read(work)

    @read.get("/page/review/effect", include_in_schema=False)
    async def effect() -> Response:
        def work() -> Response:
            return part("effect.html", effect=service.effect(), task=service.task)

        return await patiently(service, "review/effect", work)


def _queue_at(service: Service, address: Address, *, again: bool = False) -> tuple[Version, Queue]:
    reviewed, version = service.review(again=again), service.live.now
    remembered = set(version.fitted.bank.ids.tolist())
    return version, Queue(reviewed, decided_in(service.live.history()), remembered, address)


def _shown(
    service: Service,
    request: Request,
    address: Address,
    made: Made | None = None,
    *,
    again: bool = False,
) -> Response:
    """Render the queue at an address, also after a decision."""
    version, queue = _queue_at(service, address, again=again)
    fitted, case = version.fitted, queue.shown
    content, rows = None, []
    address = queue.address
    is_list = address.view == "list" or (address.kind == "decided" and address.row is None)
    if is_list:
        last = max(len(queue.open) - 1, 0) // _PER_PAGE  # fewer pages than before a decision
        queue.address = replace(queue.address, page=min(queue.address.page, last))
        first = queue.address.page * _PER_PAGE
        listed = queue.open[first : first + _PER_PAGE]
        there = [one.id for one in listed if one.id in queue.remembered]
        seen = {one.id: one for one in fitted.look_up(there)}
        rows = [(one, seen.get(one.id)) for one in listed]
    elif case is not None and case.id is not None and case.id in queue.remembered:
        content = case_content(version, queue, case)
        queue.address = replace(queue.address, row=case.id)
    of_numbers = service.task is numbers
    issues = queue.reviewed.issues
    n_independent = len(issues) if of_numbers else int(issues["independent"].sum())
    return part(
        "review.html",
        {"HX-Trigger-After-Settle": "decided"} if made else None,
        queue=queue,
        address=queue.address,
        content=content,
        rows=rows,
        is_list=is_list,
        per_page=_PER_PAGE,
        n_independent=n_independent,
        n_rows=fitted.n_remembered,
        n_changes=version.number - queue.reviewed.version.number,
        classes=None if of_numbers else fitted.classes.tolist(),
        may_decide=not service.read_only and request.state.holder.may("write"),
        is_image=is_image(service),
        left_out=fitted.predictor.encoder.left_out,
        made=made or Made(),
    )
