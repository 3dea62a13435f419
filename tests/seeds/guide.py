"""The Python of the resource sharing guide, as it stands there; only file names were made this test's own.

The guide writes `await` at the top level; `program` makes a program out of its pieces by putting them into `main()`.
"""

import textwrap

CONFIGURATION = """\
resource_sharing:
  enabled: true
  check_interval: 60  # seconds
  offer_expiry: 300   # seconds
  max_offers_per_node: 5
  thresholds:
    gpu_utilization_max: 20.0    # GPU must be below 20% utilization
    gpu_memory_min_mb: 1024.0    # At least 1GB free GPU memory
    memory_percent_max: 50.0     # Memory must be below 50% used
    memory_min_gb: 2.0           # At least 2GB free memory
    cpu_percent_max: 30.0        # CPU must be below 30% utilization
    cpu_min_cores: 1.0           # At least 1 CPU core free
"""

OPENING = """\
from distributed_grid.core import GridOrchestrator
from distributed_grid.config import ClusterConfig
from distributed_grid.orchestration.resource_sharing import ResourceType

# Load configuration
config = ClusterConfig.from_yaml("config/cluster_config.yaml")
orchestrator = GridOrchestrator(config)

# Initialize
await orchestrator.initialize()
"""

RUN = """\
# Request resources and run job
result = await orchestrator.run_with_shared_resources(
    command="python train.py",
    resource_type=ResourceType.GPU,
    amount=1,
    priority="high",
    job_id="training_001"
)

# Check status
status = await orchestrator.get_shared_resource_status()
print(f"Available offers: {status['offers']}")
print(f"Active allocations: {status['allocations']}")
"""

CLOSING = """\
# Cleanup
await orchestrator.shutdown()
"""

OFFLOADING = """\
# When main node is overloaded, offload to workers
if local_gpu_utilization > 80:
    result = await orchestrator.run_with_shared_resources(
        command="python train_model.py",
        resource_type=ResourceType.GPU,
        amount=1,
        priority="high"
    )
"""

BATCH = """\
# Process large datasets when memory is available
result = await orchestrator.run_with_shared_resources(
    command="python process_large_dataset.py",
    resource_type=ResourceType.MEMORY,
    amount=8,  # Need 8GB
    priority="low"
)
"""

PARALLEL = """\
# Run parallel tasks on multiple nodes
tasks = []
for i in range(4):
    task = orchestrator.run_with_shared_resources(
        command=f"python compute_task.py --task-id {i}",
        resource_type=ResourceType.CPU,
        amount=2,
        priority="medium"
    )
    tasks.append(task)

results = await asyncio.gather(*tasks)
"""


def program(piece: str, before: str = "", after: str = "") -> str:
    """A whole program: the guide's opening, what is to be there before, the piece, what to print, the guide's end."""
    body = "\n".join([OPENING, before, piece, after, CLOSING])
    return "import asyncio\n\n\nasync def main():\n" + textwrap.indent(body, "    ") + "\n\nasyncio.run(main())\n"
