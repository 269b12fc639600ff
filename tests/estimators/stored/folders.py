"""Folders of models whose memory is in a store, changed as somebody else could."""

import json
import shutil

from nearwise.estimators.storage.persistence import VERSION
from nearwise.estimators.stored.folder import STORED_KIND
from nearwise.memory import read_folder, write_folder


def placed(folder, target, uri):
    """Copy a model, and have it name another place for its memory; its checksums are right."""
    shutil.copytree(folder, target)
    content = read_folder(target, kind=STORED_KIND, newest_version=VERSION)
    location = json.loads(content.blobs["memory"]) | {"uri": uri}
    write_folder(
        target,
        kind=STORED_KIND,
        format_version=content.version,
        tensors=content.tensors,
        meta=content.meta,
        blobs=content.blobs | {"memory": json.dumps(location).encode()},
    )
    return target
