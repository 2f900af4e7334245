"""Timing caches: kept, merged, and set aside where they cannot be used. A build never fails over one.

Against a stand-in for the vendor's cache, whose content is lines of bytes.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from aot.progress import Silent
from aot.store import Store
from aot.timing_cache import TimingCaches
from tests.backends.fake_tensorrt import Cache, Config

NAME = "tensorrt 10.6.0 NVIDIA H200 580"


@pytest.fixture
def caches(tmp_path: Path) -> TimingCaches:
    return TimingCaches(Store(tmp_path))


def timed(caches: TimingCaches, name: str, *lines: bytes) -> Silent:
    """One build that timed `lines`."""
    progress, config = Silent(), Config()
    lease = caches.attach(config, name, progress)
    assert config.cache is not None
    config.cache.lines |= set(lines)
    assert lease.save()
    return progress


def kept(caches: TimingCaches, name: str = NAME) -> set[bytes]:
    """What the next build finds."""
    config = Config()
    caches.attach(config, name, Silent())
    assert isinstance(config.cache, Cache)
    return config.cache.lines


def test_what_one_build_timed_the_next_one_finds(caches: TimingCaches) -> None:
    timed(caches, NAME, b"conv")
    assert kept(caches) == {b"conv"}
    assert kept(caches, "tensorrt 10.6.0 NVIDIA L4 580") == set()


def test_two_builds_at_once_lose_nothing(caches: TimingCaches) -> None:
    """Both start from the same file; the second to save merges with what the first one saved."""
    leases = []
    for line in (b"conv", b"gemm"):
        config = Config()
        leases.append(caches.attach(config, NAME, Silent()))
        assert config.cache is not None
        config.cache.lines.add(line)
    assert all(lease.save() for lease in leases)
    assert kept(caches) == {b"conv", b"gemm"}


def test_many_savers_at_once(caches: TimingCaches) -> None:
    lines = [f"kernel {n}".encode() for n in range(16)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda line: timed(caches, NAME, line), lines))
    assert kept(caches) == set(lines)


@pytest.mark.parametrize(
    "data",
    [b"", b"\x00not-a-timing-cache" * 8, bytes(range(40)), b'{"for": "x"}\nblob', b"[]\n", b"\n\n"],
    ids=["empty", "garbage", "truncated_header", "no_digest", "no_mapping", "blank"],
)
def test_a_damaged_cache_is_set_aside_with_one_warning(caches: TimingCaches, data: bytes) -> None:
    """Case C45."""
    path = caches.path(NAME)
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    progress = timed(caches, NAME, b"conv")
    assert len(progress.warnings) == 1
    assert "damaged" in progress.warnings[0]
    assert path.with_suffix(".bad").read_bytes() == data
    assert kept(caches) == {b"conv"}


def test_a_cache_that_lost_its_end_is_damaged(caches: TimingCaches) -> None:
    timed(caches, NAME, b"conv", b"gemm")
    path = caches.path(NAME)
    path.write_bytes(path.read_bytes()[:-2])
    assert "damaged" in timed(caches, NAME, b"relu").warnings[0]
    assert kept(caches) == {b"relu"}


def test_a_cache_renamed_from_another_version_is_set_aside(caches: TimingCaches) -> None:
    """Case C45: other_device."""
    timed(caches, "tensorrt 11.4.0 NVIDIA L4 580", b"conv")
    caches.path("tensorrt 11.4.0 NVIDIA L4 580").rename(caches.path(NAME))
    progress = timed(caches, NAME, b"gemm")
    assert progress.warnings[0].startswith("the timing cache is not used: it is for tensorrt 11.4.0 NVIDIA L4 580;")
    assert kept(caches) == {b"gemm"}


@pytest.mark.parametrize("blob", [b"garbage", b"gpu:other"])
def test_a_cache_that_tensorrt_refuses_is_set_aside(caches: TimingCaches, blob: bytes) -> None:
    timed(caches, NAME, blob)
    assert len(timed(caches, NAME, b"conv").warnings) == 1
    assert kept(caches) == {b"conv"}


def test_a_disk_that_refuses_is_a_warning(caches: TimingCaches, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    progress, config = Silent(), Config()
    lease = caches.attach(config, NAME, progress)
    monkeypatch.setattr(Path, "write_bytes", full)
    assert not lease.save()
    assert progress.warnings == ["the timing cache is not kept: No space left on device"]
