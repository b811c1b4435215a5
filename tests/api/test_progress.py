"""What a display of progress shows, with a clock that stands still."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from spherefed.api import progress
from spherefed.api.progress import ProgressView
from spherefed.engines.activity import ACTIVITY, CALIBRATION, TRAINING, Activity
from spherefed.recipes.experiments import digits, digits_one_shot
from spherefed.runs.jobs import Job, Running
from spherefed.runs.runner import Progress


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def training(view: ProgressView, out: str, *, round_index: int, share: float, name: str = "fedavg") -> Activity:
    """A run that has trained this share of the examples, and of 10 clients, of a round."""
    path = Path(out)
    if path not in view.watch:
        view.watch[path] = Running(Job(name=name, experiment=digits(), out=path), Activity())
    activity = view.watch[path].activity
    activity.phase, activity.round = TRAINING, round_index
    activity.clients, activity.clients_done = 10, int(10 * share)
    activity.examples, activity.examples_done = 1000, int(1000 * share)
    return activity


def drawn(view: ProgressView, width: int = 80) -> list[str]:
    console = Console(width=width, height=24, force_terminal=True, color_system=None, legacy_windows=False)
    with console.capture() as capture:
        console.print(view)
    return capture.get().splitlines()


def test_the_time_left_is_known_after_the_first_clients_and_leaves_out_the_loading_of_data() -> None:
    clock = Clock()
    view = ProgressView("cifar100", 200, clock=clock)
    clock.now = 60.0  # data were loaded
    training(view, "a", round_index=0, share=0.0)
    assert view.seconds_left() is None
    clock.now = 70.0
    training(view, "a", round_index=0, share=0.1)
    assert view.rounds_done() == pytest.approx(0.1)
    assert view.seconds_left() == pytest.approx(10 / 0.1 * 199.9)
    assert "0/200 rounds" in drawn(view)[0]
    assert "5:33:10 left" in drawn(view)[0]


def test_rounds_of_an_interrupted_command_are_done_but_say_nothing_about_the_speed() -> None:
    clock = Clock()
    view = ProgressView("digits", 100, completed={Path("a"): 50, Path("b"): 20}, clock=clock)
    training(view, "b", round_index=20, share=0.0)
    view.observe()
    clock.now = 10.0
    training(view, "b", round_index=22, share=0.5)
    assert view.rounds_done() == 72.5
    assert view.seconds_left() == pytest.approx(10 / 2.5 * 27.5)


def test_finished_rounds_count_once_and_after_a_run_has_gone() -> None:
    view = ProgressView("digits", 40, clock=Clock())
    training(view, "a", round_index=4, share=1.0)
    assert view.rounds_done() == 5
    view.advance(Path("a"), Progress(4, 20, 0.5, None))
    assert view.rounds_done() == 5
    del view.watch[Path("a")]
    training(view, "b", round_index=0, share=0.5)
    assert view.rounds_done() == 5.5


def test_a_run_that_takes_over_rounds_has_none_of_its_own() -> None:
    view = ProgressView("digits", 40, clock=Clock())
    activity = training(view, "a", round_index=20, share=0.5)
    activity.phase = CALIBRATION
    view.watch[Path("a")] = Running(replace(view.watch[Path("a")].job, trained=Path("b")), activity)
    assert view.rounds_done() == 0


@pytest.mark.parametrize("num_running", [1, 2])
def test_bars_and_seeds_are_visible_in_80_columns_beside_the_longest_names(num_running: int) -> None:
    clock = Clock()
    view = ProgressView("cifar100", 15_000, clock=clock)
    for number in range(num_running):
        training(view, f"r{number}", round_index=123, share=0.4, name="fedadagrad+spherefed-with-more")
        view.advance(Path(f"r{number}"), Progress(122, 200, 0.1234, 0.4567))
    clock.now = 36_000.0
    lines = drawn(view)
    assert len(lines) == 1 + num_running
    assert max(map(len, lines)) <= 80
    for line in lines[1:]:
        assert "…, seed 0 " in line
        assert "round 124:  4/10" in line
        assert line.rstrip().endswith("loss 0.1234, 45.67%")
        bar = line.partition("seed 0 ")[2].partition("round")[0]
        assert len(bar) >= 10
        assert 0.2 < bar.count("━") / len(bar) < 0.6
    assert lines[0].endswith("left")
    wide = drawn(view, 120)
    assert "4/10 clients" in wide[1]
    assert wide[1].rstrip().endswith("accuracy 45.67%")


def test_the_work_of_the_server_after_that_of_the_clients_is_named() -> None:
    view = ProgressView("fedavg, seed 0", 20, clock=Clock())
    activity = training(view, "a", round_index=3, share=1.0)
    assert view.line() == "4/20 rounds, 0:00:00; fedavg, seed 0: round 4/20: evaluating"
    assert drawn(view)[1].split()[-3:] == ["round", "4:", "evaluating"]
    job = view.watch[Path("a")].job
    for changes in ({"evaluate_every": 3}, {"data": replace(digits().data, pooled=True, held_out=0.2)}):
        seldom = replace(job, experiment=replace(digits(), **changes))
        view.watch[Path("a")] = Running(seldom, activity)
        assert "round 4/20: 10/10 clients" in view.line()
    activity.phase = CALIBRATION
    assert view.line().endswith("fedavg, seed 0: solving and evaluating")
    activity.reset()
    assert view.line().endswith("fedavg, seed 0: starting")
    view.watch[Path("a")] = Running(replace(job, trained=Path("b")), activity)
    assert view.line().endswith("fedavg, seed 0: loading and evaluating")


def test_a_phase_after_training_has_a_bar_and_a_time_of_its_own() -> None:
    clock = Clock()
    view = ProgressView("fedavg, seed 0", 20, clock=clock)
    activity = training(view, "a", round_index=20, share=0.0)
    activity.phase = CALIBRATION
    view.observe()
    clock.now = 30.0
    activity.clients_done, activity.examples_done = 3, 250
    first, second = drawn(view)
    assert "20/20 rounds" in first
    assert "left" not in first
    assert second.split()[-4:] == ["calibration:", "3/10", "0:01:30", "left"]
    assert view.line() == "20/20 rounds, 0:00:30; fedavg, seed 0: calibration: 3/10 clients"


def test_a_run_without_rounds_shows_its_steps() -> None:
    clock = Clock()
    view = ProgressView("one-shot, seed 0", 0, clock=clock)
    activity = view.watch_run(replace(digits_one_shot(), name="one-shot"), Path("a"))
    assert view.line() == "no rounds, 0:00:00; one-shot, seed 0: preparing features"
    activity.phase, activity.clients, activity.examples = CALIBRATION, 10, 1000
    view.observe()
    clock.now = 30.0
    activity.clients_done, activity.examples_done = 3, 250
    assert view.line() == "no rounds, 0:00:30; one-shot, seed 0: measuring: 3/10 clients"
    assert view.part_done() == 0.25
    first, second = drawn(view)
    assert "no rounds" in first
    assert second.split()[-4:] == ["measuring:", "3/10", "0:01:30", "left"]
    activity.clients_done, activity.examples_done = 10, 1000
    assert view.line() == "no rounds, 0:00:30; one-shot, seed 0: solving and evaluating"
    assert not any("0/0" in line or "left" in line for line in drawn(view))
    assert drawn(view)[0].count("━") > 2 * first.count("━") > 0


def test_a_run_of_another_process_is_read_from_its_directory(tmp_path: Path) -> None:
    clock = Clock()
    view = ProgressView("clinic", 4, clock=clock)
    view.watch_folder(replace(digits(), name="clinic", rounds=4), tmp_path)
    assert "starting" in view.line()
    activity = training(view, str(tmp_path), round_index=1, share=0.0)
    activity.examples = activity.examples_done = 0  # sites do not say how many they have
    for now, done in ((0.0, 0), (10.0, 5)):
        clock.now, activity.clients_done = now, done
        (tmp_path / ACTIVITY).write_bytes(bytes(activity))
        view.observe()
    view.advance(tmp_path, Progress(index=0, rounds=4, loss=0.5, accuracy=None))
    assert view.rounds_done() == pytest.approx(1.5)
    assert "1/4 rounds" in view.line()
    assert "clinic, seed 0: round 2/4: 5/10 clients, loss 0.5000" in view.line()
    assert view.seconds_left() is not None


def test_without_a_terminal_there_is_a_line_every_ten_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    class Looks(threading.Event):
        """Time passes at once."""

        waited = 0.0

        def wait(self, timeout: float | None = None) -> bool:
            assert timeout is not None
            self.waited += timeout
            return self.waited > 35.0

    view = ProgressView("digits", 20, clock=Clock())
    training(view, "a", round_index=3, share=0.5)
    view.advance(Path("a"), Progress(2, 20, 0.5, 0.25))
    progress._write_lines(view, Looks())
    line = "3/20 rounds, 0:00:00; fedavg, seed 0: round 4/20: 5/10 clients, loss 0.5000, accuracy 25.00%"
    assert capsys.readouterr().err.splitlines() == [line] * 3
    view.advance(Path("a"), Progress(19, 20, 0.5, 0.25))
    del view.watch[Path("a")]
    over = threading.Event()
    over.set()
    progress._write_lines(view, over)
    assert capsys.readouterr().err == "fedavg, seed 0: round 20 of 20, loss 0.5000, accuracy 25.00%\n"


def test_a_notebook_has_one_output_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = pytest.importorskip("IPython.display")
    shown: list[str] = []

    class Handle:
        def update(self, content: dict[str, str], *, raw: bool) -> None:
            shown.append(content["text/html"])

    def display(content: dict[str, str], *, raw: bool, display_id: bool) -> Handle:
        shown.append(content["text/plain"])
        view.advance(Path("a"), Progress(9, 20, 0.5, None))
        over.set()
        return Handle()

    monkeypatch.setattr(notebook, "display", display)
    view, over = ProgressView("digits <&>", 20, clock=Clock()), threading.Event()
    training(view, "a", round_index=3, share=0.5, name="<mine>")
    progress._update_output(view, over)
    assert shown == [
        "3/20 rounds, 0:00:00; <mine>, seed 0: round 4/20: 5/10 clients",
        '<progress value="0.500" max="1"></progress> 10/20 rounds, 0:00:00; &lt;mine&gt;, seed 0: round 4/20: 5/10 '
        "clients, loss 0.5000",
    ]
