"""The service on a node: it measures, offers and launches, and never decides who gets what."""

import sys

if "rich" not in sys.modules:
    # structlog takes rich where there is one, to draw tracebacks with: 3.4 MiB that an agent has no use for.
    sys.modules["rich"] = None  # type: ignore[assignment]
    import structlog  # noqa: F401

    del sys.modules["rich"]
