"""Starts a supervisor that can be profiled: `python -I -S supervisor.py FOLDER MAIN ARGUMENTS…`."""

import os
import runpy
import sys

if __name__ == "__main__":
    _, folder, main, *rest = sys.argv
    toggled = os.path.join(os.path.dirname(os.path.abspath(__file__)), "toggled.py")
    runpy.run_path(toggled)["install"](folder)
    sys.argv = [main, *rest]
    runpy.run_path(main, run_name="__main__")
