"""Web page of the service: query, map, review, trust.

static/htmx.min.js is htmx 2.0.11 (https://htmx.org, Zero-Clause BSD licence), unchanged.
"""

from nearwise.serve.page.routes import add_page

__all__ = ["add_page"]
