"""The benchmarks run and their goals are met; timing on a busy machine is no matter for the default suite."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BENCHMARKS = ROOT / "benchmarks"

PEER = """
import sys
from turns import serve

def play(lap):
    print("this is not an answer")
    for _ in range(4):
        lap()
    return 2.0

serve(play, warm_up=2, rounds=int(sys.argv[1]))
"""


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


@pytest.mark.usefixtures("benchmarks")
def test_contestants_take_turns_and_one_that_fails_is_reported_with_its_cause() -> None:
    from compare import Measured, NotMeasured, compare, table
    from contestants import Start

    def peer(*arguments: str) -> Start:
        return Start(command=[sys.executable, *arguments], environment={"PYTHONPATH": str(BENCHMARKS)})

    outcomes = compare(
        {
            "works": peer("-c", PEER, "4"),
            "raises": peer("-c", "raise SystemExit('out of luck')"),
            "does too little": peer("-c", PEER, "5"),
            "missing": Start(command=[str(BENCHMARKS / "nothing")]),
            "not installed": NotMeasured("no wheel"),
        },
        repetitions=2,
    )
    works = outcomes.pop("works")
    assert isinstance(works, Measured)
    assert [turn.loss for turn in works.turns] == [2.0, 2.0]
    assert works.peak_mb > 1
    causes = {name: outcome.cause for name, outcome in outcomes.items() if isinstance(outcome, NotMeasured)}
    assert causes["raises"] == "out of luck"
    assert causes["does too little"] == "RuntimeError: 4 rounds were done, 5 were asked for"
    assert "No such file" in causes["missing"]
    assert causes["not installed"] == "no wheel"
    assert "| raises | not measured: out of luck |" in table({"works": works} | outcomes)


@pytest.mark.usefixtures("benchmarks")
def test_a_contestant_that_never_answers_is_ended_with_its_children(tmp_path: Path) -> None:
    from compare import NotMeasured, compare
    from contestants import Start

    child = tmp_path / "child"
    waits = Start(command=["sh", "-c", f"sleep 60 & echo $! > {child}; wait"])
    assert compare({"waits": waits}, repetitions=1, patience=0.5) == {"waits": NotMeasured("no answer in 0.5 s")}
    command = Path(f"/proc/{int(child.read_text())}/cmdline")
    assert not command.exists() or not command.read_bytes()  # gone, or waiting to be buried


@pytest.mark.usefixtures("benchmarks")
def test_an_unknown_contestant_is_refused_with_the_names_of_those_there_are() -> None:
    from contestants import check

    check(["bare", "default", "flower"])
    with pytest.raises(SystemExit, match=r"no contestant 'nobody'; there are bare, default, .*flower"):
        check(["bare", "nobody"])


@pytest.mark.usefixtures("benchmarks")
def test_the_cpu_time_of_a_process_tree_holds_that_of_its_children() -> None:
    from processes import tree_cpu

    work = "import time\nwhile time.process_time() < 0.2: pass\nprint(flush=True)\ninput()"
    before = tree_cpu()
    with subprocess.Popen([sys.executable, "-c", work], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        alive = tree_cpu()
        child.communicate(b"\n")
    assert alive - before >= 0.15
    assert tree_cpu() >= alive - 0.02  # and it is not lost when the child ends


@pytest.mark.soak
def test_the_input_pipeline_costs_at_most_its_goal_of_a_training_step() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "pipeline.py")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    print(ended.stdout)
    assert ended.returncode == 0, ended.stdout + ended.stderr
