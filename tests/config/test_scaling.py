"""`scaling`, `providers` and `pools`: the keys of seed and issue are read, and what contradicts itself is refused."""

from pathlib import Path
from typing import Any

import pytest

from distributed_grid.config.scaling import scaling_of
from distributed_grid.config.settings import ClusterConfig, ConfigError, load
from distributed_grid.protocol.resources import GIB, Resources
from distributed_grid.protocol.scaling.pools import NO_SCALING, Billing, Limits, Orphans, Scaling, ScalingMode

POOLS = """
providers:
  aws:
    region: us-west-2
    spot_instance_enabled: true
    instance_types: {cpu: c5.xlarge, gpu: g4dn.xlarge}
    credentials: {access_key_id: "${AWS_ACCESS_KEY_ID}", secret_access_key: "${AWS_SECRET_ACCESS_KEY}"}
  gcp: {project: mine, zone: us-central1-a, machine_types: {cpu: n2-standard-4}, preemptible_enabled: true}
  docker_local: {image: "worker:latest", cpu_limit: 4, memory_limit: 16g, network: host}
pools:
  - {name: burst, provider: aws, types: [cpu, c5a.xlarge], zones: [a, b], min: 0, max: 10, idle: 10m, join_within: 10m,
     life: 12h, labels: {cloud: aws}, price: {c5.xlarge: 0.17, c5a.xlarge: 0.154}, billing: hour,
     shape: {c5.xlarge: {cpus: 4, memory: 8G}, c5a.xlarge: {cpus: 4, memory: 8G, gpus: 1, gpu_model: T4}}}
  - {name: hpc, provider: slurm, partition: p1, cpus: 32, memory: 120G, life: 4h, backlog: 2, max: 50, price: 0}
  - {name: here, provider: docker_local}
  - {name: google, provider: gcp, types: [cpu], cpus: 4, memory: 16G}
scaling: {mode: act, max_workers: 20, max_cost_per_hour: 5.0, max_cost_per_day: 60.0, orphans: report}
"""


SEED = """\
# Example configuration file
{
  "aws": {
    "region": "us-west-2",
    "instance_types": {
      "cpu": "c5.xlarge",
      "gpu": "g4dn.xlarge"
    },
    "credentials": {
      "access_key_id": "${AWS_ACCESS_KEY_ID}",
      "secret_access_key": "${AWS_SECRET_ACCESS_KEY}"
    },
    "spot_instance_enabled": true
  },
  "gcp": {
    "project": "your-project-id",
    "zone": "us-central1-a",
    "machine_types": {
      "cpu": "n2-standard-4",
      "gpu": "n1-standard-4-nvidia-tesla-t4"
    },
    "credentials_file": "/path/to/credentials.json",
    "preemptible_enabled": true
  },
  "docker_local": {
    "image": "ipfs-accelerate-worker:latest",
    "cpu_limit": 4,
    "memory_limit": "16g",
    "network": "host"
  }
}
"""


def read(tmp_path: Path, text: str) -> ClusterConfig:
    file = tmp_path / "grid.yaml"
    file.write_text(text)
    return load(file, environment={})


def scaling(tmp_path: Path, text: str) -> Scaling:
    config = read(tmp_path, text)
    return scaling_of(config.scaling, config.providers, config.pools)


