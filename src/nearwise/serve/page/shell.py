"""Frame of the page: public, since it holds nothing of the model; its content needs a key."""

from collections.abc import Mapping
from importlib.resources import files
from itertools import chain
from typing import Literal

from fastapi import APIRouter, FastAPI, Request
from starlette.responses import FileResponse, RedirectResponse, Response

from nearwise.html import STYLE
from nearwise.serve import classes
from nearwise.serve.page.parts import part
from nearwise.serve.problems import ProblemError
from nearwise.serve.service import Service

View = Literal["start", "ask", "map", "review", "trust"]
_VIEWS = {"start": "Start", "ask": "Ask", "map": "Map", "review": "Review", "trust": "Trust"}
_STATIC = files("nearwise.serve.page").joinpath("static")
_STYLES = ("page", "start", "ask", "map", "review", "trust")  # styles, one file per view
_MAP_PARTS = ("points", "pixels", "colors", "selection", "address", "input")
_MAP_SCRIPTS = (*(f"map_{one}.js" for one in _MAP_PARTS), "map.js")
_SCRIPTS = {
    "ask": ("ask.js",),
    "targets": ("ask.js",),
    "map": _MAP_SCRIPTS,
    "review": ("review.js",),
    "trust": ("trust.js",),
}
_SHARED = ("htmx.min.js", "page.js")


def add_shell(
    app: FastAPI, read: APIRouter, service: Service, name: str, *, is_one_of: bool
) -> None:
    """Add the frame of all views, and its scripts and styles.

    Addresses in the page are relative, since an application may be mounted in another one.
    """
    views = {one: _VIEWS[one] for one in _VIEWS if one != "trust" or service.task is classes}

    @app.get("/page/{view}", include_in_schema=False)
    async def shell(view: View, row: str = "") -> Response:
        if view not in views:
            raise ProblemError(404, "The page of numbers has no view of trust: see GET /feedback.")
        return frame(view, views, row, is_one_of=is_one_of)

    add_static(app, "start")

    @read.get("/page/head/model", include_in_schema=False)
    async def head() -> Response:
        version = service.live.now
        return part(
            "head.html",
            name=name,
            target=version.fitted.target_name,
            n_rows=version.fitted.n_remembered,
            n_changes=version.number,
            read_only=service.read_only,
        )


def frame(
    view: str, views: Mapping[str, str], row: str = "", *, is_one_of: bool = False
) -> Response:
    """Frame of a view, with links to all `views` and, if it is one of several, to the targets."""
    scripts = (*_SHARED, *_SCRIPTS.get(view, ()))
    return part("shell.html", view=view, views=views, row=row, scripts=scripts, is_one_of=is_one_of)


def add_static(app: FastAPI, first: str) -> None:
    """Add scripts and styles, and the way from "/" to the first view."""

    @app.get("/", include_in_schema=False)
    async def home(request: Request) -> Response:
        return RedirectResponse(f"{request.scope['root_path']}/page/{first}")

    @app.get("/page/static/nearwise.css", include_in_schema=False)
    async def style() -> Response:
        each = [_STATIC.joinpath(f"{one}.css").read_text(encoding="utf-8") for one in _STYLES]
        return Response(STYLE + "".join(each), media_type="text/css")

    @app.get("/page/static/{name}", include_in_schema=False)
    async def static(name: str) -> Response:
        if name not in {*_SHARED, *chain(*_SCRIPTS.values())}:
            raise ProblemError(404, "The page has no such script.")
        return FileResponse(str(_STATIC.joinpath(name)), media_type="text/javascript")
