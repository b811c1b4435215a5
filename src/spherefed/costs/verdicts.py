"""What the cost models say about the claims in the text on SphereFed, Fig. 5.

The rule: a claim "up to x" is about the largest saving of all networks. For every combination of assumptions and
dataflow that does not contradict the paper, that is one number; they span a range. The claim is possible if x lies in
the range, too high above it and too low below it; rounding to the printed digit counts as inside. Assumptions that
contradict the paper never decide; the text says what they would give.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from spherefed.costs.comparisons import Comparison

Finding = Literal["possible", "too high", "too low", "holds", "holds in part", "does not hold"]
"""The first three of claims with a number, the others of claims without one."""

ROUNDING = 5e-4
"""The claims are printed in tenths of a percent."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """One claim and what the models find."""

    claim: str
    finding: Finding
    text: str
    """Why, in words with numbers."""
    claimed: float | None = None
    """The saving in the paper's text; None for a claim without a number."""
    lowest: float | None = None
    """The largest saving of all networks, under the stated assumptions that make it smallest."""
    highest: float | None = None
    """The same under those that make it largest."""
    elsewhere: float | None = None
    """The same under the assumptions that contradict the paper, where it is largest."""


def judge_maximum(claim: str, claimed: float, comparisons: Iterable[Comparison], reason: str) -> Verdict:
    """A claim "up to x", by the rule above."""
    known = tuple(comparisons)
    stated = _best_per_case(c for c in known if c.stated)
    others = _best_per_case(c for c in known if not c.stated)
    low, high = min(stated, key=_saving), max(stated, key=_saving)
    found = f"{low.saving:.2%} ({_where(low)})"
    if len(stated) > 1:
        found += f" to {high.saving:.2%} ({_where(high)})"
    text = f"Where no assumption contradicts the paper, the largest saving of all networks is {found}."
    best = max(others, key=_saving, default=None)
    if best is not None:
        text += f" Under assumptions that contradict it, it is at most {best.saving:.2%} ({_where(best)})."
    return Verdict(
        claim=claim,
        finding=_finding(claimed, low.saving, high.saving),
        text=f"{text} {reason}",
        claimed=claimed,
        lowest=low.saving,
        highest=high.saving,
        elsewhere=None if best is None else best.saving,
    )


def judge_order(claim: str, first: str, comparisons: Iterable[Comparison]) -> Verdict:
    """The claim that one encoder saves more than every other one: in how many combinations it does."""
    known = tuple(comparisons)
    stated, others = (_best_per_case(c for c in known if c.stated is flag) for flag in (True, False))
    won, won_elsewhere = (sum(c.encoder == first for c in best) for best in (stated, others))
    text = f"True in {won} of {len(stated)} combinations of assumptions and dataflow that do not contradict the paper"
    if others:
        text += f", and in {won_elsewhere} of {len(others)} others"
    leaders = sorted({c.encoder for c in stated} - {first})
    text += f"; otherwise {' or '.join(leaders)} saves most." if leaders else "."
    return Verdict(claim=claim, finding=_share(won, len(stated)), text=text)


def judge_growth(claim: str, before: Iterable[Comparison], after: Iterable[Comparison]) -> Verdict:
    """The claim that a saving grows: in how many pairs of equal network, assumptions and dataflow it does."""
    pairs = [(b, a) for b, a in zip(before, after, strict=True) if b.stated]
    grown = sum(a.saving > b.saving for b, a in pairs)
    smallest = min((a.saving - b.saving for b, a in pairs), default=0.0)
    largest = max((a.saving - b.saving for b, a in pairs), default=0.0)
    text = (
        f"True in {grown} of {len(pairs)} combinations of network, assumptions and dataflow that do not contradict the "
        f"paper; with twice the classes the saving changes by {100 * smallest:+.1f} to {100 * largest:+.1f} points."
    )
    return Verdict(claim=claim, finding=_share(grown, len(pairs)), text=text)


def _best_per_case(comparisons: Iterable[Comparison]) -> list[Comparison]:
    """The network that saves most, for every combination of assumptions and dataflow."""
    cases: dict[tuple[str, str | None], list[Comparison]] = defaultdict(list)
    for comparison in comparisons:
        cases[comparison.assumptions, comparison.dataflow].append(comparison)
    return [max(case, key=_saving) for case in cases.values()]


def _saving(comparison: Comparison) -> float:
    return comparison.saving


def _where(comparison: Comparison) -> str:
    flow = "" if comparison.dataflow is None else f", {comparison.dataflow}"
    return f"{comparison.encoder}; {comparison.assumptions}{flow}"


def _finding(claimed: float, lowest: float, highest: float) -> Finding:
    if claimed > highest + ROUNDING:
        return "too high"
    return "too low" if claimed < lowest - ROUNDING else "possible"


def _share(true: int, total: int) -> Finding:
    return "holds" if true == total else "holds in part" if true else "does not hold"
