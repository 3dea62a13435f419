"""Worker processes of pytest-xdist that are forked where another one has collected: to import and to collect ten
thousand tests takes 8 s of CPU time, and else each process does it.

xdist starts worker_process.py for each of them. The first is a worker as any other, and forks the others when it has
collected, over whose standard input and output xdist goes on. All that xdist and pytest keep for each process is
changed in a forked one.
"""

import atexit
import os
import queue
import shlex
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from execnet import gateway_base

from tests.worker_process import LISTENING

PROGRAM = Path(__file__).with_name("worker_process.py")


def start(specs: Sequence[Any], path: Path) -> None:
    """Let xdist start these workers so, which meet at a socket that is not there yet."""
    if len(specs) > 1 and all(spec.popen and not spec.python and not spec.chdir for spec in specs):
        for number, spec in enumerate(specs):
            spec.python = shlex.join([sys.executable, str(PROGRAM), str(path), str(number)])


class Gateway(gateway_base.WorkerGateway):
    """How xdist reaches a forked worker. It asks for things to be done, the last of which is to be a worker."""

    def __init__(self, stdin: int, stdout: int) -> None:
        model = gateway_base.get_execmodel("main_thread_only")
        io: Any = gateway_base.Popen2IO(open(stdout, "wb"), open(stdin, "rb"), model)  # noqa: SIM115 (to the end)
        super().__init__(io, id="forked-worker")
        self._executetask_complete = None
        self._tasks: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
        self._over = threading.Event()
        self.worker: Any = None
        io.infile.readline()  # the source of that module
        io.write(b"1")
        self._initreceive()

    def _local_schedulexec(self, channel: Any, sourcetask: bytes) -> None:
        self._tasks.put((channel, gateway_base.loads_internal(sourcetask)))

    def _terminate_execution(self) -> None:
        """xdist wants this process to end, or has ended: as any other worker it has some seconds."""
        if not self._over.wait(5.0):
            os.kill(os.getpid(), signal.SIGINT)
        if not self._over.wait(10.0):
            os._exit(1)

    def until_worker(self) -> Any:
        """The channel of a worker, once xdist asks for one."""
        while self.worker is None:
            channel, task = self._tasks.get()
            if task[2] is None:  # the name of a function; to be a worker is a module
                self.worker = channel
            else:
                self.executetask((channel, task))
        return self.worker

    def leave(self) -> None:
        """Wait until xdist ends this process."""
        self._over.set()
        if self.worker is not None:
            self.worker.close()
        self.join()


_forked = False
"""Whether this process was forked, which then must not go back to what the first worker has begun."""
_gateway: Gateway | None = None


def fork(config: pytest.Config) -> None:
    """In the first worker: fork the others. Returns in each of them."""
    global _forked
    if (number := os.environ.pop(LISTENING, None)) is None:
        return
    with socket.socket(fileno=int(number)) as listening:
        for _ in range(config.workerinput["workercount"] - 1):  # type: ignore[attr-defined]
            asking, _ = listening.accept()
            _, files, _, _ = socket.recv_fds(asking, 1, 2)
            with warnings.catch_warnings():
                # Of threads that are left behind: the only one reads what xdist sends to the first worker.
                warnings.simplefilter("ignore", DeprecationWarning)
                child = os.fork()
            if child == 0:
                if os.fork():
                    os._exit(0)  # tests look at the children of their process, and the workers are none of them
                _forked = True
                listening.close()
                become(config, asking.detach(), *files)
                return
            os.waitpid(child, 0)
            asking.close()
            for file in files:
                os.close(file)


def become(config: pytest.Config, asking: int, stdin: int, stdout: int) -> None:
    """Make a worker of its own of this process, which was forked."""
    global _gateway
    interactor = next(one for one in config.pluginmanager.get_plugins() if type(one).__name__ == "WorkerInteractor")
    first = interactor.channel.gateway._io
    nothing = os.open(os.devnull, os.O_RDWR)
    for file in (first.infile, first.outfile):
        os.dup2(nothing, file.fileno(), inheritable=False)
    os.close(nothing)
    for number in (stdin, stdout):
        os.set_inheritable(number, False)
    os.write(asking, b".")  # it is open as long as this process is there
    _gateway = Gateway(stdin, stdout)
    interactor.channel = _gateway.until_worker()
    told, _, options, _ = interactor.channel.receive()
    config.workerinput.update(told)  # type: ignore[attr-defined]
    interactor.workerid = os.environ["PYTEST_XDIST_WORKER"] = told["workerid"]
    config.option.basetemp = options.get("basetemp")
    config._tmp_path_factory = pytest.TempPathFactory.from_config(config, _ispytest=True)  # type: ignore[attr-defined]
    if (capturing := config.pluginmanager.getplugin("capturemanager")) is not None:
        capturing.stop_global_capturing()
        capturing.start_global_capturing()
        capturing.suspend_global_capture()
    interactor.pytest_sessionstart(interactor.session)  # tells xdist that this worker is ready


def over() -> None:
    """All tests of this process are over: if it was forked, this does not return."""
    if (number := os.environ.pop(LISTENING, None)) is not None:
        os.close(int(number))  # it did not come to fork
    if not _forked:
        return
    try:
        if _gateway is not None:
            _gateway.leave()
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    finally:
        os._exit(0)
