"""The limits of containers, in folders as Linux shows them."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarmflow.cgroups import memory_left

GB = 10**9
V1, V2 = "sys/fs/cgroup/memory", "sys/fs/cgroup"
V1_UNLIMITED = 9223372036854771712


def process_in(root: Path, lines: str) -> None:
    (root / "proc" / "self").mkdir(parents=True)
    (root / "proc" / "self" / "cgroup").write_text(lines)


def cgroup_v2(folder: Path, limit: int | str, used: int, cached: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 1\ninactive_file {cached}\nactive_file 1000\n")


def cgroup_v1(folder: Path, limit: int, used: int, cached: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.limit_in_bytes").write_text(f"{limit}\n")
    (folder / "memory.usage_in_bytes").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"inactive_file 5\ntotal_inactive_file {cached}\ntotal_active_file 1000\n")


def test_a_container_that_sees_its_own_cgroup_as_the_top_has_its_limit(tmp_path: Path) -> None:
    process_in(tmp_path, "0::/\n")
    cgroup_v2(tmp_path / V2, 2 * GB, GB, cached=GB // 2)
    assert memory_left(tmp_path) == [3 * GB // 2 + 1000]


def test_the_limits_above_a_cgroup_hold_too(tmp_path: Path) -> None:
    process_in(tmp_path, "0::/pods.slice/pod/peer\n")
    cgroup_v2(tmp_path / V2 / "pods.slice" / "pod" / "peer", 4 * GB, 1000)
    cgroup_v2(tmp_path / V2 / "pods.slice" / "pod", "max", 1000)
    cgroup_v2(tmp_path / V2 / "pods.slice", 3 * GB, 2 * GB + 1000)
    assert memory_left(tmp_path) == [4 * GB, GB], "the root has no limit"


@pytest.mark.parametrize("place", ["docker/1234", ""], ids=["of a service", "of a container, by its place on the host"])
def test_cgroups_of_version_1_are_read_too(place: str, tmp_path: Path) -> None:
    process_in(tmp_path, "5:cpu,cpuacct:/\n4:hugetlb,memory:/docker/1234\n1:name=systemd:/docker/1234\n0::/\n")
    cgroup_v1(tmp_path / V1, V1_UNLIMITED, GB)
    cgroup_v1(tmp_path / V1 / place, 2 * GB, GB, cached=GB // 4)
    assert min(memory_left(tmp_path)) == 5 * GB // 4 + 1000


def test_who_uses_more_than_the_limit_has_nothing_left(tmp_path: Path) -> None:
    process_in(tmp_path, "0::/\n")
    cgroup_v2(tmp_path / V2, GB, 2 * GB)
    assert memory_left(tmp_path) == [0]


def test_where_there_are_no_cgroups_there_is_no_limit(tmp_path: Path) -> None:
    assert memory_left(tmp_path) == []
    process_in(tmp_path, "0::/user.slice\n")
    assert memory_left(tmp_path) == []


def test_a_place_in_no_encoding_has_its_limit_and_what_is_no_number_is_none(tmp_path: Path) -> None:
    process_in(tmp_path, "")
    (tmp_path / "proc" / "self" / "cgroup").write_bytes(b"0::/a\xff\x1cb\nnothing\n")
    place = tmp_path / V2 / b"a\xff\x1cb".decode(errors="surrogateescape")
    cgroup_v2(place, 2 * GB, GB)
    cgroup_v2(tmp_path / V2, 2 * GB, GB)
    (tmp_path / V2 / "memory.stat").write_text("inactive_file many\n")
    assert memory_left(tmp_path) == [GB + 1000]
