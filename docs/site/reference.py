"""Reference pages made of the program: Python names, commands, and the HTTP interface."""

import inspect
import json
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import typer
from sklearn.datasets import load_iris

import nearwise
from nearwise.cli.app import app
from nearwise.serve import Service, create_app
from nearwise.serve.description import PROBLEMS, TAGS


def write_reference(folder: Path) -> None:
    """Write the pages into a new folder."""
    folder.mkdir()
    described = openapi()
    (folder / "openapi.json").write_text(json.dumps(described, indent=2), "utf-8")
    pages = {"commands": commands(), "python": python(), "openapi": routes(described)}
    for name, lines in pages.items():
        (folder / f"{name}.md").write_text("\n".join(lines) + "\n", "utf-8")


def openapi() -> dict[str, Any]:
    """Describe the service of a model of scikit-learn's iris."""
    X, y = load_iris(return_X_y=True, as_frame=True)
    model = nearwise.AttnKNNClassifier(preset="instant", random_state=0).fit(X, y)
    with TemporaryDirectory() as folder:
        model.save(Path(folder) / "iris.model")
        live = nearwise.LiveModel(Path(folder) / "iris.model")
        described: dict[str, Any] = create_app(Service(live), name="iris.model").openapi()
    return described


def routes(described: dict[str, Any]) -> Iterator[str]:
    """Give the routes, sorted by tag, their problems, and the bodies and answers."""
    yield "# HTTP: routes and schemas\n"
    yield (
        "Routes of `nearwise serve`, with examples of a model of scikit-learn's iris. A running\n"
        "service shows those of its own model at `/docs`, for programs at `/openapi.json`\n"
        "([that of iris](openapi.json)).\n"
    )
    found = [
        (one.get("tags", ["service"])[0], f"### {method.upper()} {path}\n", one)
        for path, operations in described["paths"].items()
        for method, one in operations.items()
    ]
    for tag in [*TAGS, *sorted({of for of, _, _ in found} - {*TAGS})]:
        yield f"## {tag.capitalize()}\n"
        for _, heading, one in (route for route in found if route[0] == tag):
            yield heading
            yield from _route(one)
    yield "## Problems\n\n| status | reason |\n|---|---|"
    yield from (f"| {status} | {what} |" for status, what in PROBLEMS.items())
    yield "\n## Bodies and answers\n"
    for name, schema in sorted(described["components"]["schemas"].items()):
        yield f"### {name}\n\n{schema.get('description', '')}\n"
        if "properties" not in schema:
            yield f"{_kind(schema)}\n"
            continue
        yield "| member | type | |\n|---|---|---|"
        for member, of in schema["properties"].items():
            about = _about(of, required=member in schema.get("required", ()))
            yield f"| `{member}` | {_cell(_kind(of))} | {about} |"
        yield ""


def _route(one: dict[str, Any]) -> Iterator[str]:
    """Give the description, parameters, bodies and answers of a route."""
    yield one["description"] + "\n"
    if one.get("parameters"):
        yield "| parameter | in | type | |\n|---|---|---|---|"
        for of in one["parameters"]:
            about = _about(of, required=of.get("required", False))
            yield f"| `{of['name']}` | {of['in']} | {_cell(_kind(of['schema']))} | {about} |"
        yield ""
    for body in one.get("requestBody", {}).get("content", {}).values():
        yield f"Body: {_kind(body['schema'])}\n\n```json\n{_as_json(body['example'])}\n```\n"
    for status, answer in one["responses"].items():
        if status.startswith("2"):
            kinds = (_kind(of["schema"]) for of in answer.get("content", {}).values())
            yield f"Answer: {status}, {', '.join(kinds)}\n"


def _about(of: dict[str, Any], *, required: bool) -> str:
    return _cell(". ".join(filter(None, ("" if required else "optional", of.get("description")))))


def _kind(schema: dict[str, Any]) -> str:
    """Give the type of a value, with a link where it has members."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema or "oneOf" in schema:
        return " or ".join(dict.fromkeys(map(_kind, schema.get("anyOf") or schema["oneOf"])))
    if "enum" in schema:
        return " or ".join(f"`{one}`" for one in schema["enum"])
    kind = schema.get("type", "any")
    if kind == "array":
        return f"array of {_kind(schema.get('items', {}))}"
    if isinstance(schema.get("additionalProperties"), dict):
        return f"object of {_kind(schema['additionalProperties'])}"
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def _as_json(example: Any) -> str:
    """Give JSON on one line where it fits."""
    line = json.dumps(example)
    return line if len(line) <= 95 else json.dumps(example, indent=2)


def commands() -> Iterator[str]:
    """Give the help of every command of the library, as the program prints it."""
    yield "# Commands\n\nAs `nearwise COMMAND --help` prints it.\n"
    top: Any = typer.main.get_command(app)
    context = top.make_context("nearwise", [], resilient_parsing=True)
    for name in top.list_commands(context):
        command = top.get_command(context, name)
        own = command.make_context(name, [], parent=context, resilient_parsing=True)
        text = re.sub(r"[\b\f]", "", inspect.cleandoc(command.help or ""))
        yield f"## nearwise {name}\n\n```text\n{text}\n```\n"
        yield "| option | what |\n|---|---|"
        for one in command.params:
            record = one.get_help_record(own) or (one.human_readable_name, "")
            flag, words = (" ".join(part.split()) for part in record)
            yield f"| `{flag}` | {_cell(words)} |"
        yield ""


def python() -> Iterator[str]:
    """Give the public Python names, whose pages are made of their docstrings."""
    yield "# Python\n"
    rooms = ("estimators", "data", "metrics", "nn", "functional", "memory", "training", "probes",
             "serve")  # fmt: skip
    known: set[Any] = set()
    for module in ("nearwise", *(f"nearwise.{room}" for room in rooms)):
        home = import_module(module)
        of_name = {name: getattr(home, name) for name in home.__all__}
        chosen = [n for n, one in of_name.items() if callable(one) and one not in known]
        known |= {of_name[name] for name in chosen}
        yield f"## {module}\n\n```{{eval-rst}}\n.. currentmodule:: {module}\n"
        yield ".. autosummary::\n   :toctree: generated\n   :nosignatures:\n"
        yield from (f"   {name}" for name in chosen)
        yield "```\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
