"""The events of a run in plain words: what has just happened, and why nothing was lost by it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from swarmflow.clean_text import clean
from swarmflow.demo.picture import Mark

Event = Mapping[str, Any]
View = Mapping[str, Any]

_ID = re.compile(r"\b(\w{6})\.\d{4}\b")  # of a process: the end of its libp2p name, and its incarnation
_STYLES = {"died": "bold red", "repaired": "bold green", "checkpoint": "green", "serving": "dim", "loading": "dim"}
_STYLES |= {"joined": "dim", "waiting": "yellow", "restarted": "yellow", "rolled_back": "yellow", "leader": "yellow"}


@dataclass(frozen=True, slots=True)
class Sentence:
    """One event for a reader. style: of rich."""

    text: str
    style: str = ""


def sentence_of(event: Event, before: View | None, names: Mapping[str, str]) -> Sentence:
    """Return an event in plain words.

    before: the last view before it. names: what the demonstration calls each process, by the last six characters of its
    libp2p name.
    """
    text = _named(str(event["text"]), names)
    match event["kind"]:
        case "died":
            text = f"{text}. {_kept(event, before, names)}"
        case "repaired" if event["peer"]:
            text = f"{text}. They keep it until the step is committed, so the step need not start over."
        case "repaired":
            text = f"{text}. {_whole(event, before)}"
        case "serving":
            text = f"{_named(event['peer'], names)} has loaded stage {event['stage']} and takes work."
        case "loading":
            text = f"{text}. It gets the model, and from a peer the stage's weights, over the network."
        case "joined" if event["stage"] < 0:
            text = f"{text}. It feeds data as well, and goes on with the run should the leader die."
        case "checkpoint" if event["level"] == "info" and "others" in text:
            text = f"{text}. Even the trainer's disk may be lost."
        case "checkpoint" if event["level"] == "info":
            text = f"{text}. Were the power cut now, training would go on from there."
        case "restarted":
            text = f"{text}. No update was made of the half step, and its data are known: it is computed once more."
        case "leader":
            text = f"{text}. The others hold the whole state of the step, so it goes on where it was."
    if text[-1:] not in ".:!?":
        text += "."
    return Sentence(text[:1].upper() + text[1:] if not _is_name(text, names) else text, _STYLES.get(event["kind"], ""))


def marks_of(event: Event, names: Mapping[str, str]) -> list[Mark]:
    """Return the mark of an event after the death in the picture of the run, if it has one."""
    if event["kind"] == "repaired" and not event["peer"]:
        return [Mark(event["time"], "repaired", _named(str(event["text"]), names))]
    if event["kind"] == "serving":
        return [Mark(event["time"], "joined", f"{_named(event['peer'], names)} joins stage {event['stage']}")]
    return []


def _is_name(text: str, names: Mapping[str, str]) -> bool:
    """Return whether a text begins with the name of a process, which keeps its small letter."""
    return text.startswith(tuple(names.values()))


def _named(text: str, names: Mapping[str, str]) -> str:
    named = _ID.sub(lambda found: names.get(found[1], found[0]), text)
    return clean(named.replace("peer peer-", "peer-").replace("trainer trainer-", "trainer-"))


def _kept(event: Event, before: View | None, names: Mapping[str, str]) -> str:
    """Return what a dead process held when it was last seen, and who else has that."""
    if event["stage"] < 0:
        return "Which data belong to which microbatch is fixed, so another trainer feeds the ones it owned."
    if before is None:
        return "Its neighbours keep what they sent it until the step is committed."
    done = 0  # known of this step alone
    if before["step"] == event["step"]:
        done = sum(1 for _, _, peer, state in before["hops"] if peer == event["peer"] and state == "done")
    gradients = f"its gradients of {_count(done)} or more of this step, and " if done else ""
    lost = f"With it went {gradients}whatever it was computing."
    peers = [peer["id"] for peer in before["stages"][event["stage"]]["peers"]]
    others = [_named(peer, names) for peer in peers if peer != event["peer"]]
    if not others:
        return f"{lost} No other peer has its stage now: the run waits for one, and goes on from what is kept."
    weights = f"{' and '.join(others)} {'has' if len(others) == 1 else 'have'} the same weights"
    return f"{lost} {weights}, and the neighbours keep all that they sent it, so all of it can be done again."


def _whole(event: Event, before: View | None) -> str:
    count = f"all {before['microbatches']} microbatches" if before is not None else "all its microbatches"
    return f"Step {event['step'] + 1} has {count}, each counted once on every stage, as if nobody had died."


def _count(microbatches: int) -> str:
    return "1 microbatch" if microbatches == 1 else f"{microbatches} microbatches"
