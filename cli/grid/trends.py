"""`grid trends`, `grid top`, `grid node forecast`, `grid cluster summary`: what nodes use over time, how busy they are,
and for how long they stay idle."""

from typing import Any

import click

from distributed_grid.cli import formatting
from distributed_grid.cli.completion import complete_nodes
from distributed_grid.cli.context import current, printable
from distributed_grid.cli.lazy import Command
from distributed_grid.cli.options import not_empty
from distributed_grid.protocol.history.summary import Summary, performance, summary, trend_of
from distributed_grid.protocol.history.trends import (
    RATES,
    WINDOWS,
    IdleChance,
    Measured,
    NodeTrends,
    Trend,
    parse_window,
)
from distributed_grid.protocol.messages import (
    Durations,
    GetForecast,
    GetStatus,
    GetTrends,
    NodeForecast,
    Status,
    Trends,
)
from distributed_grid.protocol.resources import format_bytes
from distributed_grid.protocol.sharing.pressure import Pressure
from distributed_grid.protocol.text import counted, format_duration

BARS = "▁▂▃▄▅▆▇█"
TOP = WINDOWS["5m"]
"""Window of `grid top` and of the summary (s)."""
NAMES = {seconds: name for name, seconds in WINDOWS.items()}


@click.command(cls=Command)
@click.option("--window", default="15m", metavar="TIME", help=f"How far back: {', '.join(WINDOWS)}; 15m by default.")
@click.argument("node", required=False, type=not_empty, shell_complete=complete_nodes)
def trends(node: str | None, window: str) -> None:
    """Show the use of nodes over time, and a forecast for one node.

    A level is the median, SPREAD the distance between the quartiles, OWNER the level of all use that is not the grid's.
    For a NODE there is a forecast, as far ahead as the window but at most an hour: the last value, and an interval that
    was right for nine of ten earlier forecasts of this node."""
    invocation = current()
    seconds = parse_window(window)
    answer: Trends = invocation.ask(lambda n: GetTrends(id=n, node=node or "", window=seconds))
    _warn(answer)
    content = {"window": seconds, "at": formatting.iso(answer.at), "nodes": [node_json(one) for one in answer.nodes]}
    if node:
        text = "".join(_node_screen(one, answer) for one in answer.nodes)
    else:
        rows = [row for one in answer.nodes for row in _rows(one)]
        header = ("NODE", "RESOURCE", "TREND", "LEVEL", "P95", "OWNER", "SLOPE", "NOW")
        text = formatting.table(invocation, header, rows) if rows else "no node is known yet\n"
    quiet = "".join(f"{one.node} {_score(one.all)}\n" for one in answer.nodes)
    formatting.show(invocation, content, text, quiet, "nodes")


@click.command(cls=Command)
def top() -> None:
    """List the nodes by pressure, the busiest first.

    PRESSURE is 0.30 CPU + 0.30 memory + 0.40 GPU in the last minute, of all use; OWNER is the same without the grid's
    own use. The next columns are the levels of the last five minutes, and the owner's part of each."""
    invocation = current()
    answer: Trends = invocation.ask(lambda n: GetTrends(id=n, window=TOP))
    _warn(answer)
    ranked = sorted(answer.nodes, key=lambda one: (-one.all.score if one.all else 1.0, one.node))
    header = ("NODE", "STATE", "PRESSURE", "OWNER", "CPU", "MEMORY", "GPU", "MEASURED")
    rows = [
        (
            one.node,
            str(one.state),
            _score(one.all),
            _score(one.owner),
            *(_both(trend_of(one, what)) for what in (Measured.CPU, Measured.MEMORY, Measured.GPU)),
            f"{format_duration(one.seen)} ago" if one.seen >= 0 else "-",
        )
        for one in ranked
    ]
    text = formatting.table(invocation, header, rows) if rows else "no node is known yet\n"
    quiet = "".join(f"{one.node} {_score(one.all)}\n" for one in ranked)
    formatting.show(invocation, {"nodes": [node_json(one) for one in ranked]}, text, quiet, "nodes")


@click.command("summary", cls=Command)
def cluster_summary() -> None:
    """Show the whole grid in a few lines: nodes, what they have, lend and use, and how busy they are."""
    invocation = current()
    status: Status = invocation.ask(lambda n: GetStatus(id=n))
    answer: Trends = invocation.ask(lambda n: GetTrends(id=n, window=TOP))
    _warn(answer)
    found = summary(status.nodes, answer.nodes)
    formatting.show(
        invocation,
        lambda: _summary_json(found, status),
        lambda: _summary_screen(found) + _durations(status) + _performance(status),
        f"{found.pressure[0]:.2f}\n" if found.pressure else "-\n",
    )


