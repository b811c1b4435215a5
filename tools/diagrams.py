"""Draw the diagrams of the documentation: `python tools/diagrams.py` writes docs/figures/*.svg."""

from pathlib import Path
from xml.sax.saxutils import escape

FIGURES = Path(__file__).parents[1] / "docs" / "figures"
FONT = "font-family='system-ui, sans-serif' font-size='14'"
SERVER, CLIENT, FIXED = "#e8eaf6", "#e8f5e9", "#fff3e0"


def box(x: int, y: int, width: int, height: int, lines: list[str], fill: str) -> str:
    """A box with centred lines, the first one bold."""
    middle = x + width / 2
    top = y + height / 2 - 9 * (len(lines) - 1) + 5
    texts = "".join(
        f"<text x='{middle:g}' y='{top + 18 * row:g}' text-anchor='middle'"
        f" font-weight='{600 if row == 0 else 400}'>{escape(line)}</text>"
        for row, line in enumerate(lines)
    )
    return f"<rect x='{x}' y='{y}' width='{width}' height='{height}' rx='8' fill='{fill}' stroke='#455a64'/>{texts}"


def arrow(x1: int, y1: int, x2: int, y2: int, label: str = "", dy: int = -6) -> str:
    """An arrow with a label at its middle."""
    line = (
        f"<line x1='{x1}' y1='{y1}' x2='{x2}' y2='{y2}' stroke='#455a64' stroke-width='1.5' marker-end='url(#head)'/>"
    )
    if not label:
        return line
    place = f"x='{(x1 + x2) / 2:g}' y='{(y1 + y2) / 2 + dy:g}'"
    return f"{line}<text {place} text-anchor='middle' font-size='13'>{escape(label)}</text>"


def text(x: int, y: int, content: str) -> str:
    """A centred line of text."""
    return f"<text x='{x}' y='{y}' text-anchor='middle' font-size='13'>{escape(content)}</text>"


def drawing(width: int, height: int, title: str, *parts: str) -> str:
    """A whole SVG file."""
    marker = (
        "<defs><marker id='head' viewBox='0 0 10 10' refX='9' refY='5' markerWidth='7' markerHeight='7' "
        "orient='auto-start-reverse'><path d='M0 0L10 5L0 10z' fill='#455a64'/></marker></defs>"
    )
    body = "\n".join(parts)
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' role='img' {FONT} fill='#212121'>\n"
        f"<title>{escape(title)}</title>{marker}\n"
        f"<rect width='{width}' height='{height}' fill='#ffffff'/>\n"
        f"{body}\n</svg>\n"
    )


def round_diagram() -> str:
    """One round of SphereFed."""
    clients = [
        box(
            430,
            20 + 90 * k,
            250,
            70,
            [f"client {name}", "trains the encoder on its data", "with the fixed head"],
            CLIENT,
        )
        for k, name in enumerate("12K")
    ]
    arrows = [arrow(250, 108 + 28 * k, 430, 45 + 90 * k) for k in range(3)]
    back = [arrow(430, 68 + 90 * k, 250, 128 + 25 * k) for k in range(3)]
    return drawing(
        700,
        320,
        "One round: the server sends the encoder, clients train it against the same fixed head, the server averages",
        box(
            20,
            90,
            230,
            110,
            ["server", "averages the updates", "takes the server step", "evaluates, writes a checkpoint"],
            SERVER,
        ),
        *clients,
        *arrows,
        *back,
        text(325, 60, "encoder"),
        text(320, 238, "update of the encoder"),
        box(20, 240, 230, 60, ["head W, from the seed", "orthonormal rows, never sent"], FIXED),
        text(475, 308, "Every client and the server derive the same head W from the seed."),
    )


def ffc_diagram() -> str:
    """FFC in one upload."""
    clients = [
        box(20, 20 + 90 * k, 230, 70, [f"client {name}", "V = Σ zzᵀ", "U = Σ z·one_hot(y)ᵀ"], CLIENT)
        for k, name in enumerate("12K")
    ]
    return drawing(
        760,
        300,
        "FFC: each client sends V and U once, the server adds them and solves for the head",
        *clients,
        *[arrow(250, 55 + 90 * k, 390, 120 + 25 * k) for k in range(3)],
        text(318, 62, "once, exact integers"),
        box(390, 90, 170, 110, ["server", "V = Σ V_k, U = Σ U_k", "(V + λI) W = U", "solve for W"], SERVER),
        arrow(560, 145, 620, 145),
        box(620, 105, 120, 80, ["head W*", "pooled least", "squares"], FIXED),
        text(475, 230, "sums do not depend on order or partition:"),
        text(475, 250, "the head is that of the pooled data, to the bit"),
    )


def deployment_diagram() -> str:
    """A federation between machines."""
    sites = [
        box(470, 20 + 90 * k, 270, 70, [f"hospital {name}", "own data, own key, own limits", "(site.toml)"], CLIENT)
        for k, name in enumerate(["north", "south", "west"])
    ]
    return drawing(
        760,
        310,
        "A deployment: sites connect outwards to the front of the server, which forwards only signed requests",
        box(20, 95, 170, 90, ["server", "rounds, validation,", "checkpoints; no data"], SERVER),
        arrow(190, 140, 240, 140),
        arrow(240, 150, 190, 150),
        box(240, 105, 120, 70, ["front", "forwards only", "signed requests"], FIXED),
        *sites,
        *[arrow(470, 55 + 90 * k, 360, 125 + 15 * k) for k in range(3)],
        text(412, 60, "outgoing"),
        text(412, 76, "TLS only"),
        text(380, 300, "A site obeys its own limits, whatever the server asks; raw data never leave it."),
    )


DIAGRAMS = {"round.svg": round_diagram, "ffc.svg": ffc_diagram, "deployment.svg": deployment_diagram}


def main() -> None:
    """Write all diagrams."""
    for name, draw in DIAGRAMS.items():
        (FIGURES / name).write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
