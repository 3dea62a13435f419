from pathlib import Path

from distributed_grid.agent.sampling.host import cpu_list, numa_nodes, pci_node, smt_threads


def machine(root: Path, **nodes: str) -> Path:
    for name, cores in nodes.items():
        folder = root / "devices/system/node" / name
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(cores + "\n")
    return root


def test_the_cores_of_each_numa_node_are_those_the_agent_manages(tmp_path: Path) -> None:
    root = machine(tmp_path, node0="0-3,8-11", node1="4-7,12-15")
    assert numa_nodes((0, 1, 4, 9), root) == ((0, 1, 9), (4,))


def test_a_machine_that_tells_nothing_or_not_of_all_cores_has_no_topology(tmp_path: Path) -> None:
    assert numa_nodes((0, 1), tmp_path) == ()
    assert numa_nodes((0, 1, 7), machine(tmp_path, node0="0-3")) == ()


def test_cores_that_are_hardware_threads_of_one_physical_core_are_told_as_far_as_the_agent_manages_them(
    tmp_path: Path,
) -> None:
    for core, threads in enumerate(("0,4", "1,5", "2", "x", "0,4", "1,5")):
        folder = tmp_path / f"devices/system/cpu/cpu{core}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(threads + "\n")
    assert smt_threads((0, 1, 2, 3, 4), tmp_path) == ((0, 4),)
    assert smt_threads(range(7), tmp_path) == ((0, 4), (1, 5))


def test_the_numa_node_of_a_gpu_is_that_of_its_pci_device(tmp_path: Path) -> None:
    device = tmp_path / "bus/pci/devices/0000:3b:00.0"
    device.mkdir(parents=True)
    (device / "numa_node").write_text("1\n")
    assert pci_node("00000000:3B:00.0", tmp_path) == 1
    assert pci_node("0000:3c:00.0", tmp_path) == -1


def test_a_list_of_cores_is_read_as_the_kernel_writes_it() -> None:
    assert cpu_list("0-2,5\n") == (0, 1, 2, 5) and cpu_list("\n") == ()


def test_this_machine_has_each_of_its_cores_on_one_numa_node_at_most() -> None:
    cores = tuple(range(2))
    assert sorted(core for node in numa_nodes(cores) for core in node) in ([], list(cores))
