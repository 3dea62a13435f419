"""Machines as instances of EC2, by boto3 over HTTP with a double on loopback (ec2.py): moto, and before it a proxy
with the promises that moto does not keep. No account was ever billed for these.
"""

import base64
import functools
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

pytest.importorskip("boto3", reason="the extra aws is not installed")

from botocore.loaders import create_loader

from distributed_grid.coordinator.core.scaling.events import ScalingRequested
from distributed_grid.coordinator.core.scaling.state import Answer, Listed
from distributed_grid.coordinator.providers.aws import AWSCloudProvider, kind_of
from distributed_grid.coordinator.providers.base import CloudProviderBase, ProviderRefused, WorkerSpec
from distributed_grid.coordinator.providers.client import ProviderChild
from distributed_grid.protocol.scaling.machines import MachineState
from distributed_grid.protocol.scaling.plans import ScaleOrder
from tests.coordinator.providers.ec2 import ACTIONS, EC2, IMAGE, ec2, settings
from tests.coordinator.providers.scene import LONGEST
from tests.coordinator.providers.vendor_world import VendorWorld
from tests.depth import tries

SPEC = WorkerSpec(name="a-1-1", pool="a", type="c5.xlarge", zone="a", born=1e9, ends_by=2e9, invitation="grid://x/y")
SECRET = "hunter2/hunter2"


