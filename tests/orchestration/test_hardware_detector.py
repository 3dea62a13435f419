"""The import path of the issue leads to the class of the agent."""

from distributed_grid.orchestration import hardware_detector


def test_the_path_names_the_class_of_the_agent() -> None:
    assert hardware_detector.HardwareDetector.__module__ == "distributed_grid.agent.sampling.hardware"
    assert all(hasattr(hardware_detector, one) for one in hardware_detector.__all__)
