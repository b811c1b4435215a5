"""Write a self-contained HTML page about runs: no fonts, no network requests; it works without scripts, too."""

import base64
import hashlib
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from spherefed.errors import RunError
from spherefed.files import write_bytes
from spherefed.report.blocks import Section, drawings
from spherefed.report.drawing import Drawing, theme_css
from spherefed.report.provenance import provenance_sections
from spherefed.report.reports import Report, read_report
from spherefed.report.sections import result_sections
from spherefed.report.status import Status, status_section
from spherefed.report.wording import conclusions, overview, report_notes, report_title


def write_page(runs: Sequence[Path], out: Path, *, targets: Sequence[float] | None = None) -> Path:
    """Write the page about the runs at or below `runs` to the file `out`, completely or not at all."""
    return write_text(render_page(read_report(runs), targets=targets), out)


def write_text(text: str, out: Path) -> Path:
    """Replace the page by this text."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(out, text.encode())
        out.chmod(0o644)
    except OSError as error:
        raise RunError(f"cannot write the page {out}: {error.strerror}") from error
    return out


def write_figures(runs: Sequence[Path], folder: Path) -> list[Path]:
    """Write every figure of the page as SVG and PDF."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return [path for drawing in report_drawings(read_report(runs)) for path in drawing.write(folder)]
    except OSError as error:
        raise RunError(f"cannot write figures to {folder}: {error.strerror}") from error


def report_drawings(report: Report) -> list[Drawing]:
    """Every figure of the page."""
    return [drawing for section in result_sections(report) for drawing in drawings(section.blocks)]


def render_page(
    report: Report,
    *,
    targets: Sequence[float] | None = None,
    status: Status | None = None,
    reload_seconds: int | None = None,
) -> str:
    """The page as text; equal reports give equal pages. With `reload_seconds` the page reloads itself."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["non_breaking"] = _non_breaking
    environment.filters["kind"] = lambda block: type(block).__name__
    environment.filters["svg"] = lambda drawing: Markup(drawing.svg())
    script = _resource("page.js")
    sections: list[Section] = [] if status is None else [status_section(status)]
    sections += [*result_sections(report, targets), *provenance_sections(report)]
    return environment.from_string(_resource("page.html")).render(
        title=report_title(report),
        details=overview(report.groups),
        conclusions=conclusions(report),
        notes=report_notes(report),
        sections=sections,
        css=Markup(theme_css() + "\n" + _resource("page.css")),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        reload_seconds=reload_seconds,
    )


def _resource(name: str) -> str:
    return files("spherefed.report").joinpath(name).read_text(encoding="utf-8")


def _non_breaking(text: str) -> str:
    """Use non-breaking spaces between a number and its sign or unit."""
    for sign in ("±", "=", "%", "points"):
        text = text.replace(f" {sign}", f"\u00a0{sign}")
    return text.replace("± ", "±\u00a0").replace("= ", "=\u00a0")
