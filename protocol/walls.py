"""What agent and coordinator agree on about walls: the user ids that `walls: user` gives to jobs."""

UID_RANGE = (1_879_048_192, 1_879_113_727)
"""The first and the last user id of the range, by default. No account may have one of them: a process of such a user is
a job, on whatever machine of the grid it is met."""


def is_wall_uid(uid: int, within: tuple[int, int] = UID_RANGE) -> bool:
    """Whether a user id is one that walls give to jobs."""
    return within[0] <= uid <= within[1]
