"""Real deployments: Flower's programs on loopback, with TLS and a key for each site."""

import os
import re
import shutil
import signal
import socket
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from spherefed.client.evaluation import LOCAL_TEST_BY_SAMPLES
from spherefed.data.partition import Iid
from spherefed.deployment import control
from spherefed.deployment.programs import free_port
from spherefed.experiment import Experiment, experiment_to_json
from spherefed.runs.directory import RunDirectory
from spherefed.runs.round_log import read_lines
from spherefed.runs.runner import run_to_end
from support.machines import Deployment, deployment, end_all, environment, processes_of, until
from support.methods_on_digits import nova_ccvr, rep, spherefed, without_clients

ROOT = Path(__file__).parents[2]


@pytest.mark.deployment
def test_the_tutorial_works_from_its_first_line_to_its_last(tmp_path: Path) -> None:
    """SphereFed + FFC at three sites with their own data, TLS, authentication, one of them killed in mid-run."""
    script = tmp_path / "tutorial.sh"
    script.write_text("set -eu\n" + "\n".join(tutorial_blocks()), encoding="utf-8")
    try:
        # Output goes to a file: a pipe would stay open as long as anything started here lives.
        with (tmp_path / "said.txt").open("wb") as said:
            done = subprocess.run(
                ["bash", script],
                cwd=tmp_path,
                env=environment(PORT=str(free_port())),
                stdout=said,
                stderr=subprocess.STDOUT,
                timeout=900,
                check=False,
            )
        output = (tmp_path / "said.txt").read_text(encoding="utf-8")
        assert done.returncode == 0, output[-4000:]
        assert not processes_of(tmp_path)
    finally:
        end_all(tmp_path)
    runs = tmp_path / "trial" / "runs"
    accuracy = RunDirectory(runs / "first").result()["accuracy"]
    assert accuracy["calibrated"][LOCAL_TEST_BY_SAMPLES] > 0.8
    assert [line["clients"] for line in read_lines(runs / "first" / "rounds.jsonl")] == [[0, 1, 2]] * 4
    lines = read_lines(runs / "second" / "rounds.jsonl")
    assert len(lines) == 4
    assert lines[-1]["clients"] == [0, 1]
    assert {line["client"] for line in read_lines(runs / "second" / "rejections.jsonl")} == {2}
    assert re.search(
        r"evaluated on 2 of 3 sites; west missing since round \d", (tmp_path / "trial" / "second.log").read_text()
    )


@pytest.mark.deployment
def test_the_tutorial_ends_its_wait_and_says_why_if_the_port_is_taken(tmp_path: Path) -> None:
    blocks = tutorial_blocks()
    (start,) = (number for number, block in enumerate(blocks) if "server/start.sh" in block)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        said = subprocess.run(
            ["bash", "-c", "set -eu\n" + "\n".join(blocks[: start + 1])],
            cwd=tmp_path,
            env=environment(PORT=str(port)),
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        ).stdout
    assert f"error: port {port} is in use" in said.splitlines()[-1]


