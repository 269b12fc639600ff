"""Web page of the service: start, query, map, review, trust.

static/htmx.min.js is htmx 2.0.11 (https://htmx.org, Zero-Clause BSD licence), unchanged.
"""

from fastapi import APIRouter, FastAPI

from nearwise.serve.page.ask import add_ask
from nearwise.serve.page.map import add_map
from nearwise.serve.page.review import add_review
from nearwise.serve.page.shell import add_shell
from nearwise.serve.page.start import add_start
from nearwise.serve.page.trust import add_trust
from nearwise.serve.service import Service

__all__ = ["add_page"]


def add_page(
    app: FastAPI,
    read: APIRouter,
    write: APIRouter,
    service: Service,
    *,
    name: str,
    needs_key: bool,
    is_one_of: bool = False,
) -> None:
    """Add the page to the application of a service.

    `name` is the name of the model; `needs_key` tells whether requests need a key;
    `is_one_of` whether the model is that of one of several targets.
    """
    add_shell(app, read, service, name, is_one_of=is_one_of)
    add_start(read, service)
    add_ask(read, write, service, needs_key=needs_key)
    add_map(read, service)
    add_review(read, write, service)
    add_trust(read, service)
