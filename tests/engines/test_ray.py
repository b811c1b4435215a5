"""The Ray engine: what can be said without Ray is said here, the rest is run alone with a loopback device."""

import importlib
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spherefed.errors import ConfigError, EngineError
from spherefed.experiment import with_settings
from spherefed.recipes.experiments import digits
from spherefed.runs.runner import Engine, run_to_end
from support.namespace import alone, why_impossible

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
pytest.importorskip("ray")
ray_cluster = importlib.import_module("spherefed.engines.ray_cluster")
Cluster = ray_cluster.Cluster
needs_namespaces = pytest.mark.skipif((reason := why_impossible()) is not None, reason=reason or "")


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Of a machine without a home: Ray keeps its files in a folder with a short name that goes with the test."""
    with tempfile.TemporaryDirectory(prefix="sf-", dir="/tmp", ignore_cleanup_errors=True) as short:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        paths = f"{ROOT / 'src'}:{TESTS}:{ROOT}"
        (tmp_path / "home").mkdir()
        own = {
            "HOME": str(tmp_path / "home"),
            "TMPDIR": short,
            "RAY_TMPDIR": short,
            "MPLCONFIGDIR": short,
            "OMP_NUM_THREADS": "1",
        }
        ray = {name for name in os.environ if name.startswith("RAY_")}
        inherited = {name: value for name, value in os.environ.items() if name not in ray}
        yield {**inherited, **own, "PATH": path, "PYTHONPATH": paths}


def run_alone(command: list[str], environment: dict[str, str], folder: Path) -> "subprocess.CompletedProcess[str]":
    ended = subprocess.run(
        alone(command), cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended


def run_inside(environment: dict[str, str], folder: Path, marker: str) -> None:
    command = [
        sys.executable,
        "-m",
        "pytest",
        str(TESTS / "support" / "ray_inside.py"),
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
    ]
    where = ["--rootdir", str(ROOT), "-c", str(ROOT / "pyproject.toml"), "--basetemp", str(folder / "inside")]
    print(run_alone([*command, *where, "-m", marker, "--durations=0"], environment, folder).stdout)


@needs_namespaces
@pytest.mark.deployment
def test_the_engine_keeps_its_promises_on_a_real_ray(environment: dict[str, str], tmp_path: Path) -> None:
    run_inside(environment, tmp_path, "not soak")


@needs_namespaces
@pytest.mark.soak
def test_the_engine_keeps_the_rest_of_its_promises_on_a_real_ray(environment: dict[str, str], tmp_path: Path) -> None:
    run_inside(environment, tmp_path, "soak")


WHERE = """
from contextlib import closing
from spherefed.assembly import assemble
from spherefed.engines.ray import RayFleet
from spherefed.recipes.experiments import digits
with closing(RayFleet(assemble(digits()), 4, address="auto")) as fleet:
    print("nodes", *fleet.nodes)
"""


@needs_namespaces
@pytest.mark.deployment
def test_the_page_leads_from_ray_start_to_a_run_on_two_raylets(environment: dict[str, str], tmp_path: Path) -> None:
    blocks = re.findall(r"^```bash\n(.*?)^```", (ROOT / "docs" / "ray.md").read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 6
    *before, stop = blocks
    look = f"{sys.executable} -c '{WHERE}'\n"
    script = "set -e\n" + "".join(before) + look + stop + LEFT
    ended = run_alone(["sh", "-c", script], environment, tmp_path)
    results = [json.loads((tmp_path / "runs" / run / "result.json").read_text()) for run in ("ray", "local")]
    assert results[0]["weights_sha256"] == results[1]["weights_sha256"]
    assert ended.stdout.count(results[0]["weights_sha256"]) == 2
    (nodes,) = re.findall("^nodes (.*)$", ended.stdout, re.MULTILINE)
    assert len(nodes.split()) == 4
    assert len(set(nodes.split())) == 2
    assert ended.stdout.endswith("left: []\n")


LEFT = f"{sys.executable} -c 'from support.namespace import ray_processes; print(\"left:\", ray_processes())'\n"
INTERRUPTED = """
import subprocess, sys, time
from pathlib import Path
from support.namespace import ray_processes
lines, settings = Path("cut/rounds.jsonl"), ["--set", "rounds=300", "--set", "data.examples=100"]
heed = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
command = [sys.executable, "-c", heed + "; from spherefed.cli import main; main()", "run", "digits", *settings]
group = subprocess.Popen([*command, "--out", "cut", "--engine", "ray", "--workers", "1"], start_new_session=True)
while group.poll() is None and not (lines.exists() and lines.read_bytes().count(b"\\n") >= 3):
    time.sleep(0.01)
