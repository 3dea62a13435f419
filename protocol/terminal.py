"""Text from elsewhere on a terminal."""


def printable(text: str) -> str:
    """The text without characters that would act on a terminal, or on the order of what is read: control characters of
    both sets, and those that have no shape, as \\x1b."""
    return text if text.isprintable() else "".join(one if one.isprintable() else _named(one) for one in text)


def _named(char: str) -> str:
    return f"\\x{ord(char):02x}" if ord(char) < 0x100 else f"\\u{ord(char):04x}"
