"""Draws docs/session.svg: `python docs/picture.py` runs the commands below in a real dev grid and draws their output.

Needs root, or users who may make namespaces: the grid gets a network, a mount table and a home directory of its own, so
that it disturbs no other grid of this machine, and none of this machine's paths is drawn.
"""

import fcntl
import html
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path
from typing import NamedTuple

DOCS = Path(__file__).resolve().parent
HOME = "/media/ann"
COLUMNS = 142
SESSION = (
    "grid dev up --nodes 2 --fake-gpus 1 --cpu-percent-max 100",
    "grid nodes",
    "grid run-shared -t cpu -a 1 --no-ship sh -c 'echo hello from $GRID_NODE'",
    "grid run-shared -t gpu -a 1 --no-ship sh -c 'echo $GRID_NODE lends $CUDA_VISIBLE_DEVICES'",
    "grid dev down",
)
"""What is typed. A busy machine lends as well with --cpu-percent-max 100."""

SGR = re.compile(r"\x1b\[([\d;]*)m")
COLOURS = {"31": "#ff7b72", "32": "#7ee787", "33": "#e3b341", "34": "#79c0ff", "36": "#76e3ea"}
CHARACTER, LINE, MARGIN = 7.8, 18, 16


class Span(NamedTuple):
    """Text in one style: attributes of an SVG `tspan`."""

    text: str
    style: str


def in_a_terminal(command: str) -> str:
    """Run a command line in a terminal; what stands on the screen in the end."""
    terminal, end = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
    running = subprocess.Popen(["sh", "-c", command], stdin=end, stdout=end, stderr=end, start_new_session=True)
    os.close(end)
    output = bytearray()
    while True:
        try:
            piece = os.read(terminal, 1 << 16)
        except OSError:  # how a terminal says that nobody has it open any more
            break
        output += piece
    os.close(terminal)
    if running.wait() != 0:
        sys.exit(f"`{command}` failed:\n{output.decode()}")
    lines = output.decode().replace("\r\n", "\n").split("\n")
    return "\n".join(line.rpartition("\r\x1b[K")[2] for line in lines).strip("\n")  # the last state of a progress line


def spans(line: str) -> list[Span]:
    """A line of terminal output as styled text."""
    found, style, at = [], "", 0
    for match in SGR.finditer(line):
        found.append(Span(line[at : match.start()], style))
        at = match.end()
        codes = (match[1] or "0").split(";")
        style = "" if "0" in codes else style
        style += ' font-weight="bold"' if "1" in codes else ' opacity="0.7"' if "2" in codes else ""
        style += "".join(f' fill="{COLOURS[code]}"' for code in codes if code in COLOURS)
    return [span for span in (*found, Span(line[at:], style)) if span.text]


def wrapped(line: list[Span]) -> list[list[Span]]:
    """A line as the terminal breaks it."""
    rows: list[list[Span]] = [[]]
    width = 0
    for text, style in line:
        while text:
            if width == COLUMNS:
                rows.append([])
                width = 0
            rows[-1].append(Span(text[: COLUMNS - width], style))
            text, width = text[COLUMNS - width :], width + len(rows[-1][-1].text)
    return rows


def drawn(session: list[tuple[str, str]]) -> str:
    """The SVG of commands and their output."""
    lines: list[list[Span]] = []
    for command, output in session:
        lines += wrapped([Span("$ ", ' fill="#7ee787"'), Span(command, ' fill="#ffffff" font-weight="bold"')])
        for line in output.splitlines():
            lines += wrapped(spans(line))
        lines.append([])
    width = round(COLUMNS * CHARACTER + 2 * MARGIN)
    height = (len(lines) - 1) * LINE + 2 * MARGIN
    rows = []
    for number, line in enumerate(lines):
        text = "".join(f"<tspan{style}>{html.escape(text, quote=False)}</tspan>" for text, style in line)
        if text:
            length = round(sum(len(span.text) for span in line) * CHARACTER, 1)
            place = f'x="{MARGIN}" y="{MARGIN + 13 + number * LINE}" textLength="{length}"'
            rows.append(f'<text {place} xml:space="preserve">{text}</text>')
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
            "<title>A session with grid dev up, grid nodes and grid run-shared</title>",
            f'<rect width="{width}" height="{height}" rx="8" fill="#0d1117"/>',
            '<g font-family="ui-monospace,SFMono-Regular,Menlo,Consolas,monospace" font-size="13" fill="#c9d1d9">',
            *rows,
            "</g>",
            "</svg>\n",
        ]
    )


def record(target: Path) -> None:
    """In namespaces of our own: run the session and write the picture."""
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/media"], check=True)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    os.mkdir(HOME)
    os.chdir(HOME)
    for name in [name for name in os.environ if name.startswith(("GRID_", "XDG_"))]:
        del os.environ[name]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    os.environ.update(HOME=HOME, XDG_STATE_HOME=f"{HOME}/.local/state", PATH=path, TERM="xterm-256color")
    target.write_text(drawn([(command, in_a_terminal(command)) for command in SESSION]))


def main() -> int:
    """Draw the picture again."""
    if sys.argv[1:2] == ["--inside"]:
        record(Path(sys.argv[2]))
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        target = Path(scratch, "session.svg")
        own = ["unshare", "--map-root-user", "--mount", "--net", "--pid", "--fork", "--mount-proc", "--kill-child"]
        done = subprocess.run([*own, sys.executable, __file__, "--inside", str(target)])
        if done.returncode == 0:
            (DOCS / "session.svg").write_text(target.read_text())
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
