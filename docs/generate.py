"""Prints into the documentation what the code alone knows: `make docs` rewrites, `--check` only compares.

Generated parts stand between `<!-- generated: NAME -->` and `<!-- end -->`.
"""

import re
import sys
from collections.abc import Callable, Collection, Mapping
from enum import Enum
from pathlib import Path
from typing import TypeVar

import click

from distributed_grid.agent.core.entry import ENTRY_MOVES
from distributed_grid.agent.supervisor.job import MOVES as SUPERVISED_MOVES
from distributed_grid.agent.supervisor.job import JobState
from distributed_grid.cli.examples import EXAMPLES
from distributed_grid.cli.lazy import path_of
from distributed_grid.cli.main import main as grid
from distributed_grid.config.kinds import settings_of
from distributed_grid.config.render import format_value
from distributed_grid.config.schema import ALIASES, MOVED, NAMED, NODE_SETTINGS, POOL_SETTINGS, SETTINGS
from distributed_grid.coordinator.core.model import MOVES, NODE_MOVES, PHASES, Queued
from distributed_grid.protocol import messages
from distributed_grid.protocol.identity import Role
from distributed_grid.protocol.jobs import HOLDING, State
from distributed_grid.protocol.messages.roles import AGENTS, TABLE
from distributed_grid.protocol.nodes import NodeState
from distributed_grid.protocol.scaling.machines import MACHINE_MOVES, MachineState

DOCS = Path(__file__).parent
S = TypeVar("S", bound=Enum)


def states() -> str:
    """The law of job states as a table."""
    rows = ["| from | to | holds resources |", "|---|---|---|"]
    for state, targets in MOVES.items():
        to = ", ".join(other.name for other in MOVES if other in targets) or "(nothing)"
        rows.append(f"| {state.name} | {to} | {'yes' if state in HOLDING else 'no'} |")
    return "\n".join(rows)


def moves() -> str:
    """The law of job states as a picture (Mermaid)."""
    return picture(_names(MOVES), State.WAITING.name)


def node_moves() -> str:
    """The law of node states as a picture (Mermaid)."""
    return picture(_names(NODE_MOVES), NodeState.DISCONNECTED.name)


def machine_moves() -> str:
    """The law of the states of machines as a picture (Mermaid)."""
    return picture(_names(MACHINE_MOVES), MachineState.WANTED.name)


def phases() -> str:
    """The law of a job's phases as a picture (Mermaid)."""
    others = {kind.__name__: {other.__name__ for other in to if other is not kind} for kind, to in PHASES.items()}
    return picture(others, Queued.__name__)


def supervised_moves() -> str:
    """The law of a job's states in its supervisor as a picture (Mermaid)."""
    return picture(_names(SUPERVISED_MOVES), JobState.INTENDED.name)


def entry_moves() -> str:
    """The law of an agent's entries as a picture (Mermaid)."""

    def name(kind: type | None) -> str:
        return "[*]" if kind is None else kind.__name__

    return picture({name(kind): {name(other) for other in targets} for kind, targets in ENTRY_MOVES.items()})


def _names(law: Mapping[S, Collection[S]]) -> dict[str, set[str]]:
    return {state.name: {other.name for other in targets} for state, targets in law.items()}


def picture(law: Mapping[str, Collection[str]], first: str = "") -> str:
    """A state diagram of a table of moves. `first`: where all begin, if that is not in the table."""
    rows = ["```mermaid", "stateDiagram-v2", *([f"    [*] --> {first}"] if first else [])]
    for state, targets in law.items():
        rows += [f"    {state} --> {other}" for other in law if other in targets]
        rows += [] if targets else [f"    {state} --> [*]"]
    return "\n".join([*rows, "```"])


def wire() -> str:
    """Every message with its first sentence, by who sends it."""
    rows = ["| sent by | message | meaning |", "|---|---|---|"]
    for union, sender in (
        ("FromAgent", "agent"),
        ("ToAgent", "coordinator to agent"),
        ("FromAgentData", "agent, data connection"),
        ("ToAgentData", "coordinator, data connection"),
        ("FromClient", "client"),
        ("ToClient", "coordinator to client"),
    ):
        for kind in getattr(messages, union).__args__:
            rows.append(f"| {sender} | `{kind.__name__}` | {sentence(kind.__doc__)} |")
    return "\n".join(rows)


