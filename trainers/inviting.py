"""The invite of a run: to the user, to this machine, and to trainers of the same output."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from swarmflow.errors import NetworkError
from swarmflow.files import write_to_user_path
from swarmflow.runtime.operations.answering import Counter
from swarmflow.runtime.operations.left_runs import forget_left
from swarmflow.runtime.transport.invite import Invite, publish_local
from trainers.run import Run

log = logging.getLogger("swarmflow")


def written_invite(run: Run) -> Invite | None:
    """Return the invite that a trainer has written into the output. Raises NetworkError where none can be read."""
    try:
        return Invite.parse(run.invite_path.read_text())
    except FileNotFoundError:
        return None
    except PermissionError:
        raise NetworkError(f"{run.invite_path} is of another user; give this trainer its invite by --join") from None


def latest_invite(run: Run, invite: Invite | None) -> Invite | None:
    """Return the invite of another trainer of the same output, which may lead by now."""
    written = written_invite(run) if run.options.invite is None else None
    return invite if written is None else run.may_join(written)


@contextmanager
def published(invite: Invite, counter: Counter) -> Iterator[None]:
    """Publish the run on this machine, so that it is found without an invite, unless there is no place for it."""
    forget_left(invite.run_id)
    try:
        publication = publish_local(invite, port=counter.port, token=counter.token)
    except NetworkError as error:
        log.warning("%s; peers here need the invite", error)
        yield
        return
    try:
        yield
    finally:
        publication.withdraw()


def give_invite(run: Run, invite: Invite, leads: bool, *, first: bool) -> None:
    """Give the invite to the user, to the file that they named, and to trainers of the same folder.

    first: nobody has an earlier one. Then NetworkError or OSError is raised where one of them cannot have it, and else
    it is logged: the run goes on without.
    """
    with _logged(unless=first):
        if run.options.log_format == "json":
            extra = {"kind": "invite", "fields": {"invite": str(invite)}}
            log.info("to join: swarmflow peer --join %s", invite, extra=extra)
        else:
            print(f"\nTo join, type on any machine:\n\n  swarmflow peer --join {invite}\n", flush=True)
    if run.options.invite_file is not None:
        with _logged(unless=first):
            write_invite(run.options.invite_file, invite)
    if leads:
        with _logged(unless=first):
            write_invite(run.invite_path, invite)


def keep_given(run: Run, invite: Invite) -> None:
    """Write the invite into the output where another one, or none, is there. Raises NetworkError."""
    try:
        given = run.invite_path.read_bytes() == _text(invite)
    except OSError:
        given = False
    if not given:
        write_invite(run.invite_path, invite)


@contextmanager
def _logged(*, unless: bool) -> Iterator[None]:
    """Log that the invite could not be given, in place of an error of that."""
    try:
        yield
    except (NetworkError, OSError) as error:
        if unless:
            raise
        log.warning("the present invite is not given to all: %s", error)


def write_invite(path: Path, invite: Invite) -> None:
    """Write it to a file at once, whole, that only this user may read: an invite is a secret. Raises NetworkError."""
    try:
        write_to_user_path(path, _text(invite), private=True)
    except OSError as error:
        raise NetworkError(f"the invite cannot be written to {path}: {error.strerror}") from None


def _text(invite: Invite) -> bytes:
    return f"{invite}\n".encode()
