"""JSON for files that are committed: indented, with lists of numbers or words on one line."""

import json
import re
from pathlib import Path
from typing import Any

from spherefed.files import write_bytes

_INNER_LIST = re.compile(r"\[\n\s+([^\[\]{}]*?)\n\s+\]")
"""Strings contain no raw line break, so this meets only the layout."""


def compact_json(value: Any) -> str:
    """Text that equal values give equally.

    >>> print(compact_json({"a": [1, 2], "b": {"c": []}}))
    {
     "a": [1, 2],
     "b": {
      "c": []
     }
    }
    """
    text = json.dumps(value, indent=1, ensure_ascii=False)
    return _INNER_LIST.sub(lambda found: "[" + re.sub(r"\n\s+", " ", found.group(1)) + "]", text)


def write_compact_json(path: Path, value: Any) -> None:
    """Write the file whole or not at all."""
    write_bytes(path, (compact_json(value) + "\n").encode())
