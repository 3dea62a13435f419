"""Lets an interpreter of this environment import setuptools' finder of our packages, and what that needs (pathlib, re,
importlib.util), where something of ours is imported, and not as it starts: that halves how long it takes to start, and
the tests start thousands that import nothing of ours. Run by the environment's own interpreter after each
`pip install --editable`, which writes the file anew."""

import sysconfig
from pathlib import Path

LAZY = (
    'import sys; sys.meta_path.append(type("Lazy", (), {{"find_spec": staticmethod('
    'lambda name, path=None, target=None: __import__("{finder}")._EditableFinder.find_spec(name, path, target) '
    'if name.startswith("distributed_grid") else None)}}))\n'
)


def main() -> None:
    for path in Path(sysconfig.get_path("purelib")).glob("__editable__.distributed_grid-*.pth"):
        finder = path.read_text().partition(";")[0].removeprefix("import ")
        if path.read_text().strip() == f"import {finder}; {finder}.install()":  # else setuptools does it otherwise
            path.write_text(LAZY.format(finder=finder))


if __name__ == "__main__":
    main()
