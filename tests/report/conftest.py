"""Fixtures for the tests of reports."""

from pathlib import Path

import pytest

from spherefed.report.drawing import Drawing
from spherefed.report.page import render_page, report_drawings
from spherefed.report.reports import read_report
from support.report_runs import write_demo, write_mixed


@pytest.fixture
def demo(tmp_path: Path) -> Path:
    """FedAvg + FFC and SphereFed, five seeds each; the folder names put SphereFed first."""
    return write_demo(tmp_path / "runs")


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """FedAvg on a test set, two personalised methods, and a deployed run that is tested at its sites."""
    return write_mixed(tmp_path / "mixed")


@pytest.fixture(scope="session")
def demo_drawings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Drawing]:
    """The figures of the demo, by their names: drawn once, because drawing takes most of the time of a test."""
    root = write_demo(tmp_path_factory.mktemp("drawn"))
    return {drawing.name: drawing for drawing in report_drawings(read_report([root]))}


@pytest.fixture(scope="session")
def demo_svgs(demo_drawings: dict[str, Drawing]) -> dict[str, str]:
    """The same figures as they stand in a page."""
    return {name: drawing.svg() for name, drawing in demo_drawings.items()}


@pytest.fixture(scope="session")
def demo_page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of the demo."""
    return render_page(read_report([write_demo(tmp_path_factory.mktemp("rendered"))]))
