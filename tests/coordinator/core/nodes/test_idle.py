"""Who holds and does not use is told so, with what would have been enough; nobody is told so, or ended, wrongly."""

import pytest

from distributed_grid.coordinator.core.commands import Command, JobsSubmitted, MessageReceived, RecordJob, Send
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.policy import Policy, Unused
from distributed_grid.protocol.jobs import Cause, GpuUse, Outcome, Request, RetryOn, State, Use
from distributed_grid.protocol.messages import Exited, InUse, Started, Stop, Suspended
from distributed_grid.protocol.resources import Resources
from tests.coordinator.core.scene import facts, job, join, resumed, step

NODE = facts("n1", cores=8, gpus=4)
EVERY = 15.0


class Stage:
    """A job that runs on n1, whose use is told every 15 s."""

    def __init__(self, cpus: float = 8, gpus: int = 0, policy: Unused | None = None) -> None:
        self.ledger = Ledger(policy=Policy(unused=policy or Unused()))
        join(self.ledger, NODE, expires_in=1e6)
        wanted = Request(
            Resources(cpu=round(cpus * 1000), gpu=gpus * 1000), retry_on=tuple(RetryOn), retries=5
        )  # what is released is not retried
        step(self.ledger, JobsSubmitted(1, (job("j", wanted),)), 0.5)
        step(self.ledger, MessageReceived("n1", Started(allocation="j.1")), 1.0)
        self.uuids = [gpu.uuid for gpu in self.ledger.state.allocations["j.1"].grant.gpus]
        self.log: list[Command] = []

    def tells(self, minutes: float, cpu: float = 8.0, gpus: tuple[float, ...] = (), peak: float = 0.0) -> None:
        """For so long it uses this much."""
        end = self.ledger.state.now + 60 * minutes
        while self.ledger.state.now + EVERY <= end + 1e-6:
            of = tuple(GpuUse(uuid, busy, busy) for uuid, busy in zip(self.uuids, gpus, strict=False))
            use = Use(allocation="j.1", seconds=EVERY, cpu=cpu, cpu_peak=peak or cpu, memory=1 << 30, gpus=of)
            self.log += step(self.ledger, MessageReceived("n1", InUse(uses=(use,))), self.ledger.state.now + EVERY)

    def silent(self, minutes: float) -> None:
        step(self.ledger, MessageReceived("n1", InUse(uses=())), self.ledger.state.now + 60 * minutes)

    def said(self) -> list[str]:
        """What its story has beyond its start."""
        return [one.text for one in self.ledger.state.jobs["j"].story[3:]]

    def stops(self) -> list[Stop]:
        return [one.message for one in self.log if isinstance(one, Send) and isinstance(one.message, Stop)]


def test_a_job_that_uses_one_of_eight_cores_is_told_what_would_have_been_enough_once() -> None:
    stage = Stage()
    stage.tells(9.75, cpu=0.9)
    assert not stage.said()
    stage.tells(30, cpu=0.9)
    assert stage.said() == ["j holds 8 cores and used 0.9 of one for 10m00s; --cpus 1 would have been enough"]
    assert stage.ledger.state.jobs["j"].unused == stage.said()[0]
    assert [one.soon for one in stage.log if isinstance(one, RecordJob)] == [True]


def test_when_it_uses_them_again_that_is_said_and_it_may_be_told_again() -> None:
    stage = Stage()
    stage.tells(12, cpu=0.9)
    stage.tells(1, cpu=6)
    stage.tells(12, cpu=1.1)
    assert [text.partition(";")[0] for text in stage.said()] == [
        "j holds 8 cores and used 0.9 of one for 10m00s",
        "it uses what it holds again",
        "j holds 8 cores and used 1.1 of them for 10m00s",
    ]


@pytest.mark.parametrize("cpu, peak, enough", [(0.0, 0.0, "0.1"), (0.2, 0.31, "0.4"), (0.4, 0.6, "1"), (0.9, 1.1, "2")])
def test_what_would_have_been_enough_is_what_was_needed_at_the_most(cpu: float, peak: float, enough: str) -> None:
    stage = Stage()
    stage.tells(12, cpu=cpu, peak=peak)
    assert f"--cpus {enough} would" in stage.said()[0]


def test_a_job_that_alternates_is_not_idle() -> None:
    stage = Stage(gpus=1)
    for _ in range(20):
        stage.tells(9, cpu=0.1, gpus=(0.0,))
        stage.tells(0.25, cpu=8, gpus=(95.0,))
    assert not stage.said()


def test_a_short_peak_within_a_telling_counts() -> None:
    stage = Stage()
    stage.tells(30, cpu=0.2, peak=4.0)
    assert not stage.said()


def test_of_too_few_samples_nothing_follows() -> None:
    stage = Stage()
    for _ in range(10):
        stage.tells(0.25, cpu=0.1)
        stage.silent(5)  # suspended, or its node was away
    assert not stage.said()


def test_a_suspended_job_is_not_judged_and_the_time_before_does_not_count() -> None:
    stage = Stage()
    for _ in range(10):
        stage.tells(9, cpu=0.1)
        step(
            stage.ledger,
            MessageReceived("n1", Suspended(allocation="j.1", why="the owner", in_all=1.0)),
            stage.ledger.state.now,
        )
        stage.tells(2, cpu=0.0)
        step(
            stage.ledger,
            MessageReceived("n1", Suspended(allocation="j.1", lasted=120.0, in_all=120.0)),
            stage.ledger.state.now,
        )
    assert not [text for text in stage.said() if "would have been enough" in text]
    used = stage.ledger.state.jobs["j"].used
    assert used is not None and used.cpu == pytest.approx(0.1)


def test_a_job_that_uses_its_only_core_or_could_not_have_asked_for_less_is_told_nothing() -> None:
    for cpus, cpu in ((1, 0.9), (0.1, 0.0)):
        stage = Stage(cpus=cpus)
        stage.tells(30, cpu=cpu)
        assert not stage.said()


def test_a_telling_about_another_nodes_job_or_one_that_has_ended_changes_nothing() -> None:
    stage = Stage()
    join(stage.ledger, facts("n2"), 1.5)
    use = Use(allocation="j.1", seconds=EVERY, cpu=1.0, cpu_peak=1.0)
    step(stage.ledger, MessageReceived("n2", InUse(uses=(use, Use(allocation="x.1", seconds=EVERY)))), 2.0)
    assert stage.ledger.state.jobs["j"].used is None and not stage.ledger.state.idle
    stage.tells(1)
    step(stage.ledger, MessageReceived("n1", Exited(allocation="j.1", outcome=Outcome(Cause.EXITED))), 70.0)
    stage.tells(1)
    assert not stage.ledger.state.idle


def test_mean_and_peak_are_kept_with_the_job() -> None:
    stage = Stage(gpus=2)
    stage.tells(1, cpu=2, gpus=(50.0, 0.0))
    stage.tells(1, cpu=4, peak=7, gpus=(100.0, 50.0))
    used = stage.ledger.state.jobs["j"].used
    assert used is not None and (used.seconds, used.cpu, used.cpu_peak, used.memory) == (120.0, 3.0, 7.0, 1 << 30)
    assert used.gpu == pytest.approx(1.0)


# --- GPUs -------------------------------------------------------------------------------------------------------------


def test_unused_gpus_are_told_of_by_their_number() -> None:
    stage = Stage(gpus=4)
    stage.tells(12, gpus=(90.0, 80.0, 0.0, 0.0))
    assert stage.said() == ["j holds 4 GPUs and used 2 of the GPUs for 10m00s; --gpus 2 would have been enough"]


def test_cores_and_gpus_are_told_of_together_and_what_joins_them_is_told_anew() -> None:
    stage = Stage(gpus=1)
    stage.tells(11, cpu=0.0, gpus=(0.0,))
    text = "j holds 8 cores and 1 GPU and used none of them and no GPU for 10m00s"
    assert stage.said() == [f"{text}; --cpus 0.1 with no --gpus would have been enough"]
    other = Stage(gpus=1)
    other.tells(11, cpu=0.0, gpus=(90.0,))
    other.tells(11, cpu=0.0, gpus=(0.0,))
    assert len(other.said()) == 2 and "GPU" in other.said()[1]


RELEASE = Unused(release_after=1800.0)


def test_by_default_nobody_is_ended() -> None:
    stage = Stage(gpus=1)
    stage.tells(240, gpus=(0.0,))
    assert not stage.stops()


def test_gpus_that_stay_unused_are_released_after_the_warning_and_the_job_is_not_run_again() -> None:
    stage = Stage(gpus=1, policy=RELEASE)
    stage.tells(39.75, gpus=(0.0,))
    assert stage.said() and not stage.stops()
    stage.tells(1, gpus=(0.0,))
    (stop,) = stage.stops()
    assert (stop.cause, stop.text) == (Cause.RELEASED, "its GPU went unused for 40m00s (unused.policy)")
    ended = Outcome(Cause.RELEASED, signal=15, text=stop.text)
    step(stage.ledger, MessageReceived("n1", Exited(allocation="j.1", outcome=ended)), stage.ledger.state.now + 1)
    assert not stage.ledger.state.jobs, "it would be idle again"


@pytest.mark.parametrize("gpus", [(0.0, 60.0), (60.0, 60.0)])
def test_a_job_that_uses_one_of_its_gpus_is_not_released(gpus: tuple[float, ...]) -> None:
    stage = Stage(gpus=2, policy=RELEASE)
    stage.tells(240, gpus=gpus)
    assert not stage.stops()


def test_a_job_without_gpus_is_never_released() -> None:
    stage = Stage(policy=RELEASE)
    stage.tells(240, cpu=0.0)
    assert stage.said() and not stage.stops() and stage.ledger.state.jobs["j"].state is State.RUNNING


def test_time_counts_from_the_warning_about_gpus_and_not_from_one_about_cores() -> None:
    stage = Stage(gpus=1, policy=RELEASE)
    stage.tells(60, cpu=0.0, gpus=(90.0,))
    stage.tells(39.5, cpu=0.0, gpus=(0.0,))
    assert not stage.stops()
    stage.tells(1, cpu=0.0, gpus=(0.0,))
    assert stage.stops()


def test_a_checkpoint_keeps_the_streak() -> None:
    stage = Stage()
    stage.tells(9, cpu=0.9)
    stage.ledger = resumed(stage.ledger)
    stage.tells(1, cpu=0.9)
    assert stage.said()
