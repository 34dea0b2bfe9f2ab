"""Conversations as tokens, by the tokenizer's chat template; only what the assistant says counts in the loss.

Where the template marks it with `{% generation %}`, transformers' mask of the assistant's tokens is taken. Else the
text of a turn is what the template adds to a conversation for it: from the end of the turns before it, with the
generation prompt, to the end of the turns with it. A token counts when its first character lies within such a text.

Templates that write the date (llama's) get a fixed one: rows are the same on every machine and on every day.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import blake3
import numpy as np
import numpy.typing as npt

from swarmflow.errors import DataError
from trainers.hub import one_line
from trainers.tokens import FileTokenizer, Tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ASSISTANT = "assistant"
_MARKS = re.compile(r"\{%-?\s*generation\s*-?%\}")
_CLOCK = "strftime_now"  # the function by which transformers gives templates the time
# The day that llama's templates write where they are given no clock.
_DAY = {"%d": "26", "%m": "07", "%b": "Jul", "%B": "July", "%Y": "2024", "%y": "24", "%a": "Fri", "%A": "Friday"}
_DAY |= {"%H": "00", "%M": "00", "%S": "00", "%F": "2024-07-26"}


class ChatRenderer:
    """A tokenizer with its chat template."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, template: str, with_tools: str | None = None) -> None:
        """with_tools: the template of conversations that have tools; None: the same."""
        self._tokenizer: Any = tokenizer  # its methods have no types
        self._template = _with_fixed_day(template)
        self._with_tools = self._template if with_tools is None else _with_fixed_day(with_tools)
        specials = sorted((name, str(token)) for name, token in self._tokenizer.special_tokens_map.items())
        tools = "" if with_tools is None else f" tools {self._with_tools}"
        self.digest = blake3.blake3(f"chat {self._template}{tools} {specials}".encode()).hexdigest()

    @classmethod
    def of(cls, tokenizer: Tokenizer, name: str) -> ChatRenderer:
        """Return that of a run's tokenizer. name: for messages. Raises DataError where it has no chat template."""
        wrapped = tokenizer.wrapped if isinstance(tokenizer, FileTokenizer) else None
        template, with_tools = (None, None) if wrapped is None else _templates_of(wrapped)
        if wrapped is None or template is None:
            raise DataError(
                f'tokenizer {name} has no chat template, which data.format = "chat" needs; give the folder or hub name '
                "of a model that was trained for chat"
            )
        return cls(wrapped, template, with_tools)

    def render(self, where: str, record: Mapping[str, object]) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
        """Return the ids [n] of a conversation, and which of them count [n]. Raises DataError, naming the place."""
        messages, tools = _messages(where, record), record.get("tools")
        try:
            if _MARKS.search(self._template_for(tools)) is not None:
                return self._marked_tokens(messages, tools)
            return self._added_tokens(where, messages, tools)
        except DataError:
            raise
        except Exception as error:  # templates raise what they like, and jinja2 its own errors
            raise DataError(f"{where}: the chat template refuses it ({one_line(error)})") from error

    def _marked_tokens(
        self, messages: Sequence[Mapping[str, object]], tools: object
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
        found = self._tokenizer.apply_chat_template(
            list(messages),
            tools=tools,
            chat_template=self._template_for(tools),
            return_dict=True,
            return_assistant_tokens_mask=True,
        )
        return np.asarray(found["input_ids"], dtype=np.int64), np.asarray(found["assistant_masks"], dtype=np.bool_)

    def _added_tokens(
        self, where: str, messages: Sequence[Mapping[str, object]], tools: object
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
        whole = self._text(messages, tools)
        found = self._tokenizer(whole, add_special_tokens=False, return_offsets_mapping=True)
        starts = np.asarray([start for start, _ in found["offset_mapping"]], dtype=np.int64)
        counts = np.zeros(len(starts), dtype=np.bool_)
        for number, message in enumerate(messages):
            if message["role"] != ASSISTANT:
                continue
            before = self._text(messages[:number], tools, prompted=True)
            after = whole if number + 1 == len(messages) else self._text(messages[: number + 1], tools)
            if not (after.startswith(before) and whole.startswith(after)):
                raise DataError(
                    f"{where}: the chat template renders message {number + 1} otherwise once others follow, so that "
                    "its tokens cannot be told; give each answer a record of its own, or a template with "
                    "{% generation %}"
                )
            counts |= (len(before) <= starts) & (starts < len(after))
        return np.asarray(found["input_ids"], dtype=np.int64), counts

    def _text(self, messages: Sequence[Mapping[str, object]], tools: object, *, prompted: bool = False) -> str:
        # As a batch of one conversation: that may be empty, where the assistant speaks first.
        [text] = self._tokenizer.apply_chat_template(
            [list(messages)],
            tools=tools,
            chat_template=self._template_for(tools),
            tokenize=False,
            add_generation_prompt=prompted,
        )
        return str(text)

    def _template_for(self, tools: object) -> str:
        return self._template if tools is None else self._with_tools


def _with_fixed_day(template: str) -> str:
    """Return a template in which the clock stands still, by a macro of the function's name."""
    if _CLOCK not in template:
        return template
    filters = "".join(f"|replace('{sign}','{value}')" for sign, value in _DAY.items())
    return f"{{%- macro {_CLOCK}(format) -%}}{{{{ format{filters} }}}}{{%- endmacro -%}}{template}"


def _templates_of(tokenizer: PreTrainedTokenizerBase) -> tuple[str | None, str | None]:
    """Return the chat templates that transformers would take, without and with tools. None: there is none, the same."""
    given: Any = tokenizer.chat_template
    named = given if isinstance(given, dict) else {"default": given}
    template, with_tools = (
        found if isinstance(found, str) and found else None for found in map(named.get, ("default", "tool_use"))
    )
    return template, with_tools


def _messages(where: str, record: Mapping[str, object]) -> list[Mapping[str, object]]:
    """Return the messages of a record, each with a role. Raises DataError."""
    messages = record.get("messages")
    if "messages" not in record:
        fields = ", ".join(sorted(map(str, record))) or "none"
        raise DataError(f"{where} has no field 'messages' (its fields: {fields})")
    if not isinstance(messages, list) or not messages:
        what = "an empty list" if messages == [] else "no list"
        raise DataError(f"{where}: its field 'messages' is {what}: it must be a list of messages")
    for number, message in enumerate(messages, start=1):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise DataError(f"{where}: message {number} is no object with a role and a content")
        if not isinstance(message.get("content"), str | list | None):
            raise DataError(f"{where}: the content of message {number} is no text")
    if all(message["role"] != ASSISTANT for message in messages):
        raise DataError(f'{where}: no message has the role "{ASSISTANT}": there is nothing to learn from it')
    return messages
