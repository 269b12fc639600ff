"""View "Trust": how far the answers can be relied on, and feedback over time."""

import json

import numpy as np
from fastapi import APIRouter, Request
from starlette.responses import Response

from nearwise.estimators.online.feedback import judged_rows
from nearwise.serve.answers.measures import risk_points
from nearwise.serve.page.parts import part, patiently
from nearwise.serve.page.queue import Address
from nearwise.serve.page.snippets import feedback_request
from nearwise.serve.service import Service

_WINDOW = 50  # feedback rows per accuracy


def add_trust(read: APIRouter, service: Service) -> None:
    """Add the measures of trust."""

    @read.get("/page/trust/view", include_in_schema=False)
    async def view(request: Request) -> Response:
        def work() -> Response:
            version, trust = service.trust()
            correct = judged_rows(service.live.history(), "correct")
            return part(
                "trust_view.html",
                trust=trust,
                points=json.dumps(risk_points(trust)),
                feedback=_rolling(correct),
                n_feedback=len(correct),
                window=_WINDOW,
                version=version.number,
                link=review_of,
                example=feedback_request(version, str(request.base_url)),
            )

        return await patiently(service, "trust/view", work)

    @read.get("/page/trust/groups", include_in_schema=False)
    async def groups() -> Response:
        def work() -> Response:
            _, found = service.findings()
            rows = found[found["kind"] == "group"]
            names = {what: what.rpartition(": ")[0] for what in rows["what"]}
            listed = [
                {"what": what, "link": f"review?{Address('group', group=name).query}"}
                for what, name in names.items()
            ]
            return part("groups.html", groups=listed)

        return await patiently(service, "trust/groups", work)


def review_of(given: object, suggested: object) -> str:
    """Address of the review of rows with a given label and another predicted class."""
    pair = Address("label", given=str(given), suggested=str(suggested))
    return f"review?{pair.query}"


def _rolling(correct: np.ndarray) -> tuple[list[int], list[float]] | None:
    """Return the rolling mean after each row of feedback; None for fewer than two rows."""
    if len(correct) < 2:
        return None
    total = np.cumsum(np.concatenate([[0.0], correct]))
    ends = np.arange(1, len(total))
    starts = np.maximum(0, ends - _WINDOW)
    return ends.tolist(), ((total[ends] - total[starts]) / (ends - starts)).tolist()
