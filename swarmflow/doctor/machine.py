"""The checks of this machine alone: Python, torch, its device, memory, disk, the network daemon, the port."""

from __future__ import annotations

import importlib
import os
import platform
import shutil
import sys
import uuid
from pathlib import Path

from swarmflow.doctor.diagnosis import Diagnosis, fail, ok, warn
from swarmflow.errors import ConfigError, NetworkError
from swarmflow.files import existing_parent, free_bytes, readable_size
from swarmflow.peer_memory import LEAST_BYTES, PROCESS_BYTES
from swarmflow.runtime.transport import p2pd
from swarmflow.runtime.transport.daemon import Daemon
from swarmflow.system import available_memory_bytes

PYTHON_MIN = (3, 11)
SERVED_BYTES = 1_000_000_000  # with less there is hardly a stage that fits
DISK_BYTES = 1_000_000_000  # with less there is hardly room for copies of stages
TRIAL_BYTES = 1 << 20  # written to the disk
DAEMON_S = 20.0
_INSTALL = "install swarmflow-train again, with --constraint constraints.txt"


def check_python() -> Diagnosis:
    """Check the version of Python."""
    found = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    if sys.version_info < PYTHON_MIN:
        return fail("python", found, f"install Python {PYTHON_MIN[0]}.{PYTHON_MIN[1]} or newer")
    return ok("python", found)


def check_torch() -> Diagnosis:
    """Check that torch can be loaded, and what it was built for."""
    try:
        torch = importlib.import_module("torch")
    except (ImportError, OSError) as error:
        return fail("torch", f"torch cannot be loaded: {' '.join(str(error).split())}", _INSTALL)
    kinds = [f"CUDA {torch.version.cuda}"] if torch.version.cuda else []
    kinds += ["Metal"] if torch.backends.mps.is_available() else []
    found = f"torch {torch.__version__}, built for {' and '.join(['CPUs', *kinds])}, {torch.get_num_threads()} threads"
    if shutil.which("nvidia-smi") is not None and not torch.cuda.is_available():
        why = "has no CUDA" if torch.version.cuda is None else "cannot use this driver"
        advice = "install a build of torch with CUDA (pytorch.org lists them), and a driver that is new enough for it"
        return warn("torch", f"{found}; there is an NVIDIA driver, but this build {why}", advice)
    return ok("torch", found)


def check_device(name: str) -> Diagnosis:
    """Check that the device of this name is there, and measure it."""
    from swarmflow.compute.device import choose_device, free_memory_bytes, measure_speed

    try:
        device = choose_device(name)
        speed = measure_speed(device)
    except ConfigError as error:
        return fail("device", str(error), "choose a device that is there, or --device auto")
    except RuntimeError as error:  # torch's, of a driver or a device that fails
        reason = str(error).partition("\n")[0]
        return fail("device", f"{name} does not compute: {reason}", "update its driver, or use --device cpu")
    found = f"{device}, {speed:,.0f} GFLOP/s, {readable_size(free_memory_bytes(device))} of memory free"
    if device.type == "cuda":
        import torch

        found = f"{torch.cuda.get_device_name(device)} ({found})"
    return ok("device", found)


def check_memory(limit_bytes: int | None = None) -> Diagnosis:
    """Check the memory for processes. limit_bytes: of --memory-limit; None: none is set."""
    free = available_memory_bytes()
    usable, of = (free, "") if limit_bytes is None else (min(free, limit_bytes), " of --memory-limit")
    found = f"{readable_size(usable)}{of} for a peer, which takes {readable_size(PROCESS_BYTES)} without its stage"
    end = "end other programs" if limit_bytes is None or free < limit_bytes else "raise --memory-limit"
    if usable < LEAST_BYTES:
        return fail("memory", found, f"{end}: a peer does not start")
    if usable < SERVED_BYTES:
        return warn("memory", found, f"{end}: hardly a stage fits")
    return ok("memory", found)


def check_disk(folder: Path) -> Diagnosis:
    """Check that a file can be written where a peer keeps its state. folder: need not exist yet."""
    try:
        where = existing_parent(folder)
        trial = where / f".swarmflow-doctor.{uuid.uuid4().hex[:8]}.tmp"
        try:
            with trial.open("xb") as file:
                file.write(bytes(TRIAL_BYTES))
                file.flush()
                os.fsync(file.fileno())
        finally:
            trial.unlink(missing_ok=True)
        free = free_bytes(where)
    except OSError as error:
        advice = "make room there, or choose another folder that this user may write to: --state-dir FOLDER"
        return fail("disk", f"{folder.absolute()} cannot be written to: {error.strerror}", advice)
    found = f"{readable_size(free)} free at {where}"
    if free < DISK_BYTES:
        return warn("disk", found, "make room there, or give --no-copies to the peer, which then keeps no copies")
    return ok("disk", found)


async def check_daemon() -> Diagnosis:
    """Check that libp2p's daemon is there and starts."""
    try:
        program = p2pd.program()
    except NetworkError as error:
        return fail("daemon", str(error), _INSTALL)
    if not os.access(program, os.X_OK):
        return fail("daemon", f"{program} is not executable", f"chmod +x {program}")
    try:
        daemon = await Daemon.launch({"noListenAddrs": 1, "relay": 0}, DAEMON_S)
    except NetworkError as error:
        advice = f"run {program} by hand, and see what it says; a temporary folder that is full may be a reason"
        return fail("daemon", str(error), advice)
    await daemon.stop()
    return ok("daemon", f"{program} starts")


def check_port(listen: str) -> Diagnosis:
    """Check that nobody else listens where the peer is to. listen: HOST:PORT or a multiaddr."""
    from swarmflow.runtime.transport.addresses import check_port_free, multiaddr, parts_of

    try:
        address = multiaddr(listen, listening=True)
        check_port_free(address)
    except NetworkError as error:
        advice = "end the other process (an earlier peer?), or give another --listen"
        return fail("port", str(error), advice)
    if "0" in (parts_of(address).get("tcp"), parts_of(address).get("udp")):
        return ok("port", f"--listen {listen} takes any free port, another one after each start")
    return ok("port", f"--listen {listen} is free")
