"""A picture of runs as SVG text: use of cores, queue, and the owners' use over time, policies above each other."""

from collections.abc import Callable, Sequence

from distributed_grid.simulator.lab.world import Point

WIDTH, LEFT, RIGHT = 960, 70, 20
USE, QUEUE, OWNERS, GAP, TITLE = 70, 45, 30, 8, 22
COLUMNS = 400
"""Moments that a line has: each shows the mean of its span."""
COLOURS = {"use": "#2a6f97", "queue": "#bc4b51", "owners": "#8a817c"}
_DAY, _HOUR, _MINUTE = 86_400.0, 3_600.0, 60.0
_ESCAPED = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"})


def columns(points: Sequence[Point], value: Callable[[Point], float], end: float, count: int = COLUMNS) -> list[float]:
    """The mean of a value in each of `count` equal spans from 0 to `end`."""
    if not points or end <= 0:
        return [0.0] * count
    span, sums = end / count, [0.0] * count
    for one, after in zip(points, [*points[1:], points[-1]._replace(at=end)], strict=True):
        begin, over = max(0.0, one.at), min(end, after.at)
        at, amount = int(begin / span), value(one)
        while begin < over and at < count:
            until = min(over, (at + 1) * span)
            sums[at] += amount * (until - begin)
            begin, at = until, at + 1
    return [total / span for total in sums]


def picture(title: str, runs: Sequence[tuple[str, Sequence[Point]]], milli: int, owned: bool) -> str:
    """The picture of these policies with their points, on a cluster of so many milli-cores. `owned`: with the use of
    owners."""
    end = max((points[-1].at for _, points in runs if points), default=0.0) or 1.0
    most = max((max(columns(points, _waiting, end), default=0.0) for _, points in runs), default=0.0) or 1.0
    block = TITLE + USE + GAP + QUEUE + GAP + (OWNERS + GAP if owned else 0)
    height = 40 + block * len(runs) + 30
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
        ' font-family="sans-serif" font-size="11" fill="#333">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        f'<text x="{LEFT}" y="22" font-size="14">{_escaped(title)}</text>',
    ]
    top = 36
    for name, points in runs:
        out.append(f'<text x="{LEFT}" y="{top + 15}" font-size="12" font-weight="bold">{_escaped(name)}</text>')
        at = top + TITLE
        out += _panel(at, USE, "use", "100 %", columns(points, lambda one: one.cpu / milli, end), 1.0)
        at += USE + GAP
        out += _panel(at, QUEUE, "queue", f"{most:.0f}", columns(points, _waiting, end), most)
        if owned:
            at += QUEUE + GAP
            out += _panel(at, OWNERS, "owners", "100 %", columns(points, lambda one: one.owned / milli, end), 1.0)
        top += block
    out += _axis(top + 4, end)
    return "\n".join([*out, "</svg>"]) + "\n"


def _waiting(point: Point) -> float:
    return point.waiting


def _panel(top: int, height: int, what: str, most: str, values: Sequence[float], whole: float) -> list[str]:
    width, bottom = WIDTH - LEFT - RIGHT, top + height
    step = width / len(values)
    path = [f"M{LEFT} {bottom}"]
    for at, value in enumerate(values):
        y = bottom - height * min(1.0, value / whole)
        path.append(f"L{_short(LEFT + at * step)} {_short(y)}L{_short(LEFT + (at + 1) * step)} {_short(y)}")
    path.append(f"L{LEFT + width} {bottom}Z")
    return [
        f'<rect x="{LEFT}" y="{top}" width="{width}" height="{height}" fill="#f4f4f4"/>',
        f'<path d="{"".join(path)}" fill="{COLOURS[what]}" fill-opacity="0.75"/>',
        f'<text x="{LEFT - 6}" y="{top + 9}" text-anchor="end">{most}</text>',
        f'<text x="{LEFT - 6}" y="{bottom}" text-anchor="end">{what}</text>',
    ]


def _axis(top: int, end: float) -> list[str]:
    unit, word = next(
        ((unit, word) for unit, word in ((_DAY, "days"), (_HOUR, "hours"), (_MINUTE, "minutes")) if end >= 2 * unit),
        (1.0, "seconds"),
    )
    step = next(size for size in _steps() if end / unit / size <= 10)
    found, width, at = list[str](), WIDTH - LEFT - RIGHT, 0.0
    while at <= end / unit:
        x = LEFT + width * at * unit / end
        found.append(f'<text x="{_short(x)}" y="{top + 10}" text-anchor="middle">{at:g}</text>')
        at += step
    return [*found, f'<text x="{LEFT}" y="{top + 22}">{word}</text>']


def _steps() -> Sequence[float]:
    return [base * 10**power for power in range(10) for base in (1, 2, 5)]


def _short(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _escaped(text: str) -> str:
    return text.translate(_ESCAPED)
