"""What the server does: call the roll, assemble, and run the same loop as every engine on the nodes that answered."""

import json
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from spherefed.assembly import Assembly, assemble, build_bench, pooled
from spherefed.data import sources
from spherefed.data.convention import without_examples
from spherefed.data.dataset import Dataset
from spherefed.data.partition import Partition, Sites
from spherefed.deployment.roll import Roll
from spherefed.deployment.roll_call import Member, usual
from spherefed.engines.flower import Exchange, NodeFleet
from spherefed.environment import environment
from spherefed.errors import ConfigError
from spherefed.experiment import SITES, Experiment, from_text
from spherefed.runner import Progress, run_assembled
from spherefed.runs import RunDirectory, read_json


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """What `spherefed deploy run` asks the server for."""

    experiment: str
    """As JSON."""
    out: str
    resume: bool = False
    wait: float = 120.0
    """Seconds to wait for all sites to be there."""
    device: str = "cpu"
    data_root: str = ""
    keys: str = "{}"
    """Which client's key each node has, as JSON; empty where there are no keys."""


def serve(open_exchange: Callable[[str], Exchange], order: Order) -> Iterator[Progress]:
    """Run the order to its end, yielding after every round."""
    experiment, out = from_text(order.experiment).apart(), Path(order.out)
    if experiment.stack:
        raise ConfigError(f"stack = {experiment.stack} needs clients in one process; use stack = 0 between sites")
    if order.resume and RunDirectory(out).finished:
        RunDirectory(out).check_experiment(experiment)
        return
    if not order.resume:
        RunDirectory(out).check_new()
    run = _run_id(out, resume=order.resume)
    keys = {int(node): client for node, client in json.loads(order.keys).items()}
    roll = Roll(open_exchange(run), experiment, keys)
    roll.call(order.wait)
    assembly = assemble_server(experiment, roll.members, device=order.device, data_root=order.data_root or None)
    roll.settle(assembly)

    fleet = NodeFleet(roll.exchange, experiment.partition.clients, roll.locate, experiment.deadline)
    surroundings = environment(experiment, engine="flower", device=order.device, workers=0)
    surroundings |= {"run": run, "sites": roll.register()}
    # A checkpoint after every round: it tells sites what they need not remember any longer (`site.py`).
    yield from run_assembled(
        assembly, lambda _: fleet, out, surroundings=surroundings, checkpoint_every=1, resume=order.resume
    )


def _run_id(out: Path, *, resume: bool) -> str:
    """What tells this run from others of the same experiment, also after it is resumed."""
    found = read_json(out / "environment.json") if resume and (out / "environment.json").exists() else {}
    return str(found.get("run") or secrets.token_hex(8))


def assemble_server(
    experiment: Experiment, members: Mapping[int, Member], *, device: str = "cpu", data_root: str | None = None
) -> Assembly:
    """What the server needs: the model, and test data if it has any of its own."""
    if not isinstance(experiment.partition, Sites):
        return assemble(experiment, device=device, data_root=data_root)
    if experiment.data.name == SITES:
        data = without_examples(experiment.data.classes, usual(members, lambda each: each.input_shape))
    else:
        data = _for_testing(experiment, data_root)
    clients = experiment.partition.clients
    nothing = np.zeros(0, dtype=np.int64)
    parts = Partition((nothing,) * clients, np.zeros((clients, data.num_classes), dtype=np.int64))
    bench = build_bench(experiment, data.input_shape, data.num_classes, device)
    return Assembly(experiment, data, parts, bench)


def _for_testing(experiment: Experiment, data_root: str | None) -> Dataset:
    """The server's own data, of which all are for testing: training is what sites do."""
    found = pooled(experiment.data.convention.applied(sources.load(experiment.data.name, data_root, fewest_classes=1)))
    return replace(found, train=found.test, test=found.train)
