"""The import path of the guide leads to the class of the client."""

from distributed_grid.orchestration import resource_performance_predictor


def test_the_path_of_the_guide_names_the_class_of_the_client() -> None:
    assert resource_performance_predictor.ResourcePerformancePredictor.__module__.startswith(
        "distributed_grid.coordinator.client."
    )
    assert all(hasattr(resource_performance_predictor, one) for one in resource_performance_predictor.__all__)
