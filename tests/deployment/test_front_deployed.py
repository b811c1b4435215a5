"""Attacks on the open port of a real server (127.0.0.2) while it trains; the operator uses 127.0.0.1."""

import re
import signal
import socket
import stat
import subprocess
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from spherefed.data.partition import Iid
from spherefed.deployment import control
from spherefed.deployment.folder import read_connection
from spherefed.deployment.keys import read_nodes
from spherefed.experiment import experiment_to_json
from spherefed.report.watch import watch_page
from spherefed.runs.round_log import read_lines
from support.machines import BIN, Deployment, deployment, environment, processes_of, until
from support.methods_on_digits import spherefed
from support.outside import OUTSIDE, ask_as, attack
from support.tricks import rejected, site_request

CROWD = "127.0.0.3"

APP = """
[project]
name = "foreign"
version = "1.0.0"
description = ""
license = "Apache-2.0"
dependencies = []
requires-python = ">=3.11"
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[tool.flwr.app]
publisher = "foreign"
[tool.flwr.app.components]
serverapp = "foreign:app"
clientapp = "foreign:client"
"""
CODE = """
from pathlib import Path
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
app = ServerApp()
client = ClientApp()
@app.main()
def main(grid, context):
    Path({marker!r}).write_text("foreign code ran here")
"""


@pytest.mark.deployment
def test_only_sites_have_access_from_outside_and_training_continues(tmp_path: Path) -> None:
    experiment = replace(spherefed(), deadline=60.0, partition=Iid(clients=2), rounds=100)
    file, out = tmp_path / "e.json", tmp_path / "run"
    file.write_text(experiment_to_json(experiment), encoding="utf-8")

    def rounds() -> list[list[int]]:
        return [line["clients"] for line in read_lines(out / "rounds.jsonl")] if out.exists() else []

    with deployment(tmp_path / "d", num_sites=2, address=OUTSIDE) as real:
        real.start_all()
        operator = real.run(file, out)
        until(lambda: len(rounds()) > 0, "the first round")
        crowd = [_silent_connection(real) for _ in range(120)]
        tried, reached = attack(real)
        foreign = _foreign_commands(real, tmp_path)
        before = len(rounds())
        _watch(out, tmp_path / "page.html")
        until(lambda: len(rounds()) > before, "training to go on")
        for connection in crowd:
            connection.close()
        assert reached == []
        assert tried >= 2 * 40
        assert set(foreign.values()) == {"rejected"}, foreign
        assert _listening(real) == {(OUTSIDE, real.port), read_connection(real.path / "server")}
        done = rounds()  # once: training goes on meanwhile
        assert done == [[0, 1]] * len(done)
        assert stat.S_IMODE((real.path / "server").stat().st_mode) == 0o700
        assert {stat.S_IMODE(file.stat().st_mode) for file in (real.path / "server").glob("state.db*")} == {0o600}
        operator.send_signal(signal.SIGINT)
        said = operator.communicate(timeout=240)[0]
        assert "the run is stopped" in said
        assert re.search(
            r"\d+/100 rounds, \d:\d\d:\d\d, \d:\d\d:\d\d left; .*: round \d+/100: [012]/2 clients, loss", said
        )
        _revoke(real)
        # The same command works on the server's own machine, so the front rejected valid commands.
        assert not (tmp_path / "marker").exists()
        assert _flwr(real.path / "server" / "flower", tmp_path, "run", str(tmp_path / "app"))[0] == 0
        until((tmp_path / "marker").exists, "the operator's run")


def _watch(out: Path, page: Path) -> None:
    """The page of `spherefed report --watch` follows rounds, clients and sites."""
    shown = set[str]()
    with closing(watch_page([out], page, interval=1.0)) as watching:  # type: ignore[type-var]
        for _ in zip(watching, range(120), strict=False):
            text = page.read_text(encoding="utf-8")
            assert '<meta http-equiv="refresh" content="1">' in text
            (bar,) = re.findall(r"round (\d+) of 100, [012] of 2 clients, loss [\d.]+", text) or [""]
            shown.add(bar)
            if len(shown - {""}) > 1:
                break
    assert len(shown - {""}) > 1, "the page is written again as rounds are done"
    assert re.search(r">running, [\d.]+ \w+ left", text)
    assert "Sites of run" in text
    assert {"site-0", "site-1"} <= set(re.findall(r"site-\d", text))


def _foreign_commands(real: Deployment, tmp_path: Path) -> dict[str, str]:
    """Run Flower's own command with only the authority's certificate, as an outsider could."""
    home, app = tmp_path / "home", tmp_path / "app"
    home.mkdir()
    app.mkdir()
    (app / "pyproject.toml").write_text(APP)
    (app / "foreign.py").write_text(CODE.format(marker=str(tmp_path / "marker")))
    (home / "config.toml").write_text(
        f'[superlink.federation]\naddress = "{OUTSIDE}:{real.port}"\n'
        f'root-certificates = "{real.path / "ca" / "ca.crt"}"\n'
    )
    node = read_nodes(real.path / "server")["site-1"]
    commands = [["run", str(app)], ["supernode", "unregister", node], ["list"]]
    outcome = {}
    for words in commands:
        code, said = _flwr(home, tmp_path, *words)
        outcome[words[0]] = "rejected" if code and "404" in said else f"{code}: {said}"
    return outcome


def _flwr(home: Path, tmp_path: Path, *words: str) -> tuple[int, str]:
    done = subprocess.run(
        [BIN / "flwr", *words, "federation"],
        env=environment(FLWR_HOME=str(home), FLWR_TELEMETRY_ENABLED="0", FLWR_DISABLE_UPDATE_CHECK="1"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def _silent_connection(real: Deployment) -> socket.socket:
    """A connection that sends nothing, from another address."""
    return socket.create_connection((OUTSIDE, real.port), timeout=10, source_address=(CROWD, 0))


def _listening(real: Deployment) -> set[tuple[str, int]]:
    """The addresses on which processes of the server listen, from the kernel's tables."""
    inodes: set[str] = set()
    for pid in processes_of(real.path / "server"):
        for entry in Path(f"/proc/{pid}/fd").glob("*"):
            with suppress(OSError):  # closed in the meantime
                inodes |= set(re.findall(r"socket:\[(\d+)\]", str(entry.readlink())))
    listening = set()
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                address, port = fields[1].split(":")
                words = [bytes.fromhex(address[at : at + 8])[::-1] for at in range(0, len(address), 8)]
                listening.add((socket.inet_ntop(family, b"".join(words)), int(port, 16)))
    return listening


def _revoke(real: Deployment) -> None:
    """A site with a revoked key is rejected at once, also after a restart."""
    assert [row[2] for row in control.sites(real.path / "server")] == ["online", "online"]
    subprocess.run(
        [BIN / "spherefed", "deploy", "revoke", real.path / "server", "site-1"],
        env=environment(),
        stdout=subprocess.DEVNULL,
        check=True,
    )
    assert {name: rejected(ask_as(real, name, site_request())) for name in real.sites} == {
        "site-0": False,
        "site-1": True,
    }
    until(lambda: "restart in" in real.said("site-1"), "the site to notice")
    assert [row[2] for row in control.sites(real.path / "server")] == ["online", "no key"]
