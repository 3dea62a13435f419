"""The import path of the guide leads to the class of the client."""

from distributed_grid.orchestration import dynamic_resource_manager


def test_the_path_of_the_guide_names_the_class_of_the_client() -> None:
    assert dynamic_resource_manager.DynamicResourceManager.__module__.startswith("distributed_grid.coordinator.client.")
    assert all(hasattr(dynamic_resource_manager, one) for one in dynamic_resource_manager.__all__)
