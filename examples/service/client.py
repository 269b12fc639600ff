"""Query `nearwise serve`, send true labels, and read how good it has been. Needs only Python."""

import json
import sys
import time
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

URL = sys.argv[1] if len(sys.argv) > 1 else "http://localhost:8080"


def ask(path: str, body: Any = None) -> Any:
    content = None if body is None else json.dumps(body).encode()
    with urlopen(Request(URL + path, content, {"Content-Type": "application/json"})) as answer:
        return json.load(answer)


def wait_until_ready() -> Any:
    for _ in range(60):
        try:
            return ask("/v2/health/ready")
        except URLError:
            time.sleep(0.5)
    raise SystemExit(f"Nobody answers at {URL}. Is nearwise serve running?")


wait_until_ready()
flower = {"sepal length": 6.0, "sepal width": 2.7, "petal length": 5.1, "petal width": 1.6}
(found,) = ask("/explain", {"rows": [flower], "n_neighbors": 3})["predictions"]
print(found["label"], found["proba"])
for neighbor in found["neighbors"]:
    print(f"  row {neighbor['id']}: {neighbor['label']}, weight {neighbor['weight']:.2f}")
print(ask("/feedback", {"rows": [flower], "labels": ["versicolor"]})["judged"])
print(ask("/feedback"))
