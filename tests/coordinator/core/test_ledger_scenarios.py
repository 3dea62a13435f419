"""Plays the transcripts in `scenarios/`: lines of events, `----`, and every command that came of them.

Run with `GRID_REWRITE=1` to write them anew; commit the difference only where you understand what caused it.
"""

import os
from pathlib import Path

import pytest

from tests.coordinator.core.scene import Scene

FOLDER = Path(__file__).parent / "scenarios"


def play(text: str) -> str:
    """The transcript as the ledger writes it now."""
    scene = Scene()
    blocks = []
    for block in text.strip().split("\n\n"):
        said = block.split("\n----")[0]
        out = [told for event in said.split("\n") if event and event[0] != "#" for told in scene.say(event)]
        blocks.append("\n".join([said, "----", *out]) if any(part[0] != "#" for part in said.split("\n")) else said)
    return "\n\n".join(blocks) + "\n"


@pytest.mark.parametrize("name", sorted(path.name for path in FOLDER.glob("*.txt")))
def test_the_ledger_plays_its_transcripts(name: str) -> None:
    path = FOLDER / name
    played = play(path.read_text())
    if os.environ.get("GRID_REWRITE"):
        path.write_text(played)
    assert played == path.read_text()
