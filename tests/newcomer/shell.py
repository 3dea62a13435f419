"""One shell in which a page is typed, line by line, as a person would."""

import subprocess
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tests.newcomer.pages import Typed, differs

END = "-- end of the output --"
SECONDS = 300.0
"""That one line may take."""


class Shell:
    """A shell that is started by these words; what it runs in ends with it."""

    def __init__(
        self, argv: Sequence[str], environment: Mapping[str, str] | None = None, directory: Path | None = None
    ) -> None:
        self.process = subprocess.Popen(
            argv,
            cwd=directory,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )

    def run(self, command: str) -> tuple[int, str]:
        """Type one line; its exit code, and everything that it prints."""
        into, out = self.process.stdin, self.process.stdout
        assert into is not None and out is not None
        # What it reads is no script of ours: a command that asks gets the end of the file.
        print(f"{{ {command}\n}} < /dev/null; ended=$?; echo; echo '{END}' $ended", file=into, flush=True)
        printed: list[str] = []
        hangs = threading.Timer(SECONDS, self.process.kill)
        hangs.start()
        try:
            for line in out:
                if line.startswith(END):
                    return int(line.removeprefix(END)), "".join(printed).removesuffix("\n")
                printed.append(line)
        finally:
            hangs.cancel()
        raise AssertionError(f"the shell ended at `{command}`, within {SECONDS:g} s:\n{''.join(printed)}")

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


def wrong(shell: Shell, typed: Typed, user: str = "ann") -> str:
    """What was not as the page says; empty: nothing."""
    code, printed = shell.run(typed.command)
    if typed.shown is None:
        return f"exit code {code}\n{printed}" if code else ""
    return differs(typed.shown, printed, user)


def follow(shell: Shell, page: Iterable[Typed], user: str = "ann") -> None:
    """Type all of it. Raises AssertionError at the first line that does not do what the page says."""
    for typed in page:
        assert not (why := wrong(shell, typed, user)), f"$ {typed.command}\n{why}"
