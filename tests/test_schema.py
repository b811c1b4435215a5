"""Dataclasses as plain data, on small classes of this file; `test_experiment.py` has real experiments."""

import json
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import pytest

from spherefed.errors import ConfigError
from spherefed.schema import differences, from_plain, suggest, to_plain, with_path


@dataclass(frozen=True)
class Circle:
    kind: ClassVar[str] = "circle"
    radius: float = 1.0


@dataclass(frozen=True)
class Polygon:
    kind: ClassVar[str] = "polygon"
    corners: tuple[int, ...]
    closed: bool = True


@dataclass(frozen=True)
class Drawing:
    name: str
    shape: Circle | Polygon
    second: Circle | None = None
    unit: Literal["mm", "in"] = "mm"
    limit: int | None = None


DRAWINGS = [
    (Drawing("a", Circle()), {"name": "a", "shape": {"kind": "circle", "radius": 1.0}}),
    (
        Drawing("b", Polygon((3, 4), closed=False), Circle(2.5), "in", 7),
        {
            "name": "b",
            "shape": {"kind": "polygon", "corners": [3, 4], "closed": False},
            "second": {"kind": "circle", "radius": 2.5},
            "unit": "in",
            "limit": 7,
        },
    ),
]


@pytest.mark.parametrize(("value", "plain"), DRAWINGS)
def test_a_value_is_written_and_read_as_json(value: Drawing, plain: dict[str, Any]) -> None:
    defaults = {"second": None, "unit": "mm", "limit": None}
    assert to_plain(value) == defaults | plain
    assert from_plain(Drawing, json.loads(json.dumps(to_plain(value)))) == value
    assert from_plain(Drawing, plain) == value  # what is not given has its default


@pytest.mark.parametrize(("value", "plain"), DRAWINGS)
def test_what_equals_its_default_can_be_left_out_at_every_depth(value: Drawing, plain: dict[str, Any]) -> None:
    short = to_plain(value, defaults=False)
    assert from_plain(Drawing, short) == value
    assert short == (plain if value.name == "b" else {"name": "a", "shape": {"kind": "circle"}})


@pytest.mark.parametrize("nothing", [None, "none", {"kind": "none"}])
def test_nothing_is_written_as_null_or_as_a_word(nothing: Any) -> None:
    assert from_plain(Drawing, {"name": "a", "shape": "circle", "second": nothing}).second is None


def test_a_kind_alone_stands_for_its_defaults() -> None:
    assert from_plain(Drawing, {"name": "a", "shape": "circle"}).shape == Circle()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"nme": "a"}, "unknown key 'nme'; did you mean 'name'?"),
        ({"shape": {"kind": "circle", "radios": 1.0}}, "unknown key 'shape.radios'; did you mean 'radius'?"),
        ({"shape": {"kind": "circel"}}, "shape.kind 'circel' is unknown; did you mean 'circle'?"),
        ({"shape": {"radius": 1.0}}, "shape needs a kind"),
        ({"shape": None}, "shape needs a kind, got None; allowed: circle, polygon"),
        ({"shape": "polygon"}, "shape.corners is required"),
        ({"shape": {"kind": "polygon", "corners": 3}}, "shape.corners must be a list, got 3"),
        ({"shape": {"kind": "polygon", "corners": [3, 0.5]}}, "shape.corners[1] must be a whole number, got 0.5"),
        ({"second": 3}, "second"),
        ({"unit": "cm"}, "unit must be one of mm, in; got 'cm'"),
        ({"limit": "7"}, "limit must be a whole number, got '7'"),
        ({"name": 5}, "name must be a text, got 5"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_path(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_plain(Drawing, {"name": "a", "shape": "circle"} | change)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("wanted", "plain"),
    [
        (int, 3.0),
        (int, True),
        (float, "3"),
        (str, 3),
        (bool, 1),
        (float, True),
        (float, 10**400),
    ],
)
def test_scalars_are_not_converted_in_silence(wanted: type, plain: Any) -> None:
    with pytest.raises(ConfigError, match="here must be"):
        from_plain(wanted, plain, "here")


def test_a_whole_number_serves_as_a_number() -> None:
    found = from_plain(float, 3)
    assert found == 3.0
    assert type(found) is float


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("name", "b", {"name": "b", "shape": {"kind": "circle", "radius": 2.0}}),
        ("shape.radius", 3.0, {"name": "a", "shape": {"kind": "circle", "radius": 3.0}}),
        ("shape.kind", "circle", {"name": "a", "shape": {"kind": "circle", "radius": 2.0}}),
        ("shape.kind", "polygon", {"name": "a", "shape": {"kind": "polygon"}}),
        ("second.radius", 4.0, {"name": "a", "shape": {"kind": "circle", "radius": 2.0}, "second": {"radius": 4.0}}),
    ],
)
def test_a_path_is_set_in_a_copy(path: str, value: Any, expected: dict[str, Any]) -> None:
    before = {"name": "a", "shape": {"kind": "circle", "radius": 2.0}}
    assert with_path(before, path, value) == expected
    assert before == {"name": "a", "shape": {"kind": "circle", "radius": 2.0}}


def test_a_path_below_a_shorthand_keeps_its_kind() -> None:
    assert with_path({"shape": "circle"}, "shape.radius", 2.0) == {"shape": {"kind": "circle", "radius": 2.0}}


def test_differences_name_each_path_once_and_equal_data_have_none() -> None:
    left = {"a": 1, "b": {"c": 2, "d": [1, 2]}, "only": 0}
    assert differences(left, {"a": 1, "b": {"c": 3, "d": [1]}, "new": 5}) == [
        "b.c: 2 → 3",
        "b.d: [1, 2] → [1]",
        "only: 0 → None",
        "new: None → 5",
    ]
    assert differences(left, dict(left)) == []


def test_the_nearest_name_is_suggested_only_if_it_is_near() -> None:
    assert suggest("rouds", ["rounds", "seed"]) == "did you mean 'rounds'? allowed: rounds, seed"
    assert suggest("xyz", ["rounds", "seed"]) == "allowed: rounds, seed"
