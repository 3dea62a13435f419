"""Jobs on slack give way to the holder of their cores: frozen when it wants more than is left to it, recalled when it
does for long or has ended, and let go on when it has left something for a while."""

from distributed_grid.agent.core.owner import Freeze, Order, Recall, Thaw
from distributed_grid.agent.core.slack import EVERY, LONG, QUIET, SlackUser, SlackWatch

HOLDER = "j-holder.1"


def user(name: str = "j-user.1", left: float | None = 2.0, holder: str = HOLDER) -> SlackUser:
    return SlackUser(name, holder, left, 7)


class Scene:
    """A holder of four cores, of which two are lent; it wants so many cores from one measurement to the next."""

    def __init__(self, *users: SlackUser) -> None:
        self.users = users or (user(),)
        self.watch, self.now, self.spent = SlackWatch(), 100.0, 0.0
        self.wants(0.0, EVERY)

    def wants(self, cores: float, seconds: float) -> list[tuple[float, Order]]:
        """The orders of these seconds, each with the time since they began."""
        found, begun = [], self.now
        while self.now < begun + seconds - EVERY / 2:
            self.now, self.spent = self.now + EVERY, self.spent + cores * EVERY
            orders = self.watch.observe(self.now, self.users, {HOLDER: self.spent})
            found += [(self.now - begun, one) for one in orders]
        return found


def test_a_holder_that_uses_what_is_left_to_it_is_in_nobodys_way() -> None:
    assert Scene().wants(2.0, 60.0) == []


def test_a_job_is_frozen_within_half_a_second_of_when_its_holder_wants_more() -> None:
    scene = Scene()
    scene.wants(1.0, 5.0)
    (after, order), *_ = scene.wants(3.5, 5.0)
    assert after <= 0.5 and isinstance(order, Freeze) and order.allocation == "j-user.1"
    assert order.why.startswith("j-holder wants ") and order.why.endswith(" cores, and 2 are left to it")
    assert scene.watch.wants("j-user.1")


def test_a_machine_that_is_too_busy_to_measure_in_time_makes_no_holder_want_more() -> None:
    watch, orders = SlackWatch(), list[Order]()
    for number in range(40):
        at, late = 100.0 + number * EVERY, 0.2 * (number % 3 == 0)  # measured at `at`, and the clock is read then
        orders += watch.observe(at + late, [user()], {HOLDER: 1.7 * at}, late)
    assert orders == []


def test_a_freeze_is_repeated_before_it_expires() -> None:
    scene = Scene()
    times = [after for after, order in scene.wants(4.0, 25.0) if isinstance(order, Freeze)]
    assert len(times) >= 4 and max(b - a for a, b in zip(times, times[1:], strict=False)) <= 6.0


def test_it_goes_on_when_the_holder_has_left_something_for_a_while_and_not_before() -> None:
    scene = Scene()
    scene.wants(4.0, 5.0)
    assert not [one for _, one in scene.wants(1.9, 10.0) if isinstance(one, Thaw)], "what is left to it is in use"
    found = [(after, one) for after, one in scene.wants(1.0, 10.0) if isinstance(one, Thaw)]
    assert len(found) == 1 and QUIET - 0.5 <= found[0][0] <= QUIET + 1.0
    assert not scene.watch.wants("j-user.1")
    assert scene.wants(1.0, 5.0) == []


def test_it_is_recalled_once_it_was_frozen_for_half_a_minute() -> None:
    recalls = [(after, one) for after, one in Scene().wants(4.0, LONG + 2) if isinstance(one, Recall)]
    assert recalls and LONG <= recalls[0][0] <= LONG + 1.0


def test_it_is_recalled_when_its_holder_has_ended() -> None:
    scene = Scene()
    scene.users = (user(left=None),)
    ((_, order),) = scene.wants(0.0, EVERY)
    assert order == Recall("j-user.1", "j-holder, whose cores it ran on, has ended")


def test_all_who_run_on_cores_of_a_holder_count_together_and_those_of_another_do_not() -> None:
    here = user(left=1.0), user("j-b.1", 1.0)
    scene = Scene(*here, user("j-c.1", 3.0, holder="j-other.1"))
    frozen = {one.allocation for _, one in scene.wants(1.5, 2.0) if isinstance(one, Freeze)}
    assert frozen == {"j-user.1", "j-b.1"}


def test_a_holder_with_too_many_threads_to_measure_is_taken_to_want_all() -> None:
    scene = Scene()
    (order,) = scene.watch.observe(scene.now + EVERY, scene.users, {HOLDER: None})
    assert order == Freeze("j-user.1", "j-holder has too many threads for its demand to be measured")


def test_one_frozen_by_an_earlier_agent_stays_so_until_its_holder_has_left_something_for_a_while() -> None:
    watch, found = SlackWatch(), list[Order]()
    watch.adopt("j-user.1", 90.0)
    for number in range(int((QUIET + 1) / EVERY)):
        orders = watch.observe(100.0 + number * EVERY, [user()], {HOLDER: 0.0})
        found += [one for one in orders if not isinstance(one, Freeze)]
        assert number * EVERY >= QUIET - EVERY or not found
    assert found == [Thaw("j-user.1")]


def test_one_frozen_by_an_earlier_agent_is_recalled_when_it_was_frozen_for_long() -> None:
    watch = SlackWatch()
    watch.adopt("j-user.1", 60.0)
    watch.observe(60.0 + LONG - 1, [user()], {HOLDER: 0.0})
    assert [type(one) for one in watch.observe(60.0 + LONG, [user()], {HOLDER: 9.0})] == [Recall]


def test_a_holder_that_cannot_be_measured_changes_nothing() -> None:
    watch = SlackWatch()
    assert watch.observe(1.0, [user()], {}) == []


def test_time_that_is_lost_is_no_use() -> None:
    """The time of a child that was not waited for disappears from the sums."""
    scene = Scene()
    scene.wants(1.0, 5.0)
    scene.spent -= 3.0
    assert scene.wants(1.0, 5.0) == []
