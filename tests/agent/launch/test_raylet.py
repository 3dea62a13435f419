"""What starts a raylet with exactly what was borrowed, and what is seen to before. Ray itself is not needed here: the
program that stands in for it says versions as Ray's own environment does."""

import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from distributed_grid.agent.launch import raylet
from distributed_grid.protocol.boosts import OVERHEAD, Boost
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.jobs import JobSpec
from distributed_grid.protocol.messages import Launch
from distributed_grid.protocol.resources import GIB, GpuShare, Grant, ResourceType

HEAD = "192.0.2.1:6379"


def boost(kind: ResourceType = ResourceType.CPU, **more: str) -> Boost:
    return Boost("gpu-master", HEAD, kind, 2000, **more)  # type: ignore[arg-type]


def launch(what: Boost, grant: Grant) -> Launch:
    spec = JobSpec(argv=("ray", "start"), boost=what, grace=15.0)
    return Launch(allocation="j-1.1", job="j-1", user="u", epoch=1, grant=grant, spec=spec)


def flags(grant: Grant) -> dict[str, str]:
    what = boost()
    row = (20000, 20001, 20002, 20003, 20004, 20005, 20006, 20050)
    argv = raylet.command(launch(what, grant), what, "lab1", Path("/usr/bin/ray"), "192.0.2.2", row, Path("/run/r"))
    assert argv[:3] == ["/usr/bin/ray", "start", "--block"]
    return {name: value for name, _, value in (word.partition("=") for word in argv[3:])}


def test_a_raylet_has_exactly_what_was_granted() -> None:
    said = flags(Grant(cores=(2, 3), memory=OVERHEAD + 4 * GIB, gpus=(GpuShare("GPU-a"), GpuShare("GPU-b"))))
    assert (said["--num-cpus"], said["--num-gpus"], said["--memory"]) == ("2", "2", str(4 * GIB))
    assert said["--resources"] == '{"boost_gpu-master": 2}'
    assert said["--labels"] == "grid-boost=j-1,grid-target=gpu-master,grid-source=lab1"
    assert (said["--address"], said["--node-ip-address"]) == (HEAD, "192.0.2.2")


def test_names_of_nodes_that_ray_takes_for_no_label_are_made_ones() -> None:
    what = replace(boost(), target="gpu master")
    argv = raylet.command(launch(what, Grant(cores=(0,))), what, "lab1-", Path("/r"), "192.0.2.2", (1,) * 8, Path("/r"))
    assert "--labels=grid-boost=j-1,grid-target=gpu_master,grid-source=lab1" in argv


def test_without_gpus_and_memory_it_says_none_as_ray_would_take_all_there_is() -> None:
    said = flags(Grant(cores=(0,)))
    assert (said["--num-cpus"], said["--num-gpus"], said["--memory"]) == ("1", "0", "0")


def test_ray_has_its_drain_within_the_grace_of_the_boost() -> None:
    said = raylet.environment(boost(), 15.0)
    assert (said["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"], said["RAY_AUTH_MODE"]) == ("10", "disabled")
    assert "RAY_AUTH_TOKEN_PATH" not in said
    assert raylet.environment(boost(), 0.0)["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"] == "0.1"


@pytest.mark.parametrize(("within", "seconds"), [(60.0, "50"), (600.5, "591"), (5.0, "30")])
def test_ray_waits_for_its_raylet_until_it_has_to_say_why_and_never_shorter_than_by_itself(
    within: float, seconds: str
) -> None:
    said = raylet.environment(replace(boost(), join_within=within), 15.0)
    assert said["RAY_raylet_start_wait_time_s"] == seconds


def test_another_version_is_refused_and_both_sides_are_named() -> None:
    raylet.check_versions(boost(ray="2.60.0", python="3.11.7"), "2.60.0", "3.11.2", "lab1")
    raylet.check_versions(boost(), "2.59.0", "3.9.1", "lab1")  # nobody knows what the cluster has: Ray will say
    with pytest.raises(GridError) as wrong:
        raylet.check_versions(boost(ray="2.60.0", python="3.11.7"), "2.59.0", "3.12.1", "lab1")
    assert wrong.value.why == "Ray 2.59.0 on lab1, 2.60.0 in the cluster; Python 3.12.1 on lab1, 3.11.7 in the cluster"


