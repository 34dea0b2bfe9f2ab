"""The devices of a host: their names, and what each of their peers is started with."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
import torch

from peers.command import peer
from peers.devices import at_port, device_names, device_peers, several
from peers.siblings import announce_to_siblings, siblings
from swarmflow.errors import ConfigError
from swarmflow.system import usable_cores

MEETING = Path("meeting")
HERE = ("--of-host", str(MEETING))


def context(*arguments: str) -> click.Context:
    """The command with these arguments, as it is called."""
    return peer.make_context("peer", list(arguments))


def options(*arguments: str) -> list[list[str]]:
    """What the peers of two CPUs are started with."""
    return [list(each.arguments) for each in device_peers(["cpu", "cpu"], context(*arguments), {}, MEETING)]


def test_several_devices_are_a_list_or_all() -> None:
    assert [several(name) for name in ("auto", "cuda:1", "all", "cpu,cpu")] == [False, False, True, True]
    assert device_names("cuda:0,cuda:2") == ["cuda:0", "cuda:2"]
    for wrong in ("cuda:0,", ",", "all,cpu", "auto,cpu"):
        with pytest.raises(ConfigError, match="name each device"):
            device_names(wrong)


def test_all_are_the_cuda_devices_of_this_machine() -> None:
    count = torch.cuda.device_count()
    if count:
        assert device_names("all") == [f"cuda:{number}" for number in range(count)]
    else:
        with pytest.raises(ConfigError, match="no CUDA device that torch can use; give --device cpu"):
            device_names("all")


def test_what_a_library_prints_as_it_is_loaded_is_no_number_of_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('welcome to this cluster')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    test_all_are_the_cuda_devices_of_this_machine()


def test_a_torch_that_takes_too_long_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peers.devices._COUNT_S", 0.01)
    with pytest.raises(ConfigError, match=r"torch is not loaded within 0\.01 s; name each device"):
        device_names("all")


def test_devices_share_options_and_have_folders_and_ports_of_their_own() -> None:
    first, second = options(
        *("--join", "secret", "--stage", "1", "--stay", "--no-copies"),
        *("--trust-module", "a:b", "--trust-module", "c:d"),
        *("--listen", "0.0.0.0:7400", "--announce", "host:7400", "--announce", "/ip4/1.2.3.4/tcp/7500"),
        *("--metrics-port", "9400", "--upload-limit", "20Mbit/s", "--state-dir", "state", "--log-format", "json"),
    )
    alike = ["peer", *HERE, "--stage", "1", "--no-copies", "--trust-module", "a:b", "--trust-module", "c:d", "--stay"]
    assert sorted(first[: len(alike)]) == sorted(second[: len(alike)]) == sorted(alike)
    assert second[len(alike) :] == [
        *("--device", "cpu", "--listen", "0.0.0.0:7401", "--state-dir", str(Path("state") / "1")),
        *("--announce", "host:7401", "--announce", "/ip4/1.2.3.4/tcp/7501", "--metrics-port", "9401"),
        *("--upload-limit", "1250000B/s", "--log-format", "json"),
    ]
    assert "secret" not in " ".join([*first, *second])
    assert peer.make_context("peer", second[1:]).params["of_host"] == str(MEETING)


def test_any_port_stays_any_port_and_the_rest_is_left_to_defaults() -> None:
    rest = ["--listen", "0.0.0.0:0", "--log-format", "plain"]
    assert options() == [["peer", *HERE, "--device", "cpu", *rest]] * 2


def test_the_environment_has_the_invite_and_a_share_of_the_cores() -> None:
    shared, _ = device_peers(["cpu", "cuda:1"], context("--join", "secret"), {"PATH": "/bin"}, MEETING)
    threads = str(max(1, usable_cores() // 2))
    assert shared.environment == {"PATH": "/bin", "SWARMFLOW_JOIN": "secret", "OMP_NUM_THREADS": threads}
    [chosen] = device_peers(["cpu"], context(), {"OMP_NUM_THREADS": "7"}, MEETING)
    assert chosen.environment == {"OMP_NUM_THREADS": "7"}


def test_a_device_that_is_named_twice_has_a_number() -> None:
    labels = [each.label for each in device_peers(["cpu", "cuda:1", "cpu"], context(), {}, MEETING)]
    assert labels == ["cpu 0", "cuda:1", "cpu 1"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--listen", "0.0.0.0:65535"), "device 1 would have port 65536"),
        (("--log-format", "live"), "several devices have no common picture"),
        (("--upload-limit", "1Mbit/s"), r"--upload-limit \(shared by 2 devices\) 62500B/s: a peer needs at least"),
    ],
)
def test_what_cannot_be_shared_is_refused(arguments: tuple[str, ...], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        options(*arguments)


def test_ports_in_addresses() -> None:
    assert at_port("[::1]:7400", 2) == "[::1]:7402"
    assert at_port("/ip4/0.0.0.0/udp/7400/quic", 2) == "/ip4/0.0.0.0/udp/7402/quic"
    assert at_port("/ip4/0.0.0.0/tcp/0", 2) == "/ip4/0.0.0.0/tcp/0"
    assert at_port("nonsense", 2) == "nonsense", "refused where it is read"


def test_peers_of_a_host_know_each_other_by_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert siblings(None) == frozenset()
    announce_to_siblings(None, "one")
    for name in ("one", "other"):
        announce_to_siblings(tmp_path, name)
    assert siblings(tmp_path) == {"one", "other"}
    announce_to_siblings(tmp_path / "gone", "one")
    assert "do not learn of this one: No such file or directory" in caplog.text
    assert siblings(tmp_path / "gone") == frozenset()
