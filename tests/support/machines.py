"""Real deployments on loopback for the tests: Flower's own programs, started and ended here."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from spherefed.deployment.folder import init, read_site, write_site
from spherefed.deployment.limits import SiteLimits
from spherefed.deployment.programs import free_port

BIN = Path(sys.executable).parent
LOW = SiteLimits(min_samples_per_feature=0, min_samples_per_class=1, calibrations=("ffc", "ccvr"))


def environment(**more: str) -> dict[str, str]:
    """As a user has them who has activated the environment."""
    return {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1", **more}


def until(happened: Callable[[], bool], what: str, seconds: float = 240.0) -> None:
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, f"waited {seconds:g} s in vain: {what}"
        time.sleep(0.1)


def processes_of(path: Path) -> list[int]:
    """Processes whose command line or working directory has to do with this folder; not this one."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with suppress(OSError):
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if str(path) in command or str((entry / "cwd").readlink()).startswith(str(path)):
                found.append(int(entry.name))
    return found


def end_all(path: Path) -> None:
    """The last resort of a test: nothing of this folder goes on running."""
    for pid in processes_of(path):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    until(lambda: not processes_of(path), "processes to end", 60)


class Deployment:
    """A deployment folder and the programs that were started from it."""

    def __init__(self, path: Path, num_sites: int, address: str = "127.0.0.1") -> None:
        self.path, self.address = path, address
        self.sites = [f"site-{number}" for number in range(num_sites)]
        self.port = free_port()
        init(path, self.sites, address=address, port=self.port)
        for name in self.sites:  # parts of a data set that all have, with limits like those of a simulation
            site = read_site(path / "sites" / name)
            kept = {"client_state": "client_state", "record": "record.json"}
            write_site(path / "sites" / name, replace(site, data="digits", limits=LOW, **kept), authority=None)
        self.started: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, *names: str, **variables: str) -> None:
        """Roles by name, `server` or a site's, with these variables; each in a process group of its own."""
        for name in names:
            folder = self.path / "server" if name == "server" else self.path / "sites" / name
            with self.log(name).open("ab") as log:
                self.started[name] = subprocess.Popen(
                    [folder / "start.sh"], stdout=log, stderr=log, env=environment(**variables), start_new_session=True
                )

    def start_all(self) -> None:
        self.start("server")
        until(lambda: "\nready" in self.said("server"), "the server")
        self.start(*self.sites)

    def log(self, name: str) -> Path:
        return self.path / f"{name}.log"

    def said(self, name: str) -> str:
        return "\n" + self.log(name).read_text(encoding="utf-8", errors="replace") if self.log(name).exists() else ""

    def kill(self, name: str) -> None:
        """SIGKILL to a role and to everything it started, as when the machine loses power."""
        folder = self.path / "server" if name == "server" else self.path / "sites" / name
        for pid in [self.started[name].pid, *processes_of(folder)]:
            with suppress(OSError):
                if b"run" not in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):  # orders come from elsewhere
                    os.kill(pid, signal.SIGKILL)
        self.started.pop(name).wait()

    def run(self, experiment: Path, out: Path, *options: str) -> "subprocess.Popen[str]":
        command = [BIN / "spherefed", "deploy", "run", self.path / "server", experiment, "--out", out, *options]
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment(), cwd=self.path
        )

    def run_to_end(self, experiment: Path, out: Path, *options: str) -> str:
        process = self.run(experiment, out, *options)
        said, _ = process.communicate(timeout=900)
        assert process.returncode == 0, said
        return said


@contextmanager
def deployment(path: Path, num_sites: int = 4, address: str = "127.0.0.1") -> Iterator[Deployment]:
    """With everything ended afterwards, in the way a user ends it."""
    made = Deployment(path, num_sites, address)
    try:
        yield made
        for process in made.started.values():
            process.terminate()
        for name, process in made.started.items():
            assert process.wait(timeout=120) == 0, f"{name} did not end well: {made.said(name)[-2000:]}"
        assert not processes_of(path)
    finally:
        end_all(path)
