"""Draws the two diagrams of the README: `python docs/figures/diagrams.py`."""

from pathlib import Path
from xml.sax.saxutils import escape

HERE = Path(__file__).parent
STYLE = """
  text { font: 14px system-ui, sans-serif; fill: #1c2733 }
  .head { font-weight: 600 } .note { font-size: 12px; fill: #51606f }
  .stays { fill: #eef6ee; stroke: #4f8a53 } .travels { fill: #eef2fb; stroke: #3f63a8 }
  .layer { fill: #f6f7f9; stroke: #8a97a6 } rect { stroke-width: 1.5; rx: 6 }
  path { stroke: #3f63a8; stroke-width: 1.5; fill: none; marker-end: url(#tip) }
"""
TIP = (
    '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
    'orient="auto-start-reverse"><path d="M0 0L8 4L0 8z" style="fill:#3f63a8;stroke:none;'
    'marker-end:none"/></marker>'
)


def text(x: int, y: int, words: str, kind: str = "") -> str:
    """A line of text."""
    return f'<text x="{x}" y="{y}" class="{kind}">{escape(words)}</text>'


def box(x: int, y: int, width: int, height: int, kind: str, lines: list[str]) -> str:
    """A box with a heading and notes."""
    head, *notes = lines
    said = [text(x + 12, y + 24, head, "head")]
    said += [text(x + 12, y + 44 + 18 * i, note, "note") for i, note in enumerate(notes)]
    rect = f'<rect x="{x}" y="{y}" width="{width}" height="{height}" class="{kind}"/>'
    return "".join([rect, *said])


def drawing(width: int, height: int, title: str, parts: list[str]) -> str:
    """A whole file."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img"><title>{escape(title)}</title>'
        f"<style>{STYLE}</style><defs>{TIP}</defs>"
        f'<rect width="{width}" height="{height}" fill="#fff" stroke="none"/>'
        f"{''.join(parts)}</svg>\n"
    )


def what_leaves() -> str:
    """The figure of what stays at a client, what travels, and what the server holds."""
    return drawing(
        860,
        250,
        "What leaves a client",
        [
            box(
                *(15, 20, 270, 210, "stays"),
                [
                    "At home, always",
                    "rows and labels",
                    "φ: own columns → common space",
                    "β: the client's own head",
                    "predictions, scores of single rows",
                    "",
                    "over Flower, no number that leaves",
                    "rests on fewer than five rows",
                ],
            ),
            box(
                *(335, 20, 220, 210, "travels"),
                [
                    "One type travels: Update",
                    "FLIC: one anchor per class,",
                    "   the shared layer α, counts",
                    "linked: sums of columns that",
                    "   several clients have, masked",
                    "   between machines",
                    "figures: sums over held-out rows",
                    "",
                    "back: averages and total sums",
                ],
            ),
            box(
                *(605, 20, 240, 210, "layer"),
                [
                    "Server",
                    "checks names, shapes, sizes",
                    "averages over the holders,",
                    "   extremes left out",
                    "keeps anchors, α, total sums;",
                    "   masks hide each client's part",
                    "",
                    "never sees a row, φ or β",
                ],
            ),
            '<path d="M285 100H335"/><path d="M555 100H605"/>',
            '<path d="M605 160H555"/><path d="M335 160H285"/>',
        ],
    )


LAYERS = [
    ("cli", "the flic command; each imports what it needs when it runs"),
    ("page", "the report, from templates"),
    ("flower", "silos over Flower: one more runner; ops: processes, keys"),
    ("silos", "tables of clients: candidates, verdict, fitted folders"),
    ("runs", "run folders, metrics, comparisons"),
    ("engine", "THE round loop, its runners, checkpoints"),
    ("methods", "stages: flic, linked, baselines"),
    ("networks", "φ, g, descent, sharing rules"),
    ("tables · data", "clients, tasks, columns, batches"),
    ("gaussians", "Bures, Wasserstein, barycentres"),
]


def layers() -> str:
    """The layers of the code, each standing on those below it."""
    parts = []
    for i, (name, note) in enumerate(LAYERS):
        y = 15 + 38 * i
        parts.append(f'<rect x="15" y="{y}" width="700" height="32" class="layer"/>')
        parts += [text(30, y + 21, name, "head"), text(160, y + 21, note, "note")]
    parts.append('<path d="M745 20V385"/>')
    parts.append(text(758, 205, "imports", "note"))
    return drawing(830, 405, "The layers of the code", parts)


if __name__ == "__main__":
    (HERE / "what-leaves.svg").write_text(what_leaves(), encoding="utf-8")
    (HERE / "layers.svg").write_text(layers(), encoding="utf-8")
