"""Review wrong labels of CIFAR-10N as on the page, and measure the effect.

Run from the repository root, with the data in NEARWISE_DATA:

    python examples/review_labels.py --model cifar10n.model

It fits a model on pretrained features of images (or, with --data cifar10, on the images, in half an
hour) with the human labels, starts the service's application on it,
and decides about the first rows that the view "Review" lists, through the routes that its buttons
use: as many as a person decides in ten minutes at four seconds each. The published labels stand in
for the person's eye.
"""

import argparse
import re
from html import unescape

import numpy as np
from fastapi.testclient import TestClient
from nearwise_lab.data import load_dataset, load_human_labels

from nearwise import AttnKNNClassifier, LiveModel
from nearwise.metrics import evaluate_probabilities
from nearwise.serve import Service, create_app

SECONDS, EACH = 600, 4


def measured(model: AttnKNNClassifier, X: np.ndarray, y: np.ndarray) -> str:
    """Describe how good a model is on right labels."""
    found = evaluate_probabilities(np.searchsorted(model.classes_, y), model.predict_proba(X))
    return f"accuracy {found['accuracy']:.4f}, NLL {found['nll']:.4f}, ECE {found['ece']:.4f}"


def main() -> None:
    """Fit, review, measure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="cifar10n.model", help="folder of the model")
    parser.add_argument(
        "--data", choices=["cifar10-features", "cifar10"], default="cifar10-features"
    )
    parser.add_argument("--rows", type=int, default=4000, help="images to learn from")
    parser.add_argument("--labels", choices=["worse", "aggregate"], default="worse")
    parser.add_argument("--label-noise", choices=["auto", "none"], default="auto")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    data, given = load_dataset(options.data), load_human_labels(options.labels)
    order = np.random.default_rng(options.seed).permutation(50_000)[: options.rows]
    names = load_dataset("cifar10").y
    X, true, given = data.X[order], names[order], given[order]
    X_test, y_test = np.asarray(data.X[50_000:]), names[50_000:]

    noise = "auto" if options.label_noise == "auto" else None
    model = AttnKNNClassifier(label_noise=noise, random_state=options.seed)
    model.fit(X, given).save(options.model, overwrite=True)
    remembered = model.memory_.ids.numpy()
    wrong = (given != true)[remembered].mean()
    print(f"{len(remembered)} images remembered, {wrong:.1%} of their labels wrong")
    print("before:", measured(model, X_test, y_test), flush=True)

    service = Service(LiveModel(options.model))
    with TestClient(create_app(service)) as client:
        table = client.get("/page/review/table", params={"kind": "label"}).text
        rows = [int(row) for row in re.findall(r'hx-post="/page/review/(\d+)"', table)]
        rows = rows[: SECONDS // EACH]
        classes = service.live.model.classes_.tolist()
        n_wrong = 0
        for row in rows:
            form = {"action": "keep"}
            if given[row] != true[row]:
                n_wrong += 1
                form = {"action": "relabel", "label": str(classes.index(true[row]))}
            client.post(f"/page/review/{row}", json=form).raise_for_status()
        effect = unescape(re.sub(r"<[^>]*>", "", client.get("/page/review/effect").text)).strip()
        print(f"{len(rows)} rows decided, {n_wrong} of their labels were wrong")
        print(effect)
        print("after: ", measured(service.live.model, X_test, y_test))


if __name__ == "__main__":
    main()
