"""What was measured, as a person reads it: 80 columns, on a terminal or in a file."""

from __future__ import annotations

import textwrap

from dreamfleet.commands.bench.bottleneck import BOTH, Bottleneck
from dreamfleet.commands.bench.command import Bench
from dreamfleet.commands.bench.measurements import ENVIRONMENTS, STAGES, WORK, Latency, Measurements, Stage
from dreamfleet.core.text.formatting import plural
from dreamfleet.launch import worker_size

WIDTH = 80
NOTICED_CORES = 0.5
SHOWN = 0.005  # a wait for less of the time is left out


def bench_text(bench: Bench) -> str:
    measurements = bench.measurements
    lines = [
        *textwrap.wrap(_head(bench), WIDTH),
        "",
        f"{'env steps/s':<17}{measurements.env_steps_per_s:>10,.1f}",
        f"{'updates/s':<17}{measurements.updates_per_s:>10,.1f}",
        f"{'policy call':<17}{_latency(measurements.policy_ms)}   in the actor",
        f"{'actions awaited':<17}{_latency(measurements.actions_ms)}   by an env worker",
        "",
        f"{'stage':<14}{'busy':>6}{'waiting':>9}",
        *(line for name in STAGES for line in _stage_lines(name, measurements.stages[name])),
        "",
        *(line for bottleneck in bench.bottlenecks for line in _bottleneck_lines(bottleneck)),
        *textwrap.wrap(_others(bench), WIDTH),
    ]
    return "\n".join(lines)


def _head(bench: Bench) -> str:
    run, measurements = bench.config.run, bench.measurements
    workers = worker_size.workers(bench.args)
    return (
        f"{bench.config.env.name} with agent {bench.config.agent.name}, {measurements.seconds:.0f} s measured: "
        f"{plural(run.envs, 'environment')} in {plural(workers, 'worker')}, {_ratio(bench, measurements)}, "
        f"{measurements.cores_used:.1f} of {bench.cores:g} cores in use"
    )


def _others(bench: Bench) -> str:
    if bench.others_cores < NOTICED_CORES:
        return ""
    return f"Other programs used {bench.others_cores:.1f} cores meanwhile: the fleet may be faster without them."


def _ratio(bench: Bench, measurements: Measurements) -> str:
    config = bench.config
    trained = measurements.updates_per_s * config.batch_size * config.batch_length
    reached = f"train ratio {trained / max(1e-9, measurements.env_steps_per_s):.3g}"
    return f"{reached} of {config.run.train_ratio:g}" if config.run.train_ratio > 0 else f"{reached}, not limited"


def _latency(latency: Latency) -> str:
    if latency.p50 is None or latency.p99 is None:
        return f"{'-':>10}"
    return f"{_ms(latency.p50):>10} ms p50{_ms(latency.p99):>10} ms p99"


def _ms(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def _stage_lines(name: str, stage: Stage) -> list[str]:
    waits = [(what, share) for what, share in stage.waits.items() if share >= SHOWN and what != WORK]
    words = ", ".join(f"for {what}" + (f" {share:.0%}" if len(waits) > 1 else "") for what, share in waits)
    if len(stage.parts) > 2:  # replay, whose parts work side by side
        words = ", ".join(f"{what} {share:.0%}" for what, share in stage.parts.items())
    start = f"{name:<14}{stage.busy:>6.0%}{max(0.0, 1 - stage.busy):>9.0%}  "
    return textwrap.wrap(start + words, WIDTH, subsequent_indent=" " * len(start)) if words else [start.rstrip()]


def _bottleneck_lines(bottleneck: Bottleneck) -> list[str]:
    bounds = "" if bottleneck.side == BOTH else f" {bottleneck.side}"
    verb = "bind" if bottleneck.stage == ENVIRONMENTS else "binds"
    said = textwrap.wrap(f"The {bottleneck.stage} {verb}{bounds}: {bottleneck.reason}.", WIDTH)
    return [*said, *textwrap.wrap(f"To change that: {bottleneck.change}.", WIDTH)]
