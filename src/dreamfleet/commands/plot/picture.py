"""Plot learning curves to an image file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dreamfleet.commands.plot.curves import Band, combine, read_curves, read_reference
from dreamfleet.core.errors import BadInput

if TYPE_CHECKING:
    from matplotlib.axes import Axes

AXES = {"steps": "agent steps", "frames": "environment frames", "hours": "hours"}
FORMATS = (".png", ".svg", ".pdf")
COLUMNS = 3


def plot_runs(runs: Sequence[str], out: Path, metric: str, x: str, reference: Path | None) -> str:
    """Writes the picture and returns the words to print. Published curves count frames, so beside one runs do too."""
    if x not in AXES:
        raise BadInput(f"--x {x} is not known: choose {', '.join(AXES)}")
    if out.suffix not in FORMATS:
        raise BadInput(f"--out {out} has to end in {', '.join(FORMATS)}")
    if reference and x == "hours":
        raise BadInput("a published curve has no hours: leave out --x hours or --reference")
    x = "frames" if reference else x
    curves = read_curves(runs, metric, x)
    published = read_reference(reference, [curve.task for curve in curves]) if reference else []
    bands = combine(curves)
    draw(bands, combine(published), out, metric, AXES[x])
    several = any(band.runs > 1 for band in bands)
    return f"{out}: {metric} of {len(runs)} run{'s' * (len(runs) > 1)}" + (", mean and deviation" if several else "")


def draw(bands: Sequence[Band], published: Sequence[Band], out: Path, metric: str, x_label: str) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    tasks = list(dict.fromkeys(band.task for band in bands))
    columns = min(COLUMNS, len(tasks))
    rows = math.ceil(len(tasks) / columns)
    figure = Figure(figsize=(1.5 + 4.5 * columns, 0.5 + 3.3 * rows), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    labels = list(dict.fromkeys(band.label for band in bands))
    for panel, task in zip(panels, tasks, strict=False):
        for band in published:
            if band.task == task:
                _draw_band(panel, band, "0.45", "--")
        for band in bands:
            if band.task == task:
                _draw_band(panel, band, f"C{labels.index(band.label) % 10}", "-")
        _dress(panel, task, metric, x_label)
    for panel in panels[len(tasks) :]:
        panel.set_visible(False)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(out)
    except OSError as error:
        raise BadInput(f"cannot write {out}: {error.strerror}: choose another --out") from error


def _draw_band(panel: Axes, band: Band, color: str, style: str) -> None:
    label = f"{band.label} ({band.runs} seeds)" if band.runs > 1 else band.label
    panel.plot(band.xs, band.mean, style, color=color, linewidth=1.6, label=label)
    if band.deviation is not None:
        low, high = band.mean - band.deviation, band.mean + band.deviation
        panel.fill_between(band.xs, low, high, color=color, alpha=0.2, linewidth=0)


def _dress(panel: Axes, task: str, metric: str, x_label: str) -> None:
    from matplotlib.ticker import EngFormatter

    panel.set_title(task, fontsize=11)
    panel.set_xlabel(x_label)
    panel.set_ylabel(metric)
    panel.set_xlim(left=0)
    if x_label != AXES["hours"]:
        panel.xaxis.set_major_formatter(EngFormatter(sep=""))
    panel.grid(alpha=0.25)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)
    panel.legend(frameon=False, fontsize=9)
