"""What a fleet says about its work while it works."""

from pathlib import Path

from spherefed.engines.activity import (
    CALIBRATION,
    EVALUATION,
    IDLE,
    PERSONALIZATION,
    PHASES,
    REESTIMATION,
    TRAINING,
    Activity,
)
from spherefed.experiment import Data
from spherefed.messages import Evaluate, Measure, Reestimate, Train
from spherefed.runs.runner import run
from support.small import assembled, blobs, in_process, save_arrays, tiny


def test_clients_and_examples_are_counted_when_they_are_done() -> None:
    assembly = assembled()
    fleet, sizes = in_process(assembly), assembly.partition.sizes.tolist()
    asked = [3, 0, 2]
    for number, answer in enumerate(fleet.ask(asked, Measure(7, assembly.initial()))):
        assert answer.client == asked[number]
        seen = fleet.activity
        assert (seen.phase, seen.round, seen.clients, seen.clients_done) == (CALIBRATION, 7, 3, number + 1)
        assert seen.examples_done == sum(sizes[client] for client in asked[: number + 1])
        assert seen.fraction == seen.examples_done / sum(sizes[client] for client in asked)
    assert fleet.activity.fraction == 1.0


def test_every_kind_of_request_is_a_phase_of_its_own() -> None:
    model, parts = assembled().initial(), assembled().partition.parts
    requests = {
        TRAINING: Train(1, model, 0.1),
        REESTIMATION: Reestimate(1, model),
        CALIBRATION: Measure(1, model),
        EVALUATION: Evaluate(1, model),
        PERSONALIZATION: Evaluate(1, model, personalize=True),
    }
    activity = Activity()
    assert (activity.phase, activity.fraction) == (IDLE, 0.0)
    for phase, request in requests.items():
        activity.begin(request, [0, 1], parts)
        assert activity.phase == phase
    assert len({PHASES[phase] for phase in requests}) == len(requests)
    activity.reset()
    assert (activity.phase, activity.clients) == (IDLE, 0)


def test_a_run_keeps_its_activity_up_to_date_until_after_the_last_round(tmp_path: Path) -> None:
    experiment = tiny(data=Data(name=save_arrays(tmp_path / "data.npz", blobs())))
    activity = Activity()
    rounds = run(experiment, tmp_path / "run", activity=activity)
    for progress in rounds:
        assert (activity.phase, activity.round) == (TRAINING, progress.index)
        assert activity.clients_done == activity.clients == 4
    assert (activity.phase, activity.clients_done) == (CALIBRATION, 4)
