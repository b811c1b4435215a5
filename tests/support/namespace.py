"""Processes of their own network and process table: only loopback is there, and at the end nobody is left."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

WRAPPED = ["unshare", "--map-root-user", "--net", "--pid", "--fork", "--mount-proc", "--kill-child"]
LOOPBACK_UP = """
import fcntl, socket, struct
with socket.socket() as s:  # SIOCSIFFLAGS, IFF_UP | IFF_RUNNING
    fcntl.ioctl(s, 0x8914, struct.pack("16sh22x", b"lo", 0x41))
"""


def alone(command: list[str]) -> list[str]:
    """The command, wrapped so that it runs alone with a loopback device."""
    setup = f"'{sys.executable}' -S -c '{LOOPBACK_UP}'" + ' && "$@"; code=$?; exit $code'
    return [*WRAPPED, "sh", "-c", setup, "sh", *command]


def why_impossible() -> str | None:
    """Why there are no namespaces here; None if there are."""
    if sys.platform != "linux" or shutil.which("unshare") is None:
        return "needs Linux and unshare"
    tried = subprocess.run(alone(["true"]), capture_output=True, text=True, check=False)
    return f"namespaces are not allowed here: {tried.stderr.strip()}" if tried.returncode else None


def ray_processes() -> list[str]:
    """Command lines of Ray's processes in this process table, this process apart."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            try:
                words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:  # it has just ended
                continue
            if "ray::" in words or "/ray/core/" in words or "/ray/_private/" in words or "/ray/dashboard/" in words:
                found.append(words)
    return found
