"""Control a running server through Flower's `flwr` command: start a run, follow its log, list sites and runs."""

import json
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

from spherefed.deployment.folder import CONNECTION, read_server, toml_value
from spherefed.deployment.keys import KEYS, NODES, UNREGISTERED, read_nodes
from spherefed.deployment.programs import PATIENCE, environment, flwr, flwr_json, healthy, program
from spherefed.deployment.server import RunRequest
from spherefed.errors import FederationError
from spherefed.runs.runner import Progress

ROUND = re.compile(r"^round (\d+) of (\d+): loss (\S+?)(?:, accuracy ([\d.]+)%)?$")
"""A line that the server prints after each round (`app.py`)."""
STARTED = re.compile(r"Successfully started run (\d+)")


def run(folder: Path, request: RunRequest) -> Iterator[Progress]:
    """Submit the run, yield after every round until it ends, and raise an error of the run here.

    Closing the iterator (or Ctrl-C) stops the run; it can be resumed.
    """
    check_up(folder)
    request = replace(request, keys=keys(folder), sites=json.dumps(read_server(folder).sites))
    with tempfile.TemporaryDirectory(prefix="spherefed-run-") as scratch:
        config = Path(scratch) / "run.toml"
        config.write_text(
            "".join(f"{name} = {toml_value(value)}\n" for name, value in asdict(request).items()), "utf-8"
        )
        command = [program("flwr"), "run", str(folder / "app"), CONNECTION, "--run-config", str(config), "--stream"]
        process = subprocess.Popen(
            command, env=environment(folder), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        flower_run, finished, lines = "", False, []
        assert process.stdout is not None
        try:
            for raw in process.stdout:
                line = re.sub(r"\x1b\[[0-9;]*m", "", raw).strip()
                lines.append(line)
                if found := STARTED.search(line):
                    flower_run = found[1]
                finished = finished or line == "finished"
                if line.startswith("error: "):
                    raise FederationError(line.removeprefix("error: "))
                if (progress := read_round(line)) is not None:
                    yield progress
        except (KeyboardInterrupt, GeneratorExit):
            _stop(folder, flower_run)
            raise
        finally:
            process.terminate()
            process.wait(timeout=PATIENCE)
    if not finished:
        raise FederationError(
            f"the run, or only its log, ended early; Flower's last lines: {' / '.join(lines[-5:])}; "
            f"`spherefed deploy status {folder}` shows whether the run still goes on; --resume continues a stopped run"
        )


def read_round(line: str) -> Progress | None:
    """What a line of the server says about a finished round; None if it is another line.

    >>> read_round("round 2 of 4: loss 0.5000, accuracy 75.00%")
    Progress(index=1, rounds=4, loss=0.5, accuracy=0.75)
    """
    if (found := ROUND.match(line)) is None:
        return None
    index, rounds, loss, accuracy = found.groups()
    shown = None if accuracy is None else float(accuracy) / 100
    return Progress(index=int(index) - 1, rounds=int(rounds), loss=float(loss), accuracy=shown)


def _stop(folder: Path, flower_run: str) -> None:
    """Stop this Flower run only."""
    with suppress(FederationError):
        if flower_run:
            flwr(folder, "stop", flower_run, CONNECTION)


def keys(folder: Path) -> str:
    """The client whose key each node has, as JSON {node: client}; empty without authentication."""
    server, nodes = read_server(folder), read_nodes(folder)
    if server.insecure:
        return "{}"
    if missing := [name for name in server.sites if name not in nodes and (folder / KEYS / f"{name}.pub").exists()]:
        raise FederationError(
            f"{folder / NODES} does not list the node of {', '.join(missing)}; stop the server, delete that file and "
            "state.db, and start the server again: it then registers all sites"
        )
    return json.dumps({nodes[name]: client for client, name in enumerate(server.sites) if name in nodes})


Rows = list[tuple[str, ...]]


def sites(folder: Path) -> Rows:
    """Rows of site, client, status, time of the last change: all sites of the deployment, then unknown nodes."""
    server, names = read_server(folder), {node: name for name, node in read_nodes(folder).items()}
    nodes = [node for node in flwr_json(folder, "supernode list", "nodes") if node["status"] not in UNREGISTERED]
    found = {names.get(str(node["node-id"]), str(node["node-id"])): node for node in nodes}
    rows: Rows = []
    for name in [*server.sites, *(name for name in found if name not in server.sites)]:
        client = str(server.sites.index(name)) if name in server.sites else "?"
        key = server.insecure or (folder / KEYS / f"{name}.pub").exists()
        node = found.get(name, {"status": "unknown" if key else "no key"})
        since = node.get("online-at") if node["status"] == "online" else node.get("offline-at")
        rows.append((name, client, str(node["status"]), str(since or "–")))
    return rows


def runs(folder: Path) -> Rows:
    """Rows of Flower's run id, status, time of submission and duration in seconds; newest first."""
    return [
        (str(r["run-id"]), str(r["status"]), str(r["pending-at"]), f"{float(r['elapsed']):.0f}")
        for r in flwr_json(folder, "list", "runs")
    ]


def check_up(folder: Path) -> None:
    server = read_server(folder)
    if not healthy(folder, server):
        raise FederationError(f"no server answers at {server.address}:{server.port}; start it with {folder}/start.sh")
