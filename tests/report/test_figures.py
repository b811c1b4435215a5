"""Figures: well-formed, the same every time, in colours of the page, with values to hover over."""

import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from spherefed.report import curves, maps, result_figures
from spherefed.report.curve_points import cumulative_bytes, cumulative_seconds, curve, trained_groups
from spherefed.report.drawing import THEME, Drawing, theme_css, thinned
from spherefed.report.page import report_drawings
from spherefed.report.reports import read_report
from spherefed.report.run_files import Partition
from support.known_runs import FEDAVG_TRAINED, SPHERE, experiment, write_run

SVG = "{http://www.w3.org/2000/svg}"


def titles(svg: str) -> list[str]:
    root = ElementTree.fromstring(svg)
    return [
        str(title.text)
        for group in root.iter(f"{SVG}g")
        if group.get("class") == "spots"
        for title in group.iter(f"{SVG}title")
    ]


def test_a_report_has_every_panel(demo_drawings: dict[str, Drawing]) -> None:
    wanted = {
        "final", "rounds", "loss", "bytes", "seconds", "clients", "consistency", "partition0", "partitions0",
        "classes0", "spectrum", "traffic",
    }  # fmt: skip
    assert set(demo_drawings) == wanted


@pytest.mark.slow
def test_figures_are_the_same_every_time_and_share_no_ids(demo: Path, demo_svgs: dict[str, str]) -> None:
    svgs = demo_svgs
    report = read_report([demo])
    again = [result_figures.final_accuracy(report.rows), curves.accuracy_per_round(report.groups, report.rows)]
    for drawing in again:
        assert drawing.svg() == drawing.svg() == svgs[drawing.name]
    ids = [name for svg in svgs.values() for name in re.findall(r'\bid="([^"]*)"', svg)]
    assert len(ids) == len(set(ids))
    for name, svg in svgs.items():
        own = set(re.findall(r'\bid="([^"]*)"', svg))
        used = set(re.findall(r'(?:href="#|url\(#)([^")]*)', svg))
        assert used <= own
        assert all(known.startswith(f"{name}-") for known in own)


def test_figures_are_well_formed_and_named(demo_svgs: dict[str, str]) -> None:
    for name, svg in demo_svgs.items():
        root = ElementTree.fromstring(svg)
        assert root.get("role") == "img"
        title, description = root.find(f"{SVG}title"), root.find(f"{SVG}desc")
        assert title is not None
        assert title.text
        assert description is not None
        assert description.text, name
        assert root.get("aria-labelledby") == f"{name}-title {name}-description"


def test_colours_on_a_page_are_variables_that_the_page_defines_for_both_themes(demo_svgs: dict[str, str]) -> None:
    css = theme_css()
    for name, svg in demo_svgs.items():
        assert set(re.findall(r"var\(--([a-z0-9-]+)\)", svg)) <= set(THEME)
        fixed = set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", svg))
        assert fixed <= {"#2f7fbf"}, f"{name} has colours that do not follow the theme"
    for variable, (light, dark) in THEME.items():
        assert f"--{variable}: {light};" in css.partition("@media")[0]
        assert f"--{variable}: {dark};" in css.partition("@media")[2]


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(first: str, second: str) -> float:
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_contrast_is_sufficient_in_both_themes(theme: int) -> None:
    surface = THEME["surface"][theme]
    for name in ("ink", "soft"):
        assert contrast(THEME[name][theme], surface) >= 4.5, name
    for name in (*(f"series-{i}" for i in range(7)), "axis", "heat"):
        assert contrast(THEME[name][theme], surface) >= 3, name
    assert contrast(maps.PICTURE, surface) >= 3
    # Text in a cell of a map: the hue in this opacity over the surface.
    for level in np.linspace(0, 1, 101):
        mixed = [
            round(int(surface[i : i + 2], 16) * (1 - level) + int(THEME["heat"][theme][i : i + 2], 16) * level)
            for i in (1, 3, 5)
        ]
        cell = "#" + "".join(f"{part:02x}" for part in mixed)
        ink = THEME["on-heat" if level > maps.INVERSE else "on-pale"][theme]
        assert contrast(ink, cell) >= 4.5, (level, ink, cell)


def test_values_are_shown_for_every_seed_round_and_cell(demo_svgs: dict[str, str]) -> None:
    figures = demo_svgs
    assert "FedAvg, seed 3: 85.00 %" in titles(figures["final"])
    assert "FedAvg, round 1: 40.70 ± 1.43 %" in titles(figures["rounds"])
    assert "client 2, class 1: 4" in titles(figures["partition0"])
    assert "FedAvg + FFC: 1.03 MB sent per client" in titles(figures["traffic"])
    assert "FedAvg, class 0: 80.0 %" in titles(figures["classes0"])
    assert any("eigenvalue 1 of 4 is 12" in text for text in titles(figures["spectrum"]))


