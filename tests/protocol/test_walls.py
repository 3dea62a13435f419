from distributed_grid.protocol.walls import UID_RANGE, is_wall_uid


def test_the_range_includes_its_first_and_its_last_user_id() -> None:
    assert is_wall_uid(UID_RANGE[0]) and is_wall_uid(UID_RANGE[1])


def test_users_outside_the_range_are_not_of_the_walls() -> None:
    assert not any(is_wall_uid(uid) for uid in (0, 1000, 65534, UID_RANGE[0] - 1, UID_RANGE[1] + 1))
