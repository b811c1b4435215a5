"""Adding clients to a head and forgetting them: exactly as if they had been there, or not, from the start."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spherefed
from spherefed.assembly import assemble
from spherefed.calibration import BalancedFfc, Calibration, Ccvr, FedCof, Ffc, FfcGcv, Lda, Ncm
from spherefed.cli import main
from spherefed.client.evaluation import GLOBAL_TEST
from spherefed.engines.local import InProcess
from spherefed.errors import ConfigError, RunError
from spherefed.experiment import Data, Experiment, Model
from spherefed.files import read_tensors, write_tensors
from spherefed.messages import Failure
from spherefed.nn.encoders import Flatten
from spherefed.nn.feature_maps import RandomFourier
from spherefed.nn.heads import Orthonormal
from spherefed.report.diagnostics import read_diagnostics
from spherefed.runs import runner
from spherefed.runs.directory import RunDirectory
from spherefed.runs.head_changes import change_head
from spherefed.runs.round_log import read_lines
from spherefed.runs.runner import Engine, run_to_end
from spherefed.tensors import digest

MODEL = Model(encoder=Flatten(), frozen=True, feature_map=RandomFourier(dim=32), head=Orthonormal(), normalize=True)


def experiment(calibration: Calibration) -> Experiment:
    return Experiment(name="heads", rounds=0, model=MODEL, calibration=calibration, min_samples=1)


def without_client(lost: int, given: Experiment, out: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The run in which this client never answered."""

    class Lossy(InProcess):
        def ask(self, clients: Any, request: Any) -> Any:
            for answer in super().ask(clients, request):
                yield Failure(answer.client, "lost") if answer.client == lost else answer

    with monkeypatch.context() as patched:
        patched.setattr(runner, "InProcess", Lossy)
        return run_to_end(given, out)


