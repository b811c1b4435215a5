"""Which sites took part in a run, from its files: a site that is missing changes what the printed accuracy is about."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from spherefed.runs.directory import RunDirectory, read_json
from spherefed.runs.round_log import ROUNDS, read_lines


@dataclass(frozen=True, kw_only=True, slots=True)
class SiteRow:
    """One site of a finished run."""

    client: int
    site: str
    rounds: int
    """Rounds in which its reply counted."""
    last_round: int | None
    """The last of them, from 0 on; None if there is none."""
    left_out_of_statistics: int
    """Examples of rare classes that were not part of its statistics."""
    correct: int | None
    """Right answers on its own held-out examples; None if it did not answer, or nothing was evaluated at sites."""
    num_examples: int | None
    is_missing: bool
    """Whether it did not take part in the evaluation at sites or, without one, in the last round."""

    @property
    def accuracy(self) -> float | None:
        """On its own held-out examples; None if it has none or did not answer."""
        return None if self.correct is None or not self.num_examples else self.correct / self.num_examples


def site_rows(run: Path) -> list[SiteRow]:
    """One row for each site of a deployed run, by client number; none for another run."""
    sites = read_json(run / "environment.json").get("sites", [])
    lines = read_lines(run / ROUNDS)
    _, evaluated = _last_evaluation(run)
    rows = []
    for site in sites:
        client = int(site["client"])
        counted = [int(line["round"]) for line in lines if client in line["clients"]]
        correct, num_examples = evaluated.get(str(client), (None, None))
        absent = bool(lines) and client not in lines[-1]["clients"]
        rows.append(
            SiteRow(
                client=client,
                site=str(site["site"]),
                rounds=len(counted),
                last_round=max(counted, default=None),
                left_out_of_statistics=int(site.get("left_out_of_statistics", 0)),
                correct=correct,
                num_examples=num_examples,
                is_missing=correct is None if evaluated else absent,
            )
        )
    return rows


def evaluated_stage(run: Path) -> str | None:
    """Which model the accuracies of `site_rows` are about: trained or calibrated; None if sites evaluated none."""
    return _last_evaluation(run)[0]


def _last_evaluation(run: Path) -> tuple[str | None, dict[str, list[int]]]:
    """The stage of the model that sites evaluated last, and each site's correct answers and examples."""
    stages: dict[str, dict[str, list[int]]] = RunDirectory(run).result().get("evaluated", {})
    return next(reversed(stages.items()), (None, {}))


def missing_sites(rows: Sequence[SiteRow], num_rounds: int) -> str | None:
    """Which sites are missing and since which round, counted from 1; None if all took part.

    >>> row = SiteRow(client=0, site="north", rounds=4, last_round=3, left_out_of_statistics=0, correct=9,
    ...               num_examples=10, is_missing=False)
    >>> west = SiteRow(client=1, site="west", rounds=1, last_round=0, left_out_of_statistics=0, correct=None,
    ...                num_examples=None, is_missing=True)
    >>> missing_sites([row, west], 4)
    'evaluated on 1 of 2 sites; west missing since round 2'
    """
    missing = [row for row in rows if row.is_missing]
    if not missing:
        return None
    local = any(row.correct is not None for row in rows)
    took_part = "evaluated on {} of {} sites" if local else "{} of {} sites took part in the last round"
    since = [f"{row.site} {_since(row, num_rounds)}" for row in missing]
    return "; ".join([took_part.format(len(rows) - len(missing), len(rows)), *since])


def _since(row: SiteRow, num_rounds: int) -> str:
    if row.last_round is None:
        return "missing since round 1"
    return (
        "missing after the last round"
        if row.last_round + 1 >= num_rounds
        else f"missing since round {row.last_round + 2}"
    )
