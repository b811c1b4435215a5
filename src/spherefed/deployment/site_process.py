"""The process in which a site's client app stays loaded.

`python -m spherefed.deployment.site_process ADDRESS SECRET_FILE`
"""

import os
import sys
from pathlib import Path

from spherefed.acceleration.memory_reuse import keep_freed_memory
from spherefed.deployment.app import client_app
from spherefed.deployment.rejected_requests import log_to_stderr
from spherefed.engines.flower_site_process import serve_node


def main() -> None:
    """Serve the SuperNode until the parent process ends."""
    address, secret = sys.argv[1:]
    parent = os.getppid()
    keep_freed_memory()
    log_to_stderr()
    serve_node(client_app, address, Path(secret).read_bytes(), lambda: os.getppid() == parent)


if __name__ == "__main__":
    main()
