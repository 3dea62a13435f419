"""What an operator hears of attempts: each once in a while, and never so much that a job could fill a log."""

from distributed_grid.agent.supervisor.sockets import INTERVAL, LINES, UNSENT_LINES, Throttle, Warnings


def test_the_same_is_said_once_in_an_interval_and_then_with_how_often_it_was_left_out() -> None:
    throttle = Throttle()
    assert throttle.passed("refused", 100.0) == "refused"
    assert [throttle.passed("refused", 100.0 + second) for second in range(1, 51)] == [""] * 50
    assert throttle.passed("refused", 100.0 + INTERVAL) == "refused (50 more lines like this one were left out)"
    assert throttle.passed("refused", 100.0 + 2 * INTERVAL) == "refused"


def test_who_is_refused_with_new_words_each_time_fills_no_log() -> None:
    throttle = Throttle()
    said = [throttle.passed(f"process {pid} is a job's", pid / 1000) for pid in range(10_000)]
    assert len([line for line in said if line]) == LINES


def test_a_warning_goes_to_the_log_and_to_the_agent_and_waits_where_there_is_none() -> None:
    logged: list[str] = []
    heard: list[str] = []
    there = False

    def tell(line: str) -> bool:
        if there:
            heard.append(line)
        return there

    now = 0.0
    telling = Warnings(logged.append, tell, lambda: now)
    for number in range(LINES):
        telling.warn(f"attempt {number}")
    now = INTERVAL
    for number in range(LINES, 2 * LINES):
        telling.warn(f"attempt {number}")
    assert len(logged) == 2 * LINES and heard == []
    assert telling.take_unsent() == logged[-UNSENT_LINES:]
    assert telling.take_unsent() == []
    there, now = True, 2 * INTERVAL
    telling.warn("another one")
    assert heard == ["another one"] and telling.take_unsent() == []
