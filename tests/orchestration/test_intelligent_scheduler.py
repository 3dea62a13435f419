"""The import path of the guide leads to the class of the client."""

from distributed_grid.orchestration import intelligent_scheduler


def test_the_path_of_the_guide_names_the_class_of_the_client() -> None:
    assert intelligent_scheduler.IntelligentScheduler.__module__.startswith("distributed_grid.coordinator.client.")
    assert all(hasattr(intelligent_scheduler, one) for one in intelligent_scheduler.__all__)
