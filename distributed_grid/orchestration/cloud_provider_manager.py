"""The resource management document's `distributed_grid.orchestration.cloud_provider_manager`."""

from distributed_grid.coordinator.core.scaling.state import Listed
from distributed_grid.coordinator.providers.base import CloudProviderBase, ProviderRefused, WorkerSpec
from distributed_grid.coordinator.providers.manager import CloudProviderManager

__all__ = ["CloudProviderBase", "CloudProviderManager", "Listed", "ProviderRefused", "WorkerSpec"]
