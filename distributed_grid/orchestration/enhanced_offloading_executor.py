"""The sharing guide's `distributed_grid.orchestration.enhanced_offloading_executor`."""

from distributed_grid.coordinator.client_offloading import EnhancedOffloadingExecutor, OffloadingRecommendation
from distributed_grid.coordinator.config import OffloadingMode

__all__ = ["EnhancedOffloadingExecutor", "OffloadingMode", "OffloadingRecommendation"]
