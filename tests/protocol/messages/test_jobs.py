"""What a command loads of the messages to run a job, and that every name is found where the table says."""

import inspect
import subprocess
import sys
from importlib import import_module

import pytest

from distributed_grid.protocol import messages
from distributed_grid.protocol.messages import MODULES

FOLLOWS = "Submit Submitted Failed Watch JobUpdate Cancel SignalJob Done Output WantOutput Welcome Hello"


def test_to_submit_and_follow_a_job_loads_the_messages_of_no_other_purpose() -> None:
    code = (
        f"from distributed_grid.protocol.messages import {', '.join(FOLLOWS.split())}; import sys;"
        "print(*(name.rpartition('.')[2] for name in sys.modules if name.startswith('distributed_grid.protocol.')))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {"agent", "automation", "client", "history", "needs", "operator", "pages", "rights", "why"} & set(
        loaded
    ) == set()


@pytest.mark.parametrize("module", [one for one in MODULES if one.startswith("messages.")])
def test_every_class_and_function_of_a_module_of_messages_is_named_in_the_table(module: str) -> None:
    whole = import_module(f"distributed_grid.protocol.{module}")
    own = {
        name
        for name, value in vars(whole).items()
        if (inspect.isclass(value) or inspect.isfunction(value)) and value.__module__ == whole.__name__
    }
    named = MODULES[module].split()
    assert sorted(named) == sorted(name for name in own if not name.startswith("_"))
    assert [name for name in named if getattr(messages, name) is not getattr(whole, name)] == []


def test_a_name_that_is_no_message_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Submitt"):
        messages.Submitt  # type: ignore[attr-defined]  # noqa: B018
