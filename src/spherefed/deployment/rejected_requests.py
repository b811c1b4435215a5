"""The log of what a site did not answer: logger `spherefed.site` of the standard library, one JSON object per line."""

import json
import logging
import sys
import time
from collections.abc import Mapping
from typing import Any

LOGGER = logging.getLogger("spherefed.site")
MAX_CAUSE = 1000
"""Characters of a cause: a server may provoke long ones."""


def log_rejected(request: str, run: str, cause: str, node_config: Mapping[str, Any]) -> None:
    """Write the line of one request that was rejected or failed."""
    line = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "event": "rejected",
        "site": str(node_config.get("site", "")),
        "client": node_config.get("client"),
        "request": request[:100],
        "run": run[:100],
        "cause": cause if len(cause) <= MAX_CAUSE else f"{cause[:MAX_CAUSE]}…",
    }
    LOGGER.warning("%s", json.dumps(line, ensure_ascii=False))


def log_to_stderr() -> None:
    """For the process of a site: each line as it is."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    LOGGER.addHandler(handler)
    LOGGER.propagate = False
