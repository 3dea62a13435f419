"""Pools count what their users hold; who has no quota is in none."""

from distributed_grid.coordinator.core.model import Allocation
from distributed_grid.coordinator.core.queue.quotas import DAY, Quotas, Spent, milliseconds
from distributed_grid.protocol.jobs import Priority, Request, State
from distributed_grid.protocol.messages.rights import UNLIMITED, GroupRights, Rights, Rules
from distributed_grid.protocol.resources import Grant, Resources
from tests.coordinator.core.scene import job

CPU = Request(Resources(cpu=1000))


def allocation(cores: int, granted: float) -> Allocation:
    return Allocation(
        id="j.1", job="j", node="n", grant=Grant(tuple(range(cores))), state=State.RUNNING, granted=granted
    )


def test_who_has_no_quota_is_in_no_pool() -> None:
    quotas = Quotas(Rules(default=Rights(highest_priority=Priority.HIGH), users={"ann": Rights(cores=UNLIMITED)}))
    assert quotas.pools(job("j", CPU)) == () and not list(quotas.all_pools())
    assert quotas.allowed("ann", False).highest is Priority.HIGH


def test_an_operator_and_a_client_of_one_name_are_counted_apart() -> None:
    quotas = Quotas(Rules(default=Rights(cores=1000)))
    assert [pool.id for pool in quotas.allowed("ann", False).pools] == ["user/ann"]
    assert quotas.allowed("ann", True).pools == ()


def test_a_limit_of_the_default_can_be_taken_away_from_one() -> None:
    quotas = Quotas(Rules(default=Rights(cores=1000, gpus=500), users={"ann": Rights(cores=UNLIMITED)}))
    (pool,) = quotas.allowed("ann", False).pools
    assert pool.limits == Rights(gpus=500)


def test_members_of_a_group_share_its_pool() -> None:
    quotas = Quotas(Rules(groups={"lab": GroupRights(("ann", "ben"), Rights(cores=1000))}))
    assert quotas.allowed("ann", False).pools[0] is quotas.allowed("ben", False).pools[0]
    assert quotas.groups_of("eve") == []


def test_what_an_ended_attempt_used_is_spent_of_the_day_alone() -> None:
    quotas = Quotas(Rules(users={"ann": Rights(core_hours=1000)}))
    one, held = job("j", CPU), allocation(2, 10 * DAY - 100)
    quotas.add_allocation(one, held)
    assert quotas.remove_allocation(one, held, 10 * DAY + 50) == [("user/ann", Spent(10, 2000 * 50_000, 0))]
    (pool,) = quotas.pools(one)
    assert quotas.spent_of(pool, 10).cpu == 100_000_000 and quotas.spent_of(pool, 11) == Spent(11)
    assert not pool.held and not pool.allocations


def test_milliseconds_are_whole_and_not_below_zero() -> None:
    assert (milliseconds(1.0, 2.5), milliseconds(2.0, 1.0)) == (1500, 0)
