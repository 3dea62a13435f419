"""Errors for people: what happened, why, and what to do next. Text from elsewhere is made printable before it reaches a
terminal."""

from typing import Any


def printable(text: str) -> str:
    """The text without characters that would act on a terminal, or on the order of what is read: control characters of
    both sets, and those that have no shape, as \\x1b."""
    return text if text.isprintable() else "".join(one if one.isprintable() else _named(one) for one in text)


def _named(char: str) -> str:
    return f"\\x{ord(char):02x}" if ord(char) < 0x100 else f"\\u{ord(char):04x}"


class GridError(Exception):
    """Something a person can act on.

    `what` is one sentence; `why` names the cause where it is known; `hint` is the next command or change to try. A
    traceback shows all three.
    """

    def __init__(self, what: str, why: str = "", hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.hint = hint
        for label, text in (("why", why), ("try", hint)):
            if text:
                self.add_note(f"  {label}: {text}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Support copies and pickles: the arguments of a subclass may differ from its message."""
        return _rebuilt, (type(self), self.args), self.__dict__

    def lines(self) -> list[str]:
        """The error as the command line prints it: `error:`, then `why:` and `try:` where there is something to say.
        What of it came from elsewhere cannot act on the terminal."""
        out = [f"error: {self.what}"]
        if self.why:
            out.append(f"  why: {self.why}")
        if self.hint:
            out.append(f"  try: {self.hint}")
        return [printable(line) for line in out]


def _rebuilt(kind: type[GridError], args: tuple[Any, ...]) -> GridError:
    return kind.__new__(kind, *args)


class BadValue(GridError, ValueError):
    """A value from a person (an option, an argument, a configuration key) that cannot be used."""


class BadFrame(GridError):
    """Bytes from a peer that are not a frame of this protocol; says where in the frame and why."""


class OutOfBounds(BadFrame):
    """A frame of this protocol with a value in it that is beyond the bounds of its field; names both."""


class ProtocolMismatch(GridError):
    """The peer speaks the protocol in a way that cannot go on: wrong version, wrong role, a frame out of sequence."""
