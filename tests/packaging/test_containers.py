"""The files of docker/ and packaging/systemd, as far as they can be checked without a container engine or a cluster."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import compose_spec
import kubernetes_validate
import pytest
import yaml

from swarmflow import config
from tests.packaging.cli_page import commands

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
UNITS = sorted((ROOT / "packaging" / "systemd").glob("*.service"))
COMPOSE = sorted(DOCKER.glob("compose*.yaml"))
KUBERNETES = [
    document
    for path in sorted((DOCKER / "kubernetes").glob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text(encoding="utf-8"))
]
KUBERNETES_VERSION = "1.30"
CONTAINERS = [
    (document, container)
    for document in KUBERNETES
    if document["kind"] == "StatefulSet"
    for container in document["spec"]["template"]["spec"]["containers"]
]
END_S = 60.0
SYSTEMD_ANALYZE = shutil.which("systemd-analyze")


def check_compose(text: str) -> None:
    """Raise ValueError where a compose file is none."""
    options = compose_spec.PyOptions(apply_merge=True)
    options.from_yaml(text).validate()


def check_kubernetes(document: dict[str, Any]) -> None:
    """Raise kubernetes_validate.ValidationError where a resource is none, or has a field that there is not."""
    kubernetes_validate.validate(document, KUBERNETES_VERSION, strict=True)


@pytest.mark.parametrize("path", COMPOSE, ids=lambda path: str(path.name))
def test_compose_files_are_of_the_compose_specification(path: Path) -> None:
    check_compose(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("before", "after", "complaint"),
    [
        ("volumes:", "volumen:", "volumen"),
        ("interval: 5s", "interval: soon", "soon"),
        ("condition: service_healthy", "condition: service_fine", "service_fine"),
    ],
)
def test_a_compose_file_with_a_mistake_is_refused(before: str, after: str, complaint: str) -> None:
    text = (DOCKER / "compose.yaml").read_text(encoding="utf-8")
    assert before in text
    with pytest.raises(ValueError, match=complaint):
        check_compose(text.replace(before, after, 1))


@pytest.mark.parametrize(
    "document", KUBERNETES, ids=lambda document: f"{document['kind']}-{document['metadata']['name']}"
)
def test_kubernetes_resources_are_of_its_schemas(document: dict[str, Any]) -> None:
    check_kubernetes(document)


def test_a_resource_with_an_unknown_field_is_refused() -> None:
    document = next(document for document in KUBERNETES if document["kind"] == "StatefulSet")
    with pytest.raises(kubernetes_validate.ValidationError):
        check_kubernetes({**document, "spec": {**document["spec"], "replica": 2}})


@pytest.mark.parametrize(("document", "container"), CONTAINERS, ids=lambda part: str(part.get("name", "")))
def test_a_pod_names_what_there_is(document: dict[str, Any], container: dict[str, Any]) -> None:
    """Options, ports, volumes, the Service of the set and its labels; and it drains before it is killed."""
    role, *words = container["args"]
    known = {option for parameter in commands()[role].params for option in parameter.opts}
    assert {word.partition("=")[0] for word in words if word.startswith("--")} <= known
    services = {item["metadata"]["name"]: item["spec"] for item in KUBERNETES if item["kind"] == "Service"}
    service, template = services[document["spec"]["serviceName"]], document["spec"]["template"]
    assert service["selector"] == template["metadata"]["labels"] == document["spec"]["selector"]["matchLabels"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert {port["name"]: port["port"] for port in service["ports"]} == ports
    assert f"--metrics-port={ports['metrics']}" in words
    assert f"--listen=0.0.0.0:{ports['swarm']}" in words
    claimed = {claim["metadata"]["name"] for claim in document["spec"]["volumeClaimTemplates"]}
    configured = {volume["name"]: volume["configMap"]["name"] for volume in template["spec"].get("volumes", [])}
    assert {mount["name"] for mount in container["volumeMounts"]} == claimed | set(configured)
    assert set(configured.values()) <= {item["metadata"]["name"] for item in KUBERNETES if item["kind"] == "ConfigMap"}
    assert container["lifecycle"]["preStop"]["exec"]["command"] == ["swarmflow-drain"]
    drain = next((float(word.partition("=")[2]) for word in words if word.startswith("--drain-seconds=")), 30.0)
    assert template["spec"]["terminationGracePeriodSeconds"] > drain


def test_the_run_of_kubernetes_is_a_run(tmp_path: Path) -> None:
    [run] = [document for document in KUBERNETES if document["kind"] == "ConfigMap"]
    (tmp_path / "RUN.toml").write_text(run["data"]["RUN.toml"], encoding="utf-8")
    assert config.load(tmp_path / "RUN.toml").run.name == "kubernetes"


def test_a_drain_signals_once_and_ends_with_the_process() -> None:
    """As a preStop does. The process takes a moment to leave; a second signal would end it at once."""
    program = """
import signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
print("ready", flush=True)
signal.sigwait({signal.SIGTERM})
print("draining", flush=True)
sys.stdin.readline()  # the step is committed
print(len(signal.sigpending()), flush=True)
"""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", program], **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        with subprocess.Popen([DOCKER / "drain.sh", str(process.pid)]) as drain:
            assert process.stdout.readline() == "draining\n"
            assert drain.poll() is None
            assert process.communicate("\n", timeout=END_S) == ("0\n", None)
            assert process.returncode == 0
            assert drain.wait(END_S) == 0


def test_every_stage_of_the_image_is_used_and_the_last_one_is_small() -> None:
    text = (DOCKER / "Dockerfile").read_text(encoding="utf-8")
    stages = re.findall(r"^FROM (\S+) AS (\S+)$", text, re.MULTILINE)
    names = [name for _, name in stages]
    assert names[-2:] == ["cuda", "cpu"]
    used = {base for base, _ in stages} | set(re.findall(r"--from=(\S+)", text))
    assert set(names) - used == {"cuda", "cpu"}
    final = "\n".join(re.split(r"^FROM ", text, flags=re.MULTILINE)[-3:])
    assert not re.search(r"\b(gcc|g\+\+|clang|build-essential|rustc|cargo)\b", final)
    health = re.search(r"^HEALTHCHECK .*CMD \[(.*)\]$", text, re.MULTILINE)
    assert health is not None
    assert health[1] == '"swarmflow", "health"'


def test_only_what_is_copied_is_sent_to_the_builder() -> None:
    text = (DOCKER / "Dockerfile").read_text(encoding="utf-8")
    copied = {
        source
        for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE)
        for source in line.split()[:-1]
        if not source.startswith("--")
    }
    ignore = (DOCKER / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    assert "*" in ignore
    assert {line[1:] for line in ignore if line.startswith("!")} == copied


def unit_commands(path: Path) -> list[str]:
    """Return the words of a unit's ExecStart."""
    [command] = re.findall(r"^ExecStart=(.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return shlex.split(command)


@pytest.mark.parametrize("path", UNITS, ids=lambda path: str(path.name))
def test_a_unit_drains_and_has_options_that_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    program, role, *words = unit_commands(path)
    assert program == "/opt/swarmflow/bin/swarmflow"
    variable = words.pop()
    settings = (path.parent / f"{role}.env").read_text(encoding="utf-8")
    [more] = re.findall(rf"^{re.escape(variable.removeprefix('$'))}=(.*)$", settings, re.MULTILINE)
    known = {option for parameter in commands()[role].params for option in parameter.opts}
    assert {word for word in [*words, *more.split()] if word.startswith("--")} <= known
    assert f"EnvironmentFile=/etc/swarmflow/{role}.env\n" in text
    assert "KillMode=mixed\n" in text
    stop = re.search(r"^TimeoutStopSec=(\d+)$", text, re.MULTILINE)
    assert stop is not None
    assert int(stop[1]) > 30


@pytest.mark.skipif(SYSTEMD_ANALYZE is None, reason="no systemd-analyze here")
@pytest.mark.parametrize("path", UNITS, ids=lambda path: str(path.name))
def test_systemd_accepts_the_unit(path: Path, tmp_path: Path) -> None:
    assert SYSTEMD_ANALYZE is not None
    # The program of the unit is not installed here; systemd checks that there is one.
    there = path.read_text(encoding="utf-8").replace(unit_commands(path)[0], sys.executable)
    for text, accepted in ((there, True), (there.replace("KillMode=mixed", "KillMode=mixt"), False)):
        unit = tmp_path / path.name
        unit.write_text(text, encoding="utf-8")
        done = subprocess.run([SYSTEMD_ANALYZE, "verify", unit], capture_output=True, text=True, timeout=60)
        assert (done.returncode == 0 and not done.stderr) is accepted, done.stderr
