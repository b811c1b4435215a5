"""Tuning: edges are extended, grids stay equally large, the test set is never looked at."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from spherefed.errors import ConfigError
from spherefed.experiment import Experiment
from spherefed.recipes.experiments import digits
from spherefed.runs import tuning
from spherefed.runs.jobs import Watch
from spherefed.runs.runner import Engine


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Experiment], float]], list[Experiment]]:
    """Replace running by a formula; collects the experiments that would have been run."""

    def install(formula: Callable[[Experiment], float]) -> list[Experiment]:
        seen: list[Experiment] = []

        def score(name: str, experiment: Experiment, **_: object) -> dict[str, float]:
            seen.append(experiment)
            return {"trained": formula(experiment)}

        monkeypatch.setattr(tuning, "_score", score)
        return seen

    return install


def search(methods: dict[str, Experiment], grid: list[float], seeds: int = 1) -> dict[str, tuning.Search]:
    grids = dict.fromkeys(methods, grid)
    return {s.method: s for s in tuning.tune(methods, "local.lr", grids, seeds=seeds, engine=Engine())}


def test_a_grid_is_extended_until_its_best_value_lies_inside(judged) -> None:  # type: ignore[no-untyped-def]
    judged(lambda e: -abs(e.local.lr - 8.0))
    found = search({"a": digits()}, [1.0, 2.0, 4.0])["a"]
    assert sorted(found.scores) == [1.0, 2.0, 4.0, 8.0, 16.0]
    assert found.best == 8.0
    assert found.next_value() is None


def test_every_method_gets_as_many_tries_as_the_others(judged) -> None:  # type: ignore[no-untyped-def]
    judged(lambda e: -abs(e.local.lr - (2.0 if e.local.epochs == 1 else 0.1)))
    methods = {"inside": replace(digits(), local=replace(digits().local, epochs=1)), "far": digits()}
    found = search(methods, [1.0, 2.0, 4.0])
    assert len(found["inside"].scores) == len(found["far"].scores) > 3
    assert found["inside"].best == 2.0
    assert not found["far"].next_value()


def test_a_search_that_never_turns_ends(judged) -> None:  # type: ignore[no-untyped-def]
    judged(lambda e: e.local.lr)
    found = search({"a": digits()}, [1.0, 2.0, 4.0])["a"]
    assert len(found.scores) == tuning.MAX_POINTS
    assert tuning.table([found], 1)["methods"]["a"]["on_edge"] is True


def test_tuning_uses_a_validation_split_and_seeds_of_its_own(judged) -> None:  # type: ignore[no-untyped-def]
    seen = judged(lambda e: -abs(e.local.lr - 2.0))
    search({"a": digits()}, [1.0, 2.0, 4.0], seeds=2)
    assert {e.data.validation for e in seen} == {tuning.VALIDATION}
    assert {e.seed for e in seen} == {tuning.FIRST_SEED, tuning.FIRST_SEED + 1}


def test_a_diverged_run_counts_as_the_worst_result() -> None:
    diverging = replace(digits(), rounds=2, data=replace(digits().data, examples=200, validation=0.15))
    diverging = replace(diverging, local=replace(diverging.local, lr=1e30))
    watch = Watch()
    assert tuning._score("a", diverging, engine=Engine(), in_memory=None, watch=watch) == {"trained": 0.0}
    assert watch == {}


def test_unequal_grids_are_refused() -> None:
    grids = {"a": [1.0, 2.0, 4.0], "b": [1.0, 2.0, 4.0, 8.0]}
    with pytest.raises(ConfigError, match="as many values"):
        list(tuning.tune({"a": digits(), "b": digits()}, "local.lr", grids, seeds=1, engine=Engine()))
