"""The model hub, as far as a trainer may need it: is it there, and what went wrong, in one line."""

from __future__ import annotations

_PROBE_TIMEOUT_S = 5.0
_LINE_CHARS_MAX = 200


def hub_in_reach() -> bool:
    """Whether the model hub answers, asked once and briefly: its own clients retry for most of a minute first."""
    from huggingface_hub import constants, get_session

    if constants.HF_HUB_OFFLINE:
        return False
    try:
        get_session().head(constants.ENDPOINT, timeout=_PROBE_TIMEOUT_S)
    except Exception:  # whatever the http library below this version of the hub's client raises: there is no hub
        return False
    return True


def one_line(error: Exception) -> str:
    """What a library's error says, on one line and not too long a one; its type where it says nothing."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _LINE_CHARS_MAX else text[: _LINE_CHARS_MAX - 3] + "..."
