"""The attacks that a job, or the client that submits it, makes on its node, and what is expected of each under each
level of walls. docs/walls.md prints the table from here.

`HELD`: refused, nobody else harmed. `OPEN`: not promised under these walls, and said so beforehand.
"""

from dataclasses import dataclass

LEVELS = ("user", "namespace", "landlock", "none")
"""Strongest first."""
HELD, OPEN = "held", "open"
UNTOLD = "nobody was told"
"""How a harm begins that is no more than that."""
GRANTED = 96 << 20
"""Bytes of memory that the attacker's job is granted."""


@dataclass(frozen=True)
class Attack:
    """A program below jobs/ with its arguments, run as a job of one user beside a job of another; without a program, a
    command of the client alone. `what` says what it tries, for the table; `expected` the outcome under each level, in
    the order of LEVELS. `restarts`: the supervisor is killed and the agent started again meanwhile."""

    name: str
    what: str
    words: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    expected: tuple[str, str, str, str] = (HELD, HELD, HELD, OPEN)
    restarts: bool = False
    ungrouped: tuple[str, str, str, str] | None = None
    """What is expected on a node without control groups that keep jobs' limits; None: the same."""
    tells: tuple[str, tuple[str, ...]] = ("", ())
    """What a warning in the log of agent or coordinator has to say of it, and under which levels: where it gets as far
    as something of ours. What the kernel refuses to a job, nobody hears of."""
    meanwhile: bool = False
    """A job of another user is to start while it is made, as soon as its process `sleep 9.TOKEN` is there."""


ALWAYS = (HELD, HELD, HELD, HELD)
KERNEL = (HELD, HELD, OPEN, OPEN)
"""Landlock has no say on it."""
NEVER = (OPEN, OPEN, OPEN, OPEN)

