"""When a node's owner is back, and what becomes of its jobs: samples in, orders out, without a process."""

from typing import Any

import pytest

from distributed_grid.agent.core.owner import Freeze, Order, Owner, Recall, RunningJob, Thaw
from distributed_grid.agent.core.spare.thresholds import Holding, Limits
from distributed_grid.protocol.nodes import GpuProcess, GpuSample, OwnerPolicy, Sample
from distributed_grid.protocol.resources import GpuShare, Grant

CORES = 4
LIMITS = Limits(owner_after=2.0, owner_quiet=10.0, owner_most=0.0, owner_hold=0.0)


def job(name: str, *cores: int, began: float = 0.0) -> RunningJob:
    return RunningJob(Holding(name, Grant(cores=cores)), began)


A, B = job("a", 0), job("b", 1, 2)


class Scene:
    """An owner of four cores and the jobs a (core 0) and b (cores 1 and 2); what is frozen is confirmed at once."""

    def __init__(self, **limits: Any) -> None:
        fields = {name: getattr(LIMITS, name) for name in Limits.__struct_fields__}
        self.owner = Owner(Limits(**(fields | limits)), CORES)
        self.jobs = [A, B]
        self.frozen: dict[str, float] = {}

    def see(self, now: float, *used: int, **more: Any) -> list[Order]:
        """A sample in which others use so many percent of each core."""
        cores = dict(enumerate(used or (0, 0, 0, 0)))
        sample = Sample(at=now, cores=cores, foreign_cpu=sum(cores.values()) / 100, **more)
        orders = self.owner.observe(sample, self.jobs, now)
        for order in orders:
            if isinstance(order, Freeze) and order.allocation not in self.frozen:
                self.frozen[order.allocation] = now
                self.owner.took(order.allocation, order.why, 0.0, 0.0, now)
            elif isinstance(order, Thaw):
                lasted = now - self.frozen.pop(order.allocation)
                self.owner.took(order.allocation, "", lasted, lasted, now)
            elif isinstance(order, Recall):
                self.jobs = [one for one in self.jobs if one.holding.allocation != order.allocation]
        return orders


def test_an_idle_node_leaves_its_jobs_alone() -> None:
    scene = Scene()
    assert [scene.see(float(now)) for now in range(5)] == [[]] * 5
    assert scene.owner.presence() == ""


def test_a_job_is_frozen_when_others_have_used_its_cores_for_a_while_and_the_others_are_not() -> None:
    scene = Scene()
    assert scene.see(0.0, 50) == []
    assert scene.see(1.0, 50) == []
    assert scene.see(2.0, 50) == [Freeze("a", "foreign CPU 50 % on core 0")]
    assert scene.owner.presence() == ""  # the other cores are still to be had


def test_all_jobs_are_frozen_when_others_use_too_much_of_the_node_and_nothing_more_is_lent() -> None:
    scene = Scene()
    scene.see(0.0, 0, 0, 30, 100)
    orders = scene.see(2.0, 0, 0, 30, 100)
    assert orders == [Freeze(name, "foreign CPU 33 % > 30 %") for name in ("a", "b")]
    assert scene.owner.presence() == "the owner is back (foreign CPU 33 % > 30 %)"


def test_an_owner_who_gets_only_a_part_of_every_core_beside_the_jobs_is_seen_all_the_same() -> None:
    scene = Scene()
    scene.see(0.0, 15, 15, 15, 0)
    assert {order.allocation for order in scene.see(2.0, 15, 15, 15, 0)} == {"a", "b"}


def test_a_little_noise_on_many_cores_is_no_owner() -> None:
    owner = Owner(LIMITS, 64)
    jobs = [job(f"j{core}", core) for core in range(64)]
    for now in range(10):
        sample = Sample(at=float(now), cores=dict.fromkeys(range(64), 3), foreign_cpu=2.0)
        assert owner.observe(sample, jobs, float(now)) == []


