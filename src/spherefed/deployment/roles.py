"""The two roles that keep running: the server's SuperLink, and a site's SuperNode with its resident client app.

Each is a supervisor in the foreground: it starts Flower's own programs, and ends them when it ends.
"""

import ctypes
import http.client
import json
import os
import re
import secrets
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

from spherefed.deployment.folder import (
    CONNECTION,
    ServerFolder,
    SiteFolder,
    read_server,
    read_site,
    toml_value,
    write_connection,
)
from spherefed.deployment.site import Site
from spherefed.errors import ConfigError, FederationError
from spherefed.files import write_bytes

PATIENCE = 60.0
"""Seconds for a program to come up or to go down."""
NODES = "nodes.json"
PR_SET_PDEATHSIG = 1
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
"""Seconds before a program that ended is started again."""
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
"""Flower makes no calls of its own to the outside."""


def serve_role(folder: Path, announce: Callable[[str], None]) -> None:
    """Run the SuperLink until it is told to stop; admit the sites' keys as soon as it is up."""
    server = read_server(folder)
    write_connection(folder, server)
    command = [program("flower-superlink"), "--host", server.listen, "--port", str(server.port)]
    command += ["--database", str(folder / "state.db"), "--disable-runtime-dependency-installation"]
    if server.insecure:
        command += ["--insecure"]
    else:
        command += ["--ssl-ca-certfile", str(folder / "ca.crt"), "--ssl-certfile", str(folder / "server.crt")]
        command += ["--ssl-keyfile", str(folder / "server.key"), "--enable-supernode-auth"]
    if _listening(server):
        raise ConfigError(f"port {server.port} is in use already: another server, or change it in server.toml")
    with _stoppable() as stopping, _started(command, environment(folder)) as superlink:
        end = time.monotonic() + PATIENCE
        while not healthy(folder, server) and superlink.poll() is None and time.monotonic() < end and not stopping():
            time.sleep(0.2)
        if superlink.poll() is None and not stopping():
            if not server.insecure:
                _admit_sites(folder, server)
            announce(f"ready: {server.address}:{server.port}, waiting for {', '.join(server.sites)}")
        while superlink.poll() is None and not stopping():
            time.sleep(0.2)
    if not stopping():
        raise FederationError(f"the SuperLink ended with code {superlink.returncode}; its messages are above")


def join_role(folder: Path, announce: Callable[[str], None]) -> None:
    """Be a site until told to stop; while there is no server, or it does not admit this site, try again and again."""
    site = read_site(folder)
    home = folder / "flower"
    home.mkdir(exist_ok=True)
    secret, config = home / "secret", home / "node.toml"
    with _stoppable() as stopping:
        secret.unlink(missing_ok=True)
        secret.touch(mode=0o600)
        secret.write_bytes(secrets.token_bytes(32))
        config.write_text(_node_config(site), encoding="utf-8")
        pause = FIRST_PAUSE
        while not stopping():
            announce(f"site {site.site} (client {site.client}) joins {site.server}")
            began = time.monotonic()
            code = _be_node(folder, site, secret, config, stopping, announce)
            if stopping():
                break
            pause = FIRST_PAUSE if time.monotonic() - began > PATIENCE else min(2 * pause, LONGEST_PAUSE)
            announce(
                f"the SuperNode ended with code {code}, its messages are above; it is started again in {pause:g} s"
            )
            _sleep(pause, stopping)


