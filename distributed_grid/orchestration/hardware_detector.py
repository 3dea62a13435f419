"""The resource management document's `distributed_grid.orchestration.hardware_detector`."""

from distributed_grid.agent.sampling.hardware import HardwareDetector

__all__ = ["HardwareDetector"]
