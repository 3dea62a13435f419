"""The import path of the guide leads to the class of the client."""

from distributed_grid.orchestration import dynamic_resource_manager


def test_the_path_of_the_guide_names_the_class_of_the_client() -> None:
    assert dynamic_resource_manager.DynamicResourceManager.__module__.startswith("distributed_grid.coordinator.client.")
    assert all(hasattr(dynamic_resource_manager, one) for one in dynamic_resource_manager.__all__)


def test_the_constants_are_those_of_the_document() -> None:
    assert dynamic_resource_manager.DEFAULT_TARGET_UTILIZATION == 0.7
    assert dynamic_resource_manager.DEFAULT_SCALE_UP_THRESHOLD == 0.8
    assert dynamic_resource_manager.DEFAULT_SCALE_DOWN_THRESHOLD == 0.3
    assert dynamic_resource_manager.DEFAULT_EVALUATION_WINDOW == 300
    assert dynamic_resource_manager.DEFAULT_SCALE_UP_COOLDOWN == 300
    assert dynamic_resource_manager.DEFAULT_SCALE_DOWN_COOLDOWN == 600
    assert dynamic_resource_manager.DEFAULT_WORKER_REASSESSMENT_INTERVAL == 3600
    assert dynamic_resource_manager.DEFAULT_HISTORY_RETENTION == 86400
