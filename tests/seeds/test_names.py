"""The names of the intelligent sharing guide: each is there and takes what the guide gives it, and each part of the
guide has a line in docs/seed-names.md with a test that there is."""

import inspect
import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "seed-names.md").read_text()
PARTS = PAGE.partition("## The intelligent sharing guide, part by part")[2].partition("\n## ")[0]
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
}
"""The classes of the guide's API reference by their import paths, and its calls with what it gives them."""
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


def test_each_part_is_shown_by_tests_that_there_are() -> None:
    lines = [one for one in PARTS.splitlines() if one.startswith("| ")][1:]
    assert len(lines) > 20
    for line in lines:
        named = re.findall(r"`(tests/[^`]+)`", line.split(" | ")[-1])
        assert named and all((ROOT / one).is_file() for one in named), line