def roles() -> str:
    """Return the table of messages by role, with what each reaches. Messages of agents alone are one line."""
    people = (Role.CLIENT, Role.OPERATOR, Role.VIEWER)
    rows = ["| message | a client | an operator | a viewer |", "|---|---|---|---|"]
    for kind, row in TABLE.items():
        if row is not AGENTS:
            cells = " | ".join(str(row.get(role, "no")) for role in people)
            rows.append(f"| `{kind.__name__}` | {cells} |")
    own = ", ".join(f"`{kind.__name__}`" for kind, row in TABLE.items() if row is AGENTS)
    return "\n".join([*rows, "", f"Nodes alone say, of themselves: {own}."])


def sentence(docstring: str) -> str:
    """The first sentence of a docstring on one line; what is in brackets does not end it."""
    return re.split(r"(?<=[.;:]) (?![^(]*\))", " ".join(docstring.split()), maxsplit=1)[0].rstrip(";:.") + "."


def commands() -> str:
    """Every command of `grid` with its usage, its help, its options and its examples."""
    lines: list[str] = []
    _describe(grid, click.Context(grid, info_name="grid"), lines)
    return "\n".join(lines).rstrip()


def _describe(command: click.Command, context: click.Context, lines: list[str]) -> None:
    if isinstance(command, click.Group) and context.parent is not None:
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            _describe(below, click.Context(below, info_name=name, parent=context), lines)
        return
    usage = " ".join(command.collect_usage_pieces(context))
    lines += [f"### `{context.command_path}`" if context.parent else "### Before any command", ""]
    lines += [f"`{context.command_path} {usage}`", "", *_paragraphs(command.help or "")]
    known = {option.name for option in grid.params} | {"help"} if context.parent else set()
    options = [option for option in command.get_params(context) if option.name not in known]
    rows = [record for option in options if (record := option.get_help_record(context)) and record[1]]
    if rows:
        lines += ["| option | meaning |", "|---|---|"]
        lines += [f"| `{flags.replace('|', ', ')}` | {' '.join(text.split())} |" for flags, text in rows]
        lines.append("")
    if context.parent:
        lines += ["Examples:", "", *(f"- `{one}`" for one in EXAMPLES[path_of(context)]), ""]
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            _describe(below, click.Context(below, info_name=name, parent=context), lines)


def _paragraphs(text: str) -> list[str]:
    return [" ".join(part.split()) + "\n" for part in text.split("\n\n")]


def settings() -> str:
    """Every setting."""
    lines = ["| setting | default | what it may hold | meaning |", "|---|---|---|---|"]
    nodes = [(("nodes[]", *path), one) for path, one in NODE_SETTINGS.items()]
    nodes += [(("pools[]", *path), one) for path, one in POOL_SETTINGS.items()]
    for path, one in (*SETTINGS.items(), *nodes):
        lines.append(f"| `{'.'.join(path)}` | `{format_value(one.default)}` | {one.kind.name} | {one.doc} |")
    for path, section in NAMED.items():
        what = f"names, each with `{'`, `'.join(one.name for one in settings_of(section))}`"
        lines.append(f"| `{'.'.join(path)}` | `{{}}` | {what} | {sentence(section.__doc__ or '')} |")
    return "\n".join(lines)


def aliases() -> str:
    """Every other name of a setting."""
    lines = ["| also accepted | for |", "|---|---|"]
    for there, here in (*MOVED.items(), *ALIASES.items()):
        lines.append(f"| `{'.'.join(there)}` | `{'.'.join(here)}` |")
    return "\n".join(lines)


sys.path.insert(0, str(DOCS))
from generate_guards import guards  # noqa: E402
from generate_map import source_map  # noqa: E402
from generate_walls import attacks  # noqa: E402

PARTS: dict[str, Callable[[], str]] = {
    "states": states,
    "moves": moves,
    "links": node_moves,
    "machines": machine_moves,
    "phases": phases,
    "entries": entry_moves,
    "supervised": supervised_moves,
    "map": source_map,
    "wire": wire,
    "roles": roles,
    "commands": commands,
    "settings": settings,
    "aliases": aliases,
    "guards": guards,
    "attacks": attacks,
}
MARK = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def generate(text: str) -> str:
    """The text with its generated parts renewed."""
    return MARK.sub(lambda match: f"{match[1]}{PARTS[match[2]]()}\n{match[3]}", text)


def main() -> int:
    """Renew all pages, or with --check say which are not up to date (exit 1)."""
    stale = []
    for page in sorted(DOCS.glob("*.md")):
        text = page.read_text()
        renewed = generate(text)
        if renewed != text:
            stale.append(page.name)
            if "--check" not in sys.argv:
                page.write_text(renewed)
    if stale:
        print(("not up to date: " if "--check" in sys.argv else "renewed: ") + ", ".join(stale))
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