ATTACKS = (
    Attack("read-secrets", "read the node's key, the store, other jobs' records and output", ("read_secrets",)),
    Attack(
        "fetch-state",
        "bring the state directory back as a working directory (`--workdir STATE --get`)",
        options=("--workdir", "{state}", "--get", "identity/own.key", "--get", "allocs/*/stdout"),
        tells=("files of a job are not given", LEVELS),
    ),
    Attack("rewrite-record", "rewrite the agent's record of the job", ("rewrite_record",)),
    Attack("huge-record", "make that record 5 GB large", ("rewrite_record", "huge")),
    Attack("plant-fifo", "put FIFOs in the place of output, gap and notice", ("plant", "fifo")),
    Attack("plant-link", "put links to the node's certificate there", ("plant", "link")),
    Attack(
        "change-state",
        "chmod, utimes, chown, rename, link in the state directory",
        ("change_state",),
        expected=KERNEL,
    ),
    Attack(
        "sockets",
        "speak at the sockets of agent, supervisor and coordinator",
        ("sockets",),
        expected=ALWAYS,
        tells=("turned away", LEVELS),
    ),
    Attack(
        "wear-victim",
        "take memory under another job's id",
        ("wear_victim", "victim"),
        expected=ALWAYS,
    ),
    Attack(
        "orphan-memory",
        "take memory in a process that left the job",
        ("wear_victim", "nobody"),
        expected=ALWAYS,
        ungrouped=NEVER,
    ),
    Attack(
        "wear-names",
        "leave processes under ids that are none for the next supervisor",
        ("wear_names",),
        expected=ALWAYS,
        restarts=True,
    ),
    Attack(
        "hidden-memory",
        "take memory that no process has mapped (memfd)",
        ("hidden_memory",),
        expected=ALWAYS,
        ungrouped=NEVER,
    ),
    Attack(
        "fork-bomb",
        "more processes than `--pids-limit` allows",
        ("fork_bomb",),
        ("--pids-limit", "80"),
        expected=ALWAYS,
        ungrouped=KERNEL,
    ),
    Attack("forkers", "outlive the job by forking anew every 200 µs", ("forkers",), expected=ALWAYS),
    Attack("escape", "outlive the job by leaving session, parent and environment", ("escape",), expected=ALWAYS),
    Attack("signals", "signal agent, supervisor, coordinator, neighbour", ("signals",)),
    Attack(
        "kill-spawner",
        "kill the process that started the job",
        ("own_spawner", "KILL"),
        tells=("its spawner was killed", ("user", "none")),
    ),
    Attack(
        "stop-spawner",
        "stop the process that started the job",
        ("own_spawner", "STOP"),
        tells=("it was stopped", ("user", "none")),
    ),
    Attack(
        "spoil-spawner",
        "leave it with limits that nothing can live with",
        ("own_limits",),
        expected=ALWAYS,
        tells=("its spawner is replaced", LEVELS),
    ),
    Attack(
        "kill-own-user",
        "kill all processes of the job's own user",
        ("own_spawner", "ALL"),
        expected=KERNEL,
        tells=("its spawner was killed", ("user",)),
    ),
    Attack("look", "look into them by /proc: environment, memory, open files", ("look",), expected=KERNEL),
    Attack("trace", "take them over as a debugger does", ("trace",)),
    Attack(
        "neighbour-files",
        "reach the neighbour's output, directory and shared memory",
        ("neighbour_files",),
        expected=KERNEL,
    ),
    Attack("namespaces", "get round the walls by mounts and namespaces", ("namespaces",)),
    Attack("keys", "read the neighbour's keys in the kernel's keyring", ("keys",), expected=KERNEL),
    Attack("notify", "speak to systemd in the agent's name", ("notify",), expected=ALWAYS),
    Attack("groups", "leave its control groups or raise their limits", ("groups",), expected=KERNEL),
    Attack("limits", "raise its limits and priority, change those of others", ("limits",), expected=KERNEL),
    Attack("affinity", "run on cores that were not granted", ("affinity",), expected=ALWAYS, ungrouped=NEVER),
    Attack(
        "hoard-namespaces",
        "make so many namespaces that none is left for others",
        ("hoard", "namespaces"),
        expected=KERNEL,
        meanwhile=True,
    ),
    Attack(
        "hoard-descriptors",
        "have so many descriptors on their way that others can pass none",
        ("hoard", "descriptors"),
        expected=KERNEL,
        meanwhile=True,
    ),
    Attack(
        "leave-behind",
        "leave files, shared memory and queues outside of its directory",
        ("leave_behind",),
        expected=KERNEL,
    ),
    Attack(
        "leave-links",
        "links, FIFOs and set-user-id files among what is brought back",
        ("leave_files", "links"),
        ("--get", "**"),
    ),
    Attack(
        "leave-names",
        "names that are not UTF-8 among what is brought back",
        ("leave_files", "names"),
        ("--get", "**"),
        expected=ALWAYS,
    ),
    Attack(
        "swap-workdir",
        "put a link to the agent's state in the place of the working directory",
        ("leave_files", "swap"),
        ("--get", "identity/own.key", "--get", "journal", "--get", "**"),
        tells=("files of a job are not given", ("user", "namespace")),
    ),
    Attack(
        "stretch-output",
        "make its own output 4 TB long, locked, leased and unreadable",
        ("stretch_output",),
        ("-d",),
    ),
    Attack("long-time", "a time limit of 30 days", options=("--time", "30d"), expected=ALWAYS),
    Attack("everything", "all of these at once", ("everything",), expected=KERNEL),
)

ALONE = ("everything", "own_spawner", "own_limits", "leave_files", "hoard")
"""Programs that would spoil the others, or are judged by something else than what they say."""
AT_ONCE = tuple(one.words for one in ATTACKS if one.words and one.ungrouped is not NEVER and one.words[0] not in ALONE)
"""The programs that `everything` runs."""

QUICK = ("read-secrets", "change-state", "plant-fifo", "signals", "look", "trace", "neighbour-files", "escape")
"""Attacks that the suite runs."""


def named(name: str) -> Attack:
    """The attack of this name."""
    return next(one for one in ATTACKS if one.name == name)


def expected(attack: Attack, level: str, groups: bool = True) -> str:
    """What is expected of it under this level of walls, on a node with control groups or without."""
    row = attack.expected if groups or attack.ungrouped is None else attack.ungrouped
    return row[LEVELS.index(level)]