def test_figures_in_files_have_fixed_colours_and_a_pdf_beside_them(
    demo_drawings: dict[str, Drawing], tmp_path: Path
) -> None:
    for name in ("final", "partition0"):
        svg, pdf = demo_drawings[name].write(tmp_path)
        assert "var(--" not in svg.read_text(encoding="utf-8")
        ElementTree.parse(svg)
        before = svg.read_bytes(), pdf.read_bytes()
        assert before[1].startswith(b"%PDF")
        demo_drawings[name].write(tmp_path)
        assert (svg.read_bytes(), pdf.read_bytes()) == before


def test_the_partition_map_writes_every_count_and_has_a_colour_scale() -> None:
    drawing = maps.partition_map(Partition(digest="d", label_counts=((501, 0), (602, 703))), "map", "counts")
    texts = [element.text for element in ElementTree.fromstring(drawing.svg()).iter(f"{SVG}text")]
    assert {"501", "602", "703", "1305", "examples"} <= set(texts)


@pytest.mark.parametrize("counts", [((0, 0), (0, 0)), ((1,),), tuple((k % 7,) * 100 for k in range(100))])
def test_unusual_partitions_are_drawn(counts: tuple[tuple[int, ...], ...]) -> None:
    svg = maps.partition_map(Partition(digest="d", label_counts=counts), "map", "counts").svg()
    assert f"{len(counts)} clients" in svg
    assert ">examples</text>" in svg, "the colour scale says what the colours are"
    assert len(svg) < 100_000


def test_a_thousand_clients_are_sorted_by_class_and_summed_where_they_show_values() -> None:
    rng = np.random.default_rng(0)
    counts = rng.multinomial(50, [0.02] * 50, size=1000)
    counts[np.arange(1000), rng.integers(50, size=1000)] += 100
    drawing = maps.partition_map(Partition(digest="d", label_counts=tuple(map(tuple, counts.tolist()))), "map", "many")
    svg = drawing.svg()
    assert len(svg) < 150_000
    texts = titles(svg)
    assert len(texts) == 100
    assert all(text.startswith("10 clients") for text in texts)
    shown = [int(text.rpartition(" ")[2]) for text in texts]
    assert shown == sorted(shown), "neighbours have the same most frequent class"


def test_rounds_that_were_not_evaluated_are_not_drawn(demo: Path) -> None:
    group = read_report([demo]).groups[0]
    found = curve(group)
    assert [x for x, _ in found] == [1, 3, 4]
    assert found[0][1].mean == pytest.approx(np.mean(FEDAVG_TRAINED) / 2)


def test_costs_add_up_over_rounds(demo: Path) -> None:
    run = read_report([demo]).groups[0].runs[0]
    assert cumulative_bytes(run) == {1: 600, 2: 1200, 3: 1800, 4: 2400}
    assert cumulative_seconds(run) == {1: 0.5, 2: 1.0, 3: 1.5, 4: 2.0}


def test_methods_with_the_same_training_share_one_curve(mixed: Path) -> None:
    report = read_report([mixed])
    names = [report.groups[i].name for i in trained_groups(report.groups, report.rows)]
    assert names.count("FedAvg + fine-tuning") + names.count("FedAvg + local FFC") == 1


@pytest.mark.slow
def test_long_names_and_many_groups_leave_room_to_draw(tmp_path: Path) -> None:
    for number in range(8):
        long = "a very long name of an experiment that goes on and on and on " * 3 + str(number)
        write_run(tmp_path / str(number), experiment(name=long, **SPHERE), 0.8, 0.9)
    for drawing in report_drawings(
        read_report([tmp_path])
    ):  # a figure without room is a warning, and warnings are errors
        ElementTree.fromstring(drawing.svg())


@pytest.mark.parametrize("value", [1.0, 0.999, 0.0])
def test_no_axis_has_a_tick_beyond_100_per_cent(tmp_path: Path, value: float) -> None:
    for seed in range(3):
        write_run(tmp_path / str(seed), experiment(seed, calibration={"kind": "ffc"}), value, value)
    report = read_report([tmp_path])
    rows = report.rows
    for drawing in (result_figures.final_accuracy(rows), curves.accuracy_per_round(report.groups, rows)):
        (axes,) = drawing.figure.axes
        axis, limits = (axes.xaxis, axes.get_xlim()) if drawing.name == "final" else (axes.yaxis, axes.get_ylim())
        shown = [tick for tick in axis.get_ticklocs() if limits[0] <= tick <= limits[1]]
        assert shown
        assert min(shown) >= 0
        assert max(shown) <= 100


def test_long_curves_show_values_of_some_points() -> None:
    assert thinned(5) == [0, 1, 2, 3, 4]
    points = thinned(1000)
    assert len(points) <= 60
    assert (points[0], points[-1]) == (0, 999)


def test_drawing_leaves_matplotlib_settings_alone(demo: Path) -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    result_figures.final_accuracy(read_report([demo]).rows).svg()
    assert dict(matplotlib.rcParams) == before
