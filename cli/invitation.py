"""Invitations on the command line: they are secrets, and what a program was started with is for everybody to see."""

import contextlib
import sys
from pathlib import Path


def given(text: str) -> str:
    """The invitation that was meant: `-` stands for a line of stdin. One that was given as an argument is taken out of
    what other users can see of this process."""
    if text != "-":
        forget(text)
        return text
    if sys.stdin.isatty():
        import click

        asked: str = click.prompt("invitation", hide_input=True, err=True)
        return asked
    return sys.stdin.readline().strip()


def forget(secret: str) -> None:
    """Overwrite it in the memory from which the kernel tells this process's arguments (Linux; elsewhere nothing)."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        numbers = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        begin, end = int(numbers[45]), int(numbers[46])
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            memory.seek(begin)
            at = memory.read(end - begin).find(secret.encode())
            if at >= 0:
                memory.seek(begin + at)
                memory.write(b"-" * len(secret.encode()))
