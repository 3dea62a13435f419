"""What is asked for as a boost, and what that takes of its source."""

import pytest

from distributed_grid.protocol.boosts import (
    OVERHEAD,
    Boost,
    custom_resource,
    last_words,
    needs,
    parse_amount,
    rounding,
    title,
)
from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.resources import GIB, Resources, ResourceType

CPU, GPU, MEMORY = ResourceType.CPU, ResourceType.GPU, ResourceType.MEMORY


def test_amounts_are_whole_cores_whole_gpus_and_gigabytes() -> None:
    assert parse_amount(CPU, 2.0) == 2000
    assert parse_amount(GPU, 1) == 1000
    assert parse_amount(MEMORY, 1.5) == 3 * GIB // 2


def test_of_a_fraction_the_next_whole_core_or_gpu_is_lent_and_that_is_said() -> None:
    assert [parse_amount(CPU, amount) for amount in (0.0001, 0.5, 1.5, 2.00000001)] == [1000, 1000, 2000, 2000]
    assert parse_amount(GPU, 0.25) == 1000
    assert rounding(CPU, 1.5) == "a raylet has whole cores: 2 cpu for 1.5"
    assert rounding(GPU, 0.25) == "a raylet has whole GPUs: 1 gpu for 0.25"
    assert [rounding(CPU, 2.0), rounding(MEMORY, 1.5)] == ["", ""]


@pytest.mark.parametrize(
    ("kind", "amount"),
    [(CPU, 0), (CPU, -1), (CPU, 1e308), (GPU, float("inf")), (MEMORY, float("nan")), (MEMORY, float("inf"))],
)
def test_what_no_raylet_can_have_is_refused(kind: ResourceType, amount: float) -> None:
    with pytest.raises(BadValue):
        parse_amount(kind, amount)


def test_gpus_and_memory_bring_cores_without_which_no_plain_task_could_use_them() -> None:
    assert needs(CPU, 2000) == Resources(cpu=2000)
    assert needs(GPU, 2000) == Resources(cpu=2000, gpu=2000)
    assert needs(MEMORY, GIB) == Resources(cpu=1000, memory=GIB + OVERHEAD)


def test_a_target_with_any_name_can_be_asked_for_by_a_custom_resource() -> None:
    assert custom_resource("gpu-master") == "boost_gpu-master"
    assert custom_resource("a b/c") == "boost_a_b_c"


def test_of_all_that_ray_prints_its_last_error_is_told() -> None:
    said = "Local node IP: 192.0.2.2\nRuntimeError: Version mismatch: The cluster has Ray: 2.60.0\n  at x\n"
    assert last_words(said) == "RuntimeError: Version mismatch: The cluster has Ray: 2.60.0"
    assert last_words("") == ""


def test_of_a_raylet_that_ended_what_it_said_last_is_told_without_warnings_and_without_where_it_said_so() -> None:
    warning = "[2026-11-22 04:22:46,365 W 10868 10868] network_util.cc:330: Failed to determine local IP\n"
    said = "Failed to connect to GCS within 30 seconds."
    lost = f"[2026-11-22 04:23:33,063 E 10887 10887] (raylet) rpc_client.h:204: {said}\n"
    light = "[2026-11-22 04:23:31,069 I 10887 10887] (raylet) bidi.h:243: Failed to read a message from node: 00\n"
    assert last_words(warning, light + lost + "Remaining processes will be killed.\n") == said
    assert last_words("RuntimeError: Version mismatch\n", "a task failed\n") == "RuntimeError: Version mismatch"
    assert last_words(warning) == warning.strip()


def test_a_boost_is_called_by_what_it_lends_to_whom() -> None:
    assert title(Boost("gpu-master", "192.0.2.1:6379", CPU, 2000)) == "boost cpu 2 for gpu-master"
    assert title(Boost("m", "192.0.2.1:6379", MEMORY, 3 * GIB // 2)) == "boost memory 1.5 GB for m"
