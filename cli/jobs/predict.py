"""`grid predict` and `run-shared --auto`: the needs of a command, predicted from what its runs used."""

import math
import time
from typing import Any

import click
from msgspec.structs import replace

from distributed_grid.cli import formatting
from distributed_grid.cli.context import Invocation, complete_files, current, printable
from distributed_grid.cli.lazy import Command
from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.jobs import RetryOn
from distributed_grid.protocol.messages import Need, Needs, Predict, Submission
from distributed_grid.protocol.messages.needs import MOST_FEATURES, TRUSTED, excerpt, whole_cores
from distributed_grid.protocol.placement import NO_CONSTRAINTS
from distributed_grid.protocol.resources import MILLI, MOST_FINITE, format_bytes
from distributed_grid.protocol.text import counted, format_duration

FEWEST_BYTES = 32 << 20
STEP = 1 << 20
"""Memory is asked for in steps of a MiB."""
RETRIES, MORE = 2, 2 * MILLI
"""How often a job with predicted memory is retried when that was too little, and with how many times as much
(thousandths)."""
LONGEST_NAME = 1024
"""Characters of the name of a feature."""
NAMES = {
    "memory": "memory",
    "cores": "cores",
    "seconds": "run time, median",
    "planned": "run time, nine in ten",
    "gpu_memory": "GPU memory",
}


def parse_features(words: tuple[str, ...]) -> dict[str, float]:
    """Parse features such as `batch=64`. Raises BadValue."""
    found: dict[str, float] = {}
    for word in words:
        name, equals, text = word.partition("=")
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not name or not equals or not math.isfinite(number):
            raise BadValue(f"--feature {word!r} is not a number by name", hint="write it as NAME=N, such as batch=64")
        if abs(number) > MOST_FINITE or len(name) > LONGEST_NAME:
            why = f"a name has at most {LONGEST_NAME} characters, and a number at most {MOST_FINITE:g}"
            raise BadValue(f"--feature {word:.80} is out of bounds", why)
        if name in found:
            raise BadValue(f"--feature {name} is given twice", hint="give one number for each name")
        found[name] = number
    if len(found) > MOST_FEATURES:
        raise BadValue(
            f"{len(found)} features are too many", hint=f"give at most {MOST_FEATURES}; the first three count"
        )
    return found


