"""Random faults on a real deployment of four sites while it trains: kill, stop, disconnect, slow down, full disk.

Every site reaches the server through a link of its own, which can be cut or slowed down. Runs follow each other until
the time is over; then everything is repaired and the last run finishes.
"""

import os
import random
import resource
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from spherefed.deployment.folder import read_site, write_site
from spherefed.engines.local import InProcess
from spherefed.experiment import Experiment, experiment_to_json
from spherefed.messages import Failure, Measure, Train
from spherefed.runs import runner
from spherefed.runs.directory import RunDirectory
from spherefed.runs.round_log import read_lines
from support.machines import Deployment, deployment, processes_of, until
from support.methods_on_digits import spherefed

SITES = 4
SLOW_SECONDS = 0.3
"""Delay of each piece of data on a slow link."""
MAX_FAULTY, SPARED_SECONDS = 2, 30.0
"""Sites with a fault at the same time, and time for a repaired one to start and to connect again."""
ROUNDS_BETWEEN = 2
"""Rounds between faults of the server: a run that never gets to its next checkpoint cannot finish."""


@dataclass(slots=True)
class Report:
    """What happened."""

    seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    rounds: int = 0
    resumed: int = 0
    incomplete: int = 0
    """Rounds in which not every site counted."""
    events: list[str] = field(default_factory=list)


