"""The map of the source: every package with its modules, each with the first sentence of its docstring."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROOMS = ("protocol", "coordinator", "agent", "cli", "distributed_grid", "simulator", "systemd")


def source_map() -> str:
    """A table for each package, in the order in which the rooms are read best."""
    parts: list[str] = []
    for room in ROOMS:
        for init in sorted((ROOT / room).rglob("__init__.py"), key=lambda path: path.parent):
            folder = init.parent
            modules = [path for path in sorted(folder.glob("*.py")) if path.name != "__init__.py"]
            said = [f"**`{folder.relative_to(ROOT)}/`** {sentence(init)}"]
            if modules:
                said += ["", "| file | what it is |", "|---|---|"]
                said += [f"| `{path.name}` | {sentence(path)} |" for path in modules]
            parts.append("\n".join(said))
    return "\n\n".join(parts)


def sentence(path: Path) -> str:
    """The first sentence of a module's docstring, on one line. Raises ValueError where it has none."""
    said = ast.get_docstring(ast.parse(path.read_text()))
    if not said:
        raise ValueError(f"{path.relative_to(ROOT)} says nothing of itself: write a docstring")
    first = re.split(r"(?<=[.;]) (?=[A-Z`])", " ".join(said.split("\n\n")[0].split()), maxsplit=1)[0]
    return first.rstrip(".;:").replace("|", "\\|") + "."
