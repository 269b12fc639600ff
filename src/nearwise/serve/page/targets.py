"""View of several targets: one question, the answers for all targets, and a way to each."""

import asyncio
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from starlette.responses import RedirectResponse, Response

from nearwise.estimators.query import SET_CONFIDENCE
from nearwise.serve import classes
from nearwise.serve.asked_rows import Answers, Ask
from nearwise.serve.page.ask import add_form
from nearwise.serve.page.asking import answers_to, remembered_in, row_in
from nearwise.serve.page.parts import Body, part
from nearwise.serve.page.shell import add_static, frame
from nearwise.serve.service import Service
from nearwise.warn import collected_warnings

_VIEWS = {"targets": "All targets"}


def path_of(service: Service) -> str:
    """Path of the application of one of several targets: its folder, with "+" for spaces."""
    return f"targets/{service.live.folder.name.replace(' ', '+')}"


def add_targets_page(
    app: FastAPI, read: APIRouter, services: Mapping[str, Service], name: str
) -> None:
    """Add the list of the targets, the form, and its answers."""
    first = next(iter(services.values()))
    of_classes = first.task is classes
    links = {target: f"../{path_of(one)}/page" for target, one in services.items()}

    @app.get("/page/targets", include_in_schema=False)
    async def shell(row: str = "") -> Response:
        return frame("targets", _VIEWS, row)

    @app.get("/targets/{folder}", include_in_schema=False)
    async def home(folder: str, request: Request) -> Response:
        return RedirectResponse(f"{request.scope['root_path']}/targets/{folder}/page/start")

    add_static(app, "targets")
    add_form(read, first)

    @read.get("/page/head/model", include_in_schema=False)
    async def head() -> Response:
        return part(
            "head.html",
            name=name,
            target=f"{len(services)} targets",
            n_rows=first.live.now.fitted.n_remembered,
            read_only=first.read_only,
        )

    @read.get("/page/targets/view", include_in_schema=False)
    async def view() -> Response:
        fitted = {target: one.live.now.fitted for target, one in services.items()}
        return part("targets.html", fitted=fitted, links=links, of_classes=of_classes)

    @read.post("/page/ask/answer", include_in_schema=False)
    async def answered(body: Body) -> Response:
        remembered = remembered_in(body.root)
        rows = await first.ask(lambda: row_in(first.live.now, body.root))
        ask = Ask() if of_classes else Ask(SET_CONFIDENCE)

        async def answers(one: Service) -> tuple[Answers, list[str]]:
            def work() -> tuple[Answers, list[str]]:
                with collected_warnings() as warnings:
                    return answers_to(one.live.now, rows, remembered, ask), warnings

            return await one.ask(work)

        each = await asyncio.gather(*map(answers, services.values()))
        found = [one for one, _ in each]
        listed: list[dict[str, Any]] = [
            {"name": target, "found": one, "likely": _likely(one)}
            for target, one in zip(services, found, strict=True)
        ]
        if all(one["likely"] is not None for one in listed):
            listed.sort(key=lambda one: -one["likely"])
        return part(
            "targets_answer.html",
            answers=listed,
            warnings=dict.fromkeys(said for _, warnings in each for said in warnings),
            links=links,
        )


def _likely(answers: Answers) -> float | None:
    """Probability that a label is there; None if the classes are not 0 and 1."""
    classes = [] if answers.classes is None else answers.classes.tolist()
    return float(answers.values["proba"][0, 1]) if classes == [0, 1] else None
