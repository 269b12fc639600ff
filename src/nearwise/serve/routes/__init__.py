"""JSON routes of the service, one module per tag of the description."""

from fastapi import APIRouter, FastAPI

from nearwise.serve.routes.inference import add_inference
from nearwise.serve.routes.jobs import add_jobs
from nearwise.serve.routes.memory import add_memory
from nearwise.serve.routes.model import add_model
from nearwise.serve.routes.predictions import add_predictions
from nearwise.serve.routes.review import add_review
from nearwise.serve.service import Service

__all__ = ["add_routes"]


def add_routes(
    app: FastAPI,
    service: Service,
    name: str,
    *,
    read: APIRouter,
    write: APIRouter,
    admin: APIRouter,
) -> None:
    """Add all JSON routes, to the router of the scope that each needs."""
    add_predictions(read, service)
    add_memory(read, write, service)
    add_review(read, service)
    add_model(read, service, name)
    add_jobs(read, admin, service)
    add_inference(app, read, service, name)
