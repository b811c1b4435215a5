"""Run the notebooks of docs/notebooks and store their outputs (`python tools/notebooks.py`); show one as Markdown."""

import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[1] / "docs" / "notebooks"
SECONDS = 600
"""Time for one cell."""


def execute(path: Path, cwd: Path) -> Any:
    """The notebook, run from its first cell in this folder; an error in a cell is raised."""
    notebook: Any = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    client = NotebookClient(
        notebook,
        timeout=SECONDS,
        kernel_name="python3",
        resources={"metadata": {"path": str(cwd)}},
        coalesce_streams=True,  # a slow kernel sends what one cell prints in several messages
    )
    client.execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # when a cell ran is not part of the document
    return notebook


def as_markdown(path: Path) -> str:
    """Texts, code and stored outputs."""
    notebook: Any = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    parts = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
        else:
            parts.append(f"```python\n{cell.source}\n```")
            parts += [_output(each) for each in cell.outputs]
    note = f"*This page is the notebook `docs/notebooks/{path.name}`, with its stored outputs.*"
    title, _, rest = "\n\n".join(part for part in parts if part).partition("\n")
    return f"{title}\n\n{note}\n{rest}\n"


def _output(output: Any) -> str:
    if output.output_type == "stream":
        return f"```text\n{output.text.rstrip()}\n```"
    data = output.get("data", {})
    if "image/png" in data:
        return f"![Output of the cell above](data:image/png;base64,{data['image/png'].strip()})"
    if "text/html" in data:
        return str(data["text/html"])
    return f"```text\n{data.get('text/plain', '')}\n```"


def main() -> None:
    """Run every notebook, or those named, and write it back."""
    for path in [Path(name) for name in sys.argv[1:]] or sorted(FOLDER.glob("*.ipynb")):
        with tempfile.TemporaryDirectory() as cwd:
            notebook = execute(path, Path(cwd))
        nbformat.write(notebook, path)  # type: ignore[no-untyped-call]
        print(f"{path.name}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