@click.command(cls=Command)
@click.argument("node", shell_complete=complete_nodes)
def forecast(node: str) -> None:
    """Show how likely a node stays idle for another half hour, two and four hours.

    The forecast is learned from the node's own past: how often it stayed idle when it had been idle for about as long,
    or a regression if that was better. The output says how often such forecasts were right; the grid does not use those
    that were not."""
    invocation = current()
    answer: NodeForecast = invocation.ask(lambda n: GetForecast(id=n, node=node))
    content = {
        "node": answer.node,
        "idle_for": round(answer.idle_for, 3),
        "why": answer.why or None,
        "lasting": [_lasting_json(one) for one in answer.lasting],
    }
    if answer.why:
        text = printable(f"{answer.node}: nothing is forecast: {answer.why}") + "\n"
    else:
        header = ("FOR", "PROBABILITY", "OF ITS OWN PAST", "FORECASTS LIKE THIS")
        text = printable(f"{answer.node} has been idle for {format_duration(answer.idle_for)}; stays so:") + "\n"
        text += formatting.table(invocation, header, map(_lasting_row, answer.lasting))
    quiet = "".join(f"{one.seconds:g} {one.probability:.2f}\n" for one in answer.lasting)
    formatting.show(invocation, content, text, quiet, "lasting")


def _lasting_row(one: IdleChance) -> list[str]:
    past = f"{one.lasted} of {counted(one.cases, 'time')}" if one.cases else "none yet"
    told = f"{100 * one.true / one.told:.0f} % of {one.told:,} came true" if one.told else "none yet"
    doubt = "" if one.believed else "; not used: it is off by more than 5 %"
    return [format_duration(one.seconds), amount(Measured.CPU, one.probability), past, told + doubt]


def _lasting_json(one: IdleChance) -> dict[str, Any]:
    return {
        "seconds": one.seconds,
        "probability": round(one.probability, 4),
        "cases": one.cases,
        "lasted": one.lasted,
        "told": one.told,
        "true": one.true,
        "believed": one.believed,
    }


def _warn(answer: Trends) -> None:
    if answer.trouble:
        current().say(f"history is not written now: {answer.trouble}; what is shown is from memory")


# --- words ------------------------------------------------------------------------------------------------------------


def sparkline(trend: Trend) -> str:
    """The points as bars: parts of 1 on a fixed scale, rates on their own; blank where nothing was measured."""
    most = max(trend.points, default=0.0) if trend.what in RATES else 1.0
    return "".join(" " if one < 0 else BARS[min(7, int(8 * one / most))] if most else BARS[0] for one in trend.points)


def amount(what: Measured, value: float, sign: str = "") -> str:
    """A value of a resource: `42 %`, `1.5M/s`."""
    if what not in RATES:
        return f"{100 * value:{sign}.0f} %"
    size = format_bytes(round(abs(value)))
    return f"{'-' if value < 0 else sign}{size}/s"


def _score(pressure: Pressure | None) -> str:
    return "-" if pressure is None else f"{pressure.score:.2f}"


def _both(trend: Trend | None) -> str:
    """Level of all use, and of the owner's: `42 % (30)`."""
    if trend is None or trend.why:
        return "-"
    return f"{amount(trend.what, trend.level)} ({100 * trend.owner:.0f})"


def _cells(trend: Trend) -> list[str]:
    what = trend.what
    if trend.why:
        return [sparkline(trend), "-", "-", "-", "-", trend.why]
    owner = "-" if what in RATES else amount(what, trend.owner)
    slope = f"{amount(what, trend.slope, '+')} an hour"
    return [
        sparkline(trend),
        amount(what, trend.level),
        amount(what, trend.p95),
        owner,
        slope,
        amount(what, trend.last),
    ]


def _rows(node: NodeTrends) -> list[list[str]]:
    return [[node.node, str(trend.what), *_cells(trend)] for trend in node.trends]


def _node_screen(node: NodeTrends, answer: Trends) -> str:
    head = f"{node.node}, {node.state}, last {NAMES.get(answer.window, format_duration(answer.window))}"
    head += f" · pressure {_score(node.all)}, of the owner alone {_score(node.owner)}"
    head += f" · measured {format_duration(node.seen)} ago" if node.seen >= 0 else " · not measured now"
    forecasts = [one.forecast for one in node.trends if one.forecast is not None]
    ahead = f"IN {NAMES.get(forecasts[0].ahead, '1h')}, 90 %" if forecasts else "FORECAST"
    header = ("RESOURCE", "TREND", "LEVEL", "P95", "OWNER", "SLOPE", "NOW", "SPREAD", ahead)
    rows = []
    for trend in node.trends:
        spread = "-" if trend.why else amount(trend.what, trend.spread)
        rows.append([str(trend.what), *_cells(trend), spread, _forecast_words(trend)])
    lines = [printable(head) + "\n", formatting.table(current(), header, rows)]
    measured = [one.buckets for one in node.trends if one.buckets]
    if measured:
        whole, step = round(answer.window / node.trends[0].step), node.trends[0].step
        lines.append(f"{max(measured)} of {counted(whole, 'interval')} of {format_duration(step)} were measured\n")
    return "".join(lines)


def _forecast_words(trend: Trend) -> str:
    told = trend.forecast
    if told is None:
        return trend.unsure or "-"
    low, high = amount(trend.what, told.low), amount(trend.what, told.high)
    return f"{amount(trend.what, told.value)}, {low} to {high}"


