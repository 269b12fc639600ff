"""One small model folder per format version, and what each must predict.

``python -m tests.store.versions`` (from the root of the repository) writes the folder of the
present version. Run it once when VERSION in `classifier/storage/persistence.py` has been raised.
"""

import inspect
import json
import re
from pathlib import Path

from nearwise.estimators import AttnKNNClassifier, Settings
from nearwise.estimators.fit import base
from nearwise.estimators.storage.model_schema import Part, StoredModel
from nearwise.estimators.storage.persistence import VERSION

FOLDERS = Path(__file__).with_name("versions")


def stored_form():
    """Names and types of everything in the JSON part, and names of parameters and settings."""
    found = {}
    waiting = [StoredModel]
    while waiting:
        part = waiting.pop()
        fields = {name: _plain(field.annotation) for name, field in part.model_fields.items()}
        found[part.__name__] = fields
        waiting.extend(
            other
            for other in Part.__subclasses__()
            if other.__name__ not in found
            and any(other.__name__ in kind for kind in fields.values())
        )
    return {
        "json": found,
        "parameters": [*inspect.signature(AttnKNNClassifier).parameters],
        "settings": [*Settings.model_fields],
    }


def _plain(annotation):
    """Name a type without the module that it stands in, which may move."""
    return re.sub(r"nearwise[\w.]*\.", "", str(annotation))


def write(folder):
    """Save a small model with a base, its predictions, and the form it is stored in."""
    from tests.store.folders import based_model

    original = base.auto_candidates

    def smaller(*args, **options):
        candidates = original(*args, **options)
        for candidate in candidates:
            if candidate.name == "extra-trees":
                candidate.model.set_params(n_estimators=5)
        return candidates

    import nearwise.estimators.fit.pipeline as fitting

    fitting.auto_candidates = smaller
    try:
        model = based_model()
    finally:
        fitting.auto_candidates = original
    model.save(folder / "model")
    expected = {"left out": model.predict_proba(None).tolist()} | stored_form()
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    write(FOLDERS / f"v{VERSION}")
