"""Both ways to open a path below a directory."""

import pytest

from distributed_grid.runtime import beneath


@pytest.fixture(params=["openat2", "steps"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """By the kernel, and as on a kernel that cannot."""
    if request.param == "openat2" and not beneath.openat2_works():
        pytest.skip("this kernel has no openat2, or a seccomp filter refuses it")
    monkeypatch.setattr(beneath, "_has_openat2", request.param == "openat2")
    return str(request.param)
