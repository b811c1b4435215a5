"""The scripts and the notebook in `examples/` do what they say."""

import os
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def ran(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names that a script leaves behind."""
    monkeypatch.chdir(folder)
    return runpy.run_path(str(EXAMPLES / name))


@pytest.mark.slow
def test_twelve_lines_compare_methods_on_an_own_network_and_arrays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pandas")
    lines = [line for line in (EXAMPLES / "compare_methods.py").read_text().splitlines() if line.strip()]
    assert len(lines) - 1 <= 12  # beside the docstring
    frame = ran("compare_methods.py", tmp_path, monkeypatch)["comparison"].frame()
    assert list(frame["method"]) == ["fedavg"] * 2 + ["fedavg+spherefed"] * 2
    assert frame[["accuracy", "balanced_accuracy", "macro_f1"]].min().min() > 0.5
    assert "<svg" in (tmp_path / "wine.svg").read_text()


def test_natural_clients_keep_their_own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    result = ran("natural_clients.py", tmp_path, monkeypatch)["result"]
    assert [record["clients"] for record in result.records()] == [3] * 5
    assert result.summary["calibration"]["summed"]["examples"] == 380
    assert result.accuracy > 0.85
    by_column = capsys.readouterr().out.splitlines()[-1]
    assert float(re.findall(r"accuracy=([\d.]+)%", by_column)[0]) > 80


@pytest.mark.slow
def test_data_of_other_libraries_give_equal_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for library in ("pandas", "pyarrow", "datasets"):
        pytest.importorskip(library)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    results = ran("data_of_other_libraries.py", tmp_path, monkeypatch)["results"]
    assert set(results) == {"arrays", "torch Dataset", "pandas frame", "Hugging Face dataset"}
    assert len({result.summary["weights_sha256"] for result in results.values()}) == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # of the libraries that speak with the kernel
def test_the_notebook_trains_plots_and_shows_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    # The kernel writes its connection and history files here; nothing of the user's home is used.
    for name in ("HOME", "IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "MPLCONFIGDIR"):
        (tmp_path / name).mkdir()
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(EXAMPLES.parent / "src"), os.environ.get("PYTHONPATH", "")]))
    notebook = nbformat.read(EXAMPLES / "notebook.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert not [output for output in shown if output["output_type"] == "error"]
    kinds = {kind for output in shown for kind in output.get("data", {})}
    assert {"image/png", "text/html"} <= kinds
    tables = [output["data"]["text/html"] for output in shown if "text/html" in output.get("data", {})]
    assert any("balanced_accuracy" in table for table in tables)
    assert any("calibrated" in table for table in tables)
