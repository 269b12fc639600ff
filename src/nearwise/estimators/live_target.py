"""LiveTarget: the live model of one of several targets, whose rows change with all others."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nearwise.estimators.live import LiveModel
from nearwise.estimators.model.fitted_model import FittedModel
from nearwise.estimators.storage.journaling import ADD, FEEDBACK, REMOVE, Draft
from nearwise.estimators.storage.targets_folder import is_of_targets, target_folders
from nearwise.memory import Change


class LiveTarget(LiveModel):
    """Live model of one of several targets: its labels change alone, its rows with all others."""

    _is_alone = True  # whether a change is of this target only

    @contextmanager
    def with_all(self) -> Iterator[None]:
        """Allow changes of rows, which the caller makes for all targets."""
        self._is_alone = False
        try:
            yield
        finally:
            self._is_alone = True

    def _commit(
        self, make: Callable[[FittedModel], Draft], request: list[Any], key: str | None
    ) -> Change:
        def checked(fitted: FittedModel) -> Draft:
            draft = make(fitted)
            if self._is_alone and draft.kind in (ADD, FEEDBACK, REMOVE):
                whole = self.folder.parent.name
                raise ValueError(
                    f"All targets in {whole} remember the same rows, and this is one of them. Add "
                    f"and remove rows of all: nearwise add {whole}, nearwise remove {whole}, or "
                    "POST /rows and DELETE /rows/ID of its service."
                )
            return draft

        return super()._commit(checked, request, key)


def live_kind(folder: str | os.PathLike[str]) -> type[LiveModel]:
    """Return LiveTarget for the model of one of several targets, else LiveModel."""
    path = Path(os.path.realpath(folder))
    if is_of_targets(path.parent) and path in target_folders(path.parent).values():
        return LiveTarget
    return LiveModel
