"""The sharing guide's `distributed_grid.orchestration.enhanced_offloading_executor`."""

from distributed_grid.config.settings import OffloadingMode
from distributed_grid.coordinator.client.compat.offloading import EnhancedOffloadingExecutor, OffloadingRecommendation

__all__ = ["EnhancedOffloadingExecutor", "OffloadingMode", "OffloadingRecommendation"]
