"""Methods as changes of an experiment: what an overlay replaces, and what it leaves as the base has it."""

from dataclasses import replace

import pytest

from spherefed.calibration import Ccvr, Ffc, FfcGcv, Oracle
from spherefed.errors import ConfigError
from spherefed.experiment import Experiment
from spherefed.losses import CrossEntropy, MeanSquaredError
from spherefed.nn.heads import FixedRandom, Learned, Orthonormal
from spherefed.recipes.experiments import digits
from spherefed.recipes.methods import BASES, OVERLAYS, methods, tuning_key, with_base

WRITTEN_OUT = {
    "ffc": (Learned(), False, CrossEntropy(), Ffc()),
    "ffc-gcv": (Learned(), False, CrossEntropy(), FfcGcv()),
    "ccvr": (Learned(), False, CrossEntropy(), Ccvr()),
    "oracle": (Learned(), False, CrossEntropy(), Oracle()),
    "babu": (FixedRandom(), False, CrossEntropy(), None),
    "spherefed": (Orthonormal(), True, MeanSquaredError(), Ffc()),
}
"""Head, normalization, loss and calibration of each overlay (SphereFed, Tables 2 to 4)."""


@pytest.mark.parametrize("overlay", [overlay for overlay in OVERLAYS if overlay != "one-shot"])
@pytest.mark.parametrize("base", BASES)
def test_an_overlay_sets_four_values_and_nothing_else(base: str, overlay: str) -> None:
    given = replace(digits(), rounds=7, seed=3)
    found = methods(given, base, [overlay], {})[f"{base}+{overlay}"]
    head, normalize, loss, calibration = WRITTEN_OUT[overlay]
    model = replace(given.model, head=head, normalize=normalize)
    expected = replace(given, algorithm=BASES[base](), model=model, loss=loss, calibration=calibration)
    assert found == expected


@pytest.mark.parametrize("base", BASES)
def test_the_one_shot_overlay_keeps_data_partition_and_seed_and_trains_nothing(base: str) -> None:
    given = replace(digits(), seed=3, cohort=2)
    found = methods(given, base, ["one-shot"], {})[f"{base}+one-shot"]
    assert (found.rounds, found.local, found.algorithm, found.calibration) == (0, None, BASES["fedavg"](), FfcGcv())
    assert found.model.frozen
    assert (found.data, found.partition, found.seed) == (given.data, given.partition, given.seed)


def test_the_base_stands_first_and_is_stripped_of_an_overlay() -> None:
    sphere = OVERLAYS["spherefed"](digits())
    found = methods(sphere, "fedprox", ["ffc", "babu"], {})
    assert list(found) == ["fedprox", "fedprox+ffc", "fedprox+babu"]
    assert found["fedprox"] == replace(digits(), algorithm=BASES["fedprox"]())


def test_tuned_values_reach_the_method_they_were_tuned_for_and_those_that_only_calibrate() -> None:
    tuned = {"fedavg": {"local.lr": 0.25}, "fedavg+spherefed": {"local.lr": 2.0, "algorithm.prox_mu": 0.5}}
    found = methods(digits(), "fedavg", ["ffc", "spherefed", "babu"], tuned)

    def rates(experiment: Experiment) -> tuple[float, float]:
        return experiment.local.lr, experiment.algorithm.prox_mu

    assert {name: rates(e) for name, e in found.items()} == {
        "fedavg": (0.25, 0.0),
        "fedavg+ffc": (0.25, 0.0),
        "fedavg+spherefed": (2.0, 0.5),
        "fedavg+babu": (digits().local.lr, 0.0),
    }


@pytest.mark.parametrize(
    ("method", "key"), [("fedavg", "fedavg"), ("moon+ccvr", "moon"), ("fedprox+babu", "fedprox+babu")]
)
def test_what_only_calibrates_shares_the_values_of_its_base(method: str, key: str) -> None:
    assert tuning_key(method) == key


def test_unknown_names_are_refused_with_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match="did you mean 'fedprox'"):
        with_base(digits(), "fedprx")
    with pytest.raises(ConfigError, match="did you mean 'spherefed'"):
        methods(digits(), "fedavg", ["sphere"], {})
