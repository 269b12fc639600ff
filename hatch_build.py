"""README as a package's page shows it: links and pictures there need the repository's address."""

import re
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface

SOURCE = "https://github.com/nearwise/nearwise/blob/main"
RAW = "https://raw.githubusercontent.com/nearwise/nearwise/main"


class AbsoluteLinks(MetadataHookInterface):
    """Put README into the metadata, its relative links made absolute."""

    def update(self, metadata: dict) -> None:
        """Set `readme`."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        text = re.sub(r"(!\[[^]]*\]\(|<img src=\")(?!https?://)", rf"\g<1>{RAW}/", text)
        text = re.sub(r"(?<!!)(\[[^][]*\]\()(?!https?://|#)", rf"\g<1>{SOURCE}/", text)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