def refused(tmp_path: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    return "\n".join(caught.value.lines())


def pool(**keys: Any) -> str:
    given = {"name": "p", "provider": "process", "cpus": 4, "memory": "8G"} | keys
    return "pools: [{" + ", ".join(f"{key}: {value}" for key, value in given.items()) + "}]\n"


def test_nothing_configured_is_no_pool(tmp_path: Path) -> None:
    assert scaling(tmp_path, "name: lab\n") == NO_SCALING


def test_the_keys_of_the_seed_and_of_the_issue_are_read(tmp_path: Path) -> None:
    found = scaling(tmp_path, POOLS)
    burst, hpc, here, google = found.pools
    assert found.mode is ScalingMode.ACT and found.orphans is Orphans.REPORT
    assert found.limits == Limits(max_workers=20, max_cost_per_hour=5.0, max_cost_per_day=60.0)
    assert [(one.type, one.price) for one in burst.shapes] == [("c5.xlarge", 0.17), ("c5a.xlarge", 0.154)]
    assert burst.shapes[1].resources == Resources(4000, 8 * GIB, 1000) and burst.shapes[1].gpu_model == "T4"
    assert burst.spot and burst.zones == ("a", "b") and burst.billing is Billing.HOUR and burst.life == 43_200
    assert hpc.shapes[0].resources == Resources(32_000, 120 * GIB) and hpc.shapes[0].price == 0 and hpc.backlog == 2
    assert here.shapes[0].resources == Resources(4000, 16 * GIB) and here.shapes[0].price is None
    assert (burst.queue_within, hpc.queue_within) == (0, 86_400)
    assert google.spot and google.zones == ("us-central1-a",) and google.shapes[0].type == "n2-standard-4"


def test_the_numbers_of_the_seed_are_the_defaults() -> None:
    assert (NO_SCALING.target, NO_SCALING.up, NO_SCALING.down) == (0.7, 0.8, 0.3)
    assert (NO_SCALING.window, NO_SCALING.up_cooldown, NO_SCALING.down_cooldown) == (300, 300, 600)
    assert (NO_SCALING.reassessment, NO_SCALING.retention) == (3600, 86_400)
    assert NO_SCALING.mode is ScalingMode.PLAN


def test_the_seeds_example_of_providers_is_read_as_it_stands_there(tmp_path: Path) -> None:
    found = read(tmp_path, SEED).providers
    assert found == read(tmp_path, f'{{"providers": {SEED.partition(chr(10))[2]}}}').providers
    assert found.aws.region == "us-west-2" and found.aws.credentials.access_key_id == "${AWS_ACCESS_KEY_ID}"
    assert found.gcp.machine_types["gpu"] == "n1-standard-4-nvidia-tesla-t4" and found.gcp.preemptible_enabled
    assert (found.docker_local.cpu_limit, found.docker_local.memory_limit) == (4, "16g")
    assert "aws.region says another value" in refused(tmp_path, "providers: {aws: {region: a}}\naws: {region: b}\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (pool(mx=3), "did you mean 'max'?"),
        (pool(provider="proces"), "did you mean 'process'?"),
        (pool(name="Burst"), "a pool cannot be called 'Burst'"),
        (pool(name="x" * 63), "up to 24 characters"),
        (pool(types=f"[{'x' * 256}]"), "longer than 255 characters"),
        (pool(zones=f"[a, {'z' * 5000}]"), "longer than 255 characters"),
        (pool(labels=f"{{kind: {'x' * 256}}}"), "longer than 255 characters"),
        (pool(price=".nan"), "is not a price per hour from 0 up"),
        (pool(price=-0.1), "is not a price per hour from 0 up"),
        (pool(price=".inf"), "is not a price per hour from 0 up"),
        (pool(price="-.inf"), "is not a price per hour from 0 up"),
        (pool(price="cheap"), "is not a price per hour from 0 up"),
        (pool(types="[c5]", price="{c5: -1}"), "is not a price per hour from 0 up"),
        (pool(types="[c5]", price="{c5: .nan}"), "is not a price per hour from 0 up"),
        (pool(max_cost_per_day=-1), "is not a price from 0 up"),
        (pool(max_cost_per_hour=".inf"), "is not a price from 0 up"),
        (pool(price="{c5: 1}"), "price names the type 'c5', which is not in types"),
        (pool(shape="{x: {cpu: 4}}"), "did you mean 'cpus'?"),
        (pool(cpus=0), "it is not known how many cores"),
        (pool(idle="30s"), "machines would end and come again in turn"),
        (pool(boot="20m"), "no machine would join"),
        (pool(life="5m"), "hardly run anything"),
        (pool(abandoned_after="59s"), "machines would end whenever the coordinator is started again"),
        (pool(min=5, max=2), "min (5) is more than max (2)"),
        (pool(min=5) + "scaling: {max_workers: 4}\n", "the pools are to have 5 at least"),
        ("pools: [{provider: process}]\n", "pools[0] has no name"),
        ("pools: {a: 1}\n", "pools must be a list"),
        (pool() + "scaling: {scale_down_threshold: 0.8}\n", "would oscillate"),
        (pool() + "scaling: {target_utilization: 0.2}\n", "does not lie between"),
        ("scaling: {max_worker: 3}\n", "did you mean 'max_workers'?"),
        ("scaling: {max_cost_per_hour: .nan}\n", "is not a price"),
        ("scaling: {max_cost_per_day: -0.5}\n", "is not a price"),
        ("providers: {awz: {region: x}}\n", "did you mean 'aws'?"),
        ("providers: {aws: {credentials: {secret_access_key: hunter2}}}\n", "secrets stand in no file"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_a_suggestion(tmp_path: Path, text: str, said: str) -> None:
    assert said in refused(tmp_path, text)


def test_two_pools_of_one_name_are_refused(tmp_path: Path) -> None:
    both = (
        "pools: [{name: p, provider: process, cpus: 1, memory: 1G}, {name: p, provider: process, cpus: 1, memory: 1G}]"
    )
    assert "listed twice" in refused(tmp_path, both)


def test_a_pool_is_shown_with_its_origin(tmp_path: Path) -> None:
    rows = {row.name: row for row in read(tmp_path, pool(max=3)).rows()}
    assert rows["pools.p.max"].value == 3 and rows["pools.p.max"].origin.endswith("grid.yaml:1")
