"""What the server does: call the roll, assemble, and run the same loop as every engine on the nodes that answered."""

import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from spherefed.assembly import Assembly, assemble, build_bench, pooled
from spherefed.data import sources
from spherefed.data.convention import without_examples
from spherefed.data.dataset import Dataset
from spherefed.data.partition import Partition, Sites
from spherefed.deployment.roll_call import (
    Adopt,
    Adopted,
    Facts,
    Member,
    RollCall,
    check_agreement,
    disagreements,
    enrol,
    member,
    usual,
)
from spherefed.deployment.site import facts
from spherefed.engines.flower import Exchange, NodeFleet
from spherefed.environment import environment
from spherefed.errors import ConfigError, FederationError
from spherefed.experiment import SITES, Experiment, from_text
from spherefed.runner import Progress, run_assembled
from spherefed.runs import RunDirectory, read_json
from spherefed.tensors import Tensors, num_bytes

POLL = 0.5
ROLL_CALL = 120.0
"""Seconds for a site to say who it is: it loads its data for that, and may decode images for the first time."""


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


def serve(open_exchange: Callable[[str], Exchange], order: Order) -> Iterator[Progress]:
    """Run the order to its end, yielding after every round."""
    experiment, out = from_text(order.experiment), Path(order.out)
    if experiment.stack:
        raise ConfigError(f"stack = {experiment.stack} needs clients in one process; use stack = 0 between sites")
    if order.resume and RunDirectory(out).finished:
        RunDirectory(out).check_experiment(experiment)
        return
    run = _run_id(out, resume=order.resume)
    roll = Roll(open_exchange(run), experiment)
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


class Roll:
    """Who is there: called before the first round, and again for nodes that come later."""

    def __init__(self, exchange: Exchange, experiment: Experiment) -> None:
        self.exchange = exchange
        self.members: dict[int, Member] = {}
        self._experiment = experiment
        self._expected: Facts | None = None
        self._derived: Tensors = {}
        self._refused: dict[int, str] = {}
        self._sent: dict[int, int] = {}

    def call(self, wait: float) -> None:
        """Wait for the sites and ask them; a FederationError says who is missing."""
        num_clients, end = self._experiment.partition.clients, time.monotonic() + wait
        while len(self.exchange.nodes()) < num_clients and time.monotonic() < end:
            time.sleep(POLL)
        self.members = enrol(self._ask(self.exchange.nodes()), num_clients)
        quorum = self._experiment.quorum
        if len(self.members) < (ceil(quorum * num_clients) if quorum else num_clients):
            missing = ", ".join(str(client) for client in range(num_clients) if client not in self.members)
            raise FederationError(
                f"{len(self.members)} of {num_clients} sites were there after {wait:g} s, without client {missing}; "
                "start the missing ones, or set quorum to the fraction that is enough"
            )

    def settle(self, assembly: Assembly) -> None:
        """Compare everybody with the server, and send what is derived to whom it came out differently."""
        self._derived, self._expected = assembly.bench.derived(), facts(assembly)
        if assembly.dataset.elsewhere:
            normalization = usual(self.members, lambda each: each.normalization)
            self._expected = replace(self._expected, normalization=normalization)
        check_agreement(self.members, self._expected)
        for who in self.members.values():
            if cause := self._derives_the_same(who):
                raise FederationError(cause)

    def locate(self) -> dict[int, int | str]:
        """The node of each client that is connected now, or why it is not; newcomers are asked who they are."""
        online = self.exchange.nodes()
        known = {who.node for who in self.members.values()}
        for node, who in self._ask(online - known - self._refused.keys()).items():
            cause = who if isinstance(who, str) else self._enlist(who, online)
            if cause is not None:
                self._refused[node] = cause
        where: dict[int, int | str] = {}
        for client, who in self.members.items():
            where[client] = who.node if who.node in online else f"the node of {who.called} is not connected"
        return where

    def register(self) -> list[dict[str, Any]]:
        """Who takes part, for the run directory."""
        return [
            {"client": client, "site": who.site, "node": str(who.node), "derived_bytes": self._sent.get(client, 0)}
            for client, who in sorted(self.members.items())
        ]

    def _enlist(self, who: Member, online: set[int]) -> str | None:
        """Take a newcomer as its client's node, unless there is one or it means another experiment."""
        assert self._expected is not None
        present = self.members.get(who.client)
        if not 0 <= who.client < self._experiment.partition.clients:
            return f"{who.called}: there is no such client"
        if present is not None and present.node in online:
            return f"{who.called}: that client is connected already"
        if lines := disagreements(who.facts, self._expected):
            return f"{who.called}: {'; '.join(lines)}"
        if cause := self._derives_the_same(who):
            return cause
        self.members[who.client] = who
        return None

    def _derives_the_same(self, who: Member) -> str | None:
        assert self._expected is not None
        if who.facts.derived == self._expected.derived:
            return None
        (_, taken) = next(self.exchange.ask([who.node], Adopt(self._derived), ROLL_CALL))
        if not isinstance(taken, Adopted) or taken.digest != self._expected.derived:
            return f"{who.called} did not take the head: {getattr(taken, 'cause', taken)}"
        self._sent[who.client] = num_bytes(self._derived)
        return None

    def _ask(self, nodes: set[int]) -> dict[int, Member | str]:
        if not nodes:
            return {}
        answers = self.exchange.ask(sorted(nodes), RollCall(), ROLL_CALL)
        return {node: member(node, answer) for node, answer in answers}
