"""What the program on a machine is told."""

from msgspec.structs import replace

from distributed_grid.coordinator.providers.base import machine_json
from distributed_grid.protocol.resources import GIB, Resources
from tests.coordinator.providers.scene import SPEC


def test_a_machine_is_told_its_name_its_end_and_whole_cores_but_no_secret() -> None:
    spec = replace(SPEC, resources=Resources(1500, GIB), invitation="grid://secret", options={"trust": "everyone"})
    told = machine_json(spec)
    assert (told["name"], told["ends_by"], told["cores"], told["memory"]) == ("a-1-1", 2e9, 2, GIB)
    assert told["trust"] == "everyone" and "secret" not in str(told)
