"""A run is a directory: killed at any moment it resumes to the same weights, and it can be run again."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from spherefed.assembly import assemble
from spherefed.engines.local import InProcess
from spherefed.errors import ConfigError, FederationError, RunError
from spherefed.experiment import Data, Experiment, read_experiment, with_settings
from spherefed.messages import Failure
from spherefed.runs.directory import RunDirectory
from spherefed.runs.environment import describe_environment
from spherefed.runs.round_log import CHECKPOINTS, REJECTIONS, RoundLog, read_lines
from spherefed.runs.runner import Engine, run, run_assembled, run_to_end
from spherefed.server.algorithms import Algorithm
from spherefed.server.federation import MEDIAN_NORM
from spherefed.server.optimizers import ServerSgd
from support import dying
from support.damage import damage_cut, damage_empty, damage_garbage
from support.small import blobs, save_arrays, tiny


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs, each killed with SIGKILL in its own way."""
    folder = tmp_path_factory.mktemp("killed")
    tests = Path(__file__).parents[1]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tests), *filter(None, sys.path)])}
    subprocess.run([sys.executable, "-m", "support.dying", str(folder)], check=True, env=environment, timeout=120)
    return folder


@pytest.fixture(scope="module")
def whole(killed: Path) -> dict[str, Any]:
    """The same run, never interrupted."""
    return run_to_end(dying.experiment(killed), killed / "whole")


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    return tiny(
        data=Data(name=save_arrays(tmp_path / "data.npz", blobs())),
        algorithm=Algorithm(server=ServerSgd(momentum=0.5)),
    )


def comparable(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in line.items() if name != "seconds"} for line in lines]


@pytest.mark.slow
@pytest.mark.parametrize("way", dying.WAYS)
def test_a_killed_run_resumes_to_the_same_weights(way: str, killed: Path, whole: dict[str, Any]) -> None:
    directory = RunDirectory(killed / way)
    assert not directory.finished
    result = run_to_end(dying.experiment(killed), directory.path, resume=True)
    assert result["weights_sha256"] == whole["weights_sha256"]
    assert result["accuracy"] == whole["accuracy"]
    assert result["traffic"] == whole["traffic"]
    lines = read_lines(directory.path / "rounds.jsonl")
    assert [line["round"] for line in lines] == list(range(dying.ROUNDS))
    assert comparable(lines) == comparable(read_lines(killed / "whole" / "rounds.jsonl"))
    assert not list(directory.path.glob(".*"))  # no temporary file is left behind once it is over


@pytest.mark.slow
def test_resuming_starts_behind_the_newest_checkpoint(killed: Path, whole: dict[str, Any], tmp_path: Path) -> None:
    experiment = dying.experiment(killed)
    directory = tmp_path / "run"
    engine = Engine(checkpoint_every=3)
    progress = run(experiment, directory, engine=engine)
    for _ in range(5):
        next(progress)
    stored = RoundLog(directory).newest_checkpoint()
    progress.close()  # type: ignore[attr-defined]
    stopped = RoundLog(directory).newest_checkpoint()
    assert stored is not None
    assert stopped is not None
    assert (stored.next_round, stopped.next_round) == (3, 5)  # stopping wrote the fifth round too
    resumed = run(experiment, directory, engine=engine, resume=True)
    assert [p.index for p in resumed] == list(range(5, dying.ROUNDS))
    assert RunDirectory(directory).result()["weights_sha256"] == whole["weights_sha256"]


@pytest.mark.parametrize("checkpoint_every", [1, 2, 100])
def test_stopping_the_iteration_leaves_a_checkpoint_of_the_last_whole_round(
    experiment: Experiment, tmp_path: Path, checkpoint_every: int
) -> None:
    engine = Engine(checkpoint_every=checkpoint_every)
    progress = run(experiment, tmp_path / "run", engine=engine)
    assert next(progress).index == 0
    progress.close()  # type: ignore[attr-defined]
    checkpoint = RoundLog(tmp_path / "run").newest_checkpoint()
    assert checkpoint is not None
    assert checkpoint.next_round == 1
    assert checkpoint.server_state.keys() == checkpoint.model.params.keys() | {MEDIAN_NORM}


