"""A tokenizer for chat, of every byte and two marks, and conversations."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

from trainers.tokens import BytesTokenizer

BEGIN, END = "<|im_start|>", "<|im_end|>"
VOCAB = 259
# ChatML, as qwen has it; what `MARKED` marks is what the plain template adds for a turn of the assistant.
PLAIN = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MARKED = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
    "<|im_end|>\n{% endgeneration %}{% else %}{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# It shows the answers before the last one shortened, as templates of thinking models do.
FORGETFUL = (
    "{% for m in messages %}{{ m.role }}: {% if loop.last or m.role != 'assistant' %}{{ m.content }}"
    "{% else %}...{% endif %}\n{% endfor %}"
)


def save_tokenizer(folder: Path, template: str | dict[str, str] | None) -> Path:
    """Write a tokenizer whose ids are bytes, then the two marks and a beginning of texts that nothing adds."""
    BytesTokenizer().save(folder)
    tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(folder)
    tokenizer.add_special_tokens(
        {"eos_token": END, "additional_special_tokens": [BEGIN], "bos_token": "<s>"}, replace_extra_special_tokens=False
    )
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return folder


def conversations(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Return records of one to three turns, of many lengths; one has letters of several bytes."""
    draw = random.Random(seed)
    records = []
    for number in range(count):
        turns = []
        for _ in range(draw.randint(1, 3)):
            turns.append({"role": "user", "content": "why?" * draw.randint(1, 3)})
            turns.append({"role": "assistant", "content": ("because " * draw.randint(1, 4)) + "ü" * (number == 1)})
        system = [{"role": "system", "content": "be brief"}] if number % 3 == 0 else []
        records.append({"messages": system + turns})
    return records


def write_records(path: Path, records: Sequence[object]) -> str:
    """Write JSON lines, and return the path."""
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)
