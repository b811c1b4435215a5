"""Before the first round: who is there, as which client, and whether all mean the same experiment.

Silent disagreement is the worst fault of a federation: another class order, another normalisation or another release
trains to the end and gives a wrong model. So every site says what it holds to, and the run starts only if all agree.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, TypeVar

from spherefed.errors import FederationError
from spherefed.tensors import Tensors

T = TypeVar("T")
LONGEST_SIDE = 1 << 16


@dataclass(frozen=True, slots=True)
class RollCall:
    """Say who you are and what you hold to."""


@dataclass(frozen=True, slots=True)
class Present:
    """A site's answer to the roll call."""

    client: int
    site: str
    facts: str
    """`Facts` as JSON."""


@dataclass(frozen=True, slots=True)
class Adopt:
    """What you derived yourself came out differently (another CPU rounds otherwise): use this instead."""

    derived: Tensors


@dataclass(frozen=True, slots=True)
class Adopted:
    client: int
    digest: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """What all have to agree on."""

    version: str = field(metadata={"called": "package version"})
    experiment: str = field(metadata={"called": "experiment digest"})
    classes: tuple[str, ...] = field(metadata={"called": "class list"})
    input_shape: tuple[int, ...] = field(metadata={"called": "input shape"})
    normalization: str = field(metadata={"called": "normalisation"})
    derived: str = field(metadata={"called": "head"})
    """Digest of what nobody sends: the fixed head, and where a private part begins. Who differs only in this is sent
    it."""

    def to_text(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_text(text: str) -> "Facts":
        """A ValueError if it is none: the text comes from elsewhere."""
        plain = json.loads(text)
        wanted = {f.name for f in fields(Facts)}
        if not isinstance(plain, dict) or plain.keys() != wanted:
            raise ValueError(f"needs {sorted(wanted)}")
        lists = {name: tuple(plain[name]) for name in ("classes", "input_shape")}
        texts = [*lists["classes"], *(value for name, value in plain.items() if name not in lists)]
        sides = lists["input_shape"]
        if not all(isinstance(text, str) for text in texts):
            raise ValueError("needs texts")
        if not all(type(side) is int and 0 < side < LONGEST_SIDE for side in sides):
            raise ValueError(f"an input of shape {list(sides)!r:.80} is none")
        return Facts(**plain | lists)


@dataclass(frozen=True, slots=True)
class Member:
    """A node that answered."""

    node: int
    client: int
    site: str
    facts: Facts

    @property
    def called(self) -> str:
        return f"site {self.site!r} (client {self.client})"


@dataclass(frozen=True, slots=True)
class Absent:
    """A node that is connected and does not take part."""

    cause: str
    client: int = -1
    """Which client it says it is, if it does."""


def member(node: int, answer: Any) -> Member | Absent:
    """Who this node is, or why that cannot be said."""
    if not isinstance(answer, Present):
        what = getattr(answer, "cause", f"answered the roll call with a {type(answer).__name__}")
        return Absent(f"node {node}: {what}")
    try:
        return Member(node, answer.client, answer.site, Facts.from_text(answer.facts))
    except (ValueError, TypeError) as error:
        return Absent(f"site {answer.site!r} (client {answer.client}): malformed facts: {error}", answer.client)


def disagreements(given: Facts, expected: Facts) -> list[str]:
    """What these facts differ in, what is derived apart, in words."""
    return [
        f"{f.metadata['called']} is {_shown(getattr(given, f.name))}, expected {_shown(getattr(expected, f.name))}"
        for f in fields(Facts)
        if f.name != "derived" and getattr(given, f.name) != getattr(expected, f.name)
    ]


def usual(members: Mapping[int, Member], fact: Callable[[Facts], T]) -> T:
    """What most sites say, of equals the first: what the others are measured against where the server has no data."""
    return Counter(fact(m.facts) for _, m in sorted(members.items())).most_common(1)[0][0]


def enrol(found: Mapping[int, Member | Absent]) -> dict[int, Member]:
    """One node per client; a FederationError lists everyone who cannot be placed."""
    faults = [who.cause for _, who in sorted(found.items()) if isinstance(who, Absent)]
    members: dict[int, Member] = {}
    for _, who in sorted(found.items()):
        if isinstance(who, Absent):
            continue
        if who.client in members:
            faults.append(f"{who.called} and {members[who.client].called} are the same client")
        else:
            members[who.client] = who
    if faults:
        raise FederationError("the roll call failed: " + "; ".join(faults))
    return members


def check_agreement(members: Mapping[int, Member], expected: Facts) -> None:
    """A FederationError lists who disagrees about what."""
    faults = [
        f"{who.called}: {'; '.join(lines)}"
        for _, who in sorted(members.items())
        if (lines := disagreements(who.facts, expected))
    ]
    if faults:
        raise FederationError("the sites do not mean the same experiment: " + " | ".join(faults))


def _shown(value: Any) -> str:
    text = str(list(value)) if isinstance(value, tuple) else str(value)
    return text if len(text) <= 80 else f"{text[:77]}…"
