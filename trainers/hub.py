"""The model hub: whether it answers, and its errors in one line."""

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
    except Exception:  # any error of the http library below this version of the hub's client means: there is no hub
        return False
    return True


def one_line(error: Exception) -> str:
    """Return the text of a library's error, on one line of bounded length; its type where it has none."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _LINE_CHARS_MAX else text[: _LINE_CHARS_MAX - 3] + "..."
