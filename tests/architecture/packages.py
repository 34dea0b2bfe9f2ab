"""The packages, what each is for, and what it may import.

`python -m tests.architecture.packages` writes the table of CONTRIBUTING.md anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "CONTRIBUTING.md"
BEGIN, END = "| Folder | What it does | May import |\n|---|---|---|\n", "\n\n"


@dataclass(frozen=True)
class Package:
    """A folder, or a file of the library's top. A folder in another one is a package of its own.

    does: what it is for. imports: the packages that it may import, all of them above it in the table, so that there is
    no cycle; from outside, a folder stands for all that is in it. libraries: of others; every package may import the
    standard library. virtual: it runs in virtual time, so that it may read no clock, act on nothing and draw no global
    random numbers.
    """

    does: str
    imports: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    virtual: bool = False


BASE = ("errors", "suggestions", "files", "ownership", "drafts")
PACKAGES: dict[str, Package] = {
    "errors": Package("the errors that a user can cause"),
    "decoding": Package("what is raised where bytes of somebody else do not decode", (), ("msgspec",)),
    "latest": Package("tables of which the latest entries are kept"),
    "hosts": Package("which Host headers a server of this machine answers"),
    "suggestions": Package("the nearest of the allowed words to a misspelt one"),
    "boundary": Package("how what crosses the boundaries between stages is compressed by what is learnt"),
    "finetuning": Package("how a run fine-tunes a model: adapters beside frozen weights"),
    "targets": Package("the targets of a loss, and which of them do not count"),
    "quantities": Package("sizes and rates as users write them", ("errors",)),
    "activity": Package("what this process does right now, in words"),
    "peer_memory": Package("what a peer takes of a memory limit beside its stage"),
    "cgroups": Package("the memory that a container leaves a process"),
    "system": Package(
        "what the operating system reports of this machine and of its processes", ("cgroups",), ("psutil",)
    ),
    "files": Package("whole files, and sizes in words", ("errors",)),
    "ownership": Package("whose a folder is", ("errors", "files")),
    "drafts": Package("files that become visible when they are whole", ("ownership",)),
    "images": Package(
        "images that swarmflow draws, and the mark by which it knows its own", ("errors", "ownership"), ("matplotlib",)
    ),
    "clean_text": Package("text of other processes made harmless for terminals and logs"),
    "core": Package("decides: state machines that take (event, now) and return actions", virtual=True),
    "core/protocol": Package(
        "what the machines say: types, messages, events, actions, time-outs", ("core",), virtual=True
    ),
    "core/routing": Package(
        "which peer is next: routers, measured links, negotiated flows",
        ("latest", "core", "core/protocol"),
        ("numpy",),
        virtual=True,
    ),
    "core/pipeline": Package(
        "the way of a microbatch: dispatched, admitted, computed, repaired",
        ("core", "core/protocol", "core/routing"),
        virtual=True,
    ),
    "core/membership": Package(
        "who takes part, at which stage, and who is put out", ("latest", "core", "core/protocol"), virtual=True
    ),
    "core/commit": Package(
        "how a step commits: its members, its ledger, its ballots, its all-reduce",
        ("latest", "core", "core/protocol", "core/routing", "core/pipeline", "core/membership"),
        virtual=True,
    ),
    "core/election": Package(
        "how a leader is followed, lost and replaced", ("latest", "core", "core/protocol", "core/commit"), virtual=True
    ),
    "core/durability": Package(
        "which versions are safe, where their copies lie, how a run comes back from them",
        ("core", "core/protocol", "core/membership", "core/election"),
        virtual=True,
    ),
    "core/machines": Package(
        "the machines of peer, leader and trainer: every exchange, put together",
        (
            *("latest", "core", "core/protocol", "core/routing", "core/pipeline", "core/membership"),
            *("core/commit", "core/election", "core/durability"),
        ),
        virtual=True,
    ),
    "authority": Package(
        "who may take part in a run, by its owner's signature: keys, certificates, policy, access control",
        ("decoding", "errors", "files", "latest", "core/protocol"),
        ("blake3", "cryptography", "msgspec"),
    ),
    "view": Package("what those who watch a run see: its present state and its timeline", ("core",), virtual=True),
    "terminal": Package(
        "a run as text: what a terminal shows of it", ("activity", "clean_text", "errors"), ("msgspec", "rich")
    ),
    "config_check": Package(
        "the checks of single values of a TOML file", ("boundary", "core", "errors", "finetuning", "suggestions")
    ),
    "config_finetune": Package("[finetune] of RUN.toml", ("config_check", "finetuning")),
    "config_paths": Package("paths in RUN.toml", ("config_check", "errors")),
    "config": Package(
        "RUN.toml",
        (
            *("boundary", "config_check", "config_finetune", "config_paths", "core", "errors", "finetuning"),
            "suggestions",
        ),
    ),
    "manifest": Package(
        "all that a peer has to know of a run",
        ("boundary", "core", "decoding", "errors", "ownership"),
        ("blake3", "msgspec"),
    ),
    "page": Package("the page that shows a run, and its server", ("errors", "hosts")),
    "planning": Package(
        "assigns: arrangements that are worked out from a whole picture",
        ("core/protocol", "errors"),
        ("networkx", "numpy", "scipy"),
    ),
    "compute": Package(
        "computes: models, optimizers, codecs, checkpoints",
        (*BASE, "boundary", "finetuning", "manifest", "system", "targets"),
        ("blake3", "msgspec", "numpy", "peft", "safetensors", "torch", "transformers"),
    ),
    "cli": Package(
        "the command `swarmflow`: finds its commands, and turns errors into a line",
        ("clean_text", "errors", "suggestions"),
        ("click",),
    ),
    "runtime": Package("acts: the network, the clock and the threads behind the decisions"),
    "runtime/transport": Package(
        "the network: libp2p's daemon, the DHT, streams, frames, requests",
        (
            *("decoding", "errors", "activity", "files", "latest", "ownership", "authority"),
            *("core/protocol", "core/routing"),
        ),
        ("hivemind", "msgspec", "nacl", "numpy", "xxhash"),
    ),
    "runtime/execution": Package(
        "a process at work: its driver, threads, stage, state, metrics",
        (
            *(
                "decoding",
                "errors",
                "files",
                "hosts",
                "authority",
                "manifest",
                "system",
                "targets",
                "core/protocol",
                "core/commit",
                "compute",
            ),
            "runtime/transport",
        ),
        ("blake3", "msgspec", "numpy", "prometheus_client", "torch"),
    ),
    "runtime/operations": Package(
        "what a person asks of processes: finding a run, status, logs, folders, exports, the end",
        (
            *(
                *BASE,
                "decoding",
                "activity",
                "clean_text",
                "authority",
                "manifest",
                "core/protocol",
                "view",
                "page",
                "terminal",
            ),
            *("compute", "runtime/transport", "runtime/execution"),
        ),
        ("blake3", "msgspec", "prometheus_client", "rich", "uvloop"),
    ),
    "monitoring": Package(
        "what Prometheus and Grafana get: the metrics of a whole swarm, targets, rules, dashboards",
        ("decoding", "errors", "runtime/execution"),
        ("msgspec", "prometheus_client"),
    ),
    "local": Package(
        "swarms of real processes on this machine, for tests, demonstrations and trials",
        ("errors", "cli", "system", "runtime/transport", "runtime/execution"),
    ),
    "simulator": Package(
        "pretends: the same cores in virtual time, under seeded faults or as a scenario says",
        ("config_check", "core", "errors", "latest", "suggestions"),
        virtual=True,
    ),
    "baselines": Package(
        "what swarmflow is compared with: other protocols on the same pretended network",
        ("core", "simulator"),
        virtual=True,
    ),
    "policies": Package(
        "who decides in a scenario: swarmflow's machines or a baseline",
        ("baselines", "core", "errors", "planning", "simulator", "suggestions"),
        virtual=True,
    ),
    "forecast": Package(
        "runs a scenario, and shows what came of it",
        ("core", "errors", "images", "ownership", "page", "planning", "policies", "simulator", "view"),
        ("matplotlib", "rich"),
    ),
    "preparation": Package(
        "makes ready: a model is checked, cut, and described for everybody, before there is a run of it",
        ("compute", "config", "core", "errors", "manifest", "planning"),
        ("torch",),
    ),
    "plans": Package(
        "plans for a user: the stages of given machines, strategies beside each other, the cut of a model",
        (
            *("clean_text", "compute", "config", "core/protocol", "decoding", "errors", "files", "images", "manifest"),
            *("ownership", "planning", "policies", "preparation", "quantities", "simulator"),
        ),
        ("matplotlib", "msgspec", "numpy", "rich"),
    ),
    "demo": Package(
        "what `make demo` shows: a local swarm of real processes",
        ("clean_text", "errors", "local", "page", "runtime", "view"),
        ("matplotlib", "rich", "tokenizers", "torch", "transformers"),
    ),
    "chaos": Package(
        "local swarms under faults, compared with what they should learn",
        (
            *("authority", "compute", "core", "demo", "errors", "local", "ownership", "runtime", "simulator"),
            *("suggestions", "system"),
        ),
        ("blake3", "cryptography", "msgspec", "prometheus_client", "rich", "torch", "transformers", "uvloop"),
    ),
    "doctor": Package(
        "examines whether this machine can serve a run",
        ("clean_text", "compute", "decoding", "errors", "files", "manifest", "peer_memory", "runtime", "system"),
        ("msgspec", "torch", "uvloop"),
    ),
    "commands": Package(
        "the command line of what is no role",
        (
            *("chaos", "config", "demo", "doctor", "errors", "forecast", "page", "plans", "preparation", "quantities"),
            *("runtime", "view"),
        ),
        ("click",),
    ),
    "peers": Package(
        "the role of a peer",
        (
            *("activity", "authority", "compute", "config_check", "core", "decoding", "errors", "suggestions", "files"),
            *("manifest", "peer_memory", "quantities", "runtime", "system", "terminal", "view"),
        ),
        ("click", "msgspec", "torch", "uvloop"),
    ),
    "trainers": Package(
        "the role of a trainer",
        (
            *(*BASE, "activity", "authority", "compute", "config", "config_check", "core", "decoding", "manifest"),
            *("monitoring", "page", "peer_memory", "planning", "preparation", "runtime", "targets", "terminal", "view"),
        ),
        (
            *("blake3", "click", "datasets", "huggingface_hub", "msgspec", "numpy", "pyarrow", "tokenizers", "torch"),
            *("transformers", "uvloop"),
        ),
    ),
}


def table() -> str:
    """The same for a reader: the folders, as rows of Markdown."""
    folders = {name: package for name, package in PACKAGES.items() if folder(name).is_dir()}
    rows = []
    for name, package in folders.items():
        imports = (*(other for other in package.imports if other in folders), *package.libraries)
        rows.append(f"| `{name}` | {package.does} | {', '.join(imports)} |")
    return "\n".join(rows)


def folder(name: str) -> Path:
    """Where a package lies."""
    return ROOT / name if name in ("peers", "trainers") else ROOT / "swarmflow" / name


def written() -> str:
    """The table as it stands in the guide."""
    return GUIDE.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0]


if __name__ == "__main__":
    GUIDE.write_text(GUIDE.read_text(encoding="utf-8").replace(written(), table()), encoding="utf-8")
