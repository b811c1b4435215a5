"""Orders to a running server: start a run, follow it, ask who is there. Flower's own command does the talking."""

import json
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from spherefed.deployment.folder import CONNECTION, read_server, toml_value
from spherefed.deployment.roles import NODES, PATIENCE, environment, flwr, healthy, program, read_nodes
from spherefed.deployment.server import Order
from spherefed.errors import FederationError

ROUND = re.compile(r"^round \d+ of \d+: ")
STARTED = re.compile(r"Successfully started run (\d+)")


def run(folder: Path, order: Order) -> Iterator[str]:
    """Submit the order and yield what the server says until the run is over; an error of the run is raised here.

    Stopping the iteration (or Ctrl-C) stops the run, which can be resumed.
    """
    check_up(folder)
    order = replace(order, keys=keys(folder))
    with tempfile.TemporaryDirectory(prefix="spherefed-order-") as scratch:
        config = Path(scratch) / "order.toml"
        config.write_text("".join(f"{name} = {toml_value(value)}\n" for name, value in asdict(order).items()), "utf-8")
        command = [program("flwr"), "run", str(folder / "app"), CONNECTION, "--run-config", str(config), "--stream"]
        process = subprocess.Popen(
            command, env=environment(folder), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        number, over, said = "", False, []
        assert process.stdout is not None
        try:
            for raw in process.stdout:
                line = re.sub(r"\x1b\[[0-9;]*m", "", raw).strip()
                said.append(line)
                if found := STARTED.search(line):
                    number = found[1]
                over = over or line == "finished"
                if line.startswith("error: "):
                    raise FederationError(line.removeprefix("error: "))
                if ROUND.match(line):
                    yield line
        except (KeyboardInterrupt, GeneratorExit):
            _stop(folder, number)
            raise
        finally:
            process.terminate()
            process.wait(timeout=PATIENCE)
    if not over:
        raise FederationError(
            f"the run ended early, or only its log: Flower said: {' / '.join(said[-5:])}; "
            f"`spherefed deploy status {folder}` says which, and --resume goes on with it"
        )


def _stop(folder: Path, number: str) -> None:
    """End this run of Flower's, and no other."""
    with suppress(FederationError):
        if number:
            flwr(folder, "stop", number, CONNECTION)


def keys(folder: Path) -> str:
    """Which client's key each node has, as JSON for the order; empty without authentication."""
    server, nodes = read_server(folder), read_nodes(folder)
    if server.insecure:
        return "{}"
    if missing := [name for name in server.sites if name not in nodes and (folder / "keys" / f"{name}.pub").exists()]:
        raise FederationError(
            f"{folder / NODES} does not say which node is {', '.join(missing)}; stop the server, delete that file and "
            "state.db, and start it again: it will register the sites anew"
        )
    return json.dumps({nodes[name]: client for client, name in enumerate(server.sites) if name in nodes})


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
    said = flwr(folder, *verb.split(), CONNECTION, "--format", "json")
    try:
        answer = json.loads(said)
    except ValueError as error:
        raise FederationError(f"flwr {verb} said what is no JSON: {' '.join(said.split())[:200]}") from error
    if not answer.get("success", False):
        raise FederationError(f"flwr {verb} failed: {answer.get('error-message', answer)}")
    found: list[dict[str, Any]] = answer.get(key, [])
    return found
