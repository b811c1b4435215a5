"""Tables for the terminal and for Markdown."""

from pathlib import Path

import numpy as np
from rich.console import Console
from rich.text import Text

from spherefed.report import markdown_table, rich_table, summarize
from support.known_runs import FEDAVG_TRAINED, SPHERE_CALIBRATED, by_hand, experiment, write_run


def test_markdown_and_terminal_tables_say_the_same(demo: Path) -> None:
    summary = summarize([demo])
    table = rich_table(summary)
    columns = [
        [str(column.header).replace("\n", " "), *(cell.plain for cell in column.cells if isinstance(cell, Text))]
        for column in table.columns
    ]
    header, rule, *lines = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in markdown_table(summary).splitlines()
        if line.startswith("|")
    ]
    assert [list(line) for line in zip(*columns, strict=True)] == [header, *lines]
    assert len(lines) == 4
    assert set(rule[1:]) == {"---:"}
    mean, half = by_hand(SPHERE_CALIBRATED)
    gain, spread = by_hand(np.subtract(SPHERE_CALIBRATED, FEDAVG_TRAINED).tolist())
    assert lines[3] == [
        "SphereFed", "5", f"{100 * mean:.2f} ± {100 * half:.2f}", f"+{100 * gain:.2f} ± {100 * spread:.2f}",
        "1.03 MB", "2.00 MB", "2.5 s",
    ]  # fmt: skip


def test_a_caption_speaks_of_an_interval_only_if_there_is_one(tmp_path: Path) -> None:
    write_run(tmp_path / "a", experiment(), 0.8)
    assert "one seed gives no confidence interval" in markdown_table(summarize([tmp_path]))
    assert "±" not in markdown_table(summarize([tmp_path]))
    for seed in range(2):
        write_run(tmp_path / f"b{seed}", experiment(seed, **{"local.lr": 0.5}), 0.8 + seed / 10)
    assert "half-width of the 95 % confidence interval" in markdown_table(summarize([tmp_path]))
    assert "One seed gives no interval." in markdown_table(summarize([tmp_path]))


def test_brackets_in_a_label_are_no_markup(tmp_path: Path) -> None:
    write_run(tmp_path / "a", experiment(name="[red]a[/red]"), 0.8)
    write_run(tmp_path / "b", experiment(name="b|c"), 0.8)
    summary = summarize([tmp_path])
    console = Console(width=200)
    with console.capture() as capture:
        console.print(rich_table(summary))
    assert "FedAvg (name [red]a[/red])" in capture.get()
    assert "FedAvg (name b\\|c)" in markdown_table(summary)


def test_a_narrow_terminal_wraps_names_and_never_numbers_or_headings(tmp_path: Path) -> None:
    write_run(tmp_path / "a", experiment(name="a"), 0.8)
    write_run(tmp_path / "b", experiment(name="a name with more words than a terminal has room for"), 0.8)
    summary = summarize([tmp_path])
    console = Console(width=80)
    with console.capture() as capture:
        console.print(rich_table(summary))
    lines = capture.get().splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["vs", "FedAvg", "sent", "received"]
    assert lines[1].split() == ["method", "seeds", "accuracy", "(name", "a)", "/", "client", "/", "client", "time"]
    rows = [line for line in lines if " MB " in line]
    assert len(rows) == len(summary.rows)
    assert all("80.00" in row for row in rows)
    assert "(name a name with" in lines[4]
