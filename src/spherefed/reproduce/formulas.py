"""Table 1 and Figure 5: costs by formula, without training."""

from collections.abc import Mapping
from typing import Any

from spherefed.costs.hardware import CALIBRATION_CLAIM, LATENCY_CLAIM, MEMORY_CLAIM, Figure5, figure_5
from spherefed.costs.table1 import PRINTED, table_1
from spherefed.costs.verdicts import Finding
from spherefed.reproduce.item import Item
from spherefed.reproduce.judging import Verdict
from spherefed.reproduce.scales import Scale


def table1(scale: Scale) -> Item:
    """Communication and operations of the classifier, by formula."""
    return Item(
        name="table1",
        title="Table 1: communication and computation of the classifier",
        claim="The classifier needs 7 MB and 1.7·10² GFLOP in SphereFed, 102 MB and 1.9·10⁴ in FedAvg, 758 MB and "
        "2.1·10⁴ in CCVR.",
        computed=_table1,
        deviations=("CCVR's 2.1·10⁴ GFLOP need about 100 epochs of its refit, which the paper does not state.",),
    )


def _table1() -> dict[str, Any]:
    found = table_1()
    rows, verdicts = [], []
    for ours, printed in zip(found.rows, PRINTED, strict=True):
        megabytes, gigaflops = ours.bytes_per_client / 1e6, ours.flops / 1e9
        rows.append(
            [ours.method, f"{printed.megabytes}", f"{megabytes:.2f}", f"{printed.gigaflops:.1e}", f"{gigaflops:.3e}"]
        )
        # The paper truncates: 1.7·10² stands for 176.6.
        same = int(megabytes) == printed.megabytes and 0 <= gigaflops / printed.gigaflops - 1 < 0.1
        verdicts.append(
            {
                "text": f"{ours.method}: {printed.megabytes} MB and {printed.gigaflops:.1e} GFLOP",
                "verdict": "holds" if same else "does not hold",
                "reason": f"{megabytes:.2f} MB and {gigaflops:.3e} GFLOP by formula",
            }
        )
    for each in found.reductions:
        both = min(each.bytes_factor, each.flops_factor) >= 100
        verdicts.append(
            {
                "text": f"over two orders of magnitude less communication and computation than {each.against}",
                "verdict": "holds" if both else "does not hold",
                "reason": f"{each.bytes_factor:.0f} times fewer bytes, {each.flops_factor:.0f} times fewer operations",
            }
        )
    header = ["method", "paper, MB", "formula, MB", "paper, GFLOP", "formula, GFLOP"]
    bars = [
        {"label": f"{ours.method}, {unit}", "low": value, "high": value, "paper": paper}
        for ours, printed in zip(found.rows, PRINTED, strict=True)
        for unit, value, paper in (
            ("MB", round(ours.bytes_per_client / 1e6, 3), printed.megabytes),
            ("GFLOP", round(ours.flops / 1e9, 1), printed.gigaflops),
        )
    ]
    quantity = "MB per client, GFLOP of all clients"
    return {
        "header": header,
        "rows": rows,
        "verdicts": verdicts,
        "bars": {"quantity": quantity, "log": True, "rows": bars},
    }


def fig5(scale: Scale) -> Item:
    """The accelerator, by formula."""
    return Item(
        name="fig5",
        title="Figure 5: efficiency on a systolic array",
        claim="SphereFed saves up to 10.5 % of memory and 13.6 % of latency; FFC saves up to 9.1 % of CCVR's latency.",
        computed=_fig5,
        deviations=("The bars of the figure are not in the paper's source; only the maxima in the text are judged.",),
    )


VERDICTS: Mapping[Finding, Verdict] = {
    "possible": "not decided",
    "too high": "does not hold",
    "too low": "does not hold",
    "holds": "holds",
    "holds in part": "not decided",
    "does not hold": "does not hold",
}
"""What depends on assumptions that the paper does not state is not decided."""
CLAIMED = {"peak_memory": MEMORY_CLAIM, "latency": LATENCY_CLAIM, "calibration": CALIBRATION_CLAIM}


def _fig5() -> dict[str, Any]:
    found = figure_5()
    rows, bars = [], []
    for panel in ("communication", "peak_memory", "latency", "calibration"):
        for encoder in dict.fromkeys(each.encoder for each in getattr(found, panel)):
            savings = [each.saving for each in getattr(found, panel) if each.encoder == encoder and each.stated]
            if not savings:
                continue
            name, low, high = panel.replace("_", " "), 100 * min(savings), 100 * max(savings)
            rows.append([name, encoder, f"{low:.2f}", f"{high:.2f}"])
            claimed = CLAIMED.get(panel)
            bars.append(
                {
                    "label": f"{name}, {encoder}",
                    "low": round(low, 2),
                    "high": round(high, 2),
                    "paper": None if claimed is None else round(100 * claimed, 1),
                }
            )
    verdicts = [
        {"text": v.claim, "verdict": VERDICTS[v.finding], "reason": f"{v.finding.capitalize()}. {v.text}"}
        for v in found.verdicts
    ]
    return {
        "header": ["panel", "network", "lowest saving, %", "highest saving, %"],
        "details": _details(found),
        "rows": rows,
        "verdicts": verdicts,
        "bars": {"quantity": "saving, %; the paper states maxima", "log": False, "rows": bars},
    }


def _details(found: Figure5) -> dict[str, Any]:
    """Every comparison: network, assumptions, dataflow, without and with SphereFed."""
    rows = []
    for panel, unit, size in (("peak_memory", "MB", 1e6), ("latency", "s", 1.0), ("calibration", "s", 1.0)):
        for each in getattr(found, panel):
            rows.append(
                [
                    panel.replace("_", " "),
                    each.encoder,
                    each.assumptions + ("" if each.stated else " (contradicts the paper)"),
                    each.dataflow or "–",
                    f"{each.baseline / size:.4g} {unit}",
                    f"{each.spherefed / size:.4g} {unit}",
                    f"{100 * each.saving:.2f}",
                ]
            )
    return {
        "header": ["panel", "network", "assumptions", "dataflow", "FedAvg or CCVR", "SphereFed", "saving, %"],
        "rows": rows,
    }
