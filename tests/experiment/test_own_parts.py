"""A user's own loss, schedule and server optimizer are called once before a run."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spherefed.errors import ConfigError
from spherefed.experiment.own_parts import check_own_parts
from spherefed.experiment.reading import _advice
from spherefed.recipes.experiments import digits

SOURCE = """
from dataclasses import dataclass
import torch.nn.functional as functional

@dataclass(frozen=True)
class Good:
    def __call__(self, scores, labels):
        return functional.cross_entropy(scores, labels)

@dataclass(frozen=True)
class Vector:
    def __call__(self, scores, labels):
        return functional.cross_entropy(scores, labels, reduction="none")

@dataclass(frozen=True)
class Raises:
    def __call__(self, scores, labels):
        return scores.nope

@dataclass(frozen=True)
class Flat:
    def factor(self, t, rounds):
        return 1.0

@dataclass(frozen=True)
class Negative:
    def factor(self, t, rounds):
        return -1.0

@dataclass(frozen=True)
class Step:
    def step(self, delta, state):
        return delta, state

@dataclass(frozen=True)
class Forgets:
    def step(self, delta, state):
        return delta
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "own_parts_example.py").write_text(SOURCE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_parts_example", raising=False)
    import own_parts_example  # type: ignore[import-not-found]

    yield own_parts_example
    del sys.modules["own_parts_example"]


def test_parts_that_keep_their_contract_are_accepted(own: Any) -> None:
    experiment = replace(digits(), loss=own.Good(), schedule=own.Flat())
    check_own_parts(replace(experiment, algorithm=replace(experiment.algorithm, server=own.Step())), 10)


@pytest.mark.parametrize(
    ("field", "name", "said"),
    [
        ("loss", "Vector", "a scalar tensor with a gradient; got a tensor of shape"),
        ("loss", "Raises", "fails with AttributeError"),
        ("schedule", "Negative", "a number that is not negative; got -1.0"),
    ],
)
def test_a_part_that_breaks_its_contract_is_named(own: Any, field: str, name: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_own_parts(replace(digits(), **{field: getattr(own, name)()}), 10)
    assert str(caught.value).startswith(f"{field} 'own_parts_example:{name}'")
    assert said in str(caught.value)


def test_a_server_optimizer_must_return_its_state_too(own: Any) -> None:
    experiment = digits()
    experiment = replace(experiment, algorithm=replace(experiment.algorithm, server=own.Forgets()))
    with pytest.raises(ConfigError, match=r"algorithm\.server 'own_parts_example:Forgets' must return"):
        check_own_parts(experiment, 10)


def test_advice_names_only_fields_that_exist() -> None:
    assert _advice("local.lr must be positive, got 0").endswith("`spherefed fields local` describes it")
    assert _advice("lr must be positive, got 0") == "", "the words of a user's own part"