def test_versions_are_those_of_the_programs_own_python(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 2.60.0 3.11.7\n")
    program = tmp_path / "ray"
    program.write_text(f"#!{python}\n")
    for one in (python, program):
        one.chmod(0o755)
    assert raylet.versions(raylet.program(str(program))) == ("2.60.0", "3.11.7")
    python.write_text("#!/bin/sh\nexit 1\n")
    assert raylet.versions(program) == ("2.60.0", "3.11.7"), "it is asked once"
    program.unlink()
    program.write_text(f"#!{python}\n\n")  # as an installation does
    with pytest.raises(GridError, match="cannot be asked for its version"):
        raylet.versions(program)


def test_versions_of_a_program_of_our_own_python_need_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = str(tmp_path / "python")  # our own, if it is in a path with a space, cannot be named in a first line
    monkeypatch.setattr(sys, "executable", python)
    program = a_program(tmp_path / "ray", f"#!{python}\n")
    (tmp_path / "packages" / "ray-2.60.1.dist-info").mkdir(parents=True)
    (tmp_path / "packages" / "ray_elsewhere-1.0.dist-info").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path / "none"), str(tmp_path / "packages"), *sys.path])
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("a process was started"))
    assert raylet.versions(program) == ("2.60.1", platform.python_version())


def test_a_loopback_address_of_the_head_is_told_to_be_the_node_itself() -> None:
    with pytest.raises(GridError, match="cannot be reached") as refused:
        raylet.own_address("127.0.0.1:1")
    assert refused.value.why.startswith("127.0.0.1 is the node itself, and ray.address on the coordinator")


