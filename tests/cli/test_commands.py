"""The command line as a user meets it: right answers, one-line errors, exit codes, Ctrl-C, resume."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from spherefed.cli import main
from spherefed.errors import CalibrationError, ConfigError, DataError, EngineError, FederationError, RunError
from spherefed.runs.loading import load

SMALL = ["--set", "rounds=2", "--set", "local.epochs=1", "--set", "data.examples=200"]


@dataclass(frozen=True)
class Ended:
    returncode: int
    stdout: str
    stderr: str


Command = Callable[..., Ended]


@pytest.fixture
def spherefed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command in this process, in an empty folder: starting Python and torch anew takes seconds each time."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["spherefed", *arguments])
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = int(stop.code or 0)
        captured = capsys.readouterr()
        return Ended(code, captured.out, captured.err)

    return call


def test_help_of_every_command_shows_an_example(spherefed: Command) -> None:
    listing = spherefed("--help").stdout
    names = re.findall(r"^  (\w+)  ", listing.split("Commands:")[1], re.MULTILINE)
    assert {"run", "compare", "report", "evaluate", "tune", "data", "partition"} <= set(names)
    for name in names:
        shown = spherefed(name, "--help").stdout
        assert f"spherefed {name}" in shown.split("Examples:")[1]


@pytest.mark.slow
def test_a_run_imports_nothing_that_it_does_not_need(tmp_path: Path) -> None:
    code = f"""
import sys
from pathlib import Path
from spherefed.recipes import RECIPES
from spherefed.runs.runner import run
rounds = run(RECIPES["digits"](), Path({str(tmp_path / "run")!r}))
next(rounds)
rounds.close()
print(*{{"matplotlib", "sklearn", "scipy", "sympy", "torch._dynamo", "torch._inductor"}} & sys.modules.keys())
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.split() == []


def test_performance_options_are_short_for_settings(spherefed: Command) -> None:
    # Batches of 4,096 are never full, so nothing is compiled.
    settings = [*SMALL, "--set", "local.batch_size=4096"]
    short = spherefed("run", "digits", "--compile", "--precision", "fp32", "--out", "short", *settings)
    assert short.returncode == 0, short.stderr
    written = json.loads(Path("short/experiment.json").read_text(encoding="utf-8"))
    assert (written["compile"], written["precision"]) == (True, "fp32")


def test_help_does_not_import_torch() -> None:
    code = "import sys, spherefed.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.slow
def test_a_run_can_be_made_evaluated_reported_and_run_again(spherefed: Command, tmp_path: Path) -> None:
    made = spherefed("run", "digits", *SMALL, "--set", "calibration=ffc", "--out", "a")
    assert made.returncode == 0, made.stderr
    accuracy = json.loads((tmp_path / "a" / "result.json").read_text())["accuracy"]
    for stage, values in accuracy.items():
        assert f"{stage} {values['global_model/global_test']:.2%}" in made.stdout
    again = spherefed("run", "a", "--out", "b")
    assert again.returncode == 0, again.stderr
    first, second = (json.loads((tmp_path / run / "result.json").read_text()) for run in "ab")
    assert first["weights_sha256"] == second["weights_sha256"]
    evaluated = spherefed("evaluate", "a", "--data", "digits").stdout
    correct, total = map(int, re.findall(r"(\d+) of (\d+) correct", evaluated)[0])
    assert correct / total == first["accuracy"]["calibrated"]["global_model/global_test"]
    assert spherefed("evaluate", "a", "--data", "digits", "--device", "nonsense").returncode == 2
    unwritable = spherefed("report", "a", "--out", "a")
    assert unwritable.returncode == 2
    assert "cannot write the page" in unwritable.stderr
    reported = spherefed("report", "a", "b", "--markdown", "--out", "page.html")
    assert "| FedAvg + FFC |" in reported.stdout
    assert (tmp_path / "page.html").read_text().lstrip().startswith("<!")


