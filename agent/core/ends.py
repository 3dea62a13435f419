"""What is said of the end of an allocation that is not remembered."""

from distributed_grid.protocol.jobs import Cause, Outcome


def was_over(cause: str) -> Outcome:
    """It was over, and its end acknowledged. `cause`: as it was asked to end now."""
    known = Cause(cause) if cause in [*Cause] else Cause.CANCELLED
    return Outcome(known, text="it was over and acknowledged before; nothing is started twice", started=False)
