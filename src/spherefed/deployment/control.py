"""Orders to a running server: start a run, follow it, ask who is there. Flower's own command does the talking."""

import json
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from spherefed.deployment.folder import CONNECTION, read_server, toml_value
from spherefed.deployment.roles import PATIENCE, environment, healthy, program, read_nodes
from spherefed.deployment.server import Order
from spherefed.errors import FederationError

LINE = re.compile(r"^(round \d+ of \d+: .*|error: .*|finished)$")
"""What the server app says that is meant for the user; the rest is Flower's."""


def run(folder: Path, order: Order) -> Iterator[str]:
    """Submit the order and yield what the server says until the run is over; an error of the run is raised here."""
    check_up(folder)
    with tempfile.TemporaryDirectory(prefix="spherefed-order-") as scratch:
        config = Path(scratch) / "order.toml"
        config.write_text("".join(f"{name} = {toml_value(value)}\n" for name, value in asdict(order).items()), "utf-8")
        command = [program("flwr"), "run", str(folder / "app"), CONNECTION, "--run-config", str(config), "--stream"]
        process = subprocess.Popen(
            command, env=environment(folder), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        finished, said = False, []
        assert process.stdout is not None
        try:
            for raw in process.stdout:
                line = re.sub(r"\x1b\[[0-9;]*m", "", raw).strip()
                said.append(line)
                if line.startswith("error: "):
                    raise FederationError(line.removeprefix("error: "))
                if line == "finished":
                    finished = True
                elif LINE.match(line):
                    yield line
        finally:
            process.terminate()
            process.wait(timeout=PATIENCE)
    if not finished:
        raise FederationError(f"the run ended early; Flower said: {' / '.join(said[-5:])}; --resume goes on with it")


def stop_all(folder: Path) -> None:
    """End runs that are still going on, for instance after Ctrl-C."""
    for flower_run in _json(folder, "list", "runs"):
        if str(flower_run.get("status", "")).startswith(("running", "pending", "starting")):
            with suppress(FederationError):
                _flwr(folder, "stop", str(flower_run["run-id"]), CONNECTION)


Rows = list[tuple[str, ...]]


def sites(folder: Path) -> Rows:
    """Site, client, whether it is online, since when: every site that may join, and strangers if there are any."""
    server, names = read_server(folder), {node: name for name, node in read_nodes(folder).items()}
    found = {names.get(str(n["node-id"]), str(n["node-id"])): n for n in _json(folder, "supernode list", "nodes")}
    rows: Rows = []
    for name in [*server.sites, *(name for name in found if name not in server.sites)]:
        client = str(server.sites.index(name)) if name in server.sites else "?"
        node = found.get(name, {"status": "unknown"})
        since = node.get("online-at") if node["status"] == "online" else node.get("offline-at")
        rows.append((name, client, str(node["status"]), str(since or "–")))
    return rows


def runs(folder: Path) -> Rows:
    """Flower's number of a run, its state, when it was submitted and for how many seconds it went on; newest first."""
    return [
        (str(r["run-id"]), str(r["status"]), str(r["pending-at"]), f"{float(r['elapsed']):.0f}")
        for r in _json(folder, "list", "runs")
    ]


def check_up(folder: Path) -> None:
    server = read_server(folder)
    if not healthy(folder, server):
        raise FederationError(f"no server answers at {server.address}:{server.port}; start it with {folder}/start.sh")


def _json(folder: Path, verb: str, key: str) -> list[dict[str, Any]]:
    said = json.loads(_flwr(folder, *verb.split(), CONNECTION, "--format", "json"))
    if not said.get("success", False):
        raise FederationError(f"flwr {verb} failed: {said.get('error-message', said)}")
    found: list[dict[str, Any]] = said.get(key, [])
    return found


def _flwr(folder: Path, *arguments: str) -> str:
    said = subprocess.run(
        [program("flwr"), *arguments],
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    if said.returncode:
        raise FederationError(f"flwr {arguments[0]} failed: {' '.join((said.stdout + said.stderr).split())}")
    return said.stdout
