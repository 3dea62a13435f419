"""The import path of the guide leads to the class of the client."""

from distributed_grid.monitoring import resource_metrics


def test_the_path_of_the_guide_names_the_class_of_the_client() -> None:
    assert resource_metrics.ResourceMetricsCollector.__module__.startswith("distributed_grid.coordinator.client.")
    assert all(hasattr(resource_metrics, one) for one in resource_metrics.__all__)