def a_program(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_the_shell_in_the_first_line_of_an_installed_program_stands_for_the_python_beside_it(tmp_path: Path) -> None:
    """As pip writes it for an environment with a long path, or one with spaces."""
    place = tmp_path / "an environment" / "bin"
    place.mkdir(parents=True)
    python = a_program(place / "python", "#!/bin/sh\necho 2.60.0 3.12.1\n")
    own = a_program(place / "ray", f"#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\n")
    (tmp_path / "ray").symlink_to(own)
    for program in (own, tmp_path / "ray"):
        assert raylet.versions(program) == ("2.60.0", "3.12.1")


def test_a_wrapper_of_somebodys_own_is_refused_with_what_to_name_instead(tmp_path: Path) -> None:
    wrapper = a_program(tmp_path / "ray", '#!/bin/sh\nexec /elsewhere/bin/ray "$@"\n')
    with pytest.raises(GridError, match="is not Ray's own program") as refused:
        raylet.versions(wrapper)
    assert refused.value.why == "its first line names /bin/sh, and there is no Python beside it"
    assert "agent.ray" in refused.value.hint
    python = a_program(tmp_path / "python", "#!/bin/sh\necho no ray here >&2; exit 1\n")
    with pytest.raises(GridError, match="cannot be asked for its version") as refused:
        raylet.versions(wrapper)
    assert refused.value.why == f"{python}: no ray here" and "agent.ray" in refused.value.hint


def test_a_node_without_ray_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(GridError, match="no ray program"):
        raylet.program(str(tmp_path / "none"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(GridError, match="no ray program"):
        raylet.program("")


def test_raylets_that_start_at_once_have_rows_of_their_own_also_where_one_has_more_cores() -> None:
    rows = [raylet.ports(21000, 22999, cores) for cores in (1, 4, 1, 8)]
    ports = [set(range(row[0], row[-1] + 1)) for row in rows]
    assert len(set().union(*ports)) == sum(map(len, ports)), "no port is in two rows"


ANOTHER = """
import sys
from distributed_grid.agent.launch import raylet
print(*raylet.ports(*map(int, sys.argv[1:])), flush=True)
input()
"""


def test_two_agents_of_one_machine_give_their_raylets_other_ports_and_one_that_is_gone_has_none() -> None:
    first = 25008 + os.getpid() % 60 * 112  # whole blocks of our own, where other tests run beside these
    said = str(first), str(first + 99), "1"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", ANOTHER, *said], stdin=pipe, stdout=pipe, text=True) as another:
        assert another.stdout is not None
        theirs = [int(port) for port in another.stdout.readline().split()]
        ours = raylet.ports(first, first + 99, 1)
        assert theirs and ours[0] > theirs[-1]
        another.communicate("\n")
    assert raylet.ports(first, first + 99, 1)[0] == theirs[0]


def test_the_ports_of_a_raylet_that_has_ended_are_given_to_the_next_one_at_once() -> None:
    first = 32008 + os.getpid() % 12 * 48  # a whole block, and below those that the kernel gives to others
    row = raylet.ports(first, first + 47, 1, allocation="j-1.1")
    with pytest.raises(GridError, match="no 42 ports in a row"):
        raylet.ports(first, first + 47, 1, allocation="j-2.1")
    raylet.ended("j-2.1")
    with pytest.raises(GridError, match="no 42 ports in a row"):
        raylet.ports(first, first + 47, 1, allocation="j-3.1")
    raylet.ended("j-1.1")
    assert raylet.ports(first, first + 47, 1, allocation="j-4.1") == row
    raylet.ended("j-4.1")


def test_a_row_of_ports_is_taken_only_where_all_of_its_services_can_listen() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        first = min(port - 3, 65535 - 2 * 42)
        row = raylet.ports(first, 65535, 1)
        assert port not in range(row[0], row[len(raylet.SERVICES)])
        assert row[0] > first and row[-1] - row[0] == len(raylet.SERVICES) + 36 - 1
        with pytest.raises(GridError, match="no 42 ports in a row"):
            raylet.ports(first, first + 41, 1)


@pytest.fixture
def short_place() -> Iterator[Path]:
    """A folder with a path that is short enough for Ray's sockets."""
    with tempfile.TemporaryDirectory(prefix="g", dir="/tmp") as made:
        yield Path(made)


def test_its_folder_is_its_own_users_alone(short_place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short_place))
    path = raylet.make_folder("j-1.1")
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o700, 0o711)
    raylet.ended("j-1.1")
    assert not path.exists() and path.parent.exists()
    path.parent.chmod(0o777)
    with pytest.raises(GridError, match="somebody else's"):
        raylet.make_folder("j-2.1")
    path.parent.rmdir()
    path.parent.symlink_to(short_place)
    with pytest.raises(GridError, match="somebody else's"):
        raylet.make_folder("j-2.1")


def test_rays_sockets_have_a_path_that_is_short_enough_also_for_a_service_of_ones_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rays = "session_2026-11-22_09-06-03_721508_4194304/sockets/plasma_store"
    for runtime in ("", "/run/user/1000000", "/run/user/10000000", "/run/" + 60 * "x"):
        monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
        assert len(str(raylet.folder("j-4l4ayiy26beo.1") / raylet.OPEN / rays)) <= 107


def test_a_runtime_folder_is_used_where_its_path_is_short_enough(
    short_place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for length, used in ((len("/run/user/1000000"), True), (len("/run/user/10000000"), False)):
        runtime = short_place / ("x" * (length - len(f"{short_place}/")))
        runtime.mkdir()
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
        assert raylet.folder("j-4l4ayiy26beo.1").is_relative_to(runtime) is used


def test_without_a_runtime_folder_of_ours_a_raylets_is_in_the_temporary_one(
    short_place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of a user goes with the last session, and a boost with neither."""
    temporary, gone = short_place / "t", short_place / "r"
    temporary.mkdir()
    gone.mkdir()
    monkeypatch.setattr(raylet, "TEMPORARY", temporary)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(gone))
    assert raylet.make_folder("j-1.1").is_relative_to(gone)
    shutil.rmtree(gone)
    path = raylet.make_folder("j-2.1")
    assert path.is_relative_to(temporary) and path.is_dir()
    raylet.ended("j-1.1")
    gone.mkdir()  # a new session
    raylet.ended("j-2.1")
    assert not path.exists() and path.parent.exists()
    if os.geteuid() == 0:
        os.chown(gone, 65534, -1)
    else:
        monkeypatch.setenv("XDG_RUNTIME_DIR", "/")
    assert raylet.folder("j-3.1").is_relative_to(temporary), "another user's is not for ours"


def test_what_ended_is_removed_from_our_own_folders_alone(short_place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = short_place / "other" / "j-1.1"
    other.mkdir(parents=True)
    monkeypatch.setattr(raylet, "TEMPORARY", short_place)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    (short_place / f"{raylet.TEMP}-{os.getuid()}").symlink_to(other.parent)
    raylet.ended("j-1.1")
    assert other.exists()


def test_threads_are_not_told_to_ray_which_tells_each_of_its_tasks() -> None:
    assert raylet.for_ray({"OMP_NUM_THREADS": "2", "PATH": "/bin"}) == {"PATH": "/bin"}
