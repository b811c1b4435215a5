"""Write measured tables into pages, between the comments that mark their place."""

from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"


def write_section(page: str, name: str, text: str) -> None:
    """Replace what stands between `<!-- name: begin -->` and `<!-- name: end -->` in a page of the documentation."""
    begin, end, path = f"<!-- {name}: begin -->", f"<!-- {name}: end -->", DOCS / page
    before, rest = path.read_text(encoding="utf-8").split(begin)
    path.write_text(f"{before}{begin}\n{text}\n{end}{rest.split(end)[1]}", encoding="utf-8")
