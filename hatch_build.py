"""README as a package's page shows it: links and pictures there need the repository's address."""

import re
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface


class AbsoluteLinks(MetadataHookInterface):
    """Put README into the metadata, its relative links made absolute."""

    def update(self, metadata: dict) -> None:
        """Set `readme`."""
        source = metadata["urls"]["Source"]
        raw = source.replace("github.com", "raw.githubusercontent.com") + "/main"
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        text = re.sub(r"(!\[[^]]*\]\(|<img src=\")(?!https?://)", rf"\g<1>{raw}/", text)
        text = re.sub(r"(?<!!)(\[[^][]*\]\()(?!https?://|#)", rf"\g<1>{source}/blob/main/", text)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