@pytest.fixture(scope="module", autouse=True)
def _read_once() -> Iterator[None]:
    """Each session of boto3 reads all that EC2 can, megabytes of JSON, and these here read it once for all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("botocore.session.create_loader", functools.cache(create_loader))
        yield


@pytest.fixture(scope="module")
def server() -> Iterator[EC2]:
    with ec2() as double:
        yield double


@pytest.fixture
def double(server: EC2, monkeypatch: pytest.MonkeyPatch) -> EC2:
    monkeypatch.setenv("TEST_KEY", "AKIAIOSFODNN7EXAMPLE")
    monkeypatch.setenv("TEST_SECRET", SECRET)
    server.reset()
    return server


def refusal(provider: CloudProviderBase, spec: WorkerSpec = SPEC) -> tuple[Answer, str]:
    with pytest.raises(ProviderRefused) as refused:
        provider.create_worker(spec)
    return refused.value.answer, refused.value.text


def ran(double: EC2) -> list[dict[str, str]]:
    return [one for one in double.calls if one["Action"] == "RunInstances"]


# --- machines ---------------------------------------------------------------------------------------------------------


def test_a_machine_is_created_listed_and_ended(double: EC2) -> None:
    provider = AWSCloudProvider("g1", settings(double))
    handle = provider.create_worker(SPEC)
    assert double.machines() == {handle: "a-1-1"}
    assert provider.list_workers() == [Listed(handle, "a-1-1", "a", "c5.xlarge", "us-west-2a", 1e9, 2e9)]
    assert provider.get_worker_status("a-1-1") == "running"
    assert provider.terminate_worker("a-1-1", handle) and double.machines() == {}
    (over,) = provider.list_workers()
    assert over.ended and over.why == "Client.UserInitiatedShutdown: User initiated shutdown", "EC2 remembers it"
    assert provider.get_worker_status("a-1-1") == "gone"
    assert not provider.terminate_worker("a-1-1", handle)
    assert not provider.terminate_worker("a-1-9")


def test_an_instance_that_shut_itself_down_has_failed_and_one_that_was_taken_back_has_not(double: EC2) -> None:
    provider = AWSCloudProvider("g1", settings(double))
    double.shut_down(handle := provider.create_worker(SPEC))
    said = {"InstanceId": handle, "State": {"Name": "terminated"}}
    for code, failed in (
        ("Client.InstanceInitiatedShutdown", True), ("Server.InternalError", True),
        ("Client.UserInitiatedShutdown", False), ("Server.SpotInstanceTermination", False),
    ):  # fmt: skip
        one = provider._listed({**said, "StateReason": {"Code": code, "Message": f"{code}: so it says"}})
        assert (one.ended, one.failed, one.why) == (True, failed, f"{code}: so it says")


def test_it_is_asked_for_whole(double: EC2) -> None:
    provider = AWSCloudProvider(
        "g1", settings(double, security_groups=["sg-1"], instance_profile="p", subnets={"a": "subnet-1"})
    )
    double.fault = lambda _: "capacity"
    refusal(provider, replace(SPEC, spot=True))
    said = ran(double)[0]
    assert (said["ClientToken"], said["ImageId"], said["MaxCount"]) == ("g1-a-1-1", IMAGE, "1")
    assert said["InstanceInitiatedShutdownBehavior"] == "terminate"
    assert (said["MetadataOptions.HttpTokens"], said["MetadataOptions.HttpPutResponseHopLimit"]) == ("required", "1")
    assert said["InstanceMarketOptions.SpotOptions.InstanceInterruptionBehavior"] == "terminate"
    assert (said["Placement.AvailabilityZone"], said["SubnetId"]) == ("us-west-2a", "subnet-1")
    assert (said["SecurityGroupId.1"], said["IamInstanceProfile.Name"]) == ("sg-1", "p")
    tags = {said[f"TagSpecification.1.Tag.{n}.Key"]: said[f"TagSpecification.1.Tag.{n}.Value"] for n in range(1, 7)}
    assert tags == {
        "Name": "grid a-1-1", "distributed-grid": "g1", "distributed-grid:machine": "a-1-1",
        "distributed-grid:pool": "a", "distributed-grid:born": "1000000000", "distributed-grid:ends-by": "2000000000",
    }  # fmt: skip
    script = base64.b64decode(said["UserData"]).decode()
    assert script.startswith("#!/bin/sh\n") and base64.b64encode(b"grid://x/y\n").decode() in script
    assert "InstanceMarketOptions.MarketType" not in (refusal(provider), ran(double)[1])[1]


def test_a_creation_that_is_repeated_gives_the_same_machine_also_by_another_process(double: EC2) -> None:
    double.fault = lambda action: "after" if action == "RunInstances" else ""
    answer, _ = refusal(AWSCloudProvider("g1", settings(double)))
    assert answer is Answer.LOST and list(double.machines().values()) == ["a-1-1"]
    double.fault = lambda _: ""
    handle = AWSCloudProvider("g1", settings(double)).create_worker(SPEC)
    assert double.machines() == {handle: "a-1-1"}


def test_a_repeated_creation_with_other_parameters_finds_what_the_first_one_made(double: EC2) -> None:
    handle = AWSCloudProvider("g1", settings(double)).create_worker(SPEC)
    other = AWSCloudProvider("g1", settings(double, security_groups=["sg-9"]))
    assert other.create_worker(SPEC) == handle and len(double.machines()) == 1
    double.shut_down(handle)
    answer, text = refusal(other)
    assert answer is Answer.REFUSED and text == "a-1-1 was created before, and has ended"
    assert refusal(AWSCloudProvider("g1", settings(double)))[0] is Answer.REFUSED and not double.machines()


def test_a_machine_that_the_lists_of_ec2_do_not_show_yet_is_listed_and_ended_all_the_same(double: EC2) -> None:
    provider = AWSCloudProvider("g1", settings(double))
    handle = provider.create_worker(SPEC)
    double.hidden = {handle}
    assert [one.handle for one in provider.list_workers()] == [handle]
    assert provider.terminate_worker("a-1-1", handle) and not double.machines()
    assert all(one.ended for one in provider.list_workers())


def test_names_that_are_too_long_for_a_token_of_ec2_are_still_tokens_of_one_machine_each(double: EC2) -> None:
    provider = AWSCloudProvider("0123456789abcdef", settings(double))
    names = [LONGEST, f"{LONGEST[:-1]}e", "y" * 63, "y" * 64]
    handles = [[provider.create_worker(replace(SPEC, name=name)) for _ in range(2)] for name in names]
    assert sorted(double.machines().values()) == sorted(names) and all(one == two for one, two in handles)
    assert max(len(one["ClientToken"]) for one in ran(double)) <= 64
    assert {one.name for one in provider.list_workers()} == {*names}
    assert all(provider.terminate_worker(name) for name in names) and double.machines() == {}


def test_two_grids_of_one_account_never_touch_each_others_machines(double: EC2) -> None:
    one, two = AWSCloudProvider("g1", settings(double)), AWSCloudProvider("g2", settings(double))
    mine, theirs = one.create_worker(SPEC), two.create_worker(SPEC)
    assert mine != theirs and len(double.machines()) == 2
    assert [each.handle for each in one.list_workers()] == [mine]
    with pytest.raises(ProviderRefused, match="is not a machine of this grid"):
        one.terminate_worker("a-1-1", theirs)
    assert one.terminate_worker("a-1-1") and list(double.machines()) == [theirs]


def test_more_machines_than_a_page_are_all_listed(double: EC2) -> None:
    provider = AWSCloudProvider("g1", settings(double))
    handles = {provider.create_worker(replace(SPEC, name=f"a-1-{number}")) for number in range(7)}
    double.page = 3
    assert {one.handle for one in provider.list_workers()} == handles


def test_it_says_what_the_configured_types_have(double: EC2) -> None:
    types = {"cpu": "c5.xlarge", "gpu": "g4dn.xlarge"}
    found = AWSCloudProvider("g1", settings(double, instance_types=types)).get_available_resources()
    assert found["types"]["c5.xlarge"]["cpus"] == 4 and found["types"]["c5.xlarge"]["memory"] == 8 << 30
    assert found["types"]["g4dn.xlarge"] == {
        "cpus": 4, "memory": 16 << 30, "gpus": 1, "gpu_model": "NVIDIA T4", "gpu_memory": 16 << 30, "spot": True
    }  # fmt: skip


# --- what goes wrong --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "answer"),
    [
        ("capacity", Answer.CAPACITY),
        ("quota", Answer.QUOTA),
        ("throttled", Answer.THROTTLED),
        ("type", Answer.BAD_TYPE),
        ("expired", Answer.CREDENTIALS),
        ("denied", Answer.CREDENTIALS),
        ("wrong", Answer.CREDENTIALS),
        ("unavailable", Answer.LOST),
        ("before", Answer.LOST),
        ("after", Answer.LOST),
        ("rubbish", Answer.LOST),
    ],
)
def test_each_trouble_is_told_by_its_kind_and_no_list_of_it_is_believed(
    double: EC2, fault: str, answer: Answer
) -> None:
    provider = AWSCloudProvider("g1", settings(double))
    handle = provider.create_worker(SPEC)
    double.fault = lambda _: fault
    assert refusal(provider, replace(SPEC, name="a-1-2"))[0] is answer
    with pytest.raises(ProviderRefused) as listed:
        provider.list_workers()
    with pytest.raises(ProviderRefused) as ended:
        provider.terminate_worker("a-1-1", handle)
    assert listed.value.answer is ended.value.answer is answer


@pytest.mark.parametrize(
    ("spec", "answer", "said"),
    [
        (replace(SPEC, type="c5.nonsense"), Answer.BAD_TYPE, "Invalid value 'c5.nonsense' for InstanceType"),
        (replace(SPEC, zone="q"), Answer.REFUSED, "us-west-2q"),
        (replace(SPEC, options={"image": "ami-1"}), Answer.REFUSED, "ami-1"),
        (replace(SPEC, labels={str(n): "x" * 99 for n in range(200)}), Answer.REFUSED, "fewer labels"),
    ],
)
def test_what_ec2_does_not_have_is_told_in_its_words(double: EC2, spec: WorkerSpec, answer: Answer, said: str) -> None:
    found, text = refusal(AWSCloudProvider("g1", settings(double)), spec)
    assert found is answer and said in text
    assert not double.machines()


def test_an_image_that_nobody_has_set_is_told_before_ec2_is_asked(double: EC2) -> None:
    answer, text = refusal(AWSCloudProvider("g1", settings(double, image="")))
    assert answer is Answer.REFUSED and "set providers.aws.image" in text and not ran(double)


def test_user_data_above_what_ec2_takes_is_told_before_ec2_is_asked(double: EC2) -> None:
    asked = replace(SPEC, labels={str(number): "x" * 900 for number in range(30)})
    answer, text = refusal(AWSCloudProvider("g1", settings(double)), asked)
    assert answer is Answer.REFUSED and "fewer labels" in text and not ran(double)


def test_other_codes_are_told_by_how_they_end_and_by_their_status() -> None:
    assert kind_of("MaxSpotInstanceCountExceeded", 400) is Answer.QUOTA
    assert kind_of("InstanceLimitExceeded", 400) is Answer.QUOTA
    assert kind_of("SomethingNew", 500) is Answer.LOST and kind_of("SomethingNew", 400) is Answer.REFUSED
    assert kind_of("InvalidParameterValue", 400, "Invalid security group") is Answer.REFUSED


def test_missing_credentials_an_unknown_region_and_no_network_are_told(
    double: EC2, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TEST_SECRET")
    with pytest.raises(ProviderRefused, match="has no variable TEST_SECRET") as missing:
        AWSCloudProvider("g1", settings(double))
    for name, value in {"AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": "/none", "HOME": "/none"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/none")
    alone = AWSCloudProvider("g1", {**settings(double), "credentials": {}})
    assert refusal(alone) == (Answer.CREDENTIALS, "AWS: Unable to locate credentials")
    monkeypatch.setenv("TEST_SECRET", SECRET)
    with pytest.raises(ProviderRefused, match="region") as nowhere:
        AWSCloudProvider("g1", {**settings(double), "region": ""})
    off = AWSCloudProvider("g1", {**settings(double), "endpoint": "http://127.0.0.1:1"})
    assert missing.value.answer is nowhere.value.answer is Answer.CREDENTIALS
    assert refusal(off)[0] is Answer.LOST, "asked again when there is a network"


def test_no_error_repeats_a_secret(double: EC2) -> None:
    double.fault = lambda _: "echo"
    _, text = refusal(AWSCloudProvider("g1", settings(double)))
    assert "AKIAIOSFODNN7EXAMPLE" not in text and "***" in text


# --- processes, and leaks ---------------------------------------------------------------------------------------------


async def test_a_child_that_is_killed_while_it_asks_creates_no_second_machine(double: EC2) -> None:
    child = ProviderChild("aws", "g1", settings(double))
    double.fault = lambda action: "hang" if action == "RunInstances" else ""
    with pytest.raises(ProviderRefused) as lost:
        await child.ask("create", str, seconds=12, spec=SPEC)
    assert lost.value.answer is Answer.LOST and len(double.machines()) == 1
    double.fault = lambda _: ""
    handle = await child.ask("create", str, seconds=60, spec=SPEC)
    assert double.machines() == {handle: "a-1-1"}
    assert [one.handle for one in await child.ask("list", list[Listed], seconds=60)] == [handle]
    await child.close()


@pytest.mark.parametrize("seed", range(tries(3, 1)))
def test_whatever_is_killed_and_lost_no_instance_is_left_over(double: EC2, seed: int) -> None:
    world = VendorWorld(seed, (0.1, 0.3)[seed % 2], AWSCloudProvider("g1", settings(double)), double)
    double.fault = lambda action: world.fault(ACTIONS.get(action, action))
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
    assert len(live) == world.scaling.pools[0].min and all(one.state is MachineState.JOINED for one in live)
    assert not world.ledger.state.jobs, "everything has run"


def test_without_a_coordinator_no_instance_is_left_after_its_time(double: EC2) -> None:
    world = VendorWorld(3, 0.2, AWSCloudProvider("g1", settings(double)), double)
    for number in range(4):
        world.ask(f"j-{number}", 100.0)
        world.run(30)
    world.crash()
    assert double.machines()
    world.run(3600)
    assert not double.machines()


def test_nothing_of_boto3_is_in_the_coordinator() -> None:
    code = (
        "import sys, json; import distributed_grid.coordinator.main, distributed_grid.coordinator.providers.service; "
        "print(json.dumps([n for n in sys.modules if n.split('.')[0] in ('boto3', 'botocore', 'google', 'requests')]))"
    )
    done: Any = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []
