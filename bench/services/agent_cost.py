"""CPU (share of one core) and memory of an idle agent with default settings."""

import time

from bench._common import cpu_seconds, grid, memory_mib, no_options, report, rss_mib

SECONDS = 60.0


def main() -> None:
    """Print one line."""
    no_options(__doc__)
    with grid(agents=1, config="{}\n") as running:
        time.sleep(8)  # past the first offer
        before, began = cpu_seconds(running.agents[0]), time.monotonic()
        time.sleep(SECONDS)
        share = (cpu_seconds(running.agents[0]) - before) / (time.monotonic() - began)
        report(
            "agent_cost",
            {
                "agent_cpu_percent_of_a_core": share * 100,
                "agent_rss_mib": rss_mib(running.agents[0]),
                "agent_pss_mib": memory_mib(running.agents[0]),
                "supervisor_rss_mib": rss_mib(running.supervisors[0]),
                "seconds": SECONDS,
            },
        )


if __name__ == "__main__":
    main()
