"""The process that keeps a site's client app loaded: `python -m spherefed.deployment.resident ADDRESS SECRET_FILE`."""

import os
import sys
from pathlib import Path

from spherefed.allocation import keep_freed_memory
from spherefed.deployment.app import client_app
from spherefed.engines.flower_resident import stay


def main() -> None:
    """Serve the SuperNode until the process that started this one has gone."""
    address, secret = sys.argv[1:]
    parent = os.getppid()
    keep_freed_memory()
    stay(client_app, address, Path(secret).read_bytes(), lambda: os.getppid() == parent)


if __name__ == "__main__":
    main()
