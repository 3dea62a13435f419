"""Why a job waits, as programs read it: the codes of `Reason`, in their order of precedence. Of several that hold, the
first is said. docs/why.md shows this table.
"""

WAITING: dict[str, str] = {
    "Dependency": "it waits for other jobs (--after, --after-ok, --after-any)",
    "Begin": "its time to begin has not come (--begin)",
    "ArrayLimit": "as many of its array are at work as may be at once (--array …%N)",
    "Gang": "it is part of a gang that begins as a whole",
    "Preempting": "others end for it, and what they leave is kept for it (docs/preemption.md)",
    "Returning": "it gave its place to somebody who did not take it, and what it gave is kept for it",
    "Priority": "others are served before it: a class above, a user with a smaller share, or earlier jobs of its user",
    "Held": "the coordinator cannot store what it would start: its disk is full or fails",
    "NeverFits": "no node of the grid could ever run it, whatever became free",
    "NoOffers": "no node is known, can be reached, or offers anything that could serve",
    "Reserved": "there is room, and it is kept for who comes before it",
    "Resources": "what it needs is in use",
    "Ray": "Ray is to reserve it, and has no room, no node there, or cannot be asked (docs/placement-by-ray.md)",
    "Thresholds": "what it needs is there and not lent now: a node's owner uses it, or refused a moment ago",
    "Affinity": "where the jobs are that it is to be near to, or apart from, leaves no room for it",
    "SetAside": "the nodes that could run it are set aside, since launches failed there",
    "Drained": "the nodes that could run it are drained",
}
OTHER: dict[str, str] = {
    "Fits": "a request that was only asked about would start now",
    "Preempts": "a request that was only asked about would start when others have given way (docs/preemption.md)",
    "Placed": "the job has its place",
    "Ended": "the job is over",
}
