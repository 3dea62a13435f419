"""The codes that say why a job waits, or what became of it, with their meaning: codes stay, texts may change."""

WAITING: dict[str, str] = {
    "Dependency": "it waits for other jobs (--after, --after-ok, --after-any)",
    "Begin": "its time to begin has not come (--begin)",
    "ArrayLimit": "as many of its array are at work as may be at once (--array …%N)",
    "Gang": "it is part of a gang that begins as a whole",
    "Preempting": "others end for it, and what they leave is kept for it (docs/preemption.md)",
    "Returning": "it gave its place to somebody who did not take it, and what it gave is kept for it",
    "Priority": "others are served before it: a class above, or those with a higher precedence (docs/shares.md)",
    "Store": "the coordinator cannot store what it would start: its disk is full or fails",
    "Machine": "no node could ever run it, or too few for a gang, and machines of pools could (docs/scaling.md)",
    "NeverFits": "no node of the grid could ever run it, whatever became free",
    "Quota": "its user, or a group of its user, holds or uses as much as may be (docs/rights.md)",
    "NoOffers": "no node is known, can be reached, or offers anything that could serve",
    "Reserved": "there is room, and it is kept for who comes before it",
    "Resources": "what it needs is in use",
    "Ray": "Ray is to reserve it, and has no room, no node there, or cannot be asked (docs/placement-by-ray.md)",
    "Unjoined": "a boost failed on the nodes that could lend it, and they are left alone for a while (docs/boosts.md)",
    "Thresholds": "what it needs is there and not lent now: a node's owner uses it, or refused a moment ago",
    "Hold": "the hold that it is to run in (--in) has no room for it now, or has not begun (docs/holds.md)",
    "Affinity": "where the jobs are that it is to be near to, or apart from, leaves no room for it",
    "SetAside": "the nodes that could run it are set aside, since launches failed there",
    "Drained": "the nodes that could run it are drained",
}
"""What jobs wait for, by the code of their reason, in the order of docs/why.md."""

OTHER: dict[str, str] = {
    "Fits": "a request that was only asked about would start now",
    "Preempts": "a request that was only asked about would start when others have given way (docs/preemption.md)",
    "Placed": "the job has its place",
    "Next": "the job starts on its node as soon as the one before it has ended",
    "Lost": "the job's node is silent, or does not know what became of it",
    "Ended": "the job is over",
}
"""The codes for jobs that do not wait, and for requests that were only asked about."""
