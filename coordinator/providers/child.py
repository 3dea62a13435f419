"""The process of one provider: questions are JSON lines on stdin, answers JSON lines on stdout, in the order in which
they are ready. It isolates the coordinator from a vendor's library: its memory, its waits, its side effects.

The first line names the provider and its settings. The process ends when its stdin is closed. Run as `python -m
distributed_grid.coordinator.providers.child`.
"""

import os
import resource
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any

import msgspec

from distributed_grid import pip
from distributed_grid.coordinator.core.scaling.state import Answer
from distributed_grid.coordinator.providers.base import CloudProviderBase, ProviderRefused, WorkerSpec

AT_ONCE = 8
"""Maximum number of concurrent questions, beside those for lists: one at a time."""
PROVIDERS = {
    "aws": "distributed_grid.coordinator.providers.aws:AWSCloudProvider",
    "gcp": "distributed_grid.coordinator.providers.gcp:GCPCloudProvider",
    "process": "distributed_grid.coordinator.providers.process:ProcessProvider",
    "command": "distributed_grid.coordinator.providers.command:CommandProvider",
    "slurm": "distributed_grid.coordinator.providers.slurm:SlurmProvider",
    "docker_local": "distributed_grid.coordinator.providers.docker_local:DockerLocalProvider",
}
"""The built-in providers, by their names in the configuration."""
EXTRAS = {"aws": "aws", "gcp": "gcp", "docker_local": "docker"}
"""The extras (pip.EXTRAS) that their libraries come with."""
GROUP = "distributed_grid.providers"
"""The group of entry points by which packages bring others."""


class Begin(msgspec.Struct):
    """The first line. `memory`: bytes of address space that the process may have; 0: no limit."""

    provider: str
    grid: str
    settings: dict[str, Any]
    memory: int = 0


class Question(msgspec.Struct):
    """Any other line: to create, end or list machines, or what is available."""

    id: int
    ask: str
    spec: WorkerSpec | None = None
    name: str = ""
    handle: str = ""


def load(name: str) -> Callable[[str, dict[str, Any]], CloudProviderBase]:
    """The class of the provider of this name. Raises ProviderRefused."""
    where = PROVIDERS.get(name)
    if where is None:
        from importlib.metadata import entry_points

        found = next(iter(entry_points(group=GROUP, name=name)), None)
        if found is None:
            raise ProviderRefused(Answer.CREDENTIALS, f"no package here brings a provider {name!r}")
        where = found.value
    module, _, attribute = where.partition(":")
    try:
        made: Callable[[str, dict[str, Any]], CloudProviderBase] = getattr(import_module(module), attribute)
    except ImportError as error:
        hint = f"; {pip.install(*pip.EXTRAS[EXTRAS[name]])}" if name in EXTRAS else ""
        why = f"provider {name} needs a package that is not here: {error}{hint}"
        raise ProviderRefused(Answer.CREDENTIALS, why) from None
    return made


def answer(provider: CloudProviderBase, asked: Question) -> Any:
    """The answer to one question. Raises ProviderRefused."""
    match asked.ask:
        case "create" if asked.spec is not None:
            return provider.create_worker(asked.spec)
        case "end":
            return provider.terminate_worker(asked.name, asked.handle)
        case "list":
            return provider.list_workers()
        case "available":
            return provider.get_available_resources()
    raise ProviderRefused(Answer.REFUSED, f"nobody asks a provider to {asked.ask[:40]!r}")


def main() -> None:
    """Answer until stdin ends."""
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what a library prints is no answer
    writing = threading.Lock()

    def say(number: int, **what: Any) -> None:
        line = msgspec.json.encode({"id": number, **what}) + b"\n"
        with writing:
            out.write(line)

    lines = sys.stdin.buffer
    begin = msgspec.json.decode(lines.readline(), type=Begin)
    if begin.memory:
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (begin.memory, most))
    provider: CloudProviderBase | None = None
    refused = ProviderRefused(Answer.LOST, "")
    try:
        provider = load(begin.provider)(begin.grid, begin.settings)
    except ProviderRefused as error:
        refused = error
    except Exception as error:
        refused = ProviderRefused(Answer.CREDENTIALS, f"provider {begin.provider}: {type(error).__name__}: {error}")

    def work(asked: Question) -> None:
        try:
            if provider is None:
                raise refused
            say(asked.id, ok=answer(provider, asked))
        except ProviderRefused as error:
            say(asked.id, error=error.answer.value, text=error.text[:1000])
        except MemoryError:
            os._exit(1)  # who asked begins another
        except Exception as error:
            say(asked.id, error=Answer.LOST.value, text=f"{type(error).__name__}: {error}"[:1000])

    pool, listing = ThreadPoolExecutor(AT_ONCE), ThreadPoolExecutor(1)
    for line in lines:
        asked = msgspec.json.decode(line, type=Question)
        (listing if asked.ask == "list" else pool).submit(work, asked)
    os._exit(0)  # also where a vendor does not answer


if __name__ == "__main__":
    main()