def _be_node(
    folder: Path,
    site: SiteFolder,
    secret: Path,
    config: Path,
    stopping: Callable[[], bool],
    announce: Callable[[str], None],
) -> int | None:
    """One life of the SuperNode, with a resident that is started again when it dies; the exit code."""
    port = free_port()
    command = [program("flower-supernode"), "--superlink", site.server, "--node-config", str(config)]
    command += ["--isolation", "process", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--superexec-auth-secret-file", str(secret)]
    if site.insecure:
        command += ["--insecure"]
    else:
        command += ["--root-certificates", str(folder / "ca.crt")]
        command += ["--auth-supernode-private-key", str(folder / "site.key")]
    resident = [sys.executable, "-m", "spherefed.deployment.resident", f"127.0.0.1:{port}", str(secret)]
    with _started(command, environment(folder)) as node:
        while node.poll() is None and not stopping():
            with _started(resident, environment(folder)) as executor:
                while node.poll() is None and executor.poll() is None and not stopping():
                    time.sleep(0.2)
            if node.poll() is None and not stopping():
                announce(f"the client app ended with code {executor.returncode}; it is started again")
                _sleep(FIRST_PAUSE, stopping)
    return node.returncode


def _sleep(seconds: float, stopping: Callable[[], bool]) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end and not stopping():
        time.sleep(0.1)


def program(name: str) -> str:
    """One of Flower's programs: beside this Python, or on the path."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise ConfigError(f"{name} is not installed: pip install 'spherefed[flower]'")
    return found


def environment(folder: Path) -> dict[str, str]:
    """For Flower's programs: silent, and with a home of their own instead of the user's."""
    beside = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    home = (folder / "flower").resolve()
    return {"OMP_NUM_THREADS": "1", **os.environ, **QUIET, "FLWR_HOME": str(home), "PATH": beside}


def healthy(folder: Path, server: ServerFolder) -> bool:
    """Whether the SuperLink answers."""
    host = server.near
    connection: http.client.HTTPConnection
    if server.insecure:
        connection = http.client.HTTPConnection(host, server.port, timeout=2)
    else:
        context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
        connection = http.client.HTTPSConnection(host, server.port, timeout=2, context=context)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def flwr(folder: Path, *arguments: str) -> str:
    """What Flower's command says."""
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


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _listening(server: ServerFolder) -> bool:
    host = server.near
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.settimeout(1)
        return probe.connect_ex((host, server.port)) == 0


def _admit_sites(folder: Path, server: ServerFolder) -> None:
    """Register every site's public key and note which node it is; one that is registered already stays so."""
    nodes = read_nodes(folder)
    for name in server.sites:
        key = folder / "keys" / f"{name}.pub"
        if not key.exists():
            continue
        said = flwr(folder, "supernode", "register", str(key), CONNECTION, "--name", name, "--format", "json")
        found = re.search(r'"node-id": "?(\d+)', said)
        if found:
            nodes[name] = found[1]
        elif "already" not in said:
            raise FederationError(f"the key of site {name} was not admitted: {' '.join(said.split())}")
    write_bytes(folder / NODES, json.dumps(nodes, indent=2).encode())


def read_nodes(folder: Path) -> dict[str, str]:
    """Which of Flower's nodes is which site."""
    try:
        found: dict[str, str] = json.loads((folder / NODES).read_text(encoding="utf-8"))
    except (OSError, ValueError):  # not written yet, or not whole
        return {}
    return found


def _node_config(site: SiteFolder) -> str:
    """What the client app is told by Flower, as TOML: everything of site.toml that is the site's own business."""
    wanted = {f.name for f in fields(Site)}
    return "".join(f"{f.name} = {toml_value(getattr(site, f.name))}\n" for f in fields(site) if f.name in wanted)


@contextmanager
def _stoppable() -> Iterator[Callable[[], bool]]:
    """Within it, SIGTERM and Ctrl-C are no more than an answer to the question whether to stop."""
    asked: list[int] = []
    signals = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, lambda number, _: asked.append(number)) for number in signals}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _started(command: Sequence[str], surroundings: dict[str, str]) -> Iterator["subprocess.Popen[Any]"]:
    """A program in a group of its own, ended with everything it started when the block is left."""
    process = subprocess.Popen(
        command,
        env=surroundings,
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        preexec_fn=_die_with_parent,  # noqa: PLW1509 - there are no threads here
    )
    try:
        yield process
    finally:
        _end(process)


def _die_with_parent() -> None:
    """Whoever is killed takes his programs along: a SuperNode without supervisor would look alive and do nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _end(process: "subprocess.Popen[Any]") -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=10)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