def test_one_busy_moment_is_no_return() -> None:
    scene = Scene()
    assert scene.see(0.0, 100) == []
    assert scene.see(1.0, 0) == []
    assert scene.see(2.0, 100) == []


def test_a_frozen_job_goes_on_when_the_owner_was_gone_for_a_while_and_not_in_between() -> None:
    scene = Scene()
    for now in (0.0, 2.0, 4.0):
        scene.see(now, 100)
    assert scene.frozen == {"a": 2.0}
    assert scene.see(9.0) == [Freeze("a", "foreign CPU 100 % on core 0")]
    scene.see(10.0, 100)  # he is back before it was long enough
    assert [type(order) for order in scene.see(19.9)] == [Freeze]
    assert scene.see(20.0) == [Thaw("a")]
    assert scene.see(21.0) == [] and scene.owner.presence() == ""


def test_a_raylet_is_recalled_where_a_job_would_be_frozen_however_young_it_is() -> None:
    scene = Scene(owner_hold=60.0)
    scene.jobs = [RunningJob(A.holding, A.began, raylet=True), B]
    scene.see(0.0, 50, 50)
    orders = scene.see(2.0, 50, 50)
    assert orders == [Recall("a", "foreign CPU 50 % on core 0"), Freeze("b", "foreign CPU 50 % on core 1")]


def test_jobs_run_on_beside_the_owner_where_that_is_the_policy() -> None:
    scene = Scene(owner_policy=OwnerPolicy.CONTINUE)
    assert [scene.see(float(now), 100, 100, 100, 100) for now in range(0, 20, 2)] == [[]] * 10


def test_what_was_frozen_goes_on_at_once_when_the_policy_has_changed() -> None:
    scene = Scene(owner_policy=OwnerPolicy.CONTINUE)
    scene.owner.took("a", "foreign CPU 87 %", 5.0, 5.0, 10.0)
    scene.frozen["a"] = 5.0
    assert scene.see(11.0, 100) == [Thaw("a")]


def test_a_new_agent_takes_over_what_the_last_one_froze() -> None:
    scene = Scene()
    scene.owner.took("a", "foreign CPU 87 %", 5.0, 7.0, 100.0)
    scene.frozen["a"] = 95.0
    (told,) = scene.owner.suspended(101.0)
    assert (told.why, told.lasted, told.in_all) == ("foreign CPU 87 %", 6.0, 8.0)
    assert [type(order) for order in scene.see(109.0)] == [Freeze]
    assert scene.see(110.0) == [Thaw("a")]


@pytest.mark.parametrize("percent", [30, 100])
def test_no_use_of_the_cpu_means_anything_where_it_is_not_judged(percent: int) -> None:
    scene = Scene(cpu_percent_max=100.0)
    assert [scene.see(float(now), *[percent] * 4) for now in range(0, 20, 2)] == [[]] * 10


def test_what_is_over_is_forgotten() -> None:
    scene = Scene()
    scene.see(0.0, 100)
    scene.see(2.0, 100)
    scene.jobs = []
    assert scene.see(3.0, 100) == [] and scene.owner.suspended(3.0) == [] and not scene.owner.cases


# --- recall -----------------------------------------------------------------------------------------------------------


def test_jobs_are_recalled_where_that_is_the_policy_and_each_once() -> None:
    scene = Scene(owner_policy=OwnerPolicy.RECALL)
    assert scene.see(0.0, 100) == []
    assert scene.see(2.0, 100) == [Recall("a", "foreign CPU 100 % on core 0")]
    assert scene.see(4.0, 100) == []


def test_a_young_job_is_suspended_until_it_is_old_enough_to_be_recalled() -> None:
    scene = Scene(owner_policy=OwnerPolicy.RECALL, owner_hold=20.0)
    scene.see(0.0, 100)
    assert scene.see(2.0, 100) == [Freeze("a", "foreign CPU 100 % on core 0")]
    assert [type(order) for order in scene.see(19.9, 100)] == [Freeze]
    assert scene.see(20.0, 100) == [Recall("a", "foreign CPU 100 % on core 0")]


