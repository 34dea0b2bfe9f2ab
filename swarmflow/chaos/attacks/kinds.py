"""The kinds of attacks, for the command line. Nothing here loads torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from swarmflow.errors import ConfigError
from swarmflow.suggestions import did_you_mean

ALL: Final = "all"
By = Literal["member", "certified", "stranger", "revoked"]


@dataclass(frozen=True, slots=True)
class AttackKind:
    """A kind of attack.

    by: `member` is a peer that joined with an invite, serves a stage and lies; `certified` has the certificate of a
    peer and serves nothing; `stranger` has no certificate; `revoked` has that of a trainer, which was revoked.
    """

    name: str
    does: str
    by: By
    least_s: float = 2.5  # how long it goes on, at least
    newcomer: bool = False  # another honest peer joins meanwhile
    fresh: bool = False  # on a swarm of its own: who was doubted sums nothing for an hour
    restarts: bool = False  # all trainers are killed meanwhile and started again, which costs a pause


KINDS: Final = (
    AttackKind("done", "reports hops of others as done by itself", "member"),
    AttackKind("ready", "says that it has loaded stages and versions that it was not granted", "member"),
    AttackKind("overflow", "says that gradients are too large to be added up", "member"),
    AttackKind("not-finite", "says that values are not finite", "member"),
    AttackKind("accuse-one", "accuses one other peer, again and again", "member", 14.0),
    AttackKind("accuse-all", "accuses all others", "member", 14.0),
    AttackKind("orders", "sends Commit, MemberFailed, Evicted and Finished as if it led", "member"),
    AttackKind("lead", "opens steps and stands for election", "member"),
    AttackKind("adopt", "claims the hops that others have passed on", "member"),
    AttackKind("forward", "hands on, in its own name, what nobody has given it", "member"),
    AttackKind("relay", "hands on, as if it relayed them, tensors that others have not sent", "member"),
    AttackKind("sums", "gives half of its stage other sums, under the name of the right ones", "member", fresh=True),
    AttackKind("named-sums", "gives half of its stage other sums, under their own name", "member", fresh=True),
    AttackKind("sly-sums", "the same, but only while others sum too", "member", fresh=True),
    AttackKind("norms", "reports norms that are not those of its sums", "member"),
    AttackKind("donor", "gives wrong weights to a peer that joins", "member", newcomer=True),
    AttackKind("copies", "claims versions that the run has never had as the trainers restart", "member", restarts=True),
    AttackKind("early-tensors", "sends tensors of later epochs", "member", 9.0),
    AttackKind("leader-record", "says in the DHT that it leads", "certified", 12.0, newcomer=True),
    AttackKind("requests", "asks for everything, without end", "certified"),
    AttackKind("replay", "shows the credential of a trainer, as the DHT has it", "stranger"),
    AttackKind("half-open", "opens streams and says nothing on them", "stranger"),
    AttackKind("dht-spam", "stores large records under many keys, and under those of the run", "stranger"),
    AttackKind("revoked", "gives orders and stands for election", "revoked"),
)
NAMES: Final = tuple(kind.name for kind in KINDS)


def chosen(names: tuple[str, ...]) -> tuple[AttackKind, ...]:
    """Return the kinds of these names, each once, in their own order; `all` stands for every one.

    Raises ConfigError for a name that is none.
    """
    unknown = [name for name in names if name not in (*NAMES, ALL)]
    if unknown:
        raise ConfigError(
            f"--attack {unknown[0]}: give {', '.join(NAMES)} or {ALL}{did_you_mean(unknown[0], (*NAMES, ALL))}"
        )
    return KINDS if ALL in names else tuple(kind for kind in KINDS if kind.name in names)
