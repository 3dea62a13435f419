"""What a program of a Ray cluster gives its tasks, actors and placement groups, so that they are on one boost and
nowhere else. It needs no Ray; where the program has one, that is asked whether the boost is an exclusive one.
"""

import sys
from typing import Any

from distributed_grid.protocol.boosts import LABEL, group_name, is_boost_id
from distributed_grid.protocol.errors import BadValue

GONE = "REMOVED"
"""What Ray calls the state of a group that is there no more, and that it still lists."""


def boost_scheduling_options(boost_id: str) -> dict[str, Any]:
    """What a task or an actor of Ray's is given, to run on this boost and nowhere else:
    `work.options(**boost_scheduling_options(id)).remote()`. Of an exclusive boost that is its placement group, which a
    program learns once it is connected (`ray.init`), in whatever namespace; else a label. Raises BadValue."""
    selector = _selector(boost_id)
    ray = _connected()
    found = _group(ray, boost_id)
    if ray is None or found is None:
        return {"label_selector": selector}
    return {"scheduling_strategy": ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(found)}


def boost_placement_group_options(boost_id: str, bundles: int = 1) -> dict[str, Any]:
    """What a placement group of so many bundles is given, to have them all on this boost:
    `placement_group(bundles, **boost_placement_group_options(id, len(bundles)))`. Raises BadValue, also for an
    exclusive boost, which has a group already: Ray would wait forever for room beside it."""
    selector = _selector(boost_id)
    if _group(_connected(), boost_id) is not None:
        raise BadValue(
            f"{boost_id} has a placement group already",
            why="it is an exclusive boost: its group has all of it, and no other finds room there",
            hint=f"give tasks boost_scheduling_options({boost_id!r})",
        )
    return {"strategy": "STRICT_PACK", "bundle_label_selector": [selector] * bundles}


def _selector(boost_id: str) -> dict[str, str]:
    # Ray would wait without a word, and without an end, for a label that nobody has.
    if not is_boost_id(boost_id):
        raise BadValue(
            f"{boost_id!r} is no id of a boost",
            why="Ray compares the whole of it, and waits forever for one that is not there",
            hint="give the id that the request returned, such as j-xnbj3nh7tusz; grid boost status shows it",
        )
    return {LABEL: boost_id}


def _connected() -> Any:
    """The program's own Ray, if it has loaded it and is connected. We do not: ray is for who runs tasks."""
    ray = sys.modules.get("ray")
    return ray if ray is not None and ray.is_initialized() else None


def _group(ray: Any, boost_id: str) -> Any:
    """The placement group of this boost, found among all there are: `get_placement_group` sees those of the program's
    own namespace. None: it has none, or nobody can be asked."""
    if ray is None:
        return None
    for number, one in ray.util.placement_group_table().items():
        if one["name"] == group_name(boost_id) and one["state"] != GONE:
            groups = sys.modules["ray.util.placement_group"]  # by that name `ray.util` has a function
            return groups.PlacementGroup(ray.PlacementGroupID(bytes.fromhex(number)))
    return None
