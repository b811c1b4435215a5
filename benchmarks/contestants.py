"""Who takes part: a bare PyTorch loop, this library in each of its modes, other libraries; and how each is started.

`python benchmarks/contestants.py WORKLOAD NAME FOLDER` is the process of one of this library's modes.
"""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from environments import interpreter
from turns import Lap, serve

HERE = Path(__file__).parent


@dataclass(frozen=True, kw_only=True, slots=True)
class Mode:
    """`spherefed run` with other than the default settings."""

    experiment: dict[str, Any] = field(default_factory=dict)
    """Fields of the experiment: `--set NAME=VALUE`."""
    engine: dict[str, Any] = field(default_factory=dict)
    """Fields of `spherefed.runs.runner.Engine`."""


OWN = {
    "default": Mode(),
    "one by one": Mode(experiment={"stack": 0}, engine={"checkpoint_every": 100}),
    "stacked 5": Mode(experiment={"stack": 5}, engine={"checkpoint_every": 100}),
    "stacked 10": Mode(experiment={"stack": 10}, engine={"checkpoint_every": 100}),
    "workers 1": Mode(engine={"workers": 1}),
    "workers 2": Mode(engine={"workers": 2}),
    "compile": Mode(experiment={"compile": True}),
    "bf16": Mode(experiment={"precision": "bf16"}),
}
PEERS = {"pfl": "pfl-research", "fedlab": "FedLab", "fluke": "fluke", "flower": "Flower (Ray)"}
"""Other libraries, with what the tables call them: each is run by benchmarks/peers/run_NAME.py."""
NAMES = ["bare", *OWN, *PEERS]


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """A contestant's process."""

    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    """In addition to, or instead of, our own."""


def start(name: str, workload: str, material: Path, scratch: Path) -> Start:
    """How to begin one; `environments.UnavailableError` if a peer is not installed."""
    folder = scratch / f"{workload}-{name}".replace(" ", "-")
    if name == "bare":
        return Start(command=[sys.executable, str(HERE / "bare.py"), str(material)])
    if name in OWN:
        return Start(command=[sys.executable, __file__, workload, name, str(folder)])
    command = [str(interpreter(name)), str(HERE / "peers" / f"run_{name}.py"), str(material)]
    environment = {"PYTHONPATH": os.pathsep.join(str(HERE / place) for place in ("", "peers", "peers/stubs"))}
    if name == "flower":
        # Ray's sockets have names of at most 107 bytes below this folder.
        command = [*_loopback_only(), *command, str(scratch / "ray")]
        environment |= {"BENCH_MATERIAL": str(material), "FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    return Start(command=command, environment=environment)


def check(names: list[str]) -> None:
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        raise SystemExit(f"no contestant {', '.join(map(repr, unknown))}; there are {', '.join(NAMES)}")


def _loopback_only() -> list[str]:
    """A prefix that leaves a command no network but this machine's own, since Ray listens to everybody; [] if the
    machine does not permit it."""
    prefix = ["unshare", "--map-root-user", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    try:
        permitted = subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        permitted = False
    return prefix if permitted else []


def main(workload_name: str, name: str, folder: Path) -> None:
    """One of our modes: `run.runner.run` as anybody calls it, with its run directory, lines and checkpoints."""
    import torch
    from workloads import material_of, workload

    from spherefed.runs.loading import load
    from spherefed.runs.runner import Engine, run

    torch.set_num_threads(1)
    work, mode = workload(workload_name, folder.parent), OWN[name]
    experiment = replace(work.experiment, **mode.experiment)
    material = cache(lambda: material_of(work))

    def play(lap: Lap) -> float:
        shutil.rmtree(folder, ignore_errors=True)
        for _ in run(experiment, folder, engine=Engine(**mode.engine)):
            lap()
        return material().training_loss(load(folder))

    serve(play, warm_up=work.warm_up, rounds=experiment.rounds)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
