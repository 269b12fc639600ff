"""JSON routes of the service, one module per tag of the description."""

from nearwise.serve.routes.inference import add_inference
from nearwise.serve.routes.jobs import add_jobs
from nearwise.serve.routes.memory import add_memory
from nearwise.serve.routes.model import add_model
from nearwise.serve.routes.predictions import add_predictions
from nearwise.serve.routes.review import add_review

__all__ = [
    "add_inference",
    "add_jobs",
    "add_memory",
    "add_model",
    "add_predictions",
    "add_review",
]
