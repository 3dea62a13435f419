"""One user's part of the coordinator's time: saved, spent, and owed; orders that put right wait for nothing."""

from distributed_grid.coordinator.net.limits import AT_ONCE, FAR_OVER, SECONDS_A_JOB, SHARE, SLOWEST, USERS, Pace, Paces
from distributed_grid.protocol.groups import Array
from distributed_grid.protocol.jobs import JobSpec, Request
from distributed_grid.protocol.messages import Cancel, DrainNodes, GetStatus, PutBlob, Submission, Submit, WantOutput
from distributed_grid.protocol.resources import Resources

STATUS = GetStatus(id=1)
CANCEL = Cancel(id=2, jobs=("last",))


def submit(*sizes: int) -> Submit:
    """Jobs and arrays of these sizes."""
    spec, request = JobSpec(argv=("true",)), Request(Resources(1000, 1 << 30))
    arrays = [Array(((0, size - 1, 1),)) if size > 1 else None for size in sizes]
    return Submit(3, tuple(Submission(str(at), spec, request, array) for at, array in enumerate(arrays)))


def test_what_was_saved_is_spent_at_once_and_then_the_user_waits_for_what_he_owes() -> None:
    pace = Pace(0.0)
    pace.spend(STATUS, AT_ONCE, 0.0)
    assert pace.wait(STATUS, 0.0) == 0
    pace.spend(STATUS, SHARE / 10, 0.0)
    assert abs(pace.wait(STATUS, 0.0) - 0.1) < 1e-9
    assert pace.wait(STATUS, 0.2) == 0


def test_a_connection_never_waits_for_long_and_who_is_far_over_is_told_when_to_come_again() -> None:
    pace = Pace(0.0)
    pace.spend(STATUS, AT_ONCE + SHARE * (FAR_OVER - 1), 0.0)
    assert (pace.wait(STATUS, 0.0), pace.too_much(STATUS, 0.0)) == (SLOWEST, 0.0)
    pace.spend(STATUS, 2 * SHARE, 0.0)
    assert abs(pace.too_much(STATUS, 0.0) - (FAR_OVER + 1)) < 1e-9
    assert pace.too_much(STATUS, 2.0) == 0


def test_orders_that_put_right_wait_for_nothing_and_pieces_of_what_was_begun_are_not_refused() -> None:
    pace = Pace(0.0)
    pace.spend(STATUS, 1000.0, 0.0)
    for order in (CANCEL, DrainNodes(id=4, nodes=("n1",))):
        assert (pace.wait(order, 0.0), pace.too_much(order, 0.0)) == (0.0, 0.0)
    piece = WantOutput(id=5, allocation="j-1.1", stream="stdout", offset=0, size=10)
    assert pace.wait(piece, 0.0) == SLOWEST
    assert pace.too_much(piece, 0.0) == 0
    assert pace.too_much(submit(1), 0.0) > 0


def test_bulk_in_one_request_costs_by_its_size() -> None:
    pace = Pace(0.0)
    pace.spend(submit(1, 1, 100_000), 0.0, 0.0)
    pace.spend(STATUS, AT_ONCE - 100_002 * SECONDS_A_JOB, 0.0)
    assert pace.wait(STATUS, 0.0) < 1e-9
    pace.spend(submit(1_000), 0.0, 0.0)
    assert abs(pace.wait(STATUS, 0.0) - 1_000 * SECONDS_A_JOB / SHARE) < 1e-9


def test_a_blobs_part_costs_by_its_bytes_however_long_its_write_took() -> None:
    pace = Pace(0.0)
    pace.spend(PutBlob(id=6, blob="b", offset=0, data=b"x"), 1000.0, 0.0)
    assert pace.wait(STATUS, 0.0) == 0


def test_a_hundred_thousand_jobs_in_one_call_are_within_what_is_saved() -> None:
    pace = Pace(0.0)
    pace.spend(submit(100_000), 1.5, 0.0)  # what the goal allows the whole of it
    assert pace.wait(STATUS, 0.0) == 0


def test_all_connections_of_a_user_share_one_pace_and_who_owes_nothing_is_forgotten() -> None:
    paces = Paces()
    ann = paces.of("ann")
    ann.spend(STATUS, AT_ONCE, 1e9)
    for number in range(2 * USERS):
        paces.of(f"user{number}")
    assert paces.of("ann") is ann
    assert len(paces._of) <= USERS + 1
