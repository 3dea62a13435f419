"""The import path of the guide leads to the class that orders machines."""

import sys

import pytest

from distributed_grid.orchestration import cloud_provider_manager


def test_the_path_of_the_guide_names_the_class() -> None:
    assert cloud_provider_manager.CloudProviderManager.__module__.startswith("distributed_grid.coordinator.providers.")
    assert all(hasattr(cloud_provider_manager, one) for one in cloud_provider_manager.__all__)


@pytest.mark.parametrize(
    ("name", "needs"),
    [
        ("AWSCloudProvider", "boto3"),
        ("GCPCloudProvider", "google.auth"),
        ("DockerLocalProvider", "docker"),
        ("ProcessProvider", "os"),
        ("SlurmProvider", "os"),
        ("CommandProvider", "os"),
    ],
)
def test_each_provider_can_be_imported_from_there(name: str, needs: str) -> None:
    pytest.importorskip(needs)
    assert issubclass(getattr(cloud_provider_manager, name), cloud_provider_manager.CloudProviderBase)


def test_a_provider_whose_package_is_missing_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    monkeypatch.delitem(sys.modules, "distributed_grid.coordinator.providers.aws", raising=False)
    with pytest.raises(ImportError, match=r"-m pip install .*boto3"):
        from distributed_grid.orchestration.cloud_provider_manager import AWSCloudProvider  # noqa: F401
    assert not hasattr(cloud_provider_manager, "AzureCloudProvider")


def test_it_has_the_methods_of_the_document() -> None:
    for name in ("add_provider", "create_worker", "terminate_worker", "get_worker_status", "get_available_resources"):
        assert callable(getattr(cloud_provider_manager.CloudProviderManager, name))
        assert name == "add_provider" or callable(getattr(cloud_provider_manager.CloudProviderBase, name))
