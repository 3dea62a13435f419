"""The resource management document's `distributed_grid.orchestration.cloud_provider_manager`."""

from typing import TYPE_CHECKING, Any

from distributed_grid.coordinator.core.scaling.state import Listed
from distributed_grid.coordinator.providers.base import CloudProviderBase, ProviderRefused, WorkerSpec
from distributed_grid.coordinator.providers.child import PROVIDERS, load
from distributed_grid.coordinator.providers.manager import CloudProviderManager

if TYPE_CHECKING:
    from distributed_grid.coordinator.providers.aws import AWSCloudProvider as AWSCloudProvider
    from distributed_grid.coordinator.providers.command import CommandProvider as CommandProvider
    from distributed_grid.coordinator.providers.docker_local import DockerLocalProvider as DockerLocalProvider
    from distributed_grid.coordinator.providers.gcp import GCPCloudProvider as GCPCloudProvider
    from distributed_grid.coordinator.providers.process import ProcessProvider as ProcessProvider
    from distributed_grid.coordinator.providers.slurm import SlurmProvider as SlurmProvider

__all__ = ["CloudProviderBase", "CloudProviderManager", "Listed", "ProviderRefused", "WorkerSpec"]


def __getattr__(name: str) -> Any:
    """Return the class of a provider, such as AWSCloudProvider. It is imported on first use, as it needs packages of
    its own. Raises ImportError, with how to install them."""
    for kind, where in PROVIDERS.items():
        if where.endswith(f":{name}"):
            try:
                return load(kind)
            except ProviderRefused as refused:
                raise ImportError(refused.text) from None
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
