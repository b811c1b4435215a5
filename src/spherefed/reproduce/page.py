"""The page of an item, from its JSON alone: equal JSON gives equal text."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from spherefed.reproduce.duration import in_words

RULE = (
    "A claim that a quantity is positive *holds* if the 95 % t-interval over seeds lies above 0; it *does not hold* if "
    "the interval lies below 0, or contains 0 and lies below the paper's size; else it is *not decided*. A claim of at "
    "least some points is judged alike, with these points in place of 0. A claim that a quantity is within a margin "
    "holds if the interval lies inside the margin, and does not hold if it lies outside."
)
JUDGED = {
    "trained": "as trained on the validation split",
    "calibrated": "after calibration on the validation split",
    "personal": "by clients' own models on what they hold out of the tuning data",
}
"""How a method was tuned."""
Plain = Mapping[str, Any]


def item_page(found: Plain) -> str:
    """The item as Markdown."""
    parts = [f"# {found['title']}", f"**Claim.** {found['claim']}", _made_by(found)]
    if "computed" in found:
        parts += _computed(found)
    else:
        parts += _measured(found)
    if found["deviations"]:
        parts.append("## Deviations\n" + "\n".join(f"- {line}" for line in found["deviations"]))
    return "\n\n".join(parts) + "\n"


def _made_by(found: Plain) -> str:
    """The command, and whether it would train more than the page shows."""
    cells = [cell for cell in found.get("cells", []) if cell["digest"] is not None]
    missing = [cell for cell in cells if _num_run(cell) < len(found["seeds"])]
    if not missing:
        return f"Made by `{found['command']}`; do not edit."
    how = "partly run" if any(map(_num_run, cells)) else "not run"
    return (
        f"Made by `{found['command']}` ({how}); do not edit. {len(missing)} of {len(cells)} cells have fewer seeds "
        "than the command asks for, or none; without `--no-training` it trains them."
    )


def _num_run(cell: Plain) -> int:
    """Number of seeds of a cell that were run, also those that diverged."""
    return (0 if cell["ours"] is None else int(cell["ours"]["seeds"])) + len(cell["failed"])


def _computed(found: Plain) -> list[str]:
    computed = found["computed"]
    verdicts = [[v["text"], v["verdict"], v["reason"]] for v in computed["verdicts"]]
    details = computed.get("details")
    return [
        "## Numbers\n" + table(computed["header"], computed["rows"]),
        _picture(found),
        *([] if details is None else ["## Every assumption\n" + table(details["header"], details["rows"])]),
        "## Verdicts\n" + table(["claim", "verdict", "reason"], verdicts),
    ]


def _measured(found: Plain) -> list[str]:
    seeds = ", ".join(str(seed) for seed in found["seeds"])
    picture = [_picture(found)] if any(cell["ours"] is not None for cell in found["cells"]) else []
    cause = found["likely_cause"]
    time = in_words(found["seconds"]) + _alone(found["cells"])
    return [
        f"Scale `{found['scale']}`: {found['protocol']}. {_other_rounds(found['other_rounds'])}"
        f"Seeds: {seeds}; every line says how many of them it has. "
        f"Trainings per seed: {found['trainings']}. Computing time: {time}.",
        "## Verdicts\n"
        + _claims(found["claims"])
        + ("" if cause is None else f"\n\nLikely cause where a claim does not hold: {cause}")
        + f"\n\n{RULE}",
        "## Numbers\nOurs: mean ± half-width of the 95 % interval over seeds; the difference is paired by seed.\n\n"
        + _cells(found["cells"]),
        *picture,
        "## What it was computed with\n" + _provenance(found),
    ]


def _other_rounds(names: Mapping[str, Sequence[str]]) -> str:
    """The columns or rows whose number of rounds is not that of the protocol."""
    words = "; ".join(f"{rounds} in " + ", ".join(f'"{name}"' for name in which) for rounds, which in names.items())
    return f"Other numbers of rounds: {words}. " if words else ""


def _alone(cells: Sequence[Plain]) -> str:
    return ", without clients that train alone" if any(cell["metric"] == "local_only" for cell in cells) else ""


def _picture(found: Plain) -> str:
    name = found["item"]
    return f"![{found['title']}]({name}.svg)\n\nThe figure as [SVG]({name}.svg) and [PNG]({name}.png)."


def _claims(claims: Sequence[Plain]) -> str:
    rows = []
    for claim in claims:
        size = "–" if claim["paper"] is None else f"{claim['paper']:+.2f}"
        margin = "" if claim["margin"] is None else f" (margin ±{claim['margin']:g})"
        rows.append([claim["text"], size + margin, signed_text(claim["ours"]), _seeds(claim), claim["verdict"]])
    return table(["claim", "paper", "ours", "seeds", "verdict"], rows)


def _seeds(claim: Plain) -> str:
    """Number of seeds of a claim, and how many diverged."""
    seeds = "–" if claim["ours"] is None else str(claim["ours"]["seeds"])
    return seeds + (f" (+ {len(claim['diverged'])} diverged)" if claim["diverged"] else "")


def _cells(cells: Sequence[Plain]) -> str:
    rows = []
    for cell in cells:
        paper = "–" if cell["paper"] is None else f"{cell['paper']:.2f}"
        seeds = "–" if cell["ours"] is None else str(cell["ours"]["seeds"])
        ours = mean_text(cell["ours"]) + (" (diverged)" if cell["failed"] else "")
        if cell["ours"] is None:
            ours = f"diverged (seeds {', '.join(map(str, cell['failed']))})" if cell["failed"] else "not run"
        difference = "" if cell["difference_to"] is None else signed_text(cell["difference"])
        digest = "–" if cell["digest"] is None else _experiment_link(cell)
        rows.append([cell["row"], cell["column"], paper, ours, difference, _range(cell["ours"]), seeds, digest])
    header = ["row", "column", "paper", "ours", "difference to base", "lowest to highest", "seeds", "experiment"]
    return table(header, rows)


def _experiment_link(cell: Plain) -> str:
    """To the file of the experiment, which exists if a seed was run."""
    name = f"`{cell['digest']}`"
    return name if cell["ours"] is None and not cell["failed"] else f"[{name}](experiments/{cell['digest']}.json)"


def _provenance(found: Plain) -> str:
    lines = [
        "- Every experiment's file has its configuration, the digest of its data, and its numbers for every seed.",
        f"- Configuration of the scale, which cells change: `{json.dumps(found['configuration'], ensure_ascii=False)}`",
    ]
    data = found["dataset"]
    if data is not None:
        provenance = ", ".join(f"{name}: {value}" for name, value in data["provenance"].items())
        lines.append(
            f"- Data: {data['name']}, {data['num_train']} training and {data['num_test']} test examples; {provenance}"
        )
    for method, entry in found["tuning"].items():
        chosen = ", ".join(f"{path} = {value:g}" for path, value in entry["chosen"].items())
        how = JUDGED[entry["judged_by"]]
        lines.append(f"- Tuning of {method}: {entry['tried']} values, judged {how}; {chosen}")
    lines += [f"- Machine: {machine}" for machine in found["machines"]]
    return "\n".join(lines)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def mean_text(interval: Plain | None) -> str:
    """Mean ± half-width."""
    if interval is None:
        return "not run"
    half, digits = interval["half_width"], _decimals(interval)
    return f"{interval['mean']:.{digits}f}" + ("" if half is None else f" ± {half:.{digits}f}")


def signed_text(interval: Plain | None) -> str:
    """Mean with its sign ± half-width."""
    if interval is None:
        return "not run"
    half, digits = interval["half_width"], _decimals(interval)
    return f"{interval['mean']:+.{digits}f}" + ("" if half is None else f" ± {half:.{digits}f}")


def _range(interval: Plain | None) -> str:
    if interval is None or interval["seeds"] < 2:
        return "–"
    digits = _decimals(interval)
    return f"{interval['lowest']:.{digits}f} to {interval['highest']:.{digits}f}"


def _decimals(interval: Plain) -> int:
    """Two, as for points of accuracy; four for small quantities such as cosines, whose interval would be ± 0.00."""
    mean, half = abs(interval["mean"]), interval["half_width"]
    is_narrow = mean < 0.005 if half is None else half < 0.005
    return 4 if mean < 2 and is_narrow and mean != round(mean, 2) else 2


def claims_page(items: Sequence[Plain]) -> str:
    """One line per claim of all items, with the finding at every scale: docs/claims.md."""
    scales = list(dict.fromkeys(found["scale"] for found in items if "computed" not in found))
    lines: dict[tuple[str, str], dict[str, Any]] = {}
    for found in items:
        for claim in found["computed"]["verdicts"] if "computed" in found else found["claims"]:
            line = lines.setdefault((found["item"], claim["text"]), {"paper": claim.get("paper")})
            page = f"results/{found['scale']}/{found['item']}.md"
            ours = "" if claim.get("ours") is None else f" ({signed_text(claim['ours'])})"
            verdict = f"[{claim['verdict']}]({page}){ours}"
            if "ours" in claim:
                line[found["scale"]] = [verdict, _seeds(claim)]
            else:
                line["formula"] = [verdict, "–"]
    rows = []
    for (item, text), line in lines.items():
        size = "–" if line["paper"] is None else f"{line['paper']:+.2f}"
        findings = [line.get(scale) or line.get("formula", ["–", "–"]) for scale in scales]
        rows.append([item, text, size, *(part for finding in findings for part in finding)])
    head = "# Claims of the paper\n\nMade by `spherefed reproduce`; do not edit. Numbers are differences in points of "
    head += "accuracy where nothing else is said; n is the number of seeds. Claims *beyond the paper* are ours. " + RULE
    head += (
        " Every claim is judged by itself: of a hundred differences that are really 0, two or three hold by chance. "
    )
    head += "Items share trainings, so some lines are about the same runs."
    header = ["item", "claim", "paper", *(name for scale in scales for name in (scale, "n"))]
    return head + "\n\n" + table(header, rows) + "\n"


def index_page(items: Sequence[Plain]) -> str:
    """All items and scales with their verdicts: docs/results/README.md."""
    rows = []
    for found in items:
        claims = found["computed"]["verdicts"] if "computed" in found else found["claims"]
        counts = Counter(claim["verdict"] for claim in claims)
        verdicts = ", ".join(f"{number} {verdict}" for verdict, number in sorted(counts.items()))
        numbers = [number for cell in found.get("cells", []) if (number := _num_run(cell))]
        seeds = "–" if not numbers else "–".join(str(number) for number in sorted({min(numbers), max(numbers)}))
        where = f"{found['scale']}/{found['item']}.md"
        rows.append([f"[{found['title']}]({where})", "–" if "computed" in found else found["scale"], seeds, verdicts])
    text = "# Results\n\nMade by `spherefed reproduce`; do not edit. One line per claim: [claims](../claims.md). "
    text += "Seeds: the fewest and the most of the cells that were run."
    return text + "\n\n" + table(["item", "scale", "seeds", "claims"], rows) + "\n"
