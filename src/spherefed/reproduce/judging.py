"""The rule by which claims are judged, fixed before the first seed was run.

Over seeds, the quantity of a claim has a mean with a 95 % t-interval. A claim that a quantity is positive *holds* if
the interval lies above 0. It *does not hold* if the interval lies below 0, or if it contains 0 and lies below the size
that the paper's numbers give. Otherwise it is *not decided*. A claim that names a least size is judged alike, with
that size in place of 0. A claim that a quantity is at most m from 0 holds if the
interval lies inside [−m, m], does not hold if it lies outside, and is not decided otherwise. One seed decides nothing.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from spherefed.report.summary import Estimate, estimate
from spherefed.reproduce.item import Claim, Key

Verdict = Literal["holds", "does not hold", "not decided", "not run"]


def quantity(claim: Claim, values: Mapping[Key, float], diverged: Collection[Key] = ()) -> float | None:
    """f(plus) − f(minus) of one seed; None if a cell has no value. `diverged`: cells that have none for that reason.

    >>> quantity(Claim(text="", plus=(("a", ""),), minus=(("b", ""),)), {("a", ""): 3.0, ("b", ""): 1.0})
    2.0
    """
    if claim.measure == "diverged":
        known = all(key in values or key in diverged for key in claim.plus)
        return float(all(key in diverged for key in claim.plus)) if known else None
    if any(key not in values for key in (*claim.plus, *claim.minus)):
        return None
    plus, minus = ([values[key] for key in keys] for keys in (claim.plus, claim.minus))
    if claim.measure == "sum":
        return sum(plus) - sum(minus)
    return max(plus) - min(plus) - (max(minus) - min(minus) if minus else 0.0)


def judge(values: Sequence[float], *, size: float | None = None, margin: float | None = None) -> Verdict:
    """The verdict on a claim from its quantity for every seed.

    >>> judge([1.0, 1.1, 0.9]), judge([-1.0, -1.1, -0.9]), judge([0.1, -0.2, 0.3]), judge([0.1, -0.2, 0.3], size=5.0)
    ('holds', 'does not hold', 'not decided', 'does not hold')
    >>> judge([0.1, -0.1, 0.0], margin=1.0), judge([2.0, 2.1, 1.9], margin=1.0), judge([])
    ('holds', 'does not hold', 'not run')
    """
    if not values:
        return "not run"
    found = estimate(values)
    if found.half_width is None:
        return "not decided"
    low, high = bounds(found)
    if margin is not None:
        inside, outside = -margin <= low and high <= margin, low > margin or high < -margin
        return "holds" if inside else "does not hold" if outside else "not decided"
    if low > 0:
        return "holds"
    return "does not hold" if high < 0 or (size is not None and high < size) else "not decided"


def judge_claim(claim: Claim, values: Sequence[float], *, has_diverged: bool) -> Verdict:
    """The verdict on a claim; seeds in which one of its cells diverged have no value.

    >>> claim = Claim(text="", plus=(("a", ""),), measure="diverged")
    >>> [judge_claim(claim, values, has_diverged=False) for values in ([1.0, 1.0], [0.0, 0.0], [1.0, 0.0], [])]
    ['holds', 'does not hold', 'not decided', 'not run']
    >>> claim = Claim(text="", plus=(("a", ""),), least=5.5, paper=6.1)
    >>> [judge_claim(claim, values, has_diverged=False) for values in ([6.2, 6.2], [5.0, 7.0], [3.0, 3.1])]
    ['holds', 'not decided', 'does not hold']
    """
    if claim.measure == "diverged" and len(values) > 1:
        return "holds" if all(values) else "not decided" if any(values) else "does not hold"
    size = None if claim.paper is None else claim.paper - claim.least
    found = judge([value - claim.least for value in values], size=size, margin=claim.margin)
    return "not decided" if found == "not run" and has_diverged else found


def bounds(found: Estimate) -> tuple[float, float]:
    """The ends of the 95 % interval."""
    half = found.half_width or 0.0
    return found.mean - half, found.mean + half