@pytest.mark.slow
def test_a_comparison_shares_the_training_that_two_methods_have_in_common(spherefed: Command, tmp_path: Path) -> None:
    made = spherefed("compare", "digits", *SMALL, "--seeds", "2", "--out", "c")
    assert made.returncode == 0, made.stderr
    for row in ("FedAvg", "FedAvg + FFC", "SphereFed before FFC", "SphereFed"):
        assert re.search(rf"^{re.escape(row)} +2 ", made.stdout, re.MULTILINE), made.stdout
    base, ffc = (tmp_path / "c" / name / "seed-1" for name in ("fedavg", "fedavg+ffc"))
    assert (base / "rounds.jsonl").read_bytes() == (ffc / "rounds.jsonl").read_bytes()
    assert "round 2 of 2" in made.stderr
    assert "fedavg+ffc" not in made.stderr  # no round of it was run
    digests = {json.loads((p / "environment.json").read_text())["seed"] for p in (base, ffc)}
    assert digests == {1}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "digts"], "did you mean 'digits'"),
        (["run", "digits", "--set", "local.lrr=1"], "did you mean 'lr'"),
        (["run", "digits", "--set", "local.lr=fast"], "local.lr must be a number"),
        (["run", "digits", "--set", "local.lr"], "wants path=value"),
        (["run", "digits", "--set", "model.head=orthnormal"], "did you mean 'orthonormal'"),
        (["run", "digits", "--set", "rounds=2.5"], "rounds must be a whole number"),
        (["run", "digits", "--set", "data.name=digit"], "did you mean 'digits'"),
        (["run", "digits", "--device", "nonsense"], "device 'nonsense'"),
        (["run", "missing.toml"], "cannot read the experiment"),
        (["run", "broken.toml"], "cannot be parsed"),
        (["run", "digits", "--out", "nowhere", "--resume"], "no run to resume"),
        (["compare", "digits", "--base", "fedavgg"], "did you mean 'fedavg'"),
        (["compare", "digits", "--with", "sphered"], "did you mean 'spherefed'"),
        (["compare", "digits", "--set", "fedavgg:local.lr=1"], "did you mean 'fedavg'"),
        (["compare", "digits", "--tuned", "broken.toml"], "cannot be read"),
        (["compare", "digits", "--tuned", "list.json"], "spherefed tune"),
        (["compare", "digits", "--resume"], "--resume needs --out"),
        (["compare", "digits", "--set", "model.head=etf"], "fedavg:model.head=etf"),
        (["tune", "digits", "--with", "ffc"], "leave them out"),
        (["report", "nowhere"], "nowhere"),
        (["evaluate", "nowhere", "--data", "digits"], "nowhere is not a run directory: there is no such folder"),
        (["export", "nowhere", "model.safetensors"], "nowhere is not a run directory: there is no such folder"),
        (["export", "nowhere", "model.onnx"], "must end in .safetensors"),
        (["tune", "digits", "--grid", "local.lr=1,2"], "at least three"),
        (["data", "check", "cifar"], "did you mean 'cifar"),
        (["data", "check", "cifar100", "--data-root", "empty"], "spherefed data get cifar100"),
        (["partition", "digits", "--set", "partition.clients=0"], "partition.clients must be at least 1"),
    ],
)
def test_bad_input_ends_in_one_line_and_exit_code_2(
    spherefed: Command, tmp_path: Path, arguments: list[str], said: str
) -> None:
    (tmp_path / "broken.toml").write_text("rounds = = 3")
    (tmp_path / "list.json").write_text("[1]")
    ended = spherefed(*arguments)
    assert ended.returncode == 2
    assert said in ended.stderr
    assert ended.stderr.startswith("error: ")
    assert ended.stderr.count("\n") == 1


@pytest.mark.slow
def test_ctrl_c_leaves_a_checkpoint_and_resume_ends_with_the_same_weights(spherefed: Command, tmp_path: Path) -> None:
    # Long enough to be interrupted on a fast machine.
    settings = ["--set", "rounds=40", "--set", "local.epochs=5", "--set", "data.examples=400"]
    whole = spherefed("run", "digits", *settings, "--out", "whole")
    assert whole.returncode == 0, whole.stderr
    # A shell that runs the tests in the background makes its children ignore SIGINT: heed it again.
    heed = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    command = [
        sys.executable,
        "-c",
        f"{heed}; from spherefed.cli import main; main()",
        "run",
        "digits",
        *settings,
        "--out",
        "cut",
    ]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        lines = tmp_path / "cut" / "rounds.jsonl"
        deadline = time.monotonic() + 60
        while not (lines.exists() and lines.read_bytes().count(b"\n") >= 2) and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "--resume" in said
    assert not (tmp_path / "cut" / "result.json").exists()
    other = spherefed("run", "digits", *settings, "--set", "local.lr=0.2", "--out", "cut", "--resume")
    assert other.returncode == 2
    assert "local.lr: 0.1 → 0.2" in other.stderr
    assert spherefed("run", "digits", *settings, "--out", "cut", "--resume").returncode == 0
    results = [json.loads((tmp_path / run / "result.json").read_text()) for run in ("whole", "cut")]
    assert results[0]["weights_sha256"] == results[1]["weights_sha256"]


