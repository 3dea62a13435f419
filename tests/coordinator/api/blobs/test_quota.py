"""Nobody fills the coordinator with shipped files: what counts for a user, when it counts no more, and what is said."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from distributed_grid.coordinator.api.blobs import quota as ship_quota
from distributed_grid.coordinator.api.blobs.quota import RECENT, Quota, default_quota
from distributed_grid.protocol.bundle import Entry, Manifest, blob_hash, encode_manifest
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.messages import Done, Failed, MissingBlobs, PutBlob, Submit, WantBlobs
from tests.coordinator.ends import client, coordinator, job


@pytest.fixture(autouse=True)
def to_the_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ship_quota, "LEAST_BYTES", 1)


class Scene:
    """A quota of 100 bytes over blobs that a test names; `live` are each user's manifests."""

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}
        self.manifests: dict[str, tuple[str, ...]] = {}
        self.live: dict[str, list[str]] = {}
        self.now = 0.0
        self.quota = Quota(100, self.sizes.get, self.contents, lambda user: self.live.get(user, ()), lambda: self.now)

    def contents(self, bundle: str) -> tuple[str, ...]:
        if bundle not in self.manifests:
            raise FileNotFoundError
        return self.manifests[bundle]


@pytest.fixture
def scene() -> Scene:
    return Scene()


async def test_a_blob_counts_once_for_each_user_who_refers_to_it(scene: Scene) -> None:
    scene.sizes |= {"a": 60, "b": 30}
    await scene.quota.refers("ann", ["a", "b", "a"])
    await scene.quota.refers("ann", ["a"])
    await scene.quota.refers("bob", ["a"])
    assert (
        (await scene.quota._account("ann")).counted,
        (await scene.quota._account("bob")).counted,
        (await scene.quota._account("eve")).counted,
    ) == (
        90,
        60,
        0,
    )


async def test_what_is_on_its_way_counts_and_what_is_given_up_does_not(scene: Scene) -> None:
    await scene.quota.arrives("ann", 90)
    with pytest.raises(GridError, match="the files that ann has shipped are 120B at the coordinator, and 100B are"):
        await scene.quota.arrives("ann", 30)
    scene.quota.leaves("ann", 30)
    scene.quota.leaves("ann", 90)
    await scene.quota.arrives("ann", 90)
    await scene.quota.arrives("bob", 90)


async def test_what_no_live_job_needs_counts_for_an_hour(scene: Scene) -> None:
    scene.sizes |= {"a": 60, "b": 60}
    await scene.quota.refers("ann", ["a"])
    scene.now = RECENT - 1
    with pytest.raises(GridError):
        await scene.quota.refers("ann", ["b"])
    scene.now = 2 * RECENT
    await scene.quota.refers("ann", ["b"])
    assert (await scene.quota._account("ann")).counted == 60


async def test_what_a_live_job_needs_counts_as_long_as_it_lives(scene: Scene) -> None:
    scene.sizes |= {"m": 10, "a": 60, "b": 40}
    scene.manifests["m"] = ("a",)
    await scene.quota.submits("ann", "m")
    scene.live["ann"] = ["m"]
    scene.now = 10 * RECENT
    with pytest.raises(GridError):
        await scene.quota.refers("ann", ["b"])
    scene.live["ann"] = []
    scene.now = 12 * RECENT
    await scene.quota.refers("ann", ["b"])


async def test_a_submission_counts_what_its_manifest_names_though_nobody_asked_for_it(scene: Scene) -> None:
    scene.sizes |= {"m": 10, "a": 60, "b": 60}
    scene.manifests["m"] = ("a", "b")
    with pytest.raises(GridError):
        await scene.quota.submits("ann", "m")


async def test_live_jobs_count_after_a_restart(scene: Scene) -> None:
    scene.sizes |= {"m": 10, "a": 60}
    scene.manifests["m"] = ("a",)
    scene.live["ann"] = ["m", "gone"]
    assert (await scene.quota._account("ann")).counted == 70


async def test_what_the_cache_has_dropped_counts_no_more(scene: Scene) -> None:
    scene.sizes |= {"a": 60, "b": 60}
    await scene.quota.refers("ann", ["a"])
    del scene.sizes["a"]
    await scene.quota.refers("ann", ["b"])


async def test_a_user_above_the_quota_costs_one_look_a_second(scene: Scene) -> None:
    scene.sizes |= {"a": 101}
    looks: list[str] = []
    scene.quota._live = lambda user: looks.append(user) or ()  # type: ignore[func-returns-value]
    for _ in range(100):
        with pytest.raises(GridError):
            await scene.quota.refers("ann", ["a"])
    assert len(looks) == 2, "one for the account, one for the refusal"


async def test_looks_that_take_long_are_far_between(scene: Scene) -> None:
    scene.sizes |= {"a": 101}
    looks: list[str] = []
    scene.quota._live = lambda user: looks.append(user) or ()  # type: ignore[func-returns-value]
    for now, all_looks in ((0.0, 2), (59.0, 2), (61.0, 3)):
        scene.now = now
        with pytest.raises(GridError):
            await scene.quota.refers("ann", ["a"])
        assert len(looks) == all_looks
        (await scene.quota._account("ann")).took = 3.0


