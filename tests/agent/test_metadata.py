"""What a machine of a cloud is told about itself, by doubles of the metadata services on loopback."""

from collections.abc import Iterator

import pytest

from distributed_grid.agent.metadata import Metadata, Notice
from tests.agent.metadata_service import MetadataService, metadata_service

ACTION = "/latest/meta-data/spot/instance-action"
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"
NOW = 1_500_000_000.0
AT = "2017-07-14T02:41:30Z"


@pytest.fixture
def service() -> Iterator[MetadataService]:
    with metadata_service() as double:
        yield double


@pytest.fixture
def aws(service: MetadataService) -> Metadata:
    return Metadata("aws", service.environment)


@pytest.fixture
def gcp(service: MetadataService) -> Metadata:
    return Metadata("gcp", service.environment)


def test_a_machine_that_stays_is_told_nothing_with_one_token_for_all_questions(
    service: MetadataService, aws: Metadata, gcp: Metadata
) -> None:
    assert aws.notice(NOW) is None and aws.notice(NOW) is None and service.tokens == 1
    service.says = {
        "/computeMetadata/v1/instance/preempted": "FALSE",
        "/computeMetadata/v1/instance/maintenance-event": "MIGRATE_ON_HOST_MAINTENANCE",
    }
    assert gcp.notice(NOW) is None


def test_ec2_says_when_it_takes_a_machine_back(service: MetadataService, aws: Metadata) -> None:
    service.says = {ACTION: f'{{"action": "terminate", "time": "{AT}"}}', REBALANCE: "{}"}
    assert aws.notice(NOW) == Notice(90.0, "EC2 takes it back (terminate)")
    assert aws.notice(NOW + 1000) == Notice(0.0, "EC2 takes it back (terminate)"), "the time is over"
    assert aws.notice(NOW - 9e6) == Notice(120.0, "EC2 takes it back (terminate)"), "a clock that is wrong"


def test_a_recommendation_has_no_deadline(service: MetadataService, aws: Metadata) -> None:
    service.says = {REBALANCE: f'{{"noticeTime": "{AT}"}}'}
    assert aws.notice(NOW) == Notice(None, "EC2 says that it is likely to be taken back")


@pytest.mark.parametrize("said", ["<html>", "[]", '{"action": 1}', '{"time": "soon"}', "1e999", "\x00"])
def test_rubbish_is_no_notice(service: MetadataService, aws: Metadata, said: str) -> None:
    service.says = {ACTION: said}
    assert aws.notice(NOW) is None


def test_a_token_that_is_over_is_renewed(service: MetadataService, aws: Metadata) -> None:
    assert aws.notice(NOW) is None
    service.tokens += 1
    service.says = {REBALANCE: "{}"}
    assert aws.notice(NOW) is not None and service.tokens == 3


@pytest.mark.parametrize(
    ("path", "said", "seconds"),
    [("preempted", "TRUE", 30.0), ("maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE", 60.0)],
)
def test_compute_engine_gives_less_time(
    service: MetadataService, gcp: Metadata, path: str, said: str, seconds: float
) -> None:
    service.says = {f"/computeMetadata/v1/instance/{path}": said}
    found = gcp.notice(NOW)
    assert found is not None and found.seconds == seconds


@pytest.mark.parametrize("status", [500, 403])
def test_a_service_that_is_in_trouble_announces_nothing(service: MetadataService, status: int) -> None:
    service.status = status
    service.says = {ACTION: f'{{"action": "terminate", "time": "{AT}"}}'}
    assert Metadata("aws", service.environment).notice(NOW) is None
    assert Metadata("gcp", service.environment).notice(NOW) is None


def test_a_service_that_is_not_there_announces_nothing() -> None:
    nowhere = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://127.0.0.1:1", "GCE_METADATA_HOST": "127.0.0.1:1"}
    assert Metadata("aws", nowhere).notice(NOW) is None and Metadata("gcp", nowhere).notice(NOW) is None


def test_ec2_says_what_it_calls_the_machine(service: MetadataService, aws: Metadata, gcp: Metadata) -> None:
    service.says = {"/latest/meta-data/instance-id": "i-0123456789abcdef0"}
    assert aws.handle() == "i-0123456789abcdef0" and gcp.handle() == "", "there it is known before"
    service.says = {"/latest/meta-data/instance-id": "<html>"}
    assert aws.handle() == ""
