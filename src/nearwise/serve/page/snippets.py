"""The question of an answer as a request in other languages, to be copied."""

import json
import shlex
from typing import Any

import numpy as np
import pandas as pd

from nearwise.estimators.live import Version
from nearwise.html import picture
from nearwise.safe_files import plain
from nearwise.serve.examples import examples
from nearwise.serve.service import task_of

_LONGEST = 20_000  # characters of a body that is shown


def question_body(rows: Any) -> dict[str, Any]:
    """Body of POST /explain for one row in the model's input form."""
    if isinstance(rows, pd.DataFrame):
        (row,) = rows.astype(object).where(rows.notna(), None).to_dict("records")
        texts = {name: str(one) for name, one in row.items() if isinstance(one, pd.Timestamp)}
        return {"rows": [plain({str(name): one for name, one in (row | texts).items()})]}
    if np.ndim(rows) > 2:
        return {"images": [picture(rows[0]).partition(",")[2]]}
    values = [None if value != value else value for value in rows[0].tolist()]
    return {"features": [values]}


def feedback_request(version: Version, base: str) -> str:
    """Request that sends feedback, with example values of the model's columns."""
    body = json.dumps(examples(version, task_of(version.fitted))["LabeledRows"], ensure_ascii=False)
    url = shlex.quote(f"{base.rstrip('/')}/feedback")
    sent = body if len(body) < _LONGEST else "..."
    return f"curl -s {url} -H 'Content-Type: application/json' \\\n  -d {shlex.quote(sent)}"


def snippets(base: str, rows: Any, *, needs_key: bool) -> dict[str, str]:
    """Programs that ask for the explanation of a row, by language; none for a very long row.

    `base` is the address of the service; `needs_key` adds a header with a placeholder.
    """
    body = question_body(rows)
    sent = json.dumps(body, ensure_ascii=False)
    if len(sent) > _LONGEST:
        return {}
    url = f"{base.rstrip('/')}/explain"
    headers = {"Content-Type": "application/json"}
    if needs_key:
        headers["Authorization"] = "Bearer KEY"
    flags = " ".join(f"-H {shlex.quote(f'{name}: {text}')}" for name, text in headers.items())
    return {
        "curl": f"curl -s {shlex.quote(url)} {flags} \\\n  -d {shlex.quote(sent)}",
        "Python": f"""import json
from urllib.request import Request, urlopen

body = {body!r}
request = Request({url!r}, json.dumps(body).encode(), {headers!r})
print(json.load(urlopen(request))["predictions"][0])""",
        "JavaScript": f"""const response = await fetch({json.dumps(url)}, {{
  method: "POST",
  headers: {json.dumps(headers)},
  body: JSON.stringify({sent}),
}});
console.log((await response.json()).predictions[0]);""",
    }
