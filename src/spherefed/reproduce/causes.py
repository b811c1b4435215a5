"""Likely causes of claims that do not hold, where we know one: printed on the pages beside the verdict."""

from collections.abc import Mapping

CAUSES: Mapping[str, str] = {
    "tiny": "ten easy classes, a tiny network, few rounds and rates that were not tuned; FFC alone brings most of it.",
}
"""Scale, or scale/item, → the likely cause for claims of that scale that do not hold."""


def likely_cause(scale: str, item: str) -> str | None:
    """The cause that is known for this item at this scale, or for the scale."""
    return CAUSES.get(f"{scale}/{item}", CAUSES.get(scale))