def _summary_screen(found: Summary) -> str:
    states = ", ".join(f"{count} {state}" for state, count in sorted(found.states.items())) or "none is known yet"
    lines = [f"nodes     {states}\n"]
    rows = []
    named = {Measured.CPU: "cpu cores", Measured.MEMORY: "memory", Measured.GPU: "gpus"}
    for what, name in named.items():
        cells = []
        for one in (found.total, found.offered, found.lent):
            value = {Measured.CPU: one.cpu, Measured.MEMORY: one.memory}.get(what, one.gpu)
            cells.append(formatting.memory(value) if what is Measured.MEMORY else formatting.cpu(value))
        used = found.used.get(what)
        rows.append([name, *cells, *((amount(what, part) for part in used) if used else ("-", "-"))])
    lines.append(formatting.table(current(), ("", "TOTAL", "OFFERED", "LENT", "USED", "BY OWNERS"), rows))
    if found.pressure:
        busiest = f"; busiest {found.busiest}" if found.busiest else ""
        both = f"{found.pressure[0]:.2f}, of owners alone {found.pressure[1]:.2f}"
        lines.append(printable(f"pressure  {both}{busiest}") + "\n")
    return "".join(lines)


def _durations(status: Status) -> str:
    """Describe how long jobs waited and ran since the coordinator started."""
    if status.waits is None or status.runs is None:
        return ""

    def of(one: Durations) -> str:
        return f"{format_duration(one.median)} (median), {format_duration(one.p95)} (95 %)"

    ended = f"{counted(status.runs.count, 'job')} ran and ended since the coordinator started"
    return f"jobs      waited {of(status.waits)}; ran {of(status.runs)}; {ended}\n"


def _performance(status: Status) -> str:
    """Describe how well the grid serves its users."""
    found = performance(status)
    said = [f"{found.efficiency:.0%} of the core-seconds held were used"] if found.efficiency is not None else []
    said += [f"{found.success:.0%} of requests were placed"] if found.success is not None else []
    since = f"since the coordinator started, {format_duration(round(status.up_for))} ago"
    return f"served    {'; '.join([*said, f'{found.moves_an_hour:g} moves an hour'])}; {since}\n" if said else ""


# --- JSON -------------------------------------------------------------------------------------------------------------


def node_json(node: NodeTrends) -> dict[str, Any]:
    """A node's trends for programs."""
    return {
        "node": node.node,
        "state": str(node.state),
        "measured_ago": round(node.seen, 3) if node.seen >= 0 else None,
        "pressure": _pressure_json(node.all),
        "pressure_owner": _pressure_json(node.owner),
        "total": formatting.resources_json(node.total),
        "trends": {str(one.what): _trend_json(one) for one in node.trends},
    }


def _pressure_json(pressure: Pressure | None) -> dict[str, Any] | None:
    if pressure is None:
        return None
    parts = {"score": pressure.score, "cpu": pressure.cpu, "memory": pressure.memory, "gpu": pressure.gpu}
    return {name: None if part is None else round(part, 4) for name, part in parts.items()}


def _trend_json(trend: Trend) -> dict[str, Any]:
    unit = "bytes/s" if trend.what in RATES else "part"
    common = {"unit": unit, "step": trend.step, "buckets": trend.buckets}
    points = {"points": [None if one < 0 else round(one, 4) for one in trend.points]}
    if trend.why:
        return {**common, "why": trend.why, **points}
    figures = {
        "level": trend.level,
        "spread": trend.spread,
        "p95": trend.p95,
        "slope_per_hour": trend.slope,
        "last": trend.last,
        "owner": None if trend.what in RATES else trend.owner,
    }
    told = trend.forecast
    forecast = told and {
        "ahead": told.ahead, "value": round(told.value, 4), "low": round(told.low, 4), "high": round(told.high, 4),
        "errors": told.errors,
    }  # fmt: skip
    rounded = {name: None if one is None else round(one, 4) for name, one in figures.items()}
    return {**common, **rounded, "forecast": forecast, "unsure": trend.unsure or None, **points}


def _summary_json(found: Summary, status: Status) -> dict[str, Any]:
    return {
        "nodes": {"total": sum(found.states.values()), **found.states},
        "total": formatting.resources_json(found.total),
        "offered": formatting.resources_json(found.offered),
        "lent": formatting.resources_json(found.lent),
        "used": {
            str(what): {"all": round(all_, 4), "owner": round(owner, 4)} for what, (all_, owner) in found.used.items()
        },
        "pressure": found.pressure and {"all": round(found.pressure[0], 4), "owner": round(found.pressure[1], 4)},
        "busiest": found.busiest or None,
        "waits": _durations_json(status.waits),
        "runs": _durations_json(status.runs),
        "performance": performance(status).plain(),
    }


def _durations_json(one: Durations | None) -> dict[str, Any] | None:
    if one is None:
        return None
    return {"count": one.count, "median": one.median, "p95": one.p95, "p99": one.p99}
