"""A run is a directory: killed at any moment it resumes to the same weights, and it can be run again."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import dying
from small import blobs, save_arrays, tiny
from spherefed.algorithms import Algorithm
from spherefed.assembly import assemble
from spherefed.checkpoints import NAMES, Checkpoint
from spherefed.data.partition import Dirichlet
from spherefed.errors import ConfigError, RunError
from spherefed.experiment import Data, Experiment, changed, read
from spherefed.files import read_tensors
from spherefed.runner import Engine, load, run, run_to_end
from spherefed.runs import RunDirectory, read_lines
from spherefed.server_optimizers import ServerSgd


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs, each killed with SIGKILL in its own way."""
    folder = tmp_path_factory.mktemp("killed")
    tests = Path(__file__).parent
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tests), *filter(None, sys.path)])}
    subprocess.run([sys.executable, str(tests / "dying.py"), str(folder)], check=True, env=environment, timeout=120)
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


def test_resuming_starts_behind_the_newest_checkpoint(killed: Path, whole: dict[str, Any], tmp_path: Path) -> None:
    experiment = dying.experiment(killed)
    directory = tmp_path / "run"
    engine = Engine(checkpoint_every=3)
    progress = run(experiment, directory, engine=engine)
    for _ in range(5):
        next(progress)
    stored = RunDirectory(directory).load_checkpoint()
    progress.close()  # type: ignore[attr-defined]
    stopped = RunDirectory(directory).load_checkpoint()
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
    checkpoint = RunDirectory(tmp_path / "run").load_checkpoint()
    assert checkpoint is not None
    assert checkpoint.next_round == 1
    assert {name.partition(".")[2] for name in checkpoint.memory} == checkpoint.model.params.keys()


