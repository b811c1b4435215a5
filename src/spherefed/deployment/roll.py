"""Who is there: called before the first round, and again for nodes that come, or come back, later."""

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from spherefed.admission import needed
from spherefed.assembly import Assembly
from spherefed.deployment.roll_call import (
    Absent,
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
from spherefed.engines.flower import Exchange
from spherefed.errors import FederationError
from spherefed.experiment import Experiment
from spherefed.tensors import Tensors, num_bytes

POLL = 0.5
PATIENCE = 120.0
"""Seconds for a site to say who it is: it loads its data for that, and may decode images for the first time."""


class Roll:
    """The members, and those who are connected but do not take part."""

    def __init__(self, exchange: Exchange, experiment: Experiment, keys: Mapping[int, int]) -> None:
        self.exchange = exchange
        self.members: dict[int, Member] = {}
        self._experiment = experiment
        self._keys = keys
        """Whose key a node has, by client; empty: there are no keys."""
        self._expected: Facts | None = None
        self._derived: Tensors = {}
        self._refused: dict[int, Absent] = {}
        """By node, as long as it stays connected."""
        self._spare: dict[int, Member] = {}
        """Nodes of clients that seem to be connected already: Flower takes a minute to notice that one has gone."""
        self._online: set[int] = set()
        """Who was connected when we last looked."""
        self._sent: dict[int, int] = {}

    def call(self, wait: float) -> None:
        """Wait for the sites and ask them; a FederationError says who is missing."""
        num_clients, end = self._experiment.partition.clients, time.monotonic() + wait
        while len(self.exchange.nodes()) < num_clients and time.monotonic() < end:
            time.sleep(POLL)
        self._online = self.exchange.nodes()
        found = self._ask(self._online, max(PATIENCE, wait))
        quorum = self._experiment.quorum
        if quorum:  # then who cannot say who it is counts as absent, and holds nobody up
            self._refused = {node: who for node, who in found.items() if isinstance(who, Absent)}
            found = {node: who for node, who in found.items() if isinstance(who, Member)}
        self.members = enrol(found)
        if len(self.members) < (needed(quorum, num_clients) if quorum else num_clients):
            missing = ", ".join(str(client) for client in range(num_clients) if client not in self.members)
            causes = "".join(f"; {who.cause}" for who in self._refused.values())
            raise FederationError(
                f"{len(self.members)} of {num_clients} sites were there after {wait:g} s, without client {missing}"
                f"{causes}; start the missing ones, or set quorum to the fraction that is enough"
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
        """The node of each client that takes part now, or why there is none."""
        online, before = self.exchange.nodes(), self._online
        self._online = online
        self._refused = {node: who for node, who in self._refused.items() if node in online}
        self._spare = {node: who for node, who in self._spare.items() if node in online}
        known = {who.node for who in self.members.values() if who.node in before}
        newcomers = self._ask(online - known - self._refused.keys() - self._spare.keys(), PATIENCE)
        for node, who in [*newcomers.items(), *self._spare.items()]:
            self._admit(node, who, online)
        where: dict[int, int | str] = {who.client: who.cause for who in self._refused.values() if who.client >= 0}
        for client, who in self.members.items():
            if who.node in online and who.node not in self._refused:
                where[client] = who.node
            else:
                where.setdefault(client, f"the node of {who.called} is not connected")
        return where

    def register(self) -> list[dict[str, Any]]:
        """Who takes part, for the run directory."""
        return [
            {"client": client, "site": who.site, "node": str(who.node), "derived_bytes": self._sent.get(client, 0)}
            for client, who in sorted(self.members.items())
        ]

    def _admit(self, node: int, who: Member | Absent, online: set[int]) -> None:
        """Take a node as its client's, unless there is another or it means another experiment."""
        assert self._expected is not None
        if isinstance(who, Absent):
            self._refused[node] = who
            return
        present = self.members.get(who.client)
        if present is not None and present.node != node and present.node in online:
            self._spare[node] = who
            return
        self._spare.pop(node, None)
        lines = disagreements(who.facts, self._expected)
        cause = f"{who.called}: {'; '.join(lines)}" if lines else self._derives_the_same(who)
        if cause is not None:
            self._refused[node] = Absent(cause, who.client)
        else:
            self.members[who.client] = who

    def _derives_the_same(self, who: Member) -> str | None:
        assert self._expected is not None
        if who.facts.derived == self._expected.derived:
            return None
        (_, taken) = next(self.exchange.ask([who.node], Adopt(self._derived), PATIENCE))
        if not isinstance(taken, Adopted) or taken.digest != self._expected.derived:
            return f"{who.called} did not take the head: {getattr(taken, 'cause', taken)}"
        self._sent[who.client] = num_bytes(self._derived)
        return None

    def _ask(self, nodes: set[int], patience: float) -> dict[int, Member | Absent]:
        if not nodes:
            return {}
        answers = self.exchange.ask(sorted(nodes), RollCall(), patience)
        return {node: self._identified(member(node, answer)) for node, answer in answers}

    def _identified(self, who: Member | Absent) -> Member | Absent:
        """A site is whose key it has, not who it says it is."""
        if isinstance(who, Absent):
            return who
        clients = range(self._experiment.partition.clients)
        if who.client not in clients:
            return Absent(f"{who.called}: clients are 0 to {clients[-1]}", who.client)
        if self._keys and self._keys.get(who.node) != who.client:
            owner = self._keys.get(who.node)
            key = "a key of no site of this deployment" if owner is None else f"the key of client {owner}"
            return Absent(f"{who.called} has {key}", who.client)
        return who
