"""Machines as instances of Compute Engine, by its REST API over HTTP with a double on loopback (gce.py), which checks
the signatures of the service account. No account was ever billed for these.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from msgspec.structs import replace

pytest.importorskip("google.auth.transport.requests", reason="the extra gcp is not installed")

from distributed_grid.coordinator.core.scaling.events import ScalingRequested
from distributed_grid.coordinator.core.scaling.state import Answer, Listed
from distributed_grid.coordinator.providers import gcp
from distributed_grid.coordinator.providers.base import CloudProviderBase, ProviderRefused, WorkerSpec
from distributed_grid.coordinator.providers.client import ProviderChild
from distributed_grid.coordinator.providers.gcp import GCPCloudProvider, kind_of
from distributed_grid.protocol.scaling.machines import MachineState
from distributed_grid.protocol.scaling.plans import ScaleOrder
from tests.coordinator.providers.gce import GCE, gce, settings
from tests.coordinator.providers.scene import LONGEST
from tests.coordinator.providers.vendor_world import VendorWorld
from tests.depth import tries

ZONE = "us-central1-a"
SPEC = WorkerSpec(name="a-1-1", pool="a", type="n2-standard-4", zone=ZONE, born=1e9, ends_by=1e9 + 7200)
HANDLE = f"{ZONE}/grid-g1-a-1-1"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GCE]:
    with gce(tmp_path_factory.mktemp("gce")) as double:
        yield double


@pytest.fixture
def double(server: GCE, monkeypatch: pytest.MonkeyPatch) -> GCE:
    monkeypatch.setattr(gcp, "LOOK", 0.01)
    server.reset()
    return server


def refusal(provider: CloudProviderBase, spec: WorkerSpec = SPEC) -> tuple[Answer, str]:
    with pytest.raises(ProviderRefused) as refused:
        provider.create_worker(spec)
    return refused.value.answer, refused.value.text


def inserted(double: GCE) -> list[Any]:
    return [one for one in double.calls if one[0] == "POST"]


# --- machines ---------------------------------------------------------------------------------------------------------


def test_a_machine_is_created_listed_and_ended(double: GCE) -> None:
    provider = GCPCloudProvider("g1", settings(double))
    assert provider.create_worker(SPEC) == HANDLE and double.machines() == {HANDLE: "a-1-1"}
    assert provider.list_workers() == [Listed(HANDLE, "a-1-1", "a", "n2-standard-4", ZONE, 1e9, 1e9 + 7200)]
    assert provider.terminate_worker("a-1-1", HANDLE) and not double.instances
    assert provider.list_workers() == [] and not provider.terminate_worker("a-1-1", HANDLE)
    assert not provider.terminate_worker("a-1-1")


def test_it_is_asked_for_whole(double: GCE) -> None:
    provider = GCPCloudProvider("g1", settings(double))
    provider.create_worker(replace(SPEC, spot=True, invitation="grid://x/y"))
    _, path, words, said = inserted(double)[0]
    assert path == f"zones/{ZONE}/instances" and len(words["requestId"]) == 36
    assert said["scheduling"] == {
        "maxRunDuration": {"seconds": 7140}, "instanceTerminationAction": "DELETE", "provisioningModel": "SPOT",
        "onHostMaintenance": "TERMINATE", "automaticRestart": False,
    }  # fmt: skip
    assert said["labels"] == {
        "distributed-grid": "g1", "distributed-grid-machine": "a-1-1", "distributed-grid-pool": "a",
        "distributed-grid-born": "1000000000", "distributed-grid-ends-by": "1000007200",
    }  # fmt: skip
    assert said["disks"][0]["autoDelete"] is True and said["guestAccelerators"] == []
    assert said["metadata"]["items"][0]["key"] == "startup-script"
    assert said["metadata"]["items"][0]["value"].startswith("#!/bin/sh\n")


def test_the_gpu_in_the_name_of_a_type_is_added_to_it(double: GCE) -> None:
    provider = GCPCloudProvider("g1", settings(double))
    provider.create_worker(replace(SPEC, type="n1-standard-4-nvidia-tesla-t4"))
    said = inserted(double)[0][3]
    assert said["machineType"].endswith("/n1-standard-4") and said["scheduling"]["onHostMaintenance"] == "TERMINATE"
    kind = f"zones/{ZONE}/acceleratorTypes/nvidia-tesla-t4"
    assert said["guestAccelerators"] == [{"acceleratorType": kind, "acceleratorCount": 1}]
    assert said["scheduling"]["provisioningModel"] == "STANDARD"


def test_a_creation_that_is_repeated_gives_the_same_machine_also_by_another_process(double: GCE) -> None:
    double.fault = lambda method: "after" if method == "POST" else ""
    assert refusal(GCPCloudProvider("g1", settings(double)))[0] is Answer.LOST
    double.fault = lambda _: ""
    assert GCPCloudProvider("g1", settings(double)).create_worker(SPEC) == HANDLE
    assert double.machines() == {HANDLE: "a-1-1"} and len({one[2]["requestId"] for one in inserted(double)}) == 1
    double.requests.clear()  # Compute Engine does not remember them for ever
    assert GCPCloudProvider("g1", settings(double)).create_worker(SPEC) == HANDLE and len(double.instances) == 1


def test_a_late_creation_of_a_machine_that_has_ended_makes_none(double: GCE) -> None:
    provider = GCPCloudProvider("g1", settings(double))
    provider.create_worker(SPEC)
    assert provider.terminate_worker("a-1-1")
    assert refusal(provider) == (Answer.REFUSED, "a-1-1 was created before, and has ended")
    assert not double.instances


def test_an_operation_is_waited_for_and_one_that_takes_too_long_is_asked_for_again(
    double: GCE, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = GCPCloudProvider("g1", settings(double))
    double.slow = 10_000
    monkeypatch.setattr(gcp, "WAIT", 0.1)
    assert refusal(provider)[0] is Answer.LOST
    next(iter(double.operations.values()))["left"] = 3
    monkeypatch.setattr(gcp, "WAIT", 30.0)
    assert provider.create_worker(SPEC) == HANDLE and len(double.operations) == 1


def test_without_a_coordinator_its_zone_deletes_it_with_its_disk_before_it_would_power_itself_off(double: GCE) -> None:
    GCPCloudProvider("g1", settings(double)).create_worker(SPEC)
    double.ran(7100)
    assert double.machines() == {HANDLE: "a-1-1"} and double.disks == {HANDLE}
    double.ran(SPEC.ends_by - SPEC.born - 59)  # it runs from up to a minute after its creation on
    assert not double.instances and not double.disks


def test_the_disk_of_one_that_powered_itself_off_earlier_stays_until_the_next_list(double: GCE) -> None:
    provider = GCPCloudProvider("g1", settings(double))
    provider.create_worker(SPEC)
    double.shut_down(HANDLE)
    double.ran(1e6)
    assert double.disks == {HANDLE}, "Compute Engine limits the run time of what runs alone"
    provider.list_workers()
    assert not double.instances and not double.disks


def test_throttling_after_a_creation_has_begun_says_nothing_about_it(double: GCE) -> None:
    double.fault = lambda method: "throttled" if method == "GET" else ""
    assert refusal(GCPCloudProvider("g1", settings(double)))[0] is Answer.LOST
    double.fault = lambda method: "throttled" if method == "POST" else ""
    other = replace(SPEC, name="a-1-2")
    assert refusal(GCPCloudProvider("g1", settings(double)), other)[0] is Answer.THROTTLED
    assert double.machines() == {HANDLE: "a-1-1"}


def test_a_machine_that_has_shut_itself_down_is_told_as_ended_and_deleted(double: GCE) -> None:
    provider = GCPCloudProvider("g1", settings(double))
    provider.create_worker(SPEC)
    double.shut_down(HANDLE)
    (one,) = provider.list_workers()
    assert one.ended and one.failed and not double.instances, "its disk would cost on"
    assert provider.list_workers() == []


def test_two_grids_of_one_project_never_touch_each_others_machines(double: GCE) -> None:
    one, two = GCPCloudProvider("g1", settings(double)), GCPCloudProvider("g2", settings(double))
    one.create_worker(SPEC)
    theirs = two.create_worker(SPEC)
    assert len(double.machines()) == 2 and [each.handle for each in one.list_workers()] == [HANDLE]
    for handle in (theirs, f"{ZONE}/theirs", "../x/grid-g1-y"):
        with pytest.raises(ProviderRefused, match="is not a machine of this grid"):
            one.terminate_worker("a-1-1", handle)
    assert one.terminate_worker("a-1-1") and list(double.machines()) == [theirs]


def test_an_instance_of_somebody_else_with_the_name_of_a_machine_is_left_alone(double: GCE) -> None:
    provider = GCPCloudProvider("g1", settings(double))
    double.instances[HANDLE] = {"name": "grid-g1-a-1-1", "status": "RUNNING", "labels": {}, "zone": ZONE}
    answer, text = refusal(provider)
    assert answer is Answer.REFUSED and "is not a machine of this grid" in text
    assert provider.list_workers() == []


def test_more_machines_than_a_page_are_all_listed(double: GCE) -> None:
    provider = GCPCloudProvider("g1", settings(double))
    for number in range(7):
        provider.create_worker(replace(SPEC, name=f"a-1-{number}", zone=f"us-central1-{'ab'[number % 2]}"))
    double.page = 3
    assert len({one.handle for one in provider.list_workers()}) == 7


def test_a_list_without_a_zone_that_does_not_answer_is_none(double: GCE) -> None:
    provider = GCPCloudProvider("g1", settings(double))
    double.unreachable = "zones/us-east1-b"
    with pytest.raises(ProviderRefused, match="does not list zones/us-east1-b: UNREACHABLE") as refused:
        provider.list_workers()
    assert refused.value.answer is Answer.LOST


def test_it_says_what_the_configured_types_have_and_what_the_quotas_leave(double: GCE) -> None:
    types = {"cpu": "n2-standard-4", "gpu": "n1-standard-4-nvidia-tesla-t4"}
    found = GCPCloudProvider("g1", settings(double, machine_types=types)).get_available_resources()
    assert found["types"]["n2-standard-4"] == {"cpus": 4, "memory": 16 << 30} and found["quotas"] == {"CPUS": 20.0}


# --- what goes wrong --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "answer"),
    [
        ("throttled", Answer.THROTTLED),
        ("denied", Answer.CREDENTIALS),
        ("disabled", Answer.CREDENTIALS),
        ("unavailable", Answer.LOST),
        ("before", Answer.LOST),
        ("after", Answer.LOST),
        ("rubbish", Answer.LOST),
    ],
)
def test_each_trouble_is_told_by_its_kind_and_no_list_of_it_is_believed(
    double: GCE, fault: str, answer: Answer
) -> None:
    provider = GCPCloudProvider("g1", settings(double))
    provider.create_worker(SPEC)
    double.fault = lambda method: fault if method != "token" else ""
    assert refusal(provider, replace(SPEC, name="a-1-2"))[0] is answer
    with pytest.raises(ProviderRefused) as listed:
        provider.list_workers()
    with pytest.raises(ProviderRefused) as ended:
        provider.terminate_worker("a-1-1", HANDLE)
    assert listed.value.answer is ended.value.answer is answer


@pytest.mark.parametrize(("fault", "answer"), [("capacity", Answer.CAPACITY), ("quota", Answer.QUOTA)])
def test_what_an_operation_fails_with_is_told(double: GCE, fault: str, answer: Answer) -> None:
    provider = GCPCloudProvider("g1", settings(double))
    double.fault = lambda method: fault if method != "token" else ""
    assert refusal(provider)[0] is answer and not double.instances


@pytest.mark.parametrize(
    ("spec", "answer", "said"),
    [
        (replace(SPEC, type="n2-nonsense-4"), Answer.BAD_TYPE, "It does not exist"),
        (replace(SPEC, zone="mars-a"), Answer.REFUSED, "zones/mars-a' was not found"),
        (replace(SPEC, zone="a/../b"), Answer.REFUSED, "no zone for pool a"),
        (replace(SPEC, options={"image": "x"}), Answer.REFUSED, "images/x' was not found"),
        (replace(SPEC, name="a" * 70), Answer.REFUSED, "give a shorter pool name"),
        (replace(SPEC, labels={str(n): "x" * 999 for n in range(400)}), Answer.REFUSED, "fewer labels"),
    ],
)
def test_what_there_is_not_is_told_in_plain_words(double: GCE, spec: WorkerSpec, answer: Answer, said: str) -> None:
    found, text = refusal(GCPCloudProvider("g1", settings(double)), spec)
    assert found is answer and said in text and not double.instances


def test_the_longest_name_of_a_machine_fits_into_that_of_an_instance(double: GCE) -> None:
    GCPCloudProvider("0123456789abcdef", settings(double)).create_worker(replace(SPEC, name=LONGEST))
    assert [*double.machines().values()] == [LONGEST] and len(inserted(double)[0][3]["name"]) <= 63


def test_other_errors_are_told_by_their_status() -> None:
    assert kind_of((), 500) is Answer.LOST and kind_of((), 400) is Answer.REFUSED
    assert kind_of((), 429) is Answer.THROTTLED and kind_of((), 401) is Answer.CREDENTIALS
    assert kind_of(("quotaExceeded",), 403) is Answer.QUOTA


def test_wrong_missing_and_expired_credentials_and_no_network_are_told(
    double: GCE, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begun(**more: Any) -> tuple[Answer, str]:
        with pytest.raises(ProviderRefused) as refused:
            GCPCloudProvider("g1", settings(double, **more)).list_workers()
        return refused.value.answer, refused.value.text

    file = tmp_path / "key.json"
    answer, text = begun(credentials_file=str(file))
    assert answer is Answer.CREDENTIALS and str(file) in text
    file.write_text("{")
    assert begun(credentials_file=str(file))[0] is Answer.CREDENTIALS
    file.write_text(json.dumps({**double.account(), "private_key": "hunter2"}))
    answer, text = begun(credentials_file=str(file))
    assert answer is Answer.CREDENTIALS and "hunter2" not in text
    other = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    file.write_text(json.dumps(double.account(other)))
    answer, text = begun(credentials_file=str(file))
    assert answer is Answer.CREDENTIALS and "invalid_grant" in text
    assert begun(endpoint="http://127.0.0.1:1")[0] is Answer.LOST
    provider = GCPCloudProvider("g1", settings(double, project=""))
    assert provider.list_workers() == [], "the file names a project, too"
    double.tokens += 1  # those that were given are revoked
    assert provider.list_workers() == [], "another one is fetched"


# --- processes, and leaks ---------------------------------------------------------------------------------------------


async def test_a_child_that_is_killed_while_it_asks_creates_no_second_machine(double: GCE) -> None:
    child = ProviderChild("gcp", "g1", settings(double))
    double.fault = lambda method: "hang" if method == "POST" else ""
    with pytest.raises(ProviderRefused) as lost:
        await child.ask("create", str, seconds=12, spec=SPEC)
    assert lost.value.answer is Answer.LOST and len(double.machines()) == 1
    double.fault = lambda _: ""
    assert await child.ask("create", str, seconds=60, spec=SPEC) == HANDLE and len(double.machines()) == 1
    assert [one.handle for one in await child.ask("list", list[Listed], seconds=60)] == [HANDLE]
    await child.close()


class Google(VendorWorld):
    zones = {"n": "us-central1-a", "s": "us-central1-b"}
    types = {"x": "n2-standard-4", "y": "n2-standard-2"}


@pytest.mark.parametrize("seed", range(tries(3, 1)))
def test_whatever_is_killed_and_lost_no_instance_is_left_over(double: GCE, seed: int) -> None:
    world = Google(seed, (0.1, 0.3)[seed % 2], GCPCloudProvider("g1", settings(double)), double)
    double.fault = lambda action: "" if action == "token" else world.fault("create" if action == "POST" else action)
    for number in range(4):
        world.ask(f"j-{number}", world.chance.uniform(5, 300))
        world.run(world.chance.uniform(0, 120))
        if world.ledger is None:
            world.start()
    for _ in range(4):
        world.run(60)
        if world.ledger is None:
            world.start()
    world.faults = 0.0
    if world.ledger is None:
        world.start()
    world.run(200)
    world.tell(ScalingRequested(1, ScaleOrder.RESUME, "a", "ann"))
    world.run(1200)
    world.sync()
    assert world.ledger is not None
    live = [one for one in world.ledger.state.scaling.machines.values() if one.live]
    assert sorted(double.machines().values()) == sorted(one.name for one in live), "what is recorded is what is there"
    assert len(live) == len(double.instances) == world.scaling.pools[0].min, "nothing that was shut down is left"
    assert all(one.state is MachineState.JOINED for one in live) and not world.ledger.state.jobs
