"""Which slot a launch gets, whose it is and when it is given up: decisions without a process."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributed_grid.agent.supervisor.slots import (
    IDLE,
    MAKING,
    Account,
    Kind,
    Machine,
    SlotTable,
    Use,
    UserIds,
    Who,
    is_private,
    kind_of,
    name_of,
    who,
)

US = (900, 901)
MACHINE = Machine(free_uid=lambda: 5000, login=lambda submitter: f"as-{submitter}", gpu_groups=lambda: (44,))
ORDER: dict[str, Any] = {"submitter": "ann", "user": None, "limits": {"pids": 7, "nice": 5, "memory": 1 << 30}}


def kind(submitter: str = "ann", **of: Any) -> Kind:
    return kind_of({"submitter": submitter, **of})


# --- whose it is ------------------------------------------------------------------------------------------------------


def test_launches_share_a_slot_only_where_all_is_equal_that_is_built_around_it() -> None:
    same = ORDER | {"limits": {"pids": 7, "nice": 5, "memory": 5}, "cores": [1]}
    assert kind_of(ORDER) == kind_of(same)
    account = {"uid": 8, "gid": 9, "groups": [9, 10]}
    others: list[dict[str, Any]] = [
        {"submitter": "bob"}, {"trusted": True}, {"gpus": True}, {"user": account},
        {"user": account | {"groups": [9]}}, {"limits": {"pids": 8, "nice": 5}}, {"limits": {"pids": 7}},
    ]  # fmt: skip
    assert len({kind_of(ORDER | other) for other in ({}, *others)}) == 8


@pytest.mark.parametrize("trusted", [False, True])
def test_behind_user_each_slot_has_an_id_that_nobody_has(trusted: bool) -> None:
    found = who(kind(trusted=trusted), "user", US, MACHINE)
    assert found == Who("user", 5000, 5000, (), own=True, login="as-ann")


def test_the_groups_of_gpus_are_for_jobs_that_were_granted_some() -> None:
    assert who(kind(gpus=True), "user", US, MACHINE).groups == (44,)
    assert who(kind(gpus=True), "namespace", US, MACHINE).groups == ()


def test_behind_namespaces_strangers_see_nothing_of_the_agents_user_and_owners_do() -> None:
    assert who(kind(), "namespace", US, MACHINE) == Who("namespace", *US, login="as-ann", private=True)
    assert who(kind(trusted=True), "namespace", US, MACHINE) == Who("namespace", *US)


def test_the_name_of_a_slot_says_of_whom_the_agents_user_is_hidden() -> None:
    stranger, owner = (name_of(kind(trusted=trusted), "0a1b") for trusted in (False, True))
    assert (is_private(stranger, "namespace"), is_private(owner, "namespace")) == (True, False)
    assert not is_private(stranger, "none") and (stranger + owner).isalnum()


@pytest.mark.parametrize("walls", ["landlock", "none"])
def test_elsewhere_jobs_are_our_own_user(walls: str) -> None:
    assert who(kind(), walls, US, MACHINE) == Who(walls, *US)


@pytest.mark.parametrize("walls", ["user", "none"])
def test_an_account_that_was_asked_for_is_nobodys_own(walls: str) -> None:
    """Other slots may have that user: its processes are not ended by its id."""
    found = who(kind(user={"uid": 8, "gid": 9, "groups": [9, 10]}), walls, US, MACHINE)
    assert found == Who("user", *Account(8, 9, (9, 10))) and not found.own


def test_no_slot_is_made_where_no_id_is_left() -> None:
    def none_left() -> int:
        raise OSError("no user id of the node's range is free")

    with pytest.raises(OSError, match="no user id"):
        who(kind(), "user", US, MACHINE._replace(free_uid=none_left))


def test_a_user_id_is_not_given_out_again_soon() -> None:
    ids = UserIds(1, 100, begin=99)
    given = [ids.pick({5, 7}) for _ in range(98)]
    assert given[:3] == [100, 1, 2] and {*given} == {*range(1, 101)} - {5, 7}
    assert ids.pick({5, 7}) == 100


def test_who_asks_for_an_id_where_all_are_taken_is_refused() -> None:
    ids = UserIds(1, 3, begin=2)
    with pytest.raises(OSError, match="no user id of the node's range is free"):
        ids.pick(range(10))
    assert ids.pick({1, 2}) == 3


# --- when it is given up ----------------------------------------------------------------------------------------------


def made(table: SlotTable[Use], name: str, now: float, of: Kind | None = None) -> Use:
    slot = Use(of or kind(), name, now)
    table.add(slot, "j-1.1")
    slot.made = True
    return slot


def test_an_idle_slot_is_used_again_by_its_own_kind_the_last_one_first() -> None:
    table = SlotTable[Use]()
    first, second = made(table, "s1", 0.0), made(table, "s2", 0.0)
    assert table.take(kind(), "j-2.1", 1.0) is None
    table.release(first, 2.0)
    table.release(second, 3.0)
    assert table.take(kind("bob"), "j-3.1", 4.0) is None
    assert table.take(kind(), "j-4.1", 5.0) is second and (second.taken, second.since) == ("j-4.1", 5.0)
    assert table.take(kind(), "j-5.1", 5.0) is first
    assert table.take(kind(), "j-6.1", 5.0) is None


def test_a_slot_without_work_is_given_up_after_a_while_and_one_that_works_is_not() -> None:
    table = SlotTable[Use]()
    busy, idle = made(table, "s1", 0.0), made(table, "s2", 0.0)
    table.release(idle, 10.0)
    assert [*table.overdue(10.0 + IDLE - 0.1)] == [] and table.due == 10.0 + IDLE
    assert [*table.overdue(10.0 + IDLE)] == [(idle, "")]
    table.drop(idle)
    assert [*table.overdue(1e9)] == [] and [*table.all.values()] == [busy]
    assert table.take(kind(), "j-2.1", 50.0) is None


def test_one_that_is_never_made_is_given_up_with_the_reason() -> None:
    table = SlotTable[Use]()
    slot = Use(kind(), "s1", 100.0)
    table.add(slot, "j-1.1")
    assert table.due == 100.0 + MAKING and [*table.overdue(100.0 + MAKING - 0.1)] == []
    assert [*table.overdue(table.due)] == [(slot, "it was not made within 15 s")]


def test_what_was_given_up_is_not_idle_when_its_job_is_over() -> None:
    table = SlotTable[Use]()
    slot = made(table, "s1", 0.0)
    table.drop(slot)
    table.drop(slot)
    table.release(slot, 1.0)
    assert slot.dead and table.take(kind(), "j-2.1", 2.0) is None


@given(st.lists(st.tuples(st.sampled_from(["take", "release", "drop", "look"]), st.integers(0, 3)), max_size=40))
def test_no_slot_ever_serves_two(steps: list[tuple[str, int]]) -> None:
    table = SlotTable[Use]()
    kinds = [kind("ann"), kind("bob")]
    every: list[Use] = []
    for now, (step, number) in enumerate(steps):
        live = [one for one in every if not one.dead]
        busy = [one for one in live if one.taken]
        if step == "take":
            found = table.take(kinds[number % 2], f"j-{now}.1", float(now * 10))
            if found is None:
                every.append(found := made(table, f"s{now}", float(now * 10), kinds[number % 2]))
                found.taken = f"j-{now}.1"
            assert found not in busy and found.kind == kinds[number % 2] and not found.dead
        elif step == "release" and busy:
            table.release(busy[number % len(busy)], float(now * 10))
        elif step == "drop" and live:
            table.drop(live[number % len(live)])
        elif step == "look":
            for slot, _ in table.overdue(float(now * 10)):
                assert not slot.taken
                table.drop(slot)
    assert {*table.all.values()} == {one for one in every if not one.dead}