@click.command(cls=Command, context_settings={"allow_interspersed_args": False})
@click.option("--feature", "features", multiple=True, metavar="NAME=N", help="As in run-shared; repeatable.")
@click.option("--within", metavar="TIME", help="Show how likely it runs at most this long, such as 30m.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, shell_complete=complete_files)
def predict(command: tuple[str, ...], features: tuple[str, ...], within: str | None) -> None:
    """Predict what a command will need, from what runs like it used.

    Runs are like it if they differ only in numbers, paths and hashes. Tier `ml` is a straight line by a number of the
    command or the size of what is shipped; tier `statistics` is order statistics. Nothing is predicted before five runs
    are known. The confidence is the share of the last 200 predictions that were enough. Memory is enough for 95 of 100
    runs; cores are the most used at once."""
    from distributed_grid.coordinator.client.submission import as_argv
    from distributed_grid.protocol.text import parse_duration

    invocation = current()
    seconds = parse_duration(within) if within is not None else 0.0
    asked = Predict(0, excerpt(as_argv(command)), features=parse_features(features), within=seconds)
    found: Needs = invocation.ask(lambda number: replace(asked, id=number))
    content = {
        "shape": found.shape,
        "needs": {one.of: need_json(one) for one in found.needs},
        "chance": round(found.chance, 4) if found.chance >= 0 else None,
        "samples": found.samples,
        "trouble": found.trouble or None,
    }
    text = printable(found.shape) + "\n"
    if found.needs:
        header = ("NEED", "VALUE", "TIER", "SAMPLES", "CONFIDENCE", "WHY")
        text += formatting.table(invocation, header, map(_row, found.needs))
    else:
        text += "nothing is known: fewer than 5 runs like it, of its program, or of yours have ended\n"
    if seconds and found.chance >= 0:
        text += f"{100 * found.chance:.0f} % of runs like it end within {format_duration(seconds)}\n"
    quiet = "".join(f"{one.of} {one.value:.6g}\n" for one in found.needs)
    formatting.show(invocation, content, text, quiet)
    if found.trouble:
        invocation.say(f"what runs use is not recorded now: {found.trouble}")


def _row(one: Need) -> list[str]:
    confidence = f"{100 * one.confidence:.0f} %" if one.confidence >= 0 else "-"
    return [NAMES.get(one.of, one.of), need_words(one), one.tier, str(one.samples), confidence, one.why]


def need_words(one: Need) -> str:
    """Format the value of a need."""
    if one.of in ("memory", "gpu_memory"):
        return format_bytes(int(one.value))
    return f"{one.value:.1f}" if one.of == "cores" else format_duration(one.value)


def need_json(one: Need) -> dict[str, Any]:
    """A need in JSON: bytes, cores or seconds."""
    return {
        "value": round(one.value, 3),
        "tier": one.tier,
        "level": one.level,
        "samples": one.samples,
        "confidence": round(one.confidence, 4) if one.confidence >= 0 else None,
        "why": one.why,
    }


def _predicted(invocation: Invocation, submission: Submission, unshipped: bool, within: float = 0.0) -> Needs:
    """Return the known needs of a submission; with a reason in place of them if the grid does not report any."""
    from distributed_grid.coordinator.client.session import RequestRefused

    spec, array = submission.spec, submission.array is not None
    asked = Predict(0, excerpt(spec.argv), spec.bundle, array, spec.features, within, unshipped=unshipped)
    try:
        answer: Needs = invocation.ask(lambda number: replace(asked, id=number))
    except RequestRefused as refused:
        return Needs(0, "", (), trouble=refused.what)
    return answer


def _not_known(answer: Needs) -> str:
    """Why nothing is known."""
    return answer.trouble or "fewer than 5 runs like it are known"


def filled(invocation: Invocation, submission: Submission, cores_said: bool, unshipped: bool) -> Submission:
    """The submission, with predictions for the needs that the user did not state; tells the user about them.
    `unshipped`: nothing is shipped with it, so that it has no bundle."""
    request = submission.request
    answer = _predicted(invocation, submission, unshipped)
    known = {one.of: one for one in answer.needs if one.level in TRUSTED}
    wanted, said = request.resources, []
    if (memory := known.get("memory")) is not None and not wanted.memory:
        size = -(-max(FEWEST_BYTES, int(memory.value)) // STEP) * STEP
        wanted = replace(wanted, memory=size)
        said.append(f"{format_bytes(size)} of memory ({_sure(memory)})")
    if (cores := known.get("cores")) is not None and not cores_said:
        count = whole_cores(cores.value)
        wanted = replace(wanted, cpu=count * MILLI)
        said.append(f"{counted(count, 'core')} ({_sure(cores)})")
    constraints = request.constraints or NO_CONSTRAINTS
    if (on_gpu := known.get("gpu_memory")) is not None and wanted.gpu and not constraints.gpu_memory:
        size = -(-int(on_gpu.value) // STEP) * STEP
        constraints = replace(constraints, gpu_memory=size)
        said.append(f"{format_bytes(size)} free on each GPU ({_sure(on_gpu)})")
    if not said:
        why = "all of it was said" if known else _not_known(answer)
        invocation.say(f"--auto: nothing is asked for by itself, {why}")
        return submission
    request = replace(request, resources=wanted, constraints=constraints if on_gpu is not None else request.constraints)
    again = ""
    if wanted.memory and not submission.request.resources.memory and not request.retry_on:
        request = replace(request, retry_on=(RetryOn.OOM,), retries=RETRIES, retry_memory=MORE)
        again = "; if that is too little it is run again with more"
    invocation.say(f"--auto: asks for {' and '.join(said)}{again}")
    return replace(submission, request=request)


def say_chance(invocation: Invocation, submission: Submission, unshipped: bool) -> None:
    """Print how likely a job that starts now ends by the time of `--finish-by`. `unshipped`: as in `filled`."""
    left = submission.spec.finish_by - time.time()
    if left <= 0:
        invocation.say("--finish-by: that is over")
        return
    answer = _predicted(invocation, submission, unshipped, left)
    if answer.chance < 0:
        invocation.say(f"--finish-by: it is not known whether it ends by then: {_not_known(answer)}")
        return
    within = format_duration(round(left))
    invocation.say(f"--finish-by: {100 * answer.chance:.0f} % of runs like it end within {within}, if it starts now")


def _sure(one: Need) -> str:
    enough = f", enough in {100 * one.confidence:.0f} %" if one.confidence >= 0 else ""
    return f"{one.samples} runs{enough}"
