"""The import path of the guide leads to the class of the client."""

from distributed_grid.orchestration import resource_sharing_orchestrator


def test_the_path_of_the_guide_names_the_class_of_the_client() -> None:
    assert resource_sharing_orchestrator.ResourceSharingOrchestrator.__module__.startswith(
        "distributed_grid.coordinator.client."
    )
    assert all(hasattr(resource_sharing_orchestrator, one) for one in resource_sharing_orchestrator.__all__)
