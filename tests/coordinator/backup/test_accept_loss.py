"""The operator's word about a loss is a file that names the loss; without a loss there is nothing to accept. A running
grid takes it up in tests/e2e/reliability/test_loss.py."""

from pathlib import Path

import pytest

from distributed_grid.coordinator.backup.accept_loss import NAME, Accepted, accept, known, read, remove, write
from distributed_grid.coordinator.core.rollback import Loss
from distributed_grid.protocol.errors import GridError
from tests.coordinator.backup.scene import a_store

LOSS = Loss("l-1", 1.0, ("commits 3 to 5",))


def test_the_word_is_for_the_loss_it_names_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    word = Accepted(LOSS.id, "ada", resume=True)
    write(tmp_path, word)
    assert read(tmp_path, LOSS) == word and (tmp_path / NAME).stat().st_mode & 0o777 == 0o600
    assert read(tmp_path, Loss("l-2", 1.0, ())) is None and read(tmp_path, None) is None
    remove(tmp_path)
    remove(tmp_path)
    assert read(tmp_path, LOSS) is None and list(tmp_path.iterdir()) == []


def test_a_word_that_is_damaged_or_a_link_is_none(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text("{")
    assert read(tmp_path, LOSS) is None
    (tmp_path / NAME).unlink()
    write(tmp_path, Accepted(LOSS.id, "ada"))
    (tmp_path / NAME).rename(tmp_path / "elsewhere")
    (tmp_path / NAME).symlink_to(tmp_path / "elsewhere")
    assert read(tmp_path, LOSS) is None


def test_where_nothing_is_lost_nothing_is_accepted_and_the_store_stays(tmp_path: Path) -> None:
    state = a_store(tmp_path / "state")
    with pytest.raises(GridError, match="has lost nothing"):
        known(state)
    with pytest.raises(GridError, match="has lost nothing"):
        accept(state, "ada", resume=False)
    with pytest.raises(GridError, match="no coordinator's state"):
        known(tmp_path / "nowhere")
