"""Types of fields that are given in Python."""

from dataclasses import dataclass, replace
from typing import Any

import pytest

import spherefed as sf
from spherefed.errors import ConfigError
from spherefed.field_types import check_types


@dataclass(frozen=True)
class Fields:
    count: int = 1
    rate: float = 0.5
    on: bool = False
    name: str | None = None
    widths: tuple[int, ...] = (1, 2)


@pytest.mark.parametrize("value", [Fields(), Fields(rate=2), Fields(name="x"), Fields(widths=())])
def test_values_of_the_declared_types_are_accepted(value: Fields) -> None:
    check_types(value)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("count", 1.5, "must be a whole number, got 1.5"),
        ("count", True, "must be a whole number, got True"),
        ("rate", "0.1", "must be a number, got '0.1'"),
        ("on", 1, "must be true or false, got 1"),
        ("name", 3, "must be a text or None, got 3"),
        ("widths", [1], "must be a tuple of whole numbers, got [1]"),
        ("widths", (1, "2"), "must be a tuple of whole numbers, got (1, '2')"),
    ],
)
def test_another_type_is_named_with_its_path(field: str, value: Any, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_types(replace(Fields(), **{field: value}), "some")
    assert str(caught.value).startswith(f"some.{field} {said}")


def test_a_component_of_the_wrong_kind_lists_the_right_ones() -> None:
    with pytest.raises(ConfigError, match=r"model\.head must be .*sf\.Orthonormal\(…\)"):
        sf.Model(encoder=sf.Mlp(widths=(4,)), head=sf.Mlp(widths=(4,)))  # type: ignore[arg-type]
