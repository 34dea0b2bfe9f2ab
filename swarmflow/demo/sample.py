"""Text from an exported model, by plain transformers: the model can be used without swarmflow."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def sample(folder: Path, prompt: str, tokens: int, seed: int = 0) -> str:
    """Return the prompt and up to `tokens` more tokens, sampled at a temperature of 0.7; invalid text is U+FFFD."""
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(seed)
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder)
    encoded = tokenizer(prompt, return_tensors="pt")
    generated = model.generate(**encoded, max_new_tokens=tokens, do_sample=True, temperature=0.7, pad_token_id=0)
    return str(tokenizer.decode(generated[0]))