def test_an_interrupt_in_mid_round_leaves_a_checkpoint_of_the_last_whole_round(
    experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spherefed.client import handle as client

    original, calls = client.train, 0

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 4 + 2:
            raise KeyboardInterrupt
        return original(*args, **kwargs)

    expected = run_to_end(experiment, tmp_path / "whole")["weights_sha256"]
    monkeypatch.setattr(client, "train", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_to_end(experiment, tmp_path / "run", engine=Engine(checkpoint_every=100))
    resumed = run(experiment, tmp_path / "run", resume=True)
    assert [p.index for p in resumed] == [1, 2]
    assert RunDirectory(tmp_path / "run").result()["weights_sha256"] == expected


def test_a_finished_run_resumes_to_nothing(experiment: Experiment, tmp_path: Path) -> None:
    out = tmp_path / "run"
    result = run_to_end(experiment, out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    assert list(run(experiment, out, resume=True)) == []
    assert run_to_end(experiment, out, resume=True) == result
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_the_stored_experiment_can_be_run_again_and_gives_equal_weights(experiment: Experiment, tmp_path: Path) -> None:
    first = run_to_end(experiment, tmp_path / "first")
    stored = read_experiment(tmp_path / "first")
    assert stored == experiment
    second = run_to_end(stored, tmp_path / "second")
    assert second["weights_sha256"] == first["weights_sha256"]
    assert second["accuracy"] == first["accuracy"]
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("first", "second")]
    assert files[0] == files[1]


def test_another_seed_is_another_result(experiment: Experiment, tmp_path: Path) -> None:
    first = run_to_end(experiment, tmp_path / "first")
    other = run_to_end(experiment.with_seed(1), tmp_path / "other")
    assert other["weights_sha256"] != first["weights_sha256"]


def test_a_line_cut_short_by_a_crash_is_dropped(experiment: Experiment, tmp_path: Path) -> None:
    expected = run_to_end(experiment, tmp_path / "whole")
    progress = run(experiment, tmp_path / "run")
    next(progress), next(progress)
    progress.close()  # type: ignore[attr-defined]
    with (tmp_path / "run" / "rounds.jsonl").open("ab") as file:
        file.write(b'{"round": 2, "lr": 0.1, "lo')
    result = run_to_end(experiment, tmp_path / "run", resume=True)
    assert result["weights_sha256"] == expected["weights_sha256"]
    assert [line["round"] for line in read_lines(tmp_path / "run" / "rounds.jsonl")] == [0, 1, 2]


@pytest.mark.parametrize("content", [b"not json\n", b"\xff\xfe\n", b'{"round": 0\n{"round": 1}\n'])
def test_a_damaged_line_is_an_error_and_not_dropped(experiment: Experiment, tmp_path: Path, content: bytes) -> None:
    next(run(experiment, tmp_path / "run"))
    (tmp_path / "run" / "rounds.jsonl").write_bytes(content)
    with pytest.raises(RunError, match=r"rounds\.jsonl"):
        run_to_end(experiment, tmp_path / "run", resume=True)


def damage_unlabelled(path: Path) -> None:
    save_file(load_file(path), path)


def damage_mislabelled(path: Path) -> None:
    save_file(load_file(path), path, {"next_round": "soon"})


def damage_foreign(path: Path) -> None:
    save_file({"other.weight": torch.ones(2)}, path, {"next_round": "1"})


def damage_flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    "damage",
    [damage_cut, damage_empty, damage_garbage, damage_unlabelled, damage_mislabelled, damage_foreign, damage_flipped],
)
def test_a_damaged_checkpoint_is_an_error(experiment: Experiment, tmp_path: Path, damage: Any) -> None:
    next(run(experiment, tmp_path / "run"))
    damage(tmp_path / "run" / "checkpoint.safetensors")
    with pytest.raises(RunError, match="checkpoint"):
        run_to_end(experiment, tmp_path / "run", resume=True)


def damage_half_written(path: Path) -> None:
    """The beginning of the new content, the end of the old."""
    other = path.with_name(next(name for name in CHECKPOINTS if name != path.name)).read_bytes()
    assert len(other) == path.stat().st_size
    path.write_bytes(other[: len(other) // 2] + path.read_bytes()[len(other) // 2 :])


@pytest.mark.parametrize(
    "damage", [damage_cut, damage_empty, damage_garbage, damage_unlabelled, damage_flipped, damage_half_written]
)
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_where_one_checkpoint_is_torn_the_other_serves(
    experiment: Experiment, tmp_path: Path, damage: Any, name: str
) -> None:
    expected = run_to_end(experiment, tmp_path / "whole")
    rounds = run(experiment, tmp_path / "run")
    next(rounds), next(rounds)
    rounds.close()  # type: ignore[attr-defined]
    damage(tmp_path / "run" / name)
    resumed = [p.index for p in run(experiment, tmp_path / "run", resume=True)]
    assert resumed == ([2] if name == CHECKPOINTS[0] else [1, 2])  # the first round was saved in the first place
    assert RunDirectory(tmp_path / "run").result()["weights_sha256"] == expected["weights_sha256"]


def test_rounds_are_evaluated_when_due_and_at_the_end(experiment: Experiment, tmp_path: Path) -> None:
    progress = list(run(with_settings(experiment, ["rounds=5", "evaluate_every=2"]), tmp_path / "run"))
    assert [p.accuracy is not None for p in progress] == [False, True, False, True, True]
    lines = read_lines(tmp_path / "run" / "rounds.jsonl")
    assert [line["accuracy"].get("global_model/global_test") for line in lines] == [p.accuracy for p in progress]


@pytest.mark.parametrize("wrong", [{"checkpoint_every": 0}, {"workers": -1}])
def test_impossible_engines_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Engine(**wrong)  # type: ignore[arg-type]


class Failing:
    """A fleet whose clients all fail in one round."""

    def __init__(self, fleet: Any, failing_round: int) -> None:
        self.fleet, self.clients, self.failing_round = fleet, fleet.clients, failing_round

    def ask(self, clients: Any, request: Any) -> Any:
        if request.round == self.failing_round:
            return iter([Failure(client, f"client {client} has no power") for client in clients])
        return self.fleet.ask(clients, request)

    def close(self) -> None: ...


@pytest.mark.parametrize(("failing_round", "error"), [(2, "round 2"), (3, "calibration")])
def test_a_fatal_round_writes_its_rejections_and_can_be_repeated(
    experiment: Experiment, tmp_path: Path, failing_round: int, error: str
) -> None:
    """Round 3 is the calibration after the last round."""
    whole = run_to_end(experiment, tmp_path / "whole")
    assembly = assemble(experiment)
    environment = describe_environment(experiment, engine="local", device="cpu", workers=0)
    with pytest.raises(FederationError, match=error):
        for _ in run_assembled(
            assembly,
            lambda _: Failing(InProcess(assembly.clients), failing_round),
            tmp_path / "run",
            environment=environment,
            checkpoint_every=100,
        ):
            pass
    found = [(line["round"], line["client"], line["cause"]) for line in read_lines(tmp_path / "run" / REJECTIONS)]
    assert found == [(failing_round, client, f"client {client} has no power") for client in range(4)]
    assert run_to_end(experiment, tmp_path / "run", resume=True)["weights_sha256"] == whole["weights_sha256"]
    assert read_lines(tmp_path / "run" / REJECTIONS) == []  # of the rounds that counted


def test_two_starts_in_one_directory_leave_one_run(
    experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second start comes when the first has passed its checks and is about to write."""
    begin, other = RunDirectory.begin, replace(experiment, seed=7)

    def raced(self: RunDirectory, *given: Any) -> None:
        monkeypatch.setattr(RunDirectory, "begin", begin)
        with pytest.raises(RunError, match="another process is working on"):
            run_to_end(other, tmp_path / "run")
        begin(self, *given)

    monkeypatch.setattr(RunDirectory, "begin", raced)
    run_to_end(experiment, tmp_path / "run")
    assert read_experiment(tmp_path / "run") == experiment
    with pytest.raises(RunError, match="holds a run already"):
        run_to_end(other, tmp_path / "run")


def test_a_start_that_waited_for_another_one_to_finish_does_not_overwrite_it(
    experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked = RunDirectory.locked

    def late(self: RunDirectory) -> Any:
        monkeypatch.setattr(RunDirectory, "locked", locked)
        run_to_end(experiment, tmp_path / "run")
        return locked(self)

    monkeypatch.setattr(RunDirectory, "locked", late)
    with pytest.raises(RunError, match="holds a run already"):
        run_to_end(replace(experiment, seed=7), tmp_path / "run")
    assert read_experiment(tmp_path / "run") == experiment


def test_a_new_run_directory_is_private_and_one_that_exists_keeps_its_mode(
    experiment: Experiment, tmp_path: Path
) -> None:
    (tmp_path / "shared").mkdir(mode=0o755)
    for name in ("new", "shared"):
        run_to_end(experiment, tmp_path / name)
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "shared").stat().st_mode & 0o777 == 0o755
