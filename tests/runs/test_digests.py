"""Tampering: a change of any file of a run is detected when it is resumed, loaded, evaluated or checked."""

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from safetensors import safe_open
from safetensors.torch import save_file

from spherefed.cli import commands, main
from spherefed.errors import RunError, SpherefedError
from spherefed.experiment import Data, Experiment, read_experiment
from spherefed.runs.checking import check_run
from spherefed.runs.digests import DIGESTS
from spherefed.runs.head_changes import change_head
from spherefed.runs.loading import evaluate_run, load
from spherefed.runs.round_log import CHECKPOINTS
from spherefed.runs.runner import run, run_to_end
from spherefed.server.algorithms import Algorithm
from support.small import blobs, save_arrays, tiny


def fedrep(folder: Path) -> Experiment:
    """Clients keep their heads: every kind of file is written."""
    from spherefed.experiment import Model
    from spherefed.nn.encoders import Mlp

    return tiny(
        data=Data(name=save_arrays(folder / "data.npz", blobs()), held_out=0.2),
        model=Model(encoder=Mlp(widths=(8,))),
        algorithm=Algorithm(share="encoder"),
        calibration=None,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`finished`: a whole run. `stopped`: the same, stopped after two of three rounds. `plain`: with FFC."""
    folder = tmp_path_factory.mktemp("digests")
    run_to_end(fedrep(folder), folder / "finished")
    rounds = run(fedrep(folder), folder / "stopped")
    next(rounds), next(rounds)
    rounds.close()  # type: ignore[attr-defined]
    run_to_end(tiny(data=Data(name=f"arrays:{folder / 'data.npz'}")), folder / "plain")
    return folder


def edit_tensors(path: Path) -> None:
    """One element of one tensor, keeping names, shapes and metadata: what an editor of the file would do."""
    with safe_open(path, framework="pt") as file:  # type: ignore[no-untyped-call]
        metadata = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    name = max(tensors, key=lambda name: tensors[name].numel())
    flat = tensors[name].reshape(-1).clone()
    flat[0] = flat[0] + 1
    save_file(tensors | {name: flat.reshape(tensors[name].shape)}, path, metadata)


def edit_json(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    def edit(path: Path) -> None:
        plain = json.loads(path.read_text())
        change(plain)
        path.write_text(json.dumps(plain, indent=2, ensure_ascii=False) + "\n")

    return edit


def edit_first_line(**changes: Any) -> Callable[[Path], None]:
    def edit(path: Path) -> None:
        first, *rest = path.read_text().splitlines(keepends=True)
        path.write_text(json.dumps(json.loads(first) | changes) + "\n" + "".join(rest))

    return edit


def drop_first_line(path: Path) -> None:
    path.write_bytes(path.read_bytes().partition(b"\n")[2])


def add_line(path: Path) -> None:
    path.write_text('{"round": 0, "client": 2, "cause": "invented"}\n' + path.read_text())


def append_space(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b" ")


def exchange_states(path: Path) -> None:
    other = path.with_name(path.name.replace("0.", "1.", 1))
    mine, others = path.read_bytes(), other.read_bytes()
    path.write_bytes(others), other.write_bytes(mine)


def older_state(path: Path) -> None:
    """The state of the round before under the name of this one."""
    shutil.copy(path.with_name("0.0.safetensors"), path)


def add_state(path: Path) -> None:
    shutil.copy(path, path.with_name("9.1.safetensors"))


BOTH: dict[str, tuple[str, Callable[[Path], None]]] = {
    "the rate in the experiment": ("experiment.json", edit_json(lambda e: e["local"].update(lr=0.25))),
    "a space after the experiment": ("experiment.json", append_space),
    "the numerics version": ("environment.json", edit_json(lambda e: e.update(numerics_version=1))),
    "the order of classes": ("dataset.json", edit_json(lambda d: d["classes"].reverse())),
    "an index of the partition": ("partition.safetensors", edit_tensors),
    "no partition": ("partition.safetensors", Path.unlink),
    "no digests": (DIGESTS, Path.unlink),
    "a loss in a round's line": ("rounds.jsonl", edit_first_line(loss=0.0)),
    "a round's clients": ("rounds.jsonl", edit_first_line(clients=[0])),
    "one line less": ("rounds.jsonl", drop_first_line),
    "no lines": ("rounds.jsonl", Path.unlink),
    "an invented rejection": ("rejections.jsonl", add_line),
}
STOPPED = BOTH | {
    "an element of a client state": ("client_states/0.1.safetensors", edit_tensors),
    "a client state removed": ("client_states/0.1.safetensors", Path.unlink),
    "two client states exchanged": ("client_states/0.1.safetensors", exchange_states),
    "a client state of a client that has none": ("client_states/0.1.safetensors", add_state),
    "an older client state": ("client_states/0.1.safetensors", older_state),
}
FINISHED = BOTH | {
    "an element of the model": ("model.safetensors", edit_tensors),
    "no model": ("model.safetensors", Path.unlink),
    "the accuracy in the result": ("result.json", edit_json(lambda r: r["accuracy"].update(trained={"x": 1.0}))),
    "an element of a client state": ("client_states/0.2.safetensors", edit_tensors),
    "a client state removed": ("client_states/0.2.safetensors", Path.unlink),
    "two client states exchanged": ("client_states/0.2.safetensors", exchange_states),
}


def copied(folder: Path, name: str, tmp_path: Path, change: tuple[str, Callable[[Path], None]]) -> Path:
    copy = tmp_path / name
    shutil.copytree(folder / name, copy)
    file, edit = change
    edit(copy / file)
    return copy


@pytest.mark.parametrize("name", STOPPED)
def test_a_stopped_run_that_was_changed_is_not_resumed(name: str, folder: Path, tmp_path: Path) -> None:
    copy = copied(folder, "stopped", tmp_path, STOPPED[name])
    file = STOPPED[name][0]
    with pytest.raises(SpherefedError) as caught:
        run_to_end(fedrep(folder), copy, resume=True)
    assert Path(file).parts[0] in str(caught.value)
    assert not (copy / "result.json").exists()
    with pytest.raises(SpherefedError):
        check_run(copy)


@pytest.mark.parametrize("name", FINISHED)
def test_a_finished_run_that_was_changed_is_neither_loaded_nor_resumed(name: str, folder: Path, tmp_path: Path) -> None:
    copy = copied(folder, "finished", tmp_path, FINISHED[name])
    with pytest.raises(SpherefedError):
        load(copy, client=0)
    with pytest.raises(SpherefedError):
        run_to_end(fedrep(folder), copy, resume=True)
    with pytest.raises(SpherefedError):
        check_run(copy)


@pytest.mark.parametrize("file", ["experiment.json", "dataset.json", "model.safetensors", "statistics.safetensors"])
def test_a_changed_run_is_not_evaluated(file: str, folder: Path, tmp_path: Path) -> None:
    copy = copied(folder, "plain", tmp_path, (file, append_space))
    with pytest.raises(RunError, match="is not as the run wrote it"):
        evaluate_run(copy, f"arrays:{folder / 'data.npz'}")
    shutil.copy(folder / "plain" / file, copy / file)
    assert evaluate_run(copy, f"arrays:{folder / 'data.npz'}").total > 0


def test_a_copy_that_was_not_changed_is_resumed_loaded_and_checked(folder: Path, tmp_path: Path) -> None:
    for name in ("stopped", "finished"):
        shutil.copytree(folder / name, tmp_path / name)
    assert "finished" not in check_run(tmp_path / "stopped").state
    result = run_to_end(fedrep(folder), tmp_path / "stopped", resume=True)
    assert result["weights_sha256"] == run_to_end(fedrep(folder), tmp_path / "finished", resume=True)["weights_sha256"]
    first, second = (load(tmp_path / name, client=3).head.weight for name in ("stopped", "finished"))
    assert torch.equal(first, second)
    assert check_run(tmp_path / "stopped").num_files == check_run(tmp_path / "finished").num_files


def test_a_checkpoint_of_another_run_of_the_same_experiment_is_refused(folder: Path, tmp_path: Path) -> None:
    """Its own digest matches, but not those of the lines beside it, which have other times."""
    rounds = run(fedrep(folder), tmp_path / "other")
    next(rounds), next(rounds)
    rounds.close()  # type: ignore[attr-defined]
    shutil.copytree(folder / "stopped", tmp_path / "run")
    for name in CHECKPOINTS:
        shutil.copy(tmp_path / "other" / name, tmp_path / "run" / name)
    with pytest.raises(RunError, match=r"rounds\.jsonl is not as the run wrote it"):
        run_to_end(fedrep(folder), tmp_path / "run", resume=True)


def test_a_run_without_digests_of_an_older_release_is_still_used(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "plain", tmp_path / "old")
    (tmp_path / "old" / DIGESTS).unlink()
    environment = tmp_path / "old" / "environment.json"
    edit_json(lambda e: e.pop("digests"))(environment)
    assert load(tmp_path / "old").num_classes > 1
    assert "no digests" in check_run(tmp_path / "old").state


def test_a_changed_head_has_new_digests_and_a_kill_between_its_files_leaves_a_whole_run(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spherefed.runs import digests

    written, write = [], digests.write_bytes

    def killed(path: Path, content: bytes) -> None:
        if len(written) == stop:
            raise KeyboardInterrupt
        written.append(path.name)
        write(path, content)

    monkeypatch.setattr(digests, "write_bytes", killed)
    for stop in range(6):  # digests, model, diagnostics, result, statistics, digests
        shutil.copytree(folder / "plain", copy := tmp_path / str(stop))
        written.clear()
        with pytest.raises(KeyboardInterrupt):
            change_head(copy, 1, "forget")
        load(copy)
    shutil.copytree(folder / "plain", copy := tmp_path / "changed")
    written.clear()
    stop = 99
    changed = change_head(copy, 1, "forget")
    files = ["model.safetensors", "diagnostics.safetensors", "result.json", "statistics.safetensors"]
    assert written == [DIGESTS, *files, DIGESTS]
    for stopped in range(5):  # before the statistics: the change can be made again
        assert change_head(tmp_path / str(stopped), 1, "forget") == changed
        assert check_run(tmp_path / str(stopped)).state == "finished"
    assert check_run(copy).num_files == check_run(folder / "plain").num_files
    shutil.copy(folder / "plain" / "model.safetensors", copy)
    with pytest.raises(RunError, match=r"model\.safetensors is not as the run wrote it"):
        load(copy)


@pytest.mark.parametrize("last", ["model.safetensors", "diagnostics.safetensors", "result.json"])
def test_a_run_killed_while_it_finishes_is_whole_and_can_be_resumed(
    last: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spherefed.runs import digests

    write = digests.write_bytes

    def killed(path: Path, content: bytes) -> None:
        if path.name == last:  # its digest is written already
            raise KeyboardInterrupt
        write(path, content)

    experiment = tiny(data=Data(name=f"arrays:{folder / 'data.npz'}"))
    monkeypatch.setattr(digests, "write_bytes", killed)
    with pytest.raises(KeyboardInterrupt):
        run_to_end(experiment, tmp_path / "run")
    monkeypatch.undo()
    assert "stopped after round 3 of 3" in check_run(tmp_path / "run").state
    run_to_end(experiment, tmp_path / "run", resume=True)
    assert check_run(tmp_path / "run").state == "finished"


def test_the_command_checks_runs_and_folders_of_runs(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(folder / "plain", tmp_path / "a" / "seed-0")
    shutil.copytree(folder / "stopped", tmp_path / "a" / "seed-1")
    good = CliRunner().invoke(commands, ["runs", "check", str(tmp_path / "a")])
    assert good.exit_code == 0, good.output
    assert "2 runs" in good.output
    drop_first_line(tmp_path / "a" / "seed-0" / "rounds.jsonl")
    monkeypatch.setattr(sys, "argv", ["spherefed", "runs", "check", str(tmp_path / "a")])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert "seed-0/rounds.jsonl is not as the run wrote it" in capsys.readouterr().out
    none = CliRunner().invoke(commands, ["runs", "check", str(tmp_path / "none")])
    assert isinstance(none.exception, RunError)


def test_rounds_are_hashed_as_they_are_written_and_not_read_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spherefed.runs import round_log

    reads, original = [], round_log._parsed_lines

    def counted(path: Path) -> Any:
        reads.append(path.name)
        return original(path)

    monkeypatch.setattr(round_log, "_parsed_lines", counted)
    counts = []
    for progress in run(tiny(rounds=6, data=Data(name=f"arrays:{folder / 'data.npz'}")), tmp_path / "run"):
        counts.append((progress.index, len(reads)))
    assert len({number for _, number in counts}) == 1  # the same after the first and the last round


def test_reading_the_stored_experiment_gives_the_experiment_of_the_run(folder: Path) -> None:
    assert read_experiment(folder / "stopped") == fedrep(folder)


@pytest.mark.parametrize("name", ["checkpoint", "rounds.jsonl", "partition.safetensors", DIGESTS, "environment.json"])
@pytest.mark.parametrize("kind", ["a device", "a pipe"])
def test_a_file_without_an_end_in_place_of_one_of_the_run_is_refused(
    kind: str, name: str, folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(folder / "stopped", tmp_path / "run")
    for path in [tmp_path / "run" / each for each in (CHECKPOINTS if name == "checkpoint" else [name])]:
        path.unlink()
        path.symlink_to("/dev/zero") if kind == "a device" else os.mkfifo(path)
    with pytest.raises(RunError, match="not a regular file"):
        check_run(tmp_path / "run")
    with pytest.raises(RunError, match="not a regular file"):
        run_to_end(fedrep(folder), tmp_path / "run", resume=True)


def test_a_run_without_its_digests_and_its_environment_is_refused(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "finished", tmp_path / "run")
    for name in (DIGESTS, "environment.json"):
        (tmp_path / "run" / name).unlink()
    edit_tensors(tmp_path / "run" / "model.safetensors")
    for use in (load, check_run):
        with pytest.raises(RunError, match=r"environment\.json cannot be read"):
            use(tmp_path / "run")
