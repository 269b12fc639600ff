"""HTTP service of a saved model: predictions, memory changes, review; needs the extra "serve".

``nearwise serve MODEL`` runs it; docs/how-to/serve.md describes it.
"""

from nearwise.serve.app import create_app
from nearwise.serve.keys import make_key, read_keys
from nearwise.serve.service import Limits, Service
from nearwise.serve.targets import create_targets_app

__all__ = ["Limits", "Service", "create_app", "create_targets_app", "make_key", "read_keys"]