def test_sigterm_leaves_a_checkpoint_and_exits_with_143(spherefed: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGTERM)
    kill = lambda *_: os.kill(os.getpid(), signal.SIGTERM)  # noqa: E731
    monkeypatch.setattr("spherefed.api.progress.ProgressView.advance", kill)
    ended = spherefed("run", "digits", *SMALL, "--out", "cut")
    assert ended.returncode == 143
    assert "to continue, give the same command with --out cut --resume" in ended.stderr
    assert ended.stderr.splitlines()[-1] == "terminated"
    assert signal.getsignal(signal.SIGTERM) == before
    assert json.loads(Path("cut/rounds.jsonl").read_text().splitlines()[-1])["round"] == 0


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (FederationError("too few clients answered"), 1),
        (CalibrationError("no head"), 1),
        (EngineError("no cluster"), 1),
        (ConfigError("rounds must be positive"), 2),
        (DataError("no images"), 2),
        (RunError("no run"), 2),
    ],
)
def test_failures_while_running_exit_with_1_and_wrong_input_with_2(
    spherefed: Command, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("spherefed.runs.runner.run", fail)
    ended = spherefed("run", "digits")
    assert (ended.returncode, ended.stderr) == (code, f"error: {error}\n")


def test_a_model_is_exported_with_a_card(spherefed: Command) -> None:
    assert spherefed("run", "digits", *SMALL, "--out", "runs/a").returncode == 0
    done = spherefed("export", "runs/a", "model.safetensors", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["card"] == "model.md"
    assert load("model.safetensors").num_classes == 10
    assert "runs/a" in spherefed("evaluate", "runs", "--data", "digits").stderr  # a folder of runs names one


def test_a_partition_is_drawn_exported_and_used_by_a_run(spherefed: Command, tmp_path: Path) -> None:
    drawn = spherefed("partition", "digits", "--figure", "p.png", "--export", "p.json")
    assert drawn.returncode == 0, drawn.stderr
    assert "Jensen" in drawn.stdout
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    stored = ["--set", "partition.kind=stored", "--set", "partition.path=p.json", "--set", "rounds=1"]
    for out, settings in (("direct", ["--set", "rounds=1"]), ("stored", stored)):
        assert spherefed("run", "digits", *settings, "--out", out).returncode == 0
    runs = [json.loads((tmp_path / run / "result.json").read_text()) for run in ("direct", "stored")]
    assert runs[0]["weights_sha256"] == runs[1]["weights_sha256"]


@pytest.mark.slow
def test_what_is_set_for_all_methods_reaches_all_methods(spherefed: Command, tmp_path: Path) -> None:
    settings = ["--set", "algorithm.prox_mu=0.5", "--set", "local.lr=0.05", "--set", "fedprox+spherefed:local.lr=0.4"]
    made = spherefed("compare", "--base", "fedprox", *SMALL, *settings, "--seeds", "1", "--out", "c")
    assert made.returncode == 0, made.stderr
    stored = {
        path.parts[-3]: json.loads(path.read_text()) for path in (tmp_path / "c").glob("*/seed-0/experiment.json")
    }
    assert {e["algorithm"]["prox_mu"] for e in stored.values()} == {0.5}
    assert {name: e["local"]["lr"] for name, e in stored.items()} == {
        "fedprox": 0.05,
        "fedprox+ffc": 0.05,
        "fedprox+spherefed": 0.4,
    }


@pytest.mark.slow
def test_untuned_methods_beside_tuned_ones_are_named(spherefed: Command) -> None:
    made = spherefed("compare", "digits", "--with", "babu,spherefed", *SMALL, "--seeds", "1", "--out", "c")
    assert "not tuned: fedavg+babu (local.lr 0.1)" in made.stderr


@pytest.mark.parametrize("flush", ["os.fsync", "_flush"])
def test_a_disk_that_is_full_at_the_start_or_at_a_later_checkpoint_is_one_line(
    spherefed: Command, monkeypatch: pytest.MonkeyPatch, flush: str
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(f"spherefed.files.{flush}", full)  # new files are flushed by the first, old ones by the second
    ended = spherefed("run", "digits", *SMALL, "--set", "rounds=4", "--out", "run")
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == "error: No space left on device"
    assert Path("run/checkpoint.safetensors").exists() == (flush == "_flush")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_can_complete_commands_and_options(
    spherefed: Command, monkeypatch: pytest.MonkeyPatch, shell: str
) -> None:
    monkeypatch.setenv("_SPHEREFED_COMPLETE", f"{shell}_source")
    script = spherefed().stdout
    assert f"_SPHEREFED_COMPLETE={shell}_complete" in script
    monkeypatch.setenv("_SPHEREFED_COMPLETE", f"{shell}_complete")
    monkeypatch.setenv("COMP_WORDS", "spherefed ev")
    monkeypatch.setenv("COMP_CWORD", "ev" if shell == "fish" else "1")
    assert "evaluate" in spherefed().stdout
    monkeypatch.setenv("COMP_WORDS", "spherefed compare --jo")
    monkeypatch.setenv("COMP_CWORD", "--jo" if shell == "fish" else "2")
    assert "--jobs" in spherefed().stdout
