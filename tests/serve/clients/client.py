"""Use the client that openapi-python-client makes; its types are checked by mypy."""

import json
import sys
from http import HTTPStatus

from nearwise_client import Client
from nearwise_client.api.memory import add_rows, get_row, undo_change
from nearwise_client.api.predict import explain, predict
from nearwise_client.api.review import review
from nearwise_client.models import (
    Added,
    Changed,
    ExplainRequestOfRemembered,
    Explanations,
    LabeledRowsOfRows,
    Predictions,
    PredictRequestOfRows,
    Problem,
    Review,
    ReviewKind,
    Row,
)
from nearwise_client.types import Unset

client = Client(base_url=sys.argv[1])
row = Row.from_dict({"age": 1, "income": None, "town": "Rome"})

predicted = predict.sync(client=client, body=PredictRequestOfRows(rows=[row], confidence=0.8))
assert isinstance(predicted, Predictions)
first = predicted.predictions[0]

asked = ExplainRequestOfRemembered(remembered=3, without=[4], column_shares=True)
explained = explain.sync(client=client, body=asked)
assert isinstance(explained, Explanations)

labeled = LabeledRowsOfRows(rows=[row], labels=["yes"])
added = add_rows.sync(client=client, body=labeled, idempotency_key="python")
assert isinstance(added, Added)
undone = undo_change.sync(added.memory_version, client=client)
assert isinstance(undone, Changed)
found = review.sync(client=client, kind=ReviewKind.LABEL)
assert isinstance(found, Review)
refused = get_row.sync_detailed(100_000, client=client)
assert refused.status_code == HTTPStatus.NOT_FOUND and isinstance(refused.parsed, Problem)

print(
    json.dumps(
        {
            "label": first.label,
            "sets": first.set_,
            "novelty": isinstance(first.novelty_p, Unset),
            "shares": len(explained.predictions[0].neighbors),
            "undone": undone.kind,
            "findings": found.n_findings,
            "missing": refused.parsed.detail,
        }
    )
)
