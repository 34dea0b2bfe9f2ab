"""Asks a run for its status, within seconds and without hivemind or torch, which take longer to load.

A trainer of this machine is asked over a loopback port that only this user's processes know of; others over a p2pd that
listens nowhere. The asker writes one line, a command and perhaps a question (view/watching.py), and reads the answer to
its end. On this machine the command is the token, elsewhere the run's id and the asker's credential.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Coroutine, Mapping

import msgspec

from swarmflow.decoding import UNDECODABLE
from swarmflow.errors import NetworkError
from swarmflow.runtime.transport import p2pd
from swarmflow.runtime.transport.daemon import Daemon
from swarmflow.runtime.transport.invite import Invite, local_trainers
from swarmflow.view.watching import Question

STATUS_PROTOCOL = "/swarmflow/status"
ASK_S = 3.5  # a user waits, and a busy machine takes a second to begin and to end
ANSWER_BYTES_MAX = 64 << 20
LOOPBACK = "127.0.0.1"
_DAEMON = {"noListenAddrs": 1, "relay": 1, "tls": 1}


class StatusReply(msgspec.Struct, omit_defaults=True):
    """The whole answer. error: why there is no status."""

    status: msgspec.Raw = msgspec.Raw()
    error: str = ""


async def ask_status(invite: Invite, question: Question | None = None) -> bytes:
    """Return the status as JSON, or the answer to a question.

    Raises NetworkError, after at most ASK_S seconds, where no trainer answers.
    """
    reasons: list[str] = []
    try:
        async with asyncio.timeout(ASK_S):
            here = [ask_here(port, token, question) for port, token in local_trainers(invite.run_id)]
            answer = await _first(here, reasons)
            return await _ask_there(invite, question, reasons) if answer is None else answer
    except TimeoutError:
        reasons.insert(0, f"nobody has answered within {ASK_S:g} s")
        raise _silent(invite, reasons) from None


def _silent(invite: Invite, reasons: list[str]) -> NetworkError:
    reason = "; ".join(dict.fromkeys(reasons)) or "no trainer of it is known"
    return NetworkError(f"run {invite.name} does not answer: {reason}; is its trainer running?")


async def _first(asked: list[Coroutine[None, None, bytes]], reasons: list[str]) -> bytes | None:
    """Return the first answer; None: no trainer has answered, for these reasons."""
    tasks = [asyncio.ensure_future(question) for question in asked]
    try:
        for task in asyncio.as_completed(tasks):
            try:
                return await task
            except NetworkError as error:
                reasons.append(str(error))
        return None
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def ask_here(port: int, token: str, question: Question | None = None) -> bytes:
    """Return the status as JSON, or the answer to a question, from a trainer of this machine. Raises NetworkError."""
    try:
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
    except OSError as error:
        raise NetworkError(f"its trainer on this machine does not answer ({error.strerror})") from None
    return await ask_over(_line(token, question), reader, writer)


async def _ask_there(invite: Invite, question: Question | None, reasons: list[str]) -> bytes:
    daemon = await launch_asker()
    try:
        answer = await ask_trainers(daemon, invite, question, reasons)
    finally:
        await daemon.stop()
    if answer is None:
        raise _silent(invite, reasons)
    return answer


async def launch_asker(within_s: float = ASK_S) -> Daemon:
    """Start a p2pd that only dials. Raises NetworkError."""
    return await Daemon.launch(_DAEMON, within_s, stop_s=0.0)


async def ask_trainers(
    daemon: Daemon, invite: Invite, question: Question | None, reasons: list[str], within_s: float = ASK_S
) -> bytes | None:
    """Return the first answer of the trainers of an invite; None: none has answered, for these reasons.

    within_s: for each of connecting, opening a stream, and the answer.
    """
    asked = [_ask_trainer(daemon, name, where, invite, question, within_s) for name, where in _places(invite).items()]
    return await _first(asked, reasons)


async def _ask_trainer(
    daemon: Daemon, name: str, addresses: list[bytes], invite: Invite, question: Question | None, within_s: float
) -> bytes:
    await daemon.connect(name, addresses, within_s)
    stream = await daemon.open_stream(name, STATUS_PROTOCOL, within_s)
    credential = invite.key.bind(daemon.name) if invite.key is not None else b""
    command = f"{invite.run_id}:{base64.b64encode(credential).decode()}"
    try:
        async with asyncio.timeout(within_s):  # a process that is stopped keeps its connections, and says nothing
            return await ask_over(_line(command, question), *stream)
    except TimeoutError:
        raise NetworkError(f"{name[-6:]} is connected, and has not answered within {within_s:g} s") from None


def _line(command: str, question: Question | None) -> bytes:
    return command.encode() + (b"" if question is None else b" " + msgspec.json.encode(question)) + b"\n"


def _places(invite: Invite) -> Mapping[str, list[bytes]]:
    """Return the addresses of each trainer of an invite."""
    found: dict[str, list[bytes]] = {}
    for text in invite.trainers:
        where, _, name = text.rpartition("/p2p/")
        address = p2pd.address_bytes(where)
        if address is not None:
            found.setdefault(name, []).append(address)
    return found


async def ask_over(line: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """Send a line and return the answer. Raises NetworkError."""
    try:
        writer.write(line)
        data = bytearray()
        while piece := await reader.read(1 << 16):
            data += piece
            if len(data) > ANSWER_BYTES_MAX:
                raise NetworkError("the answer is too long to be a status")
        reply = msgspec.json.decode(data, type=StatusReply)
    except (OSError, *UNDECODABLE) as error:
        raise NetworkError(f"the connection broke before there was a whole answer ({error})") from None
    finally:
        writer.transport.abort()
    if reply.error or not bytes(reply.status):
        raise NetworkError(reply.error or "the answer has no status in it")
    return bytes(reply.status)
