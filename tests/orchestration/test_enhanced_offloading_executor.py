"""The import path of the guide leads to the class of the client."""

from distributed_grid.orchestration import enhanced_offloading_executor


def test_the_path_of_the_guide_names_the_class_of_the_client() -> None:
    assert enhanced_offloading_executor.EnhancedOffloadingExecutor.__module__.startswith(
        "distributed_grid.coordinator.client."
    )
    assert all(hasattr(enhanced_offloading_executor, one) for one in enhanced_offloading_executor.__all__)
