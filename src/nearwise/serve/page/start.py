"""Start page: what the model is, how good it is, and three things to look at."""

from fastapi import APIRouter
from starlette.responses import Response

from nearwise.estimators.online.feedback import known_rows
from nearwise.html.numbers import percent
from nearwise.serve import classes
from nearwise.serve.page.parts import part, patiently
from nearwise.serve.page.queue import Address
from nearwise.serve.page.trust import review_of
from nearwise.serve.service import Service


def add_start(read: APIRouter, service: Service) -> None:
    """Add the summary, the quality of the answers, and the things to look at."""

    @read.get("/page/start/view", include_in_schema=False)
    async def view() -> Response:
        version = service.live.now
        fitted, encoder = version.fitted, version.fitted.predictor.encoder
        return part(
            "start.html",
            fitted=fitted,
            of_classes=service.task is classes,
            n_columns=None if encoder.kind == "images" else len(encoder.columns),
            n_left_out=len(encoder.left_out),
            n_changes=version.number,
            fitted_at=fitted.fitted_at,
            read_only=service.read_only,
        )

    @read.get("/page/start/quality", include_in_schema=False)
    async def quality() -> Response:
        def work() -> Response:
            if service.task is not classes:
                quality = service.summary()[1]["quality"]
                return part("quality.html", trust=None, quality=quality)
            return part("quality.html", trust=service.trust()[1])

        return await patiently(service, "start/quality", work)

    @read.get("/page/start/look", include_in_schema=False)
    async def look() -> Response:
        def work() -> Response:
            return part("look.html", things=_things(service))

        return await patiently(service, "start/look", work)


def _things(service: Service) -> list[dict[str, str]]:
    """Three things to look at: each has a title, a sentence, and a link."""
    version, found = service.findings()
    expected = service.expected_wrong()
    of_kind = {kind: found[found["kind"] == kind] for kind in ("label", "outlier", "group")}
    things = []
    if len(of_kind["label"]):
        first = of_kind["label"].iloc[0]
        many = _counted(len(of_kind["label"]), service.task.LABEL)
        things.append(
            _thing(
                f"{many} disagreeing with the model",
                f"Expected to be wrong: {expected}. First row {first['id']}: {first['what']}.",
                "label",
            )
        )
    if service.task is classes and len(known_rows(version.fitted).labels):
        _, trust = service.trust()
        for one in trust.confused(1).to_dict("records"):
            which = f"{_counted(one['rows'], 'row')} labeled {one['given']}"
            said = f"{which}, {percent(one['share'])} of them, are predicted as {one['predicted']}."
            link = review_of(one["given"], one["predicted"])
            things.append({"title": "Classes that are confused", "text": said, "link": link})
    if len(of_kind["group"]):
        what = of_kind["group"].iloc[0]["what"]
        things.append(_thing("A group that is predicted badly", f"{what}.", "group"))
    if len(of_kind["outlier"]):
        n, first = len(of_kind["outlier"]), of_kind["outlier"].iloc[0]
        said = f"Row {first['id']} is the farthest from its neighbors."
        things.append(_thing(f"{_counted(n, 'row')} unlike all others", said, "outlier"))
    return things[:3]


def _thing(title: str, text: str, kind: str) -> dict[str, str]:
    return {"title": title, "text": text, "link": f"review?{Address(kind).query}"}


def _counted(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'s' if n != 1 else ''}"