def tutorial_blocks() -> list[str]:
    """The commands of the tutorial, in order."""
    text = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    return re.findall(r"^```bash\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def experiment_file(path: Path, experiment: Experiment) -> Path:
    path.write_text(experiment_to_json(experiment), encoding="utf-8")
    return path


METHODS = {"spherefed": spherefed, "nova-ccvr": nova_ccvr, "fedrep": rep}


def hashes(out: Path) -> tuple[str, str, object]:
    result = RunDirectory(out).result()
    return result["weights_sha256"], result["statistics_sha256"], result["accuracy"]


@pytest.mark.soak
def test_engines_agree_on_real_machines(tmp_path: Path) -> None:
    """Three methods, 4 sites, 3 rounds: the bits of the local engine."""
    with deployment(tmp_path / "d") as real:
        real.start_all()
        for name, make in METHODS.items():
            experiment = replace(make(), deadline=60.0)
            real.run_to_end(experiment_file(tmp_path / f"{name}.json", experiment), tmp_path / f"flower-{name}")
            run_to_end(experiment, tmp_path / f"local-{name}")
            assert hashes(tmp_path / f"flower-{name}") == hashes(tmp_path / f"local-{name}"), name


@pytest.mark.soak
@pytest.mark.parametrize("method", ["spherefed", "fedrep"])
def test_a_killed_server_app_and_a_killed_superlink_cost_at_most_a_round(method: str, tmp_path: Path) -> None:
    experiment = replace(METHODS[method](), deadline=60.0, rounds=6)
    file, out = experiment_file(tmp_path / "e.json", experiment), tmp_path / "flower"
    lines = out / "rounds.jsonl"

    def rounds_done(number: int) -> bool:
        return lines.exists() and len(read_lines(lines)) >= number

    with deployment(tmp_path / "d") as real:
        real.start_all()
        first = real.run(file, out)
        until(lambda: rounds_done(2), "two rounds")
        server_app = [pid for pid in processes_of(real.path / "server") if b"flwr-serverapp" in command_of(pid)]
        assert server_app
        for pid in server_app:
            os.kill(pid, signal.SIGKILL)
        said, _ = first.communicate(timeout=240)
        assert first.returncode == 1, said
        assert "--resume" in said
        second = real.run(file, out, "--resume")
        until(lambda: rounds_done(4), "two more rounds", 240)
        real.kill("server")
        said, _ = second.communicate(timeout=240)
        assert second.returncode == 1, said
        real.start("server")
        until(lambda: real.said("server").count("\nready") == 2, "the server again")
        real.run_to_end(file, out, "--resume", "--wait", "180")
    run_to_end(experiment, tmp_path / "local")
    assert hashes(out) == hashes(tmp_path / "local")
    assert [line["round"] for line in read_lines(lines)] == list(range(6))


@pytest.mark.soak
def test_strangers_are_refused(tmp_path: Path) -> None:
    """A key that nobody registered, a server certificate of another authority, and plain text."""
    with deployment(tmp_path / "d", num_sites=2) as real:
        real.start_all()
        stranger = real.path / "sites" / "site-0"
        other = Deployment(tmp_path / "other", 1)
        for name, change in {
            "unregistered": lambda folder: shutil.copy(tmp_path / "other" / "sites" / "site-0" / "site.key", folder),
            "wrong-ca": lambda folder: shutil.copy(tmp_path / "other" / "ca" / "ca.crt", folder),
            "plain-text": lambda folder: (folder / "site.toml").write_text(
                (folder / "site.toml").read_text().replace("insecure = false", "insecure = true")
            ),
        }.items():
            shutil.copytree(stranger, real.path / "sites" / name, ignore=shutil.ignore_patterns("flower"))
            change(real.path / "sites" / name)
            real.start(name)
        rejections = {
            "unregistered": "ended with exit code",
            "wrong-ca": "CERTIFICATE_VERIFY_FAILED",
            "plain-text": "Connection attempt failed",
        }
        for name, pattern in rejections.items():
            until(lambda name=name, pattern=pattern: re.search(pattern, real.said(name)) is not None, name)
        until(lambda: online(real) == ["site-0", "site-1"], "the two that may join")
        assert "rejected 127.0.0.1: no valid signature of a site" in real.said("server")
        experiment = replace(spherefed(), deadline=60.0, partition=Iid(clients=2), rounds=1)
        real.run_to_end(experiment_file(tmp_path / "e.json", experiment), tmp_path / "flower")
        assert online(real) == ["site-0", "site-1"]
        assert other.started == {}


FAULTY = """
import dataclasses, os, torch
import spherefed.deployment.site as site
honest = site.answer
def faulty(message, *rest):
    reply = honest(message, *rest)
    if type(message).__name__ == "Handshake":
        return reply
    if os.environ["FAULT"] == "raises" or type(message).__name__ != "Train":
        raise RuntimeError("a bug at the site")
    change = {"nan": lambda t: t * float("nan"), "shapes": lambda t: torch.cat([t, t])}[os.environ["FAULT"]]
    return dataclasses.replace(reply, delta={name: change(t) for name, t in reply.delta.items()})
site.answer = faulty
"""


@pytest.mark.soak
def test_faulty_sites_change_nothing_for_the_others_on_real_machines(tmp_path: Path) -> None:
    """One that raises, one that sends NaN, one that sends wrong shapes; what counts is the honest one's."""
    (tmp_path / "sitecustomize.py").write_text(FAULTY)
    experiment = replace(spherefed(), deadline=60.0)
    with deployment(tmp_path / "d") as real:
        real.start("server")
        until(lambda: "\nready" in real.said("server"), "the server")
        real.start("site-0")
        for name, fault in (("site-1", "raises"), ("site-2", "nan"), ("site-3", "shapes")):
            real.start(name, PYTHONPATH=str(tmp_path), FAULT=fault)
        real.run_to_end(experiment_file(tmp_path / "e.json", experiment), tmp_path / "flower")
    expected = without_clients(experiment, {1, 2, 3}, tmp_path / "local")
    assert RunDirectory(tmp_path / "flower").result()["weights_sha256"] == expected["weights_sha256"]
    causes = {
        line["client"]: line["cause"]
        for line in read_lines(tmp_path / "flower" / "rejections.jsonl")
        if line["round"] == 0
    }
    assert "a bug at the site" in causes[1]
    assert "not finite" in causes[2]
    assert "has shape" in causes[3]


def online(real: Deployment) -> list[str]:
    return [row[0] for row in control.sites(real.path / "server") if row[2] == "online"]


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
