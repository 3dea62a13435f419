"""The names of the intelligent sharing guide and of the resource management document: each is there and takes what the
document gives it, and each part has a line in docs/seed-names.md with a test that there is."""

import inspect
import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "seed-names.md").read_text()
PARTS = PAGE.partition("## The intelligent sharing guide, part by part")[2].partition("\n## ")[0]
MANAGEMENT = PAGE.partition("## The resource management document, part by part")[2].partition("\n## ")[0]
REQUEST = ("gpu-master", "cpu", 2.0, "high", 30)
CALLS: dict[str, dict[str, tuple[object, ...]]] = {
    "distributed_grid.monitoring.resource_metrics.ResourceMetricsCollector": {
        "start": (),
        "stop": (),
        "get_all_latest_snapshots": (),
        "get_resource_trend": ("gpu-master", "cpu"),
        "get_cluster_summary": (),
    },
    "distributed_grid.orchestration.resource_sharing_manager.ResourceSharingManager": {
        "request_resource": REQUEST,
        "release_resource": ("j-one",),
        "get_resource_status": (),
    },
    "distributed_grid.orchestration.intelligent_scheduler.IntelligentScheduler": {
        "schedule_task": ({},),
        "complete_task": ("j-one",),
        "get_scheduling_status": (),
    },
    "distributed_grid.orchestration.resource_sharing_orchestrator.ResourceSharingOrchestrator": {
        "initialize": (),
        "start": (),
        "stop": (),
        "get_cluster_status": (),
        "request_resources": REQUEST,
        "release_resources": ("j-one",),
        "get_node_resource_snapshots": (),
    },
    "distributed_grid.orchestration.enhanced_offloading_executor.EnhancedOffloadingExecutor": {
        "execute_offloading": (object(),),
    },
    "distributed_grid.orchestration.dynamic_resource_manager.DynamicResourceManager": {
        "register_worker": ("w1", {}),
        "update_worker_resources": ("w1", {}),
        "reserve_resources": ("w1", "t1", {}),
        "release_resources": ("j-one",),
        "calculate_task_worker_fitness": ("w1", {}),
        "check_resource_availability": ("w1", {}),
        "evaluate_scaling": (),
    },
    "distributed_grid.orchestration.resource_performance_predictor.ResourcePerformancePredictor": {
        "record_task_execution": ({}, {}),
        "predict_resource_requirements": ({},),
        "train_models": (),
        "calculate_batch_scaling_factor": ({}, 64),
    },
    "distributed_grid.orchestration.cloud_provider_manager.CloudProviderManager": {
        "add_provider": ("mine", object()),
        "create_worker": ("aws", {}, "cpu"),
        "terminate_worker": ("aws", "w1"),
        "get_worker_status": ("aws", "w1"),
        "get_available_resources": ("aws",),
    },
    "distributed_grid.orchestration.hardware_detector.HardwareDetector": {"get_capabilities": ()},
}
"""The classes of both documents by their import paths, and their calls with what these give them."""
NAMED: dict[str, dict[str, tuple[str, ...]]] = {
    "distributed_grid.orchestration.dynamic_resource_manager.DynamicResourceManager": {
        "reserve_resources": ("worker_id", "task_id", "resource_requirements"),
    },
    "distributed_grid.orchestration.cloud_provider_manager.CloudProviderManager": {
        "create_worker": ("provider", "resources", "worker_type"),
        "terminate_worker": ("provider", "worker_id"),
    },
}
"""What the resource management document gives by name."""
CLASSES = "CloudProviderBase AWSCloudProvider GCPCloudProvider DockerLocalProvider".split()
KEYS = (
    "aws gcp docker_local region instance_types credentials spot_instance_enabled project zone machine_types "
    "credentials_file preemptible_enabled image cpu_limit memory_limit network cores physical_cores available_cores "
    "total_mb available_mb devices available_devices total_memory_mb available_memory_mb worker_resources "
    "resource_reservations worker_tasks task_reservation resource_tracker_thread worker_reassessment_thread"
).split()
WORDS = (
    "enabled mode policy rebalance_interval_seconds excess_threshold can_share max_share_cpu max_share_memory_gb "
    "max_share_gpu priority offload_only share_and_offload dynamic_balancing conservative balanced aggressive "
    "predictive"
).split()


@pytest.mark.parametrize("path", CALLS)
def test_each_call_of_the_guide_is_there_and_has_a_line(path: str) -> None:
    module, name = path.rsplit(".", 1)
    assert f"from {module} import {name}`" in PAGE
    found = getattr(import_module(module), name)
    for call, given in CALLS[path].items():
        inspect.signature(getattr(found, call)).bind(None, *given)
        assert re.search(rf"[`. ]{call}\(", PAGE), f"{call} has no line in docs/seed-names.md"


@pytest.mark.parametrize("word", WORDS)
def test_each_key_and_value_of_the_guide_has_a_line(word: str) -> None:
    assert f"`{word}`" in PARTS


@pytest.mark.parametrize("path", NAMED)
def test_what_is_given_by_name_has_that_name(path: str) -> None:
    module, name = path.rsplit(".", 1)
    for call, given in NAMED[path].items():
        inspect.signature(getattr(getattr(import_module(module), name), call)).bind(None, **dict.fromkeys(given))


@pytest.mark.parametrize("word", [*CLASSES, *KEYS])
def test_each_class_and_key_of_the_resource_management_document_has_a_line(word: str) -> None:
    assert f"`{word}`" in MANAGEMENT


@pytest.mark.parametrize(("parts", "least"), [(PARTS, 20), (MANAGEMENT, 12)], ids=["sharing", "management"])
def test_each_part_is_shown_by_tests_that_there_are(parts: str, least: int) -> None:
    lines = [one for one in parts.splitlines() if one.startswith("| ")][1:]
    assert len(lines) > least
    for line in lines:
        named = re.findall(r"`(tests/[^`]+)`", line.split(" | ")[-1])
        assert named and all((ROOT / one).is_file() for one in named), line
