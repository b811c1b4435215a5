"""Partitions as pictures: in the terminal, as files and as pages."""

import re

import numpy as np
import pytest
from rich.console import Console

from spherefed.data.heterogeneity import heterogeneity
from spherefed.data.partition import (
    Dirichlet,
    Partition,
    partition,
)
from spherefed.errors import ConfigError
from spherefed.report.heatmap import heatmap_figure, heterogeneity_lines, terminal_heatmap, write_heatmap
from support.small import random_labels


def test_terminal_heat_map_fits_and_shows_who_holds_what():
    labels = random_labels(3000, 200)
    outcome = partition(Dirichlet(clients=99), labels, 200, np.random.default_rng(0))
    for colour in (True, False):
        lines = terminal_heatmap(outcome, width=80, max_rows=30, colour=colour).plain.splitlines()
        assert len(lines) <= 1 + 30
        assert max(map(len, lines)) <= 80
        assert re.fullmatch(r"rows: clients; columns: classes 0–199, 3 per cell; brightest: \d+ examples", lines[0])
        assert [line.split()[0] for line in (lines[1], lines[-1])] == ["0–3", "96–98"]
    pair = Partition((np.arange(4), np.arange(4, 5)), np.array([[4, 0], [0, 1]]))
    header = "rows: clients; columns: classes 0–1; brightest: 4 examples"
    assert terminal_heatmap(pair, colour=False).plain == f"{header}\n0 █ \n1  ▒"
    coloured = terminal_heatmap(pair)
    assert coloured.plain == f"{header}\n0–1 ▀▀"
    Console(file=None, quiet=True).print(coloured)


def test_the_picture_names_its_axes_and_has_a_colour_scale_for_the_counts():
    outcome = partition(Dirichlet(clients=5), random_labels(3000, 100), 100, np.random.default_rng(0))
    picture, scale = heatmap_figure(outcome, "who has what").axes
    assert (picture.get_title(), picture.get_xlabel(), picture.get_ylabel()) == ("who has what", "class", "client")
    assert scale.get_ylabel() == "examples"
    assert scale.get_ylim() == (outcome.label_counts.min(), outcome.label_counts.max())


def test_pictures_and_pages_are_written(tmp_path):
    outcome = partition(Dirichlet(clients=5), random_labels(300, 10), 10, np.random.default_rng(0))
    write_heatmap(outcome, tmp_path / "map.png")
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")
    write_heatmap(outcome, tmp_path / "map.html", title="<who & what>")
    page = (tmp_path / "map.html").read_text(encoding="utf-8")
    assert "&lt;who &amp; what&gt;" in page
    assert outcome.digest() in page
    assert "http" not in page
    assert len(heterogeneity_lines(heterogeneity(outcome))) == 3
    with pytest.raises(ConfigError, match=r"\.png or \.html"):
        write_heatmap(outcome, tmp_path / "map.pdf")