def test_a_young_job_goes_on_if_the_owner_is_gone_by_then() -> None:
    scene = Scene(owner_policy=OwnerPolicy.RECALL, owner_hold=20.0)
    for now in (0.0, 2.0):
        scene.see(now, 100)
    assert [type(order) for now in (11.9, 12.0) for order in scene.see(now)] == [Freeze, Thaw]
    assert scene.see(21.0) == []


def test_what_was_suspended_for_too_long_is_recalled() -> None:
    scene = Scene(owner_most=30.0)
    for now in (0.0, 2.0, 20.0):
        scene.see(now, 100)
    assert [type(order) for order in scene.see(31.9, 100)] == [Freeze]
    assert scene.see(32.0, 100) == [Recall("a", "foreign CPU 100 % on core 0")]


def test_after_a_recall_nothing_is_lent_until_the_owner_was_gone_for_a_while() -> None:
    scene = Scene(owner_policy=OwnerPolicy.RECALL)
    scene.jobs = [A]
    for now in (0.0, 2.0):
        scene.see(now, 40, 40, 40, 40)
    assert scene.jobs == [] and scene.owner.presence() == "the owner is back (foreign CPU 40 % > 30 %)"
    scene.see(10.0, 40, 40, 40, 40)
    scene.see(19.9)
    assert scene.owner.presence()
    scene.see(20.0)
    assert scene.owner.presence() == ""


# --- what is not seen by the use of cores -----------------------------------------------------------------------------


def gpu(uuid: str, *processes: GpuProcess, error: str = "") -> GpuSample:
    return GpuSample(uuid, memory_total=1 << 34, processes=processes, error=error)


def on_gpu(name: str, uuid: str) -> RunningJob:
    return RunningJob(Holding(name, Grant(gpus=(GpuShare(uuid, 1000),))), 0.0)


STRANGER = GpuProcess(7, 1 << 30, "ada")


def test_a_strangers_process_on_a_lent_gpu_has_that_gpus_job_recalled_as_freezing_frees_no_gpu() -> None:
    scene = Scene()
    scene.jobs = [on_gpu("a", "GPU-0"), on_gpu("b", "GPU-1"), job("c", 3)]
    gpus = (gpu("GPU-0", GpuProcess(5, 1 << 30, "grid", own=True)), gpu("GPU-1", STRANGER))
    assert scene.see(0.0, gpus=gpus) == []
    assert scene.see(2.0, gpus=gpus) == [Recall("b", "process 7 of ada uses 1024 MiB of GPU-1")]
    assert scene.owner.presence() == ""  # the offer withholds that GPU, and nothing else is in his way
    assert scene.see(4.0, gpus=gpus) == []


def test_a_display_server_is_in_nobodys_way_until_it_uses_more_of_the_gpu_than_the_limit() -> None:
    scene = Scene()
    scene.jobs = [on_gpu("a", "GPU-0")]

    def drawn(utilisation: float) -> tuple[GpuSample, ...]:
        return (gpu("GPU-0", GpuProcess(7, 1 << 30, "ada", graphics=True, utilisation=utilisation)),)

    assert [scene.see(float(now), gpus=drawn(20.0)) for now in range(0, 60, 2)] == [[]] * 30
    assert scene.see(60.0, gpus=drawn(45.0)) == []
    assert scene.see(62.0, gpus=drawn(45.0)) == [Recall("a", "process 7 of ada draws with 45 % of GPU-0")]


def test_a_gpu_that_cannot_be_read_has_nobody_recalled() -> None:
    scene = Scene()
    scene.jobs = [on_gpu("a", "GPU-0")]
    assert [scene.see(float(now), gpus=(gpu("GPU-0", error="gone"),)) for now in range(0, 9, 2)] == [[]] * 5


