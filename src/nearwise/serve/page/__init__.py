"""The page of the service: ask, map, review, trust."""

from nearwise.serve.page.routes import add_page

__all__ = ["add_page"]
