"""Parts of the page: HTML fragments from templates, which htmx inserts."""

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import Depends, Path
from pydantic import RootModel
from starlette.responses import Response

from nearwise.html import environment
from nearwise.serve.bodies import reader
from nearwise.serve.page.forms import Form
from nearwise.serve.service import Service

MOST_LISTED = 200  # rows of a table
RowId = Annotated[int, Path(ge=0, lt=2**63)]


class PageForm(RootModel[Form]):
    """Form fields by name: a text, or a list of texts if a name occurs several times."""


Body = Annotated[PageForm, Depends(reader(PageForm))]


def part(template: str, headers: dict[str, str] | None = None, **values: Any) -> Response:
    """Render a template of the page."""
    made = environment("nearwise.serve.page").get_template(template).render(**values)
    return Response(made.encode("utf-8", "replace"), media_type="text/html", headers=headers)


async def patiently(service: Service, where: str, work: Callable[[], Response]) -> Response:
    """Do work that may exceed the deadline; until it is done, the part of the page polls."""
    try:
        return await service.read(work)
    except TimeoutError:
        return waiting(service, where)


def waiting(service: Service, where: str, fields: list[tuple[str, str]] | None = None) -> Response:
    """Return a part that sends the request again, optionally with form fields."""
    return part("waiting.html", where=where, fields=fields, step=service.getting_ready)


def is_image(service: Service) -> bool:
    """Whether the rows of the model are images."""
    return service.live.now.fitted.predictor.encoder.kind == "images"