def test_a_young_job_on_a_gpu_is_suspended_until_it_may_be_recalled() -> None:
    scene = Scene(owner_hold=5.0)
    scene.jobs = [on_gpu("a", "GPU-0")]
    orders = [scene.see(float(now), gpus=(gpu("GPU-0", STRANGER),)) for now in (0, 2, 4, 6)]
    assert [[type(order) for order in one] for one in orders] == [[], [Freeze], [Freeze], [Recall]]


@pytest.mark.parametrize("what", ["cpu", "io"])
def test_programs_of_others_that_wait_have_all_jobs_frozen_and_the_node_closed(what: str) -> None:
    scene = Scene()
    scene.see(0.0, pressure={what: 55.0})
    why = f"{what} pressure on others 55 % > 40 %"
    assert scene.see(2.0, pressure={what: 55.0}) == [Freeze("a", why), Freeze("b", why)]
    assert scene.owner.presence() == f"the owner is back ({why})"
    assert [type(order) for order in scene.see(12.0, pressure={what: 40.0})] == [Thaw, Thaw]
    assert scene.owner.presence() == ""


def test_a_want_of_memory_is_met_by_one_recall_at_a_time_of_who_has_most() -> None:
    scene = Scene()
    scene.jobs = [RunningJob(Holding(name, Grant(), rss), 0.0) for name, rss in (("a", 1), ("b", 3), ("c", 2))]
    why = "memory pressure on others 60 % > 40 %"
    found = {now: scene.see(float(now), pressure={"memory": 60.0}) for now in range(0, 50, 2)}
    assert {now: orders for now, orders in found.items() if orders} == {
        2: [Recall("b", why)],
        24: [Recall("c", why)],
        46: [Recall("a", why)],
    }


def test_who_had_most_memory_at_an_earlier_want_of_it_is_not_recalled_at_the_next() -> None:
    scene = Scene(owner_after=2.0)
    scene.jobs = [RunningJob(Holding("small", Grant(cores=(0,)), rss=1 << 30), 0.0)]
    assert scene.see(0.0, pressure={"memory": 60.0}) == []
    assert scene.see(2.0) == []
    scene.jobs.append(RunningJob(Holding("big", Grant(cores=(1,)), rss=50 << 30), 10.0))
    scene.see(20.0, pressure={"memory": 60.0})
    orders = scene.see(22.0, pressure={"memory": 60.0})
    assert orders == [Recall("big", "memory pressure on others 60 % > 40 %")]


def test_a_hand_on_the_keyboard_counts_only_where_that_was_asked_for() -> None:
    assert Scene().see(0.0, input_idle=1.0) == [] == Scene(owner_input=True).see(0.0, input_idle=-1.0)
    scene = Scene(owner_input=True)
    scene.jobs = []
    scene.see(0.0, input_idle=1.0)
    assert scene.owner.presence() == "the owner is back (keyboard or terminal in use)"
    scene.jobs = [A]
    scene.see(1.0, input_idle=1.0)
    assert scene.see(3.0, input_idle=0.5) == [Freeze("a", "keyboard or terminal in use")]
    assert [type(order) for order in scene.see(13.0, input_idle=10.0)] == [Thaw]


def test_nothing_is_judged_where_it_is_switched_off() -> None:
    scene = Scene(owner_pressure=100.0)
    assert [scene.see(float(now), pressure={"cpu": 100.0, "memory": 100.0}) for now in range(0, 9, 2)] == [[]] * 5


def test_where_jobs_run_on_beside_the_owner_no_sign_closes_the_node() -> None:
    scene = Scene(owner_policy=OwnerPolicy.CONTINUE, owner_input=True)
    scene.jobs.append(on_gpu("c", "GPU-0"))
    for now in range(0, 9, 2):
        seen = scene.see(float(now), input_idle=0.0, pressure={"memory": 99.0}, gpus=(gpu("GPU-0", STRANGER),))
        assert seen == [] and scene.owner.presence() == ""
