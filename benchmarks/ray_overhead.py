"""What Ray adds to a round in which there is nearly nothing to do: `python benchmarks/ray_overhead.py`.

Four clients with ten digits each, a net of 64-16-10, four actors on a local Ray. The same rounds are run in this
process; the difference is what Ray adds. `--write` puts the table into docs/ray.md. It ends with exit code 1 if the
difference of the medians exceeds the goal.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from statistics import median

from spherefed.assembly import assemble
from spherefed.client.training import LocalTraining
from spherefed.data.partition import Iid
from spherefed.engines.local import InProcess
from spherefed.engines.ray import RayFleet, ray
from spherefed.engines.transfer import to_arrays
from spherefed.experiment import Data, Experiment, Model
from spherefed.messages import Evaluate
from spherefed.nn.encoders import Mlp
from spherefed.server.federation import Fleet, federate, train_request

PAGE = Path(__file__).parent.parent / "docs" / "ray.md"
GOAL = 0.1
ACTORS = 4
WARM_UP = 20
"""Rounds at the start that are not counted."""


def experiment(rounds: int) -> Experiment:
    return Experiment(
        name="trivial",
        rounds=WARM_UP + rounds,
        data=Data(name="digits", examples=40),
        partition=Iid(clients=4),
        model=Model(encoder=Mlp(widths=(16,))),
        local=LocalTraining(lr=0.05, epochs=1, batch_size=32),
    )


def seconds_of(action: Callable[[], object], times: int) -> list[float]:
    """How long each of so many calls takes, after those that are not counted."""
    taken = []
    for _ in range(WARM_UP + times):
        began = time.perf_counter()
        action()
        taken.append(time.perf_counter() - began)
    return taken[WARM_UP:]


def rounds_of(fleet: Fleet, rounds: int) -> list[float]:
    assembly = assemble(experiment(rounds))
    running = federate(fleet, assembly.initial(), assembly.plan())
    return seconds_of(lambda: next(running), rounds)


def measure(rounds: int) -> tuple[float, str]:
    """The median of what Ray adds to a round, and the table."""
    before = os.getloadavg()[0]
    assembly = assemble(experiment(rounds))
    here = rounds_of(InProcess(assembly.clients), rounds)
    began = time.perf_counter()
    with closing(RayFleet(assembly, ACTORS)) as fleet:
        start = time.perf_counter() - began
        there = rounds_of(fleet, rounds)
        request = to_arrays(train_request(assembly.plan(), 0, assembly.initial(), {}))
        actors = [slot.actor for slot in fleet._slots]
        counting = Evaluate(0, assembly.initial())  # nobody holds examples out: there is nothing to count
        asks = seconds_of(lambda: list(fleet.ask(fleet.clients, counting)), rounds)
        put = seconds_of(lambda: ray.put(request), rounds)
        calls = seconds_of(lambda: ray.get([actor.ping.remote() for actor in actors]), rounds)
    added = median(there) - median(here)
    lines = {
        "a round on Ray": there,
        "the same round in this process": here,
        "of it: a request to the clients without work": asks,
        "of it: an empty call to each actor, and back": calls,
        "of it: putting the request into the object store": put,
    }
    rows = [
        f"| {what} | {1e3 * median(t):.1f} | {1e3 * min(t):.1f} | {1e3 * max(t):.1f} |" for what, t in lines.items()
    ]
    table = "\n".join(["| milliseconds | median | lowest | highest |", "|---|---:|---:|---:|", *rows])
    after = os.getloadavg()[0]
    machine = f"{os.cpu_count()} cores, Ray {ray.__version__}, load average {before:.1f} before and {after:.1f} after"
    return added, (
        f"{table}\n\n{rounds} rounds, {ACTORS} actors; Ray adds **{1e3 * added:.1f} ms** to a round, "
        f"and takes {start:.0f} s to start once ({machine})."
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="What Ray adds to a trivial round.")
    parser.add_argument("--rounds", type=int, default=200, help="rounds to time (default 200)")
    parser.add_argument("--write", action="store_true", help="put the table into docs/ray.md")
    given = parser.parse_args()
    added, table = measure(given.rounds)
    print(table)
    print(f"the goal is at most {1e3 * GOAL:.0f} ms")
    if given.write:
        page = PAGE.read_text(encoding="utf-8")
        top, rest = page.split("<!-- overhead -->\n", 1)
        _, bottom = rest.split("<!-- end -->", 1)
        PAGE.write_text(f"{top}<!-- overhead -->\n{table}\n<!-- end -->{bottom}", encoding="utf-8")
    return 0 if added <= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
