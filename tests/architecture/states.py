"""The state diagrams of the documentation, drawn from the transition tables of the core.

`python -m tests.architecture.states` writes docs/states.md anew.
"""

from __future__ import annotations

from enum import StrEnum
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

import swarmflow.core
from swarmflow.core.transitions import Transitions

PAGE = Path(__file__).parents[2] / "docs" / "states.md"
HEAD = """# States

Each machine of the core moves by one transition table. The diagrams are generated from the tables
(`python -m tests.architecture.states`); an arrow is labelled with the event that leads there. Any other transition
raises `IllegalTransition` and leaves the state as it was.
"""


def machines() -> list[Transitions[StrEnum]]:
    """Return every transition table of the core, by the module of its states."""
    found: dict[str, Transitions[StrEnum]] = {}
    for module in walk_packages(swarmflow.core.__path__, "swarmflow.core."):
        if not module.name.rpartition(".")[2].startswith("test_"):
            for value in vars(import_module(module.name)).values():
                if isinstance(value, Transitions):
                    found[f"{type(value.initial).__module__}.{value.machine}"] = value
    return [found[key] for key in sorted(found)]


def diagram(machine: Transitions[StrEnum]) -> str:
    """Return the Mermaid state diagram of a machine; states without a way out end."""
    names = {state: state.name.lower() for state in machine.table}
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {names[machine.initial]}"]
    for state, following in machine.table.items():
        lines += [f"    {names[state]} --> {names[to]}: {event}" for to, event in following.items()]
        lines += [] if following else [f"    {names[state]} --> [*]"]
    return "\n".join([*lines, "```"])


def page() -> str:
    """Return docs/states.md."""
    sections = [HEAD]
    for machine in machines():
        states = type(machine.initial)
        purpose = (states.__doc__ or "").strip().partition("\n")[0]
        place = f"`{states.__module__.replace('.', '/')}.py`: `{states.__name__}`"
        sections.append(f"## {machine.machine.capitalize()}\n\n{purpose} ({place}.)\n\n{diagram(machine)}\n")
    return "\n".join(sections)


if __name__ == "__main__":
    PAGE.write_text(page())