subprocess.run(["kill", "-INT", "--", f"-{group.pid}"], check=True)  # as a terminal does: to all of them
print("code:", group.wait(30))
time.sleep(1)
print("left:", ray_processes())
"""


@needs_namespaces
@pytest.mark.soak
def test_ctrl_c_leaves_a_checkpoint_and_ends_the_ray_that_was_started(
    environment: dict[str, str], tmp_path: Path
) -> None:
    ended = run_alone([sys.executable, "-c", INTERRUPTED], environment, tmp_path)
    assert ended.stdout == "code: 130\nleft: []\n"
    assert "--resume" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not list(Path(environment["TMPDIR"]).glob("sf-ray-*"))
    experiment = with_settings(digits(), ["rounds=300", "data.examples=100"])
    whole = run_to_end(experiment, tmp_path / "whole")
    assert run_to_end(experiment, tmp_path / "cut", resume=True)["weights_sha256"] == whole["weights_sha256"]


@needs_namespaces
@pytest.mark.soak
def test_ray_adds_at_most_its_goal_to_a_round(environment: dict[str, str], tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "ray_overhead.py"), "--rounds", "50"]
    print(run_alone(command, environment, tmp_path).stdout)


# Without Ray, or without a cluster


def test_without_ray_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("spherefed.engines.ray", "spherefed.engines.ray_actor", "spherefed.engines.ray_cluster"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install -e '\.\[ray\]'"):
        run_to_end(digits(), tmp_path / "run", engine=Engine(kind="ray"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"kind": "slurm"}, "local or ray"),
        ({"address": "auto"}, "--engine ray"),
    ],
)
def test_an_engine_is_checked_where_it_is_made(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Engine(**wrong)


@pytest.mark.parametrize(
    "address", ["nonsense", "ray://127.0.0.1:10001", ":6379", "host:", "host:0", "host:65536", "host:²"]
)
def test_an_address_that_is_none_is_refused(address: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="HOST:PORT"):
        run_to_end(digits(), tmp_path / "run", engine=Engine(kind="ray", address=address))
    assert not (tmp_path / "run").exists()


def test_where_nobody_listens_there_is_no_cluster() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    began = time.monotonic()
    with pytest.raises(EngineError, match=r"Connection refused; start one with `ray start --head`"):
        Cluster(f"127.0.0.1:{port}", 0)
    assert time.monotonic() - began < 2


@pytest.mark.slow
def test_somebody_who_is_no_ray_cluster_is_not_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, "CONNECT_TIMEOUT", 3.0)
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        pytest.raises(EngineError, match=r"no Ray cluster answered at .* within 3 s"),
    ):
        Cluster(f"127.0.0.1:{server.getsockname()[1]}", 0)


def test_what_a_cluster_says_is_told_in_one_line() -> None:
    said = "Version mismatch: The cluster was started with:\n    Ray: 2.60.0\nThis process with:\n    Ray: 9.9.9\n"
    assert "\n" not in ray_cluster._cause(said)
    assert "Ray: 2.60.0" in ray_cluster._cause(said)
    assert "RAY_AUTH_MODE=token" in ray_cluster._cause("…AuthenticationError: RPC error: InvalidAuthToken: …")