async def test_empty_files_take_room_too(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ship_quota, "LEAST_BYTES", 40)
    scene.sizes |= dict.fromkeys("abc", 0)
    with pytest.raises(GridError):
        await scene.quota.refers("ann", "abc")


async def test_what_counts_no_more_is_not_remembered_for_ever(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ship_quota, "REMEMBERED", 3)
    for number in range(20):
        scene.now = number * 2 * RECENT
        scene.sizes[str(number)] = 1
        await scene.quota.refers("ann", [str(number)])
        assert len(scene.quota._accounts["ann"].blobs) <= ship_quota.REMEMBERED + 8
    assert (await scene.quota._account("ann")).counted <= 11


async def test_what_takes_long_is_done_by_another_thread(scene: Scene) -> None:
    threads: set[int] = set()

    def contents(bundle: str) -> tuple[str, ...]:
        threads.add(threading.get_ident())
        return scene.contents(bundle)

    scene.quota._contents = contents
    scene.sizes |= {"m": 10, "a": 60, "b": 60}
    scene.manifests["m"] = ("a",)
    scene.live["ann"] = ["m"]
    scene.now = 10 * RECENT
    assert (await scene.quota._account("ann")).counted == 70
    scene.now = 12 * RECENT
    with pytest.raises(GridError):
        await scene.quota.refers("ann", ["b"])
    assert threads and threading.get_ident() not in threads


async def test_what_is_used_while_it_is_searched_for_what_counts_no_more_counts(scene: Scene) -> None:
    scene.sizes |= {"a": 60, "b": 60, "c": 30}
    await scene.quota.refers("ann", ["a"])
    await scene.quota.refers("ann", ["c"])
    scene.now = 2 * RECENT
    search = scene.quota._search

    def searched(*about: Any) -> Any:
        account = scene.quota._accounts["ann"]
        account.count("c", 30, scene.now)
        return search(*about)

    scene.quota._search = searched  # type: ignore[method-assign, assignment]
    await scene.quota.refers("ann", ["b"])
    assert {*scene.quota._accounts["ann"].blobs} == {"b", "c"}


async def test_many_requests_of_a_user_cost_one_look(scene: Scene) -> None:
    scene.sizes |= {"a": 101}
    looks: list[str] = []
    scene.quota._live = lambda user: looks.append(user) or ()  # type: ignore[func-returns-value]
    refused = await asyncio.gather(*(scene.quota.refers("ann", ["a"]) for _ in range(50)), return_exceptions=True)
    assert all(isinstance(one, GridError) for one in refused)
    assert len(looks) == 2, "one for the account, one for the refusal"


def test_by_default_it_is_10_gib_or_a_quarter_of_the_free_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0 < default_quota(tmp_path) <= 10 << 30
    monkeypatch.setattr(ship_quota, "QUOTA", 1000)
    assert default_quota(tmp_path) == 1000


# --- at a coordinator -------------------------------------------------------------------------------------------------


async def test_one_user_is_refused_and_another_is_not(tmp_path: Path) -> None:
    content, other = b"x" * 600, b"y" * 600
    async with coordinator(tmp_path) as grid:
        grid.blobs.quota.limit = 1000
        ann, bob = await client(grid.url, "ann"), await client(grid.url, "bob")
        assert isinstance(await ann.ask(PutBlob(1, blob_hash(content), 0, content, end=True)), Done)
        refused = await ann.ask(PutBlob(2, blob_hash(other), 0, other, end=True))
        assert isinstance(refused, Failed)
        assert (refused.code, "coordinator.ship_quota" in refused.hint) == ("unavailable", True)
        assert refused.what.startswith("the files that ann has shipped are")
        assert isinstance(await bob.ask(PutBlob(3, blob_hash(other), 0, other, end=True)), Done)
        refused = await bob.ask(PutBlob(4, blob_hash(content), 0, content, end=True))
        assert isinstance(refused, Failed), "what ann has sent counts for bob as well"
        assert await ann.ask(WantBlobs(5, (blob_hash(content),))) == MissingBlobs(5, ())
        assert not list((tmp_path / "blobs/arriving").iterdir())
        await ann.close()
        await bob.close()


async def test_a_manifest_counts_with_its_files_for_who_submits_it(tmp_path: Path) -> None:
    content = b"x" * 600
    manifest = encode_manifest(Manifest((Entry("a", size=600, blob=blob_hash(content)),)))
    async with coordinator(tmp_path) as grid:
        bob = await client(grid.url, "bob")
        await bob.ask(PutBlob(1, blob_hash(content), 0, content, end=True))
        await bob.ask(PutBlob(2, blob_hash(manifest), 0, manifest, end=True))
        grid.blobs.quota.limit = 500
        refused = await bob.ask(Submit(3, (job(bundle=blob_hash(manifest)),)))
        assert isinstance(refused, Failed) and "bob has shipped" in refused.what
        assert not grid.ledger.state.jobs
        await bob.close()