def test_an_interrupt_in_mid_round_leaves_a_checkpoint_of_the_last_whole_round(
    experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spherefed import client

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
    stored = read(tmp_path / "first")
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


def test_a_changed_experiment_is_refused_with_the_differences(experiment: Experiment, tmp_path: Path) -> None:
    next(run(experiment, tmp_path / "run"))
    other = changed(experiment, ["local.lr=0.125", "rounds=9"])
    with pytest.raises(RunError) as caught:
        run_to_end(other, tmp_path / "run", resume=True)
    assert "local.lr: 0.5 → 0.125" in str(caught.value)
    assert "rounds: 3 → 9" in str(caught.value)
    assert "batch_size" not in str(caught.value)


def test_a_partition_that_comes_out_otherwise_is_refused(experiment: Experiment, tmp_path: Path) -> None:
    next(run(experiment, tmp_path / "run"))
    other = blobs(num_train=87)
    save_arrays(tmp_path / "data.npz", other)
    with pytest.raises(RunError, match="partition"):
        run_to_end(experiment, tmp_path / "run", resume=True)


@pytest.mark.parametrize("left", ["experiment.json", *NAMES, "rounds.jsonl"])
def test_a_run_is_never_overwritten(experiment: Experiment, tmp_path: Path, left: str) -> None:
    run_to_end(experiment, tmp_path / "run")
    for path in (tmp_path / "run").iterdir():
        if path.name != left:
            path.unlink()
    before = (tmp_path / "run" / left).read_bytes()
    with pytest.raises(RunError, match="holds a run already"):
        run_to_end(experiment, tmp_path / "run")
    assert (tmp_path / "run" / left).read_bytes() == before


def test_what_is_no_run_cannot_be_resumed_or_loaded(experiment: Experiment, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no run to resume"):
        run_to_end(experiment, tmp_path / "nothing", resume=True)
    next(run(experiment, tmp_path / "unfinished"))
    for path in (tmp_path / "nothing", tmp_path / "unfinished"):
        with pytest.raises(RunError, match="not a finished run"):
            load(path)
        with pytest.raises(RunError, match="not a finished run"):
            RunDirectory(path).result()
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="cannot make"):
        run_to_end(experiment, tmp_path / "file")


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


def damage_cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def damage_empty(path: Path) -> None:
    path.write_bytes(b"")


def damage_garbage(path: Path) -> None:
    path.write_bytes(b"\xff" * 200)


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
    other = path.with_name(next(name for name in NAMES if name != path.name)).read_bytes()
    assert len(other) == path.stat().st_size
    path.write_bytes(other[: len(other) // 2] + path.read_bytes()[len(other) // 2 :])


@pytest.mark.parametrize(
    "damage", [damage_cut, damage_empty, damage_garbage, damage_unlabelled, damage_flipped, damage_half_written]
)
@pytest.mark.parametrize("name", NAMES)
def test_where_one_checkpoint_is_torn_the_other_serves(
    experiment: Experiment, tmp_path: Path, damage: Any, name: str
) -> None:
    expected = run_to_end(experiment, tmp_path / "whole")
    rounds = run(experiment, tmp_path / "run")
    next(rounds), next(rounds)
    rounds.close()  # type: ignore[attr-defined]
    damage(tmp_path / "run" / name)
    resumed = [p.index for p in run(experiment, tmp_path / "run", resume=True)]
    assert resumed == ([2] if name == NAMES[0] else [1, 2])  # the first round was saved in the first place
    assert RunDirectory(tmp_path / "run").result()["weights_sha256"] == expected["weights_sha256"]


def test_a_checkpoint_never_goes_where_the_newest_lies(experiment: Experiment, tmp_path: Path) -> None:
    model = assemble(experiment).initial()
    for next_round in range(1, 8):  # each by a process of its own, which finds what the others left
        RunDirectory(tmp_path).save_checkpoint(Checkpoint(next_round, model, {}))
        found = [load_checkpoint_round(tmp_path / name) for name in NAMES if (tmp_path / name).exists()]
        assert sorted(found) == [next_round - 1, next_round][-len(found) :]


def load_checkpoint_round(path: Path) -> int:
    return int(read_tensors(path)[1]["next_round"])


@pytest.mark.parametrize("name", ["result.json", "model.safetensors"])
@pytest.mark.parametrize("damage", [damage_cut, damage_empty, damage_garbage])
def test_damaged_results_are_errors(experiment: Experiment, tmp_path: Path, name: str, damage: Any) -> None:
    run_to_end(experiment, tmp_path / "run")
    damage(tmp_path / "run" / name)
    directory = RunDirectory(tmp_path / "run")
    with pytest.raises(RunError, match=name.replace(".", r"\.")):
        _ = directory.result() if name == "result.json" else directory.model()


def test_the_partition_is_stored_with_the_run(experiment: Experiment, tmp_path: Path) -> None:
    skewed = changed(experiment, ["partition.kind=dirichlet", "partition.alpha=0.05", "partition.clients=6"])
    next(run(skewed, tmp_path / "run"))
    assembly = assemble(skewed)
    assert isinstance(skewed.partition, Dirichlet)
    stored = load_file(tmp_path / "run" / "partition.safetensors")
    labels = assembly.dataset.train.labels.numpy()
    offsets = stored["offsets"].numpy()
    assert len(offsets) == 7
    for client, part in enumerate(assembly.partition.parts):
        indices = stored["indices"].numpy()[offsets[client] : offsets[client + 1]]
        assert np.array_equal(indices, part)
        counts = [int((labels[indices] == c).sum()) for c in range(3)]
        assert stored["label_counts"][client].tolist() == counts


def test_a_run_says_how_it_was_made_and_what_came_out(experiment: Experiment, tmp_path: Path) -> None:
    result = run_to_end(experiment, tmp_path / "run")
    environment = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert environment["torch"] == torch.__version__.split("+")[0] or environment["torch"] == torch.__version__
    assert environment["seed"] == 0
    assert environment["experiment_digest"] == experiment.digest()
    run_to_end(replace(experiment, stack=None), tmp_path / "suggested")
    environment = json.loads((tmp_path / "suggested" / "environment.json").read_text())
    assert environment["experiment_digest"] == read(tmp_path / "suggested").digest() != experiment.digest()
    lines = read_lines(tmp_path / "run" / "rounds.jsonl")
    assert [line["round"] for line in lines] == [0, 1, 2]
    assert result["traffic"]["train"]["up"] == sum(sum(line["bytes_up"].values()) for line in lines) / 4
    assert result["calibration"]["path"] in ("cholesky", "eigh")
    assert result["accuracy"].keys() == {"trained", "calibrated"}


def test_a_finished_run_gives_back_its_calibrated_module(experiment: Experiment, tmp_path: Path) -> None:
    result = run_to_end(experiment, tmp_path / "run")
    module = load(tmp_path / "run")
    assert not module.training
    test = blobs().test
    with torch.no_grad():
        right = (module(test.inputs).argmax(dim=1) == test.labels).sum().item()
    assert right / len(test) == result["accuracy"]["calibrated"]["global_model/global_test"]
    state = RunDirectory(tmp_path / "run").model()
    assert state.head is not None
    assert torch.equal(module.head.weight, state.head["weight"])
    assert state.digest() == result["weights_sha256"]


def test_rounds_are_evaluated_when_due_and_at_the_end(experiment: Experiment, tmp_path: Path) -> None:
    progress = list(run(changed(experiment, ["rounds=5", "evaluate_every=2"]), tmp_path / "run"))
    assert [p.accuracy is not None for p in progress] == [False, True, False, True, True]
    lines = read_lines(tmp_path / "run" / "rounds.jsonl")
    assert [line["accuracy"].get("global_model/global_test") for line in lines] == [p.accuracy for p in progress]


def test_local_accuracies_come_from_the_clients_held_out_examples(experiment: Experiment, tmp_path: Path) -> None:
    settings = ["data.held_out=0.25", "partition.kind=dirichlet", "partition.clients=4"]
    settings += ["calibration=none", "local.lr=0.001"]  # a bad model, right for some clients and wrong for others
    held_out = changed(experiment, settings)
    result = run_to_end(held_out, tmp_path / "run")
    module, assembly = load(tmp_path / "run"), assemble(held_out)
    right, held = [], []
    for k in range(4):
        client = assembly.client(k)
        mine = client.held_out
        assert mine.indices is not None
        assert not set(mine.indices.tolist()) & set(client.examples.indices.tolist())
        with torch.no_grad():
            scores = module(mine.inputs[mine.indices])
        right.append(int((scores.argmax(dim=1) == mine.labels[mine.indices]).sum()))
        held.append(len(mine))
    right, held = [r for r, n in zip(right, held, strict=True) if n], [n for n in held if n]
    accuracy = result["accuracy"]["trained"]
    assert accuracy["global_model/local_test/by_samples"] == pytest.approx(sum(right) / sum(held))
    expected = np.mean([r / n for r, n in zip(right, held, strict=True)])
    assert expected != pytest.approx(sum(right) / sum(held))  # otherwise both ways of weighing are one
    assert accuracy["global_model/local_test/by_clients"] == pytest.approx(expected)


@pytest.mark.parametrize("wrong", [{"checkpoint_every": 0}, {"workers": -1}])
def test_impossible_engines_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Engine(**wrong)  # type: ignore[arg-type]
