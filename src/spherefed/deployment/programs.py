"""Flower's programs: find them, call them, and check that the SuperLink answers."""

import http.client
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

from spherefed.deployment.folder import CONNECTION, ServerFolder, read_connection
from spherefed.errors import ConfigError, FederationError, install_extra

PATIENCE = 60.0
"""Seconds for a program to start or to end."""
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_INTERNAL_GRPC_CONTROL_API": "0",
    "FLWR_INTERNAL_GRPC_FLEET_API": "0",
}
"""Flower then makes no network calls of its own (telemetry, update check, installation) and opens no further ports."""


def program(name: str) -> str:
    """The path of one of Flower's programs: next to this Python, or on the PATH."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise ConfigError(f"{name} is not installed: {install_extra('flower')}")
    return found


def environment(folder: Path) -> dict[str, str]:
    """Environment variables for Flower's programs: no telemetry, and a home in the folder instead of the user's."""
    beside = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    home = (folder / "flower").resolve()
    return {"OMP_NUM_THREADS": "1", **os.environ, **QUIET, "FLWR_HOME": str(home), "PATH": beside}


def healthy(folder: Path, server: ServerFolder) -> bool:
    """Whether the SuperLink answers on this machine; with TLS, also that it has this deployment's certificate."""
    address = read_connection(folder)
    if address is None:
        return False
    connection: http.client.HTTPConnection
    if server.insecure:
        connection = http.client.HTTPConnection(*address, timeout=2)
    else:
        context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
        connection = http.client.HTTPSConnection(*address, timeout=2, context=context)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def flwr(folder: Path, *arguments: str) -> str:
    """Run Flower's command and return its output."""
    command = [program("flwr"), *arguments]
    try:
        said = subprocess.run(
            command, env=environment(folder), capture_output=True, text=True, timeout=PATIENCE, check=False
        )
    except subprocess.TimeoutExpired:
        raise FederationError(f"flwr {arguments[0]} did not answer within {PATIENCE:g} s") from None
    if said.returncode:
        raise FederationError(f"flwr {arguments[0]} failed: {' '.join((said.stdout + said.stderr).split())}")
    return said.stdout


def flwr_json(folder: Path, verb: str, key: str) -> list[dict[str, Any]]:
    """Run Flower's command with JSON output and return the list under this key."""
    said = flwr(folder, *verb.split(), CONNECTION, "--format", "json")
    try:
        answer = json.loads(said)
    except ValueError as error:
        raise FederationError(f"flwr {verb} did not print JSON: {' '.join(said.split())[:200]}") from error
    if not answer.get("success", False):
        raise FederationError(f"flwr {verb} failed: {answer.get('error-message', answer)}")
    found: list[dict[str, Any]] = answer.get(key, [])
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
