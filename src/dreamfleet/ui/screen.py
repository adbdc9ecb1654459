"""Display of a run: a view for terminals with at least 80 columns, and one line for everything else."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from dreamfleet.core.text.formatting import count, duration, nbytes, plural, rate, value
from dreamfleet.ui.run_summary import EpisodeReturns, Fill, RoleLine, RunSummary

WIDTH = 100  # maximum width, for readability
STYLES = {
    "starting": "cyan",
    "running": "green",
    "ready": "green",
    "stopping": "yellow",
    "silent": "yellow",
    "done": "bold green",
    "failed": "bold red",
    "died": "bold red",
    "killed": "red",
}


def screen(run: RunSummary, console: Console) -> RenderableType:
    """Return a view of about fifteen lines, for any number of environments."""
    width = min(console.width, WIDTH)
    parts = [_title(run, width), _progress(run, width), Text(), _figures(run, width), Text(), _roles(run, width)]
    return Group(*parts, Text(), _footer(run, width))


def line(run: RunSummary) -> str:
    """Return one line for files, and for the end of a run."""
    total = f"/{run.steps}" if run.steps else ""
    parts = [f"{run.state}: step {run.step}{total}"]
    if run.env_per_s and not run.ended:
        parts.append(f"{rate(run.env_per_s)} steps/s")
    if run.first_update and not run.ended:
        parts.append(run.first_update)
    if run.updates:
        parts.append(f"{run.updates} update{'s' * (run.updates > 1)}")
    if run.train.mean is not None:
        parts.append(f"return {value(run.train.mean)}")
    if run.evaluation.mean is not None:
        parts.append(f"eval {value(run.evaluation.mean)}")
    if run.restarts:
        parts.append(plural(run.restarts, "restart"))
    if run.eta_s is not None:
        parts.append(f"ETA {duration(run.eta_s)}")
    if run.ended and run.uptime_s:
        parts.append(f"in {duration(run.uptime_s)}")
    if run.ended and run.folder:
        parts.append(run.folder)
    return "  ".join(parts)


def _title(run: RunSummary, width: int) -> RenderableType:
    grid = Table.grid(expand=False, padding=(0, 1))
    grid.width = width
    grid.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    grid.add_column(justify="right", no_wrap=True)
    name = Text.assemble((run.task or "run", "bold"), (f"  {run.agent}", "dim"))
    state = Text.assemble((run.state, STYLES.get(run.state, "")), f"  {duration(run.uptime_s)}")
    grid.add_row(name, state)
    return grid


def _progress(run: RunSummary, width: int) -> RenderableType:
    grid = Table.grid(expand=False, padding=(0, 2, 0, 0))
    grid.width = width
    grid.add_column(ratio=1)
    grid.add_column(justify="right", no_wrap=True)
    if run.share is None:
        bar: RenderableType = Text("no step limit", style="dim")
        words = f"{count(run.step)} steps"
    else:
        bar = ProgressBar(total=1.0, completed=run.share)
        words = f"{run.share:4.0%}  {count(run.step)} of {count(run.steps or 0)} steps"
    if run.eta_s is not None:
        words += f"  ETA {duration(run.eta_s)}"
    grid.add_row(bar, words)
    return grid


def _figures(run: RunSummary, width: int) -> RenderableType:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.width = width
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    speed = f"{rate(run.env_per_s)} env steps/s   {rate(run.updates_per_s)} updates/s   {plural(run.updates, 'update')}"
    if run.ended:
        speed = f"{speed} (on average)"
    grid.add_row("speed", speed)
    grid.add_row("return", _returns(run.train, "no episode has ended yet"))
    if run.evaluation.episodes:
        grid.add_row("eval", _returns(run.evaluation, ""))
    grid.add_row("replay", _fill(run.replay))
    grid.add_row("limiter", run.limiter or "-")
    return grid


def _returns(returns: EpisodeReturns, otherwise: str) -> str:
    if returns.mean is None or returns.last is None:
        return otherwise
    recent = f"mean {value(returns.mean)} of {_recent(returns.episodes)}"
    return f"last {value(returns.last)}   {recent}"


def _recent(episodes: int) -> str:
    return plural(episodes, "episode") if episodes <= 100 else f"the last 100 of {count(episodes)} episodes"


def _fill(fill: Fill) -> str:
    of = f" of {count(fill.capacity)}" if fill.capacity else ""
    share = f" ({fill.share:.0%} full)" if fill.share is not None else ""
    return f"{count(fill.items)}{of} windows{share}   memory {_gb(fill.ram_gb)}   disk {_gb(fill.disk_gb)}"


def _gb(gigabytes: float) -> str:
    return nbytes(1e9 * gigabytes)


def _roles(run: RunSummary, width: int) -> RenderableType:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    table.width = width
    table.add_column("role", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("waits for (share of the last 30 s)", ratio=1, no_wrap=True, overflow="ellipsis")
    table.add_column("CPU", justify="right", no_wrap=True)
    table.add_column("memory", justify="right", no_wrap=True)
    for role in run.roles:
        table.add_row(*_role(role))
    return table


def _role(role: RoleLine) -> list[RenderableType]:
    cpu = "" if role.cpu_percent is None else f"{role.cpu_percent:.0f}%"
    ram = "" if role.ram_gb is None else _gb(role.ram_gb)
    state = Text(role.state, style=STYLES.get(role.state, "yellow"))
    waits = Text(role.waits, style="yellow" if role.long_wait else "")
    return [role.name, state, waits, cpu, ram]


def _footer(run: RunSummary, width: int) -> RenderableType:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.width = width
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    grid.add_row("restarts", Text(str(run.restarts), style="yellow" if run.restarts else ""))
    grid.add_row("last", run.event or "-")
    if run.reason:
        grid.add_row("because", run.reason)
    if run.folder:
        grid.add_row("folder", Text(run.folder, overflow="ellipsis"))
    return grid
