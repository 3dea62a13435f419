"""What tests of backup, restore and check share."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.coordinator.backup.scene import Lost, lost_coordinator


@pytest.fixture
async def lost(tmp_path: Path) -> AsyncIterator[Lost]:
    async with lost_coordinator(tmp_path) as made:
        yield made