class Link:
    """A TCP connection between one site and the server that can be cut and slowed down."""

    def __init__(self, server: tuple[str, int]) -> None:
        self.server, self.cut, self.delay = server, False, 0.0
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            if self.cut:
                near.close()
                continue
            try:
                far = socket.create_connection(self.server, timeout=5)
                far.settimeout(None)
            except OSError:  # the server is down
                near.close()
                continue
            self._open |= {near, far}
            Thread(target=self._pump, args=(near, far), daemon=True).start()
            Thread(target=self._pump, args=(far, near), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while content := source.recv(65536):
                time.sleep(self.delay)
                sink.sendall(content)
        for end in (source, sink):
            self._open.discard(end)
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def disconnect(self) -> None:
        self.cut = True
        for end in list(self._open):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.disconnect()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


class Chaos:
    """A deployment whose parts fail; each fault returns the function that repairs it."""

    def __init__(self, real: Deployment, seed: int) -> None:
        self.real, self.random, self.report = real, random.Random(seed), Report()
        self.links = {name: Link((real.address, real.port)) for name in real.sites}
        for name, link in self.links.items():
            folder = real.path / "sites" / name
            kept = {"client_state": "client_state", "record": "record.json"}
            write_site(folder, replace(read_site(folder), server=f"127.0.0.1:{link.port}", **kept), authority=None)
        self._repairs: dict[str, tuple[float, Callable[[], None]]] = {}
        """By target: when it is repaired, and how."""
        self._began = time.monotonic()
        self._spared: dict[str, float] = {}
        """By site: until when it has no further fault."""
        self.rounds_done = 0
        self._server_spared_until = ROUNDS_BETWEEN

    def note(self, text: str) -> None:
        self.report.events.append(f"{time.monotonic() - self._began:6.1f} s  {text}")

    def folder(self, name: str) -> Path:
        return self.real.path / "server" if name == "server" else self.real.path / "sites" / name

    def kill(self, name: str) -> Callable[[], None]:
        self.real.kill(name)
        return lambda: self.start(name)

    def start(self, name: str) -> None:
        before = self.real.said(name).count("\nready")
        self.real.start(name)
        if name == "server":
            until(lambda: self.real.said(name).count("\nready") > before, "the server again", 120)

    def stop(self, name: str) -> Callable[[], None]:
        stopped = processes_of(self.folder(name))
        self._signal(stopped, signal.SIGSTOP)
        return lambda: self._signal(stopped, signal.SIGCONT)

    def _signal(self, pids: list[int], number: signal.Signals) -> None:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def disconnect(self, name: str) -> Callable[[], None]:
        link = self.links[name]
        link.disconnect()
        return lambda: setattr(link, "cut", False)

    def slow_down(self, name: str) -> Callable[[], None]:
        link = self.links[name]
        link.delay = SLOW_SECONDS
        return lambda: setattr(link, "delay", 0.0)

    def fill_disk(self, name: str) -> Callable[[], None]:
        """No process of this role can write a byte to a file until the repair."""
        limited = processes_of(self.folder(name))
        self._limit(limited, 0)
        return lambda: self._limit(limited, resource.RLIM_INFINITY)

    def _limit(self, pids: list[int], size: int) -> None:
        for pid in pids:
            with suppress(ProcessLookupError, PermissionError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    def kill_server_app(self, _: str) -> Callable[[], None]:
        for pid in processes_of(self.folder("server")):
            with suppress(OSError):
                if b"flwr-serverapp" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)
        return lambda: None

    def inject(self) -> None:
        """One random fault at a target that works now."""
        names = {
            "kill a site": self.kill,
            "stop a site": self.stop,
            "disconnect a site": self.disconnect,
            "slow down a site": self.slow_down,
            "full disk at a site": self.fill_disk,
            "kill the server": self.kill,
            "kill the server app": self.kill_server_app,
            "full disk at the server": self.fill_disk,
        }
        at_server = self.rounds_done >= self._server_spared_until
        name = self.random.choice([name for name in names if ("server" in name) == at_server])
        target = "server" if at_server else self.random.choice(self.real.sites)
        faulty = self._repairs.keys() - {"server"}
        if target in self._repairs or self._spared.get(target, 0.0) > time.monotonic() or len(faulty) >= MAX_FAULTY:
            return
        if at_server:
            self._server_spared_until = self.rounds_done + ROUNDS_BETWEEN
        seconds = self.random.uniform(2, 8) if target == "server" else self.random.uniform(3, 25)
        self.note(f"{name}: {target}, for {seconds:.0f} s")
        self.report.faults[name] += 1
        self._repairs[target] = (time.monotonic() + seconds, names[name](target))

    def repair(self, *, everything: bool = False) -> None:
        """Repair what is due, and start roles that ended, as systemd would."""
        for target, (when, how) in list(self._repairs.items()):
            if everything or time.monotonic() >= when:
                del self._repairs[target]
                how()
                self._spared[target] = time.monotonic() + (0.0 if target == "server" else SPARED_SECONDS)
                self.note(f"repaired: {target}")
        for name in ["server", *self.real.sites]:
            process = self.real.started.get(name)
            if process is not None and process.poll() is not None and name not in self._repairs:
                self.note(f"{name} ended with exit code {process.returncode}; started again")
                self.real.kill(name)
                self.start(name)


def unleash(path: Path, seconds: float, *, rounds: int, seed: int, deadline: float = 15.0) -> Report:
    """Run faults for so long; every run finishes with the weights of the clients that counted."""
    experiment = replace(spherefed(), rounds=rounds, deadline=deadline, quorum=0.25)
    file, temporary = path / "e.json", path / "tmp"
    temporary.mkdir(parents=True)
    file.write_text(experiment_to_json(experiment), encoding="utf-8")
    with _temporary_files(temporary), deployment(path / "d", SITES) as real:
        chaos = Chaos(real, seed)
        report = chaos.report
        try:
            real.start_all()
            began = time.monotonic()
            while time.monotonic() - began < seconds:
                out = path / f"run-{report.runs}"
                _run(chaos, file, out, until_time=began + seconds)
                _check_weights(experiment, out, path / f"again-{report.runs}")
                _count(report, out)
            report.seconds = time.monotonic() - began
            _check_nothing_left(path, real)
        except BaseException:
            print("\n".join(report.events))
            raise
        finally:
            chaos.repair(everything=True)
            for link in chaos.links.values():
                link.close()
    left = [file for file in temporary.iterdir() if not file.name.startswith("torchinductor")]  # torch's own cache
    assert left == []
    return report


@contextmanager
def _temporary_files(folder: Path) -> Iterator[None]:
    """Let all processes that are started here use this folder for temporary files."""
    before = os.environ.get("TMPDIR")
    os.environ["TMPDIR"] = str(folder)
    try:
        yield
    finally:
        os.environ.pop("TMPDIR")
        if before is not None:
            os.environ["TMPDIR"] = before


def _run(chaos: Chaos, file: Path, out: Path, until_time: float) -> None:
    """One run to its end, resumed as often as necessary; faults while there is time."""
    process: subprocess.Popen[str] | None = None
    patience = until_time + 600
    next_fault = time.monotonic() + 10
    while True:
        assert time.monotonic() < patience, f"the run does not finish: {chaos.report.events[-20:]}"
        if process is None:
            resume = ["--resume"] if (out / "experiment.json").exists() else []
            chaos.report.resumed += bool(resume)
            process = chaos.real.run(file, out, "--wait", "60", *resume)
        if process.poll() is not None:
            said = process.communicate()[0]
            if process.returncode == 0:
                return
            chaos.note(f"the run stopped: {said.strip()[-300:]!r}")
            process = None
            time.sleep(2)
        chaos.rounds_done = chaos.report.rounds + len(read_lines(out / "rounds.jsonl"))
        over = time.monotonic() > until_time
        chaos.repair(everything=over)
        if not over and time.monotonic() > next_fault:
            chaos.inject()
            next_fault = time.monotonic() + chaos.random.uniform(3, 9)
        time.sleep(0.2)


def _count(report: Report, out: Path) -> None:
    lines = read_lines(out / "rounds.jsonl")
    report.runs += 1
    report.rounds += len(lines)
    report.incomplete += sum(len(line["clients"]) < SITES for line in lines)


def _check_weights(experiment: Experiment, out: Path, again: Path) -> None:
    """Repeat the run on this machine with the clients that counted in each round: the same weights, to the bit."""
    counted = {line["round"]: set(line["clients"]) for line in read_lines(out / "rounds.jsonl")}
    assert sorted(counted) == list(range(experiment.rounds))
    rejected = {line["client"] for line in read_lines(out / "rejections.jsonl") if line["round"] == experiment.rounds}

    class Counted(InProcess):
        def ask(self, clients: Any, request: Any) -> Any:
            for reply in super().ask(clients, request):
                lost = reply.client in rejected if isinstance(request, Measure) else False
                lost = lost or (isinstance(request, Train) and reply.client not in counted[request.round])
                yield Failure(reply.client, "did not count") if lost else reply

    def make_fleet(assembly: Any, engine: Any, directory: RunDirectory, *_: Any) -> InProcess:
        return Counted(assembly.clients, None)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "make_fleet", make_fleet)
        for _ in runner.run(experiment, again):
            pass
    found, expected = RunDirectory(out).result(), RunDirectory(again).result()
    for name in ("weights_sha256", "statistics_sha256"):
        assert found[name] == expected[name], name


def _check_nothing_left(path: Path, real: Deployment) -> None:
    """No file of an interrupted write in the runs and at the sites."""
    folders = [*path.glob("run-*"), *(real.path / "sites").iterdir()]
    left = [file for folder in folders for file in folder.rglob(".*") if ".git" not in file.name]
    assert left == []
