"""The GPU memory that a job used at most, from the driver's list of processes to what commands like it will need. The
driver is the stand-in at NVML's boundary; agent, job and coordinator are real.
"""

import json
import os
from pathlib import Path

from distributed_grid.coordinator.client import GridClient
from tests.e2e.scenes import scene
from tests.e2e.sharing.test_nodes import grid

GIB = 1 << 30
NAP = f"{600 + os.getpid()}.5"
"""Nobody else on this machine sleeps for so long."""
COMMAND = ["sleep", NAP]


def sleeping() -> list[int]:
    """The processes of the job, by their command line."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            argv = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if argv[:2] == [b"sleep", NAP.encode()]:
            found.append(int(name))
    return found


async def test_the_most_memory_on_a_gpu_is_reported_by_job_learned_and_shown() -> None:
    async with scene() as on:
        await on.agent("n1", cores=[0, 1], virtual=True, gpus=2)
        async with GridClient(on.url) as client:
            for _ in range(4):
                await client.record_use(COMMAND, seconds=60, gpu_memory=3 * GIB)
            job = await client.submit(COMMAND, cpus=1, gpus=1, gpu_memory="12G")
            await on.until(sleeping, "it runs")
            pid = sleeping()[0]
            for most in (3, 1):  # what it has later is less
                listed = [{"pid": pid, "memory": most * GIB}, {"pid": os.getpid(), "memory": 9 * GIB}]
                on.set_gpus("n1", [{"used": 12 * GIB, "processes": listed}, {"processes": listed[:1]}])
                await on.until(lambda: told(client, job), "its node has told of it")
            view = await client.show(job)
            assert view.used is not None and view.used.gpu_memory == 3 * GIB, "not what others have there"
            shown = grid(on, "job", "show", job).stdout
            assert "3G GPU memory" in shown
            on.set_gpus("n1", [{}, {}])
            os.kill(pid, 15)
            await client.wait(job)
            needs = {one.of: one for one in (await client.predict(COMMAND)).needs}
            assert "gpu_memory" not in needs, "four runs are too few, and one that was ended only says: at least"
            await client.record_use(COMMAND, seconds=60, gpu_memory=3 * GIB)
            await on.until(lambda: known(client), "it is learned")
        found = json.loads(grid(on, "-o", "json", "job", "show", job).stdout)["jobs"][0]
        assert found["used"]["gpu_memory_peak"] == 3 * GIB
        assert "GPU memory" in grid(on, "predict", *COMMAND).stdout


async def told(client: GridClient, job: str) -> bool:
    used = (await client.show(job)).used
    return used is not None and used.gpu_memory > 0


async def known(client: GridClient) -> bool:
    needs = (await client.predict(COMMAND)).needs
    return any(one.of == "gpu_memory" and one.value >= 3 * GIB for one in needs)
