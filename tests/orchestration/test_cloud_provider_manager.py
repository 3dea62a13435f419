"""The import path of the guide leads to the class that orders machines."""

from distributed_grid.orchestration import cloud_provider_manager


def test_the_path_of_the_guide_names_the_class() -> None:
    assert cloud_provider_manager.CloudProviderManager.__module__.startswith("distributed_grid.coordinator.providers.")
    assert all(hasattr(cloud_provider_manager, one) for one in cloud_provider_manager.__all__)


def test_it_has_the_methods_of_the_document() -> None:
    for name in ("add_provider", "create_worker", "terminate_worker", "get_worker_status", "get_available_resources"):
        assert callable(getattr(cloud_provider_manager.CloudProviderManager, name))
        assert name == "add_provider" or callable(getattr(cloud_provider_manager.CloudProviderBase, name))
