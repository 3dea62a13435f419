"""The resource management document's `distributed_grid.orchestration.resource_performance_predictor`."""

from distributed_grid.coordinator.client.compat.predictor import (
    DEFAULT_MIN_SAMPLES_FOR_ML,
    DEFAULT_MIN_SAMPLES_FOR_STATS,
    DEFAULT_PREDICTION_CONFIDENCE_THRESHOLD,
    DEFAULT_PREDICTION_UPDATE_INTERVAL,
    PredictedResources,
    ResourcePerformancePredictor,
)

__all__ = [
    "DEFAULT_MIN_SAMPLES_FOR_ML",
    "DEFAULT_MIN_SAMPLES_FOR_STATS",
    "DEFAULT_PREDICTION_CONFIDENCE_THRESHOLD",
    "DEFAULT_PREDICTION_UPDATE_INTERVAL",
    "PredictedResources",
    "ResourcePerformancePredictor",
]
