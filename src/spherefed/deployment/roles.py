"""The two long-running roles: the server's SuperLink and front, and a site's SuperNode and client app process.

Each role is a supervisor in the foreground: it starts Flower's programs and ends them when it ends itself.
"""

import ctypes
import json
import os
import secrets
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
    ServerFolder,
    SiteFolder,
    read_server,
    read_site,
    toml_value,
    write_app,
    write_connection,
)
from spherefed.deployment.keys import PRIVATE_KEY, register_sites, site_keys
from spherefed.deployment.programs import PATIENCE, environment, free_port, healthy, program
from spherefed.deployment.site_config import Site
from spherefed.errors import ConfigError, FederationError
from spherefed.files import private_files
from spherefed.schema import to_plain

PR_SET_PDEATHSIG = 1
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
"""Seconds before a program that ended is restarted."""


def serve_role(folder: Path, announce: Callable[[str], None]) -> None:
    """Run the SuperLink on loopback and the front that sites connect to, until told to stop."""
    with private_files():
        _make_private(folder)
        _serve(folder, _forgiving(announce))


def _serve(folder: Path, announce: Callable[[str], None]) -> None:
    server = read_server(folder)
    if _listening(server):
        raise ConfigError(
            f"port {server.port} is in use; stop the other server, or change the port in server.toml and in the field "
            "`server` of every site.toml"
        )
    address = (
        (server.local_address, server.port) if server.insecure else ("127.0.0.1", server.control_port or free_port())
    )
    write_connection(folder, server, address)
    write_app(folder)
    superlink_command = _superlink_command(folder, server, address)
    with _stoppable() as stopping, _started(superlink_command, environment(folder)) as superlink:
        end = time.monotonic() + PATIENCE
        while not (ready := healthy(folder, server)) and superlink.poll() is None and not stopping():
            if time.monotonic() > end:
                raise FederationError(f"the SuperLink did not answer within {PATIENCE:g} s; see its messages above")
            time.sleep(0.2)
        if ready and not stopping():
            with _front(folder, server, address, announce) as front_runs:
                announce(f"ready: {server.address}:{server.port}, waiting for {', '.join(server.sites)}")
                while superlink.poll() is None and front_runs() and not stopping():
                    time.sleep(0.2)
                if not front_runs():
                    raise FederationError("the front of the server ended; see its messages above")
    if not stopping():
        raise FederationError(f"the SuperLink ended with exit code {superlink.returncode}; see its messages above")


def _superlink_command(folder: Path, server: ServerFolder, address: tuple[str, int]) -> list[str]:
    command = [program("flower-superlink"), "--host", address[0], "--port", str(address[1])]
    command += ["--database", str(folder / "state.db"), "--disable-runtime-dependency-installation"]
    if server.insecure:
        return [*command, "--insecure"]
    command += ["--ssl-ca-certfile", str(folder / "ca.crt"), "--ssl-certfile", str(folder / "server.crt")]
    return [*command, "--ssl-keyfile", str(folder / "server.key"), "--enable-supernode-auth"]


@contextmanager
def _front(
    folder: Path, server: ServerFolder, superlink: tuple[str, int], announce: Callable[[str], None]
) -> Iterator[Callable[[], bool]]:
    """Register the sites' keys, then run the front in the block; yield a function that tells whether it still runs."""
    if server.insecure:  # loopback only, where a front would protect nothing: the SuperLink is reachable as well
        yield lambda: True
        return
    from spherefed.deployment.front import front, server_tls
    from spherefed.deployment.front_rules import Rules
    from spherefed.engines import flower_http

    register_sites(folder, server)
    current_keys = site_keys(folder)
    rules = Rules(
        routes=flower_http.node_routes(),
        media_type=flower_http.MEDIA_TYPE,
        request_headers=flower_http.REQUEST_HEADERS,
        response_headers=flower_http.RESPONSE_HEADERS,
        authenticates=lambda headers: flower_http.signer(headers, current_keys()) is not None,
        body_checks={flower_http.PUSH_MESSAGES: flower_http.replies_for_itself},
    )
    with front(
        (server.listen, server.port),
        superlink,
        rules,
        tls=server_tls(str(folder / "server.crt"), str(folder / "server.key")),
        superlink_tls=ssl.create_default_context(cafile=str(folder / "ca.crt")),
        announce=announce,
    ) as front_runs:
        yield front_runs


