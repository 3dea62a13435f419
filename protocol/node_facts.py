"""What a node may say of itself: beyond the bounds of each field (numbers.py), what holds for all of it together."""

from collections.abc import Iterable

from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.nodes import NodeFacts
from distributed_grid.protocol.resources import MILLI, MOST_CPU, MOST_GPU

NAME_CHARS = 255
MOST_LABELS = 256
MOST_GPUS = 1024
MOST_NODE_MEMORY = 1 << 52
"""4 PiB. The sum over a whole grid stays within 63 bits."""


def check_facts(facts: NodeFacts) -> None:
    """Raise BadValue for facts that no node has, with the field and its bound."""
    for field, limit in (("memory", facts.memory), ("lendable.memory", facts.lendable.memory)):
        if limit > MOST_NODE_MEMORY:
            raise _out(field, limit, MOST_NODE_MEMORY)
    if facts.lendable.cpu > MOST_CPU:
        raise _out("lendable.cpu", facts.lendable.cpu, MOST_CPU)
    if facts.lendable.gpu > min(MOST_GPU, MOST_GPUS * MILLI):
        raise _out("lendable.gpu", facts.lendable.gpu, min(MOST_GPU, MOST_GPUS * MILLI))
    if len(facts.labels) > MOST_LABELS:
        raise _out("labels", len(facts.labels), MOST_LABELS)
    if len(facts.gpus) > MOST_GPUS:
        raise _out("gpus", len(facts.gpus), MOST_GPUS)
    if len({*facts.cores}) < len(facts.cores):
        raise BadValue("the facts of this node cannot be used", why="cores: a core is named twice")
    if len({gpu.uuid for gpu in facts.gpus}) < len(facts.gpus):
        raise BadValue("the facts of this node cannot be used", why="gpus: a GPU is named twice")
    named = [
        ("hostname", (facts.hostname,)),
        ("boot_id", (facts.boot_id,)),
        ("instance", (facts.instance,)),
        ("software", (facts.software, facts.python, facts.ray, facts.ray_python)),
        ("labels", (*facts.labels, *facts.labels.values())),
        ("limits", (*facts.limits, *facts.limits.values())),
        ("gpus.uuid", [gpu.uuid for gpu in facts.gpus]),
        ("gpus.model", [gpu.model for gpu in facts.gpus]),
    ]
    for field, words in named:
        _check_words(field, words)
    if not all(facts.labels) or not all(gpu.uuid for gpu in facts.gpus):
        raise BadValue("the facts of this node cannot be used", why="labels, gpus.uuid: a name is empty")


def _check_words(field: str, words: Iterable[str]) -> None:
    for word in words:
        if len(word) > NAME_CHARS or not word.isprintable():
            raise BadValue(
                "the facts of this node cannot be used",
                why=f"{field}: {word[:40]!r} is not at most {NAME_CHARS} printable characters",
            )


def _out(field: str, value: int, most: int) -> BadValue:
    return BadValue("the facts of this node cannot be used", why=f"{field} is {value}, and at most {most}")