@pytest.mark.parametrize(
    "calibration", [Ffc(ridge=0.1), FfcGcv(), BalancedFfc(), Lda(), Ncm()], ids=lambda given: given.kind
)
def test_a_forgotten_client_was_never_there_and_an_added_one_always_was(
    calibration: Calibration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = experiment(calibration)
    whole = run_to_end(given, tmp_path / "run")
    never = without_client(3, given, tmp_path / "never", monkeypatch)
    assert whole["weights_sha256"] != never["weights_sha256"]
    forgotten = change_head(tmp_path / "run", 3, "forget")
    assert forgotten["weights_sha256"] == never["weights_sha256"]
    assert RunDirectory(tmp_path / "run").result()["statistics_sha256"] == never["statistics_sha256"]
    assert forgotten["accuracy"] == {GLOBAL_TEST: never["accuracy"]["calibrated"][GLOBAL_TEST]}
    assert change_head(tmp_path / "run", 3, "add")["weights_sha256"] == whole["weights_sha256"]
    assert change_head(tmp_path / "never", 3, "add")["weights_sha256"] == whole["weights_sha256"]


def test_the_run_records_what_was_done_and_loads_with_the_new_head(tmp_path: Path) -> None:
    whole = run_to_end(experiment(FfcGcv()), tmp_path)
    before = spherefed.load(tmp_path).head.weight.clone()
    first, second = (change_head(tmp_path, client, "forget") for client in (3, 5))
    result = RunDirectory(tmp_path).result()
    assert result["head_changes"] == [first, second]
    assert result["accuracy"] == {"trained": whole["accuracy"]["trained"], "calibrated": second["accuracy"]}
    own = {"accuracy": whole["accuracy"]["calibrated"], "weights_sha256": whole["weights_sha256"]}
    assert result["before_head_changes"] == own  # of the run itself
    assert not spherefed.load(tmp_path).head.weight.equal(before)


@pytest.mark.parametrize("held_out", [0.0, 0.3])
def test_a_changed_run_reports_what_the_run_without_the_client_reports(
    held_out: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = replace(experiment(FfcGcv()), data=Data(held_out=held_out))
    run_to_end(given, tmp_path / "run")
    whole = read_diagnostics(tmp_path / "run").confusion
    never = without_client(3, given, tmp_path / "never", monkeypatch)
    change_head(tmp_path / "run", 3, "forget")
    changed = RunDirectory(tmp_path / "run").result()
    assert changed["calibration"] == never["calibration"]
    for name in ("accuracy", "measures", "evaluated"):
        assert changed[name]["calibrated"] == never[name]["calibrated"]
    assert len(changed["evaluated"]["calibrated"]) == (9 if held_out else 0)
    shown, expected = (read_diagnostics(tmp_path / name) for name in ("run", "never"))
    assert not np.array_equal(shown.confusion["calibrated"], whole["calibrated"])
    for stage in ("trained", "calibrated"):
        np.testing.assert_array_equal(shown.confusion[stage], expected.confusion[stage])
    np.testing.assert_array_equal(shown.spectrum, expected.spectrum)


def test_the_commands_say_what_they_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own = replace(experiment(FfcGcv()), data=Data(held_out=0.2))
    whole = run_to_end(own, tmp_path)
    for action, words in (("forget", "removed from"), ("add", "added to")):
        monkeypatch.setattr(sys, "argv", ["spherefed", "head", action, str(tmp_path), "--client", "3"])
        main()
        said, found = capsys.readouterr().out, RunDirectory(tmp_path).result()["accuracy"]["calibrated"]
        assert f"client 3 {words} the head" in said
        assert len(found) == 3
        assert all(f"accuracy {value:.2%} ({name})" in said for name, value in found.items())
    assert RunDirectory(tmp_path).result()["weights_sha256"] == whole["weights_sha256"]


def test_impossible_changes_are_refused_and_change_nothing(tmp_path: Path) -> None:
    run_to_end(experiment(Ffc()), tmp_path / "run")
    before = RunDirectory(tmp_path / "run").result()
    for client, action, message in (
        (3, "add", "is in the head already"),
        (10, "forget", "clients 0 to 9, not 10"),
        (-1, "add", "clients 0 to 9, not -1"),
    ):
        with pytest.raises(RunError, match=message):
            change_head(tmp_path / "run", client, action)  # type: ignore[arg-type]
    change_head(tmp_path / "run", 3, "forget")
    with pytest.raises(RunError, match="is not in the head"):
        change_head(tmp_path / "run", 3, "forget")
    change_head(tmp_path / "run", 3, "add")
    assert RunDirectory(tmp_path / "run").result()["weights_sha256"] == before["weights_sha256"]


@pytest.mark.parametrize("calibration", [FedCof(), Ccvr()], ids=lambda given: given.kind)
def test_sums_that_are_not_exact_are_not_kept(calibration: Calibration, tmp_path: Path) -> None:
    run_to_end(experiment(calibration), tmp_path)
    with pytest.raises(RunError, match="keeps no statistics that can be added exactly"):
        change_head(tmp_path, 0, "forget")


def test_a_client_with_too_few_examples_stays_out(tmp_path: Path) -> None:
    given = experiment(Ffc())
    sizes = [len(part) for part in assemble(given).partition.parts]
    strict = replace(given, min_samples=sorted(sizes)[1])
    run_to_end(strict, tmp_path)
    smallest = sizes.index(min(sizes))
    if min(sizes) < strict.min_samples and min(sizes):
        with pytest.raises(RunError, match="gave no statistics"):
            change_head(tmp_path, smallest, "add")


def test_statistics_of_single_clients_are_stored_on_request_and_a_client_is_not_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, folder = experiment(FfcGcv()), tmp_path / "run" / "client_statistics"
    plain = run_to_end(given, tmp_path / "plain")
    kept = run_to_end(given, tmp_path / "run", engine=Engine(keep_client_statistics=True))
    assert kept["weights_sha256"] == plain["weights_sha256"]
    assert not (tmp_path / "plain" / "client_statistics").exists()
    assert {path.name for path in folder.iterdir()} == {f"{client}.safetensors" for client in range(10)}
    assert (folder / "3.safetensors").stat().st_size == pytest.approx(8 * (32 * 33 // 2 + 32 * 10 + 2), abs=300)
    expected = change_head(tmp_path / "plain", 3, "forget")
    with monkeypatch.context() as patched:
        patched.setattr(
            "spherefed.runs.head_changes.answer_group", lambda *given, **options: pytest.fail("a client was asked")
        )
        assert change_head(tmp_path / "run", 3, "forget") == expected
    assert not (folder / "3.safetensors").exists()  # forgotten here too
    assert change_head(tmp_path / "run", 3, "add")["weights_sha256"] == kept["weights_sha256"]
    assert (folder / "3.safetensors").exists()


class Overflowing(FfcGcv):
    """Together, clients may have fewer examples than they have."""

    capacity = 1200


def test_the_statistics_of_a_rejected_client_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spherefed.runs.head.is_additive", lambda calibration: True)
    run_to_end(experiment(Overflowing()), tmp_path, engine=Engine(keep_client_statistics=True))
    rejected = {line["client"] for line in read_lines(tmp_path / "rejections.jsonl")}
    assert rejected
    stored = {int(path.stem) for path in (tmp_path / "client_statistics").iterdir()}
    assert stored == set(range(10)) - rejected


@pytest.mark.parametrize("calibration", [FedCof(), Ccvr()], ids=lambda given: given.kind)
def test_statistics_that_do_not_add_exactly_cannot_be_kept(calibration: Calibration, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="keep_client_statistics needs statistics that can be added exactly"):
        run_to_end(experiment(calibration), tmp_path / "run", engine=Engine(keep_client_statistics=True))
    assert not (tmp_path / "run").exists()


def test_damaged_statistics_of_a_client_are_refused(tmp_path: Path) -> None:
    run_to_end(experiment(Ffc()), tmp_path, engine=Engine(keep_client_statistics=True))
    path = tmp_path / "client_statistics" / "3.safetensors"
    moments, metadata = read_tensors(path)
    write_tensors(path, {**moments, "cross": moments["cross"] + 1}, metadata)
    with pytest.raises(RunError, match="is damaged, or the statistics of another client or run: delete it"):
        change_head(tmp_path, 3, "forget")
    path.write_bytes((tmp_path / "client_statistics" / "5.safetensors").read_bytes())  # those of another client
    with pytest.raises(RunError, match="is damaged, or the statistics of another client or run: delete it"):
        change_head(tmp_path, 3, "forget")
    write_tensors(path, moments, {"digest": digest(moments)})  # as earlier releases did
    change_head(tmp_path, 3, "forget")


def test_a_kill_after_a_client_was_forgotten_leaves_no_statistics_of_it_for_ever(tmp_path: Path) -> None:
    run_to_end(experiment(Ffc()), tmp_path, engine=Engine(keep_client_statistics=True))
    path = tmp_path / "client_statistics" / "3.safetensors"
    content = path.read_bytes()
    change_head(tmp_path, 3, "forget")
    path.write_bytes(content)
    with pytest.raises(RunError, match="client 3 is not in the head"):
        change_head(tmp_path, 3, "forget")
    assert not path.exists()
