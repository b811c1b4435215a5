"""The command about costs: Table 1 for any model and class count, and the accelerator of Fig. 5."""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import click

from spherefed.cli.options import example

if TYPE_CHECKING:
    from spherefed.costs.comparisons import Comparison
    from spherefed.costs.hardware import Figure5
    from spherefed.costs.setting import Setting
    from spherefed.costs.table1 import Table1
    from spherefed.nn.encoders import Encoder

Result = TypeVar("Result")

POSITIVE = click.IntRange(1)


@click.command(
    epilog=example(
        "spherefed cost",
        "spherefed cost --encoder resnet18 --classes 200 --input-shape 3,64,64",
        "spherefed cost --dim 768 --classes 1000 --rounds 50 --json",
        "spherefed cost --hardware",
    )
)
@click.option("--encoder", metavar="NAME", help="Encoder; default: mobilenetv2, with --hardware the three of Fig. 5.")
@click.option("--dim", type=POSITIVE, help="Feature dimension of a model of your own, instead of --encoder.")
@click.option("--input-shape", default="3,32,32", show_default=True, metavar="C,H,W", help="Shape of one example.")
@click.option("--classes", type=POSITIVE, default=100, show_default=True, help="Number of classes.")
@click.option("--rounds", type=POSITIVE, default=100, show_default=True, help="Number of rounds.")
@click.option("--epochs", type=POSITIVE, default=10, show_default=True, help="Local epochs per round.")
@click.option("--samples", type=POSITIVE, default=50_000, show_default=True, help="Training examples of all clients.")
@click.option("--clients", type=POSITIVE, default=10, show_default=True, help="Number of clients.")
@click.option("--batch-size", type=POSITIVE, default=64, show_default=True, help="Local batch size.")
@click.option("--virtual", type=POSITIVE, default=500, show_default=True, help="CCVR's virtual features per class.")
@click.option(
    "--refit-epochs", type=POSITIVE, default=100, show_default=True, help="CCVR's refit; the paper does not state it."
)
@click.option("--hardware", is_flag=True, help="The accelerator of Fig. 5 instead of Table 1.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
def cost(encoder: str | None, dim: int | None, input_shape: str, hardware: bool, as_json: bool, **counts: int) -> None:
    """What the classifier costs by formula: bytes and operations of FedAvg, CCVR and SphereFed."""
    from spherefed.costs.networks import feature_dim
    from spherefed.costs.table1 import table_1
    from spherefed.errors import ConfigError

    if dim is not None and (encoder is not None or hardware):
        raise ConfigError("--dim cannot be combined with --encoder or --hardware, which derive it from the model")
    shape = _shape(input_shape)
    if hardware:
        from spherefed.costs.hardware import FIGURE_5_ENCODERS, figure_5

        encoders = FIGURE_5_ENCODERS if encoder is None else (_encoder(encoder),)
        setting = _setting(feature_dim(encoders[0], shape), counts)
        _show(figure_5(encoders=encoders, setting=setting, input_shape=shape), _print_figure, as_json=as_json)
    else:
        width = feature_dim(_encoder(encoder or "mobilenetv2"), shape) if dim is None else dim
        _show(table_1(_setting(width, counts)), _print_table, as_json=as_json)


def _setting(dim: int, counts: dict[str, int]) -> "Setting":
    from spherefed.costs.setting import Setting

    return Setting(
        dim=dim,
        num_classes=counts["classes"],
        num_examples=counts["samples"],
        rounds=counts["rounds"],
        epochs=counts["epochs"],
        num_clients=counts["clients"],
        batch_size=counts["batch_size"],
        num_virtual=counts["virtual"],
        refit_epochs=counts["refit_epochs"],
    )


def _encoder(name: str) -> "Encoder":
    from spherefed.nn.encoders import Encoder
    from spherefed.schema import from_plain

    found: Encoder = from_plain(Encoder, name, "encoder")
    return found


def _shape(text: str) -> tuple[int, ...]:
    from spherefed.errors import ConfigError

    sizes = text.split(",")
    if not all(size.strip().isdecimal() and int(size) > 0 for size in sizes):
        raise ConfigError(f"--input-shape must be positive whole numbers such as 3,32,32, got {text!r}")
    return tuple(map(int, sizes))


def _show(result: Result, print_tables: Callable[[Result], None], *, as_json: bool) -> None:
    import json

    from spherefed.schema import to_plain

    if as_json:
        click.echo(json.dumps(to_plain(result), indent=2))
    else:
        print_tables(result)


def _print_table(table: "Table1") -> None:
    setting = table.setting
    rows: list[tuple[str, ...]] = [
        (row.method, f"{row.bytes_per_client / 1e6:,.3f}", f"{row.flops / 1e9:,.4g}") for row in table.rows
    ]
    _print_rows(("method", "MB per client", "GFLOP"), rows)
    click.echo(
        f"l = {setting.dim}, C = {setting.num_classes}, N = {setting.num_examples}, T = {setting.rounds}, "
        f"E = {setting.epochs}; CCVR: {setting.num_virtual} virtual features per class, "
        f"{setting.refit_epochs} refit epochs (not stated in the paper)"
    )
    click.echo(
        f"exact int64 statistics of one client: {table.exact_statistics_bytes / 1e6:,.2f} MB "
        f"({table.packed_statistics_bytes / 1e6:,.2f} MB in 32 bits); "
        f"CCVR's moments in 64 bits: {table.exact_moments_bytes / 1e6:,.1f} MB"
    )
    for less in table.reductions:
        click.echo(
            f"SphereFed against {less.against}: {less.bytes_factor:.1f} times fewer bytes, "
            f"{less.flops_factor:.1f} times fewer operations as the paper counts, "
            f"{less.operations_factor:.1f} counted by operation"
        )
    click.echo(
        f"counted by operation: training FedAvg's head {table.head_training_flops / 1e9:,.4g} GFLOP, "
        f"FFC's solve {table.solve_flops / 1e9:,.3g} GFLOP"
    )


def _print_figure(figure: "Figure5") -> None:
    array = figure.array
    click.echo(
        f"{array.rows}×{array.columns} systolic array at {array.clock_hz / 1e6:g} MHz, special unit with "
        f"{array.special_lanes} lanes; * marks assumptions that contradict the paper"
    )
    _print_panel("Fig. 5a: communication of one client, MB", figure.communication, 1e6)
    _print_panel("Fig. 5b: peak memory of local training, MB", figure.peak_memory, 1e6)
    _print_panel("Fig. 5c: one local round, seconds", figure.latency, 1.0)
    _print_panel("Fig. 5d: calibration by CCVR and by FFC, seconds", figure.calibration, 1.0)
    for verdict in figure.verdicts:
        click.echo(f"\n{verdict.claim}: {verdict.finding}\n  {verdict.text}")


def _print_panel(title: str, comparisons: "tuple[Comparison, ...]", scale: float) -> None:
    """One line for each assumption and dataflow; for each encoder baseline → SphereFed and the saving."""
    encoders = list(dict.fromkeys(c.encoder for c in comparisons))
    cells: dict[tuple[str, str, str], dict[str, str]] = {}
    for c in comparisons:
        name = c.assumptions if c.stated else f"{c.assumptions} *"
        values = f"{c.baseline / scale:.4g} → {c.spherefed / scale:.4g} ({c.saving:.2%})"
        cells.setdefault((c.baseline_method, name, c.dataflow or ""), {})[c.encoder] = values
    click.echo(f"\n{title}")
    _print_rows(
        ("against", "assumptions", "dataflow", *encoders),
        [(*key, *(row[name] for name in encoders)) for key, row in cells.items()],
    )


def _print_rows(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in (header, *rows):
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
