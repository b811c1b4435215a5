"""Table 1 and Figure 5: costs by formula, without training."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from spherefed.costs.hardware import CALIBRATION_CLAIM, LATENCY_CLAIM, MEMORY_CLAIM, Figure5, figure_5
from spherefed.costs.table1 import PRINTED, Table1, table_1
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
        deviations=(
            "CCVR's 2.1·10⁴ GFLOP need about 100 epochs of its refit, which the paper does not state.",
            "The paper's numbers need three operations per weight, example and pass in the training of a head. By "
            "operation these are two, and six per weight and step for weight decay, momentum and update. A claim about "
            "computation is not decided if the two counts disagree about it.",
            "The table's column of accuracies (68.78, 69.14 and 71.85 %) is left out: it repeats FedAvg, FedAvg + CCVR "
            "and FedAvg + SphereFed at α = 0.5 in Table 2 (item `table2`).",
        ),
    )


def _table1() -> dict[str, Any]:
    found = table_1()
    rows = []
    for ours, printed in zip(found.rows, PRINTED, strict=True):
        megabytes, gigaflops = ours.bytes_per_client / 1e6, ours.flops / 1e9
        rows.append(
            [ours.method, f"{printed.megabytes}", f"{megabytes:.2f}", f"{printed.gigaflops:.1e}", f"{gigaflops:.3e}"]
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
        "verdicts": [*_printed_costs(found), *_reductions(found), *_other_costs(found)],
        "bars": {"quantity": quantity, "log": True, "rows": bars},
    }


def _judged(text: str, verdict: Verdict | bool, reason: str) -> dict[str, str]:
    """A claim that a formula decides; True: it holds."""
    word = verdict if isinstance(verdict, str) else "holds" if verdict else "does not hold"
    return {"text": text, "verdict": word, "reason": reason}


def _printed_costs(found: Table1) -> Iterator[dict[str, str]]:
    """The numbers of the table. The paper truncates: 1.7·10² stands for 176.6."""
    for ours, printed in zip(found.rows, PRINTED, strict=True):
        megabytes, gigaflops = ours.bytes_per_client / 1e6, ours.flops / 1e9
        same = int(megabytes) == printed.megabytes
        yield _judged(f"{ours.method}: {printed.megabytes} MB", same, f"{megabytes:.2f} MB by formula")
        same, reason = 0 <= gigaflops / printed.gigaflops - 1 < 0.1, f"{gigaflops:.3e} GFLOP by formula"
        text = f"{ours.method}: {printed.gigaflops:.1e} GFLOP"
        if ours.method == "CCVR":
            reason += f", with {found.setting.refit_epochs} refit epochs, which were chosen to give the printed number"
            yield _judged(text, "not decided" if same else "does not hold", reason)
        else:
            yield _judged(text, same, reason)


def _reductions(found: Table1) -> Iterator[dict[str, str]]:
    for each in found.reductions:
        computed = (each.flops_factor, each.operations_factor)
        sent = f"{each.bytes_factor:.1f} times less"
        both = f"{computed[0]:.1f} times less as the paper counts and {computed[1]:.1f} by operation"
        text = "over two orders of magnitude less {} than " + each.against
        yield _judged(text.format("communication"), each.bytes_factor >= 100, sent)
        yield _judged(text.format("computation"), _by_every_count(factor >= 100 for factor in computed), both)
        less = _by_every_count(each.bytes_factor > 1 and factor > 1 for factor in computed)
        reason = f"communication: {sent}; computation: {both}"
        yield _judged(f"the classifier is more efficient than that of {each.against}", less, reason)


def _by_every_count(found: Iterable[bool]) -> Verdict:
    """The verdict on a claim that several ways to count operations decide."""
    answers = set(found)
    return "not decided" if len(answers) > 1 else "holds" if answers == {True} else "does not hold"


def _other_costs(found: Table1) -> Iterator[dict[str, str]]:
    """What the text says beside the table."""
    setting, spherefed = found.setting, found.rows[-1]
    one_round = setting.num_clients * setting.rounds
    ffc, as_printed = spherefed.flops / setting.num_clients, found.rows[0].flops / one_round
    counted = found.head_training_flops / one_round
    yield _judged(
        "FFC costs a client less than the classifier's training in one round",
        _by_every_count(ffc < training for training in (as_printed, counted)),
        f"FFC {ffc / 1e9:.2f} GFLOP; training {as_printed / 1e9:.2f} as the paper counts and {counted / 1e9:.2f} by "
        "operation",
    )
    twice = table_1(replace(setting, num_classes=2 * setting.num_classes))
    before, after = (each.rows[1].bytes_per_client - each.rows[0].bytes_per_client for each in (found, twice))
    yield _judged(
        "CCVR's upload grows linearly with the number of classes",
        abs(after / before - 2) < 0.005,
        f"{after / before:.3f} times as large with twice the classes",
    )


def fig5(scale: Scale) -> Item:
    """The accelerator, by formula."""
    return Item(
        name="fig5",
        title="Figure 5: efficiency on a systolic array",
        claim="SphereFed saves up to 10.5 % of memory and 13.6 % of latency; FFC saves up to 9.1 % of CCVR's latency.",
        computed=_fig5,
        deviations=(
            "The bars of the figure are not in the paper's source; only the maxima in the text are judged.",
            "In layers with stride 2, the gradient of the input is computed as a convolution over gradients with zeros "
            "between them, and the products with these zeros count, in every line about latency but those with "
            '"zeros skipped". The paper does not say what its array does.',
            "The paper's batch size is 64 unless otherwise stated (Sec. 5.1), and nothing else is stated for the "
            "accelerator. Lines with B = 1 contradict it and decide nothing.",
            "Fig. 5e, the test accuracy of the three networks, is left out: it needs training, and the text says "
            "nothing about it. Table 2 (item `table2`) has accuracies of MobileNetV2 (FedAvg) and ResNet18 (FedProx), "
            "and of the ConvNet at the scales `laptop` and `desktop`.",
        ),
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
CLAIMS_OF_SIGN = {
    "SphereFed needs less communication than FedAvg and CCVR": "communication",
    "a round needs no additional computation": "latency",
    "a round needs no additional memory": "peak_memory",
}
"""Claims that every saving of a panel is positive."""
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
    for text, panel in CLAIMS_OF_SIGN.items():
        least = min((each for each in getattr(found, panel) if each.stated), key=lambda each: each.saving)
        smallest = f"the smallest saving is {100 * least.saving:.4f} % ({least.encoder}; {least.assumptions})"
        verdicts.append(_judged(text, least.saving > 0, smallest))
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
