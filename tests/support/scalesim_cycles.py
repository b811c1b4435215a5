"""Run by an interpreter that has SCALE-Sim 3.0: compute cycles of matrix products, as JSON on the last line.

Arguments: a folder to write into, and JSON with rows, columns, dataflow and gemms, a list of [m, n, k].
"""

import json
import sys
from pathlib import Path
from typing import Any

CONFIG = """
[general]
run_name = cycles

[run_presets]
InterfaceBandwidth = CALC
UseRamulatorTrace = False

[architecture_presets]
ArrayHeight = {rows}
ArrayWidth = {columns}
IfmapSramSzkB = 4096
FilterSramSzkB = 4096
OfmapSramSzkB = 4096
IfmapOffset = 0
FilterOffset = 10000000
OfmapOffset = 20000000
Dataflow = {dataflow}
Bandwidth = 10
ReadRequestBuffer = 32
WriteRequestBuffer = 32

[layout]
IfmapCustomLayout = False
FilterCustomLayout = False
IfmapSRAMBankBandwidth = 10
IfmapSRAMBankNum = 10
IfmapSRAMBankPort = 2
FilterSRAMBankBandwidth = 10
FilterSRAMBankNum = 10
FilterSRAMBankPort = 2

[sparsity]
SparsitySupport = false
"""


def simulate(folder: Path, wanted: dict[str, Any]) -> list[int]:
    """Compute cycles of each product."""
    from scalesim.scale_sim import scalesim

    config, topology, layout = folder / "array.cfg", folder / "gemms.csv", folder / "layout.csv"
    config.write_text(CONFIG.format(**wanted))
    names = [f"gemm{number}" for number in range(len(wanted["gemms"]))]
    # Every row ends in a comma: the reader drops what follows the last one.
    lines = [f"{name},{m},{n},{k}," for name, (m, n, k) in zip(names, wanted["gemms"], strict=True)]
    topology.write_text("\n".join(["Layer,M,N,K,", *lines, ""]))
    layout.write_text("\n".join(["Layer," + "x," * 16, *(f"{name}," + "1," * 16 for name in names), ""]))
    run = scalesim(
        save_disk_space=True,
        verbose=False,
        config=str(config),
        topology=str(topology),
        layout=str(layout),
        input_type_gemm=True,
    )
    run.run_scale(top_path=str(folder / "reports"))
    return [int(layer.get_compute_report_items()[1]) for layer in run.runner.single_layer_sim_object_list]


if __name__ == "__main__":
    print("\n" + json.dumps(simulate(Path(sys.argv[1]), json.loads(sys.argv[2]))))