def join_role(folder: Path, announce: Callable[[str], None]) -> None:
    """Run a site until it is told to stop; retry while the server is down or does not accept this site."""
    with private_files():
        _make_private(folder)
        _join(folder, _forgiving(announce))


def _join(folder: Path, announce: Callable[[str], None]) -> None:
    site = read_site(folder)
    if not site.insecure and not (folder / PRIVATE_KEY).exists():
        raise ConfigError(f"{folder / PRIVATE_KEY} is missing; make it with `spherefed deploy join {folder} --new-key`")
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
            announce(f"the SuperNode ended with exit code {code}, see its messages above; restart in {pause:g} s")
            _sleep(pause, stopping)


def _be_node(
    folder: Path,
    site: SiteFolder,
    secret: Path,
    config: Path,
    stopping: Callable[[], bool],
    announce: Callable[[str], None],
) -> int | None:
    """Run the SuperNode until it ends, and restart its client app process when that ends; return the exit code."""
    port = free_port()
    command = [program("flower-supernode"), "--superlink", site.server, "--node-config", str(config)]
    command += ["--isolation", "process", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--superexec-auth-secret-file", str(secret)]
    if site.insecure:
        command += ["--insecure"]
    else:
        command += ["--root-certificates", str(folder / "ca.crt")]
        command += ["--auth-supernode-private-key", str(folder / PRIVATE_KEY)]
    site_process = [sys.executable, "-m", "spherefed.deployment.site_process", f"127.0.0.1:{port}", str(secret)]
    with _started(command, environment(folder)) as node:
        while node.poll() is None and not stopping():
            with _started(site_process, environment(folder)) as executor:
                while node.poll() is None and executor.poll() is None and not stopping():
                    time.sleep(0.2)
            if node.poll() is None and not stopping():
                announce(f"the client app ended with exit code {executor.returncode}; restart")
                _sleep(FIRST_PAUSE, stopping)
    return node.returncode


def _forgiving(announce: Callable[[str], None]) -> Callable[[str], None]:
    """Go on if a line cannot be written, for example to a log on a full disk."""

    def forgiving(line: str) -> None:
        with suppress(OSError):
            announce(line)

    return forgiving


def _make_private(folder: Path) -> None:
    """Close a role's folder and the SuperLink's database to other accounts, also if they were created open."""
    folder.chmod(0o700)
    for database in folder.glob("state.db*"):
        database.chmod(0o600)


def _sleep(seconds: float, stopping: Callable[[], bool]) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end and not stopping():
        time.sleep(0.1)


def _listening(server: ServerFolder) -> bool:
    host = server.local_address
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.settimeout(1)
        return probe.connect_ex((host, server.port)) == 0


def _node_config(site: SiteFolder) -> str:
    """The node config that Flower passes to the client app, as TOML: the fields of site.toml that `Site` has.

    Flower has neither lists nor tables there.
    """
    values = {f.name: getattr(site, f.name) for f in fields(Site)}
    values |= {"allow": ",".join(site.allow), "limits": json.dumps(to_plain(site.limits))}
    return "".join(f"{name} = {toml_value(value)}\n" for name, value in values.items())


@contextmanager
def _stoppable() -> Iterator[Callable[[], bool]]:
    """Within the block, SIGTERM and Ctrl-C only make the yielded function return True."""
    asked: list[int] = []
    signals = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, lambda number, _: asked.append(number)) for number in signals}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


PRIVATE_UMASK = 0o077
"""What Flower's programs write, such as state.db, only this user can read."""


@contextmanager
def _started(command: Sequence[str], environment: dict[str, str]) -> Iterator["subprocess.Popen[Any]"]:
    """Start a program in its own process group; at the end of the block, end the whole group."""
    process = subprocess.Popen(
        command,
        env=environment,
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        umask=PRIVATE_UMASK,
        preexec_fn=_die_with_parent,  # noqa: PLW1509 - there are no threads here
    )
    try:
        yield process
    finally:
        _end(process)


def _die_with_parent() -> None:
    """Kill the program when its supervisor is killed: a SuperNode alone would stay connected and do nothing."""
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
