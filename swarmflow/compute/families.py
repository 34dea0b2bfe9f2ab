"""Hugging Face decoder families, taken apart by what they do instead of by a list of names.

A family fits when its blocks are one module list and everything else is called either before the first block or after
the last. Which is which is seen from one run on the meta device, not from the order of declaration.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import init
from torch.overrides import TorchFunctionMode
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.conversion_mapping import get_checkpoint_conversion_mapping, get_model_conversion_mapping
from transformers.core_model_loading import PrefixChange, WeightRenaming, apply_renamings
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from swarmflow.compute.adapters import adapters_of, attach_adapters, is_adapter, plain_name
from swarmflow.compute.attention import attention_of, with_attention
from swarmflow.compute.json_floats import as_json, from_json
from swarmflow.compute.sharing import shared_groups, why_unlike, with_sharing
from swarmflow.errors import ModelError
from swarmflow.suggestions import did_you_mean

CONFIG_BYTES_MAX = 1 << 20
# They name the software that wrote a configuration, or how to run it, not the model.
_VOLATILE_KEYS = ("transformers_version", "_name_or_path", "architectures", "torch_dtype", "auto_map", "dtype")

_USUAL_PREFIX = "model"
_BLOCK_PARTS_MAX = 3  # of the tuple that a family's blocks return: hidden states, attentions, a cache
_ROLES_CACHED_MAX = 64

# Full names of the leaf modules that run before the first block, and after the last one.
_Roles = tuple[tuple[str, ...], tuple[str, ...]]
_role_cache: dict[tuple[str, str], _Roles] = {}  # by configuration and attention


@dataclass(frozen=True)
class Anatomy:
    """A causal language model on the meta device and the roles of its parts.

    blocks_name: full name of the module list. entry, exit: full names of the leaf modules outside it that run before
    the first block, after the last one (the head included). embedding, head: full names of the input embedding and of
    the output projection. tied: full name of the weight that both share, or None. shared: the groups of blocks that
    share their weights, each block in one; here every block still has parameters of its own. frozen: full names of the
    fp32 buffers that checkpoints hold and no gradient trains.
    """

    model: PreTrainedModel
    blocks_name: str
    entry: tuple[str, ...]
    exit: tuple[str, ...]
    embedding: str
    head: str
    tied: str | None
    shared: tuple[range, ...] = ()
    frozen: tuple[str, ...] = ()

    @property
    def base(self) -> nn.Module:
        return self.model.get_submodule(self.model.base_model_prefix)

    @property
    def blocks(self) -> nn.ModuleList:
        blocks = self.model.get_submodule(self.blocks_name)
        assert isinstance(blocks, nn.ModuleList)
        return blocks

    def block_of(self, name: str) -> int | None:
        """The block that a parameter or module of this full name lies in, None if outside the blocks."""
        prefix = self.blocks_name + "."
        return int(name[len(prefix) :].split(".", 1)[0]) if name.startswith(prefix) else None


def model_config(
    source: Mapping[str, Any] | Path, shared_blocks: int | None = None, attention: str | None = None
) -> dict[str, Any]:
    """A complete, JSON-able model configuration from a dict with `model_type`, or from a Hugging Face folder.

    shared_blocks: the groups of blocks that share their weights (`sharing`); None: each block has its own.
    attention: transformers' implementation (`attention.py`); None: the family's own. Raises ModelError: the folder or
    its config.json is missing or corrupt, model_type is unknown, a value is impossible, the model is not a decoder
    whose blocks are one module list, or its blocks cannot share their weights or have this attention.
    """
    given = dict(source) if isinstance(source, Mapping) else _read_config(source)
    config = to_config(with_attention(with_sharing(given, shared_blocks), attention))
    dissect(config)
    complete = {key: value for key, value in config.to_dict().items() if key not in _VOLATILE_KEYS}
    try:
        return dict(json.loads(json.dumps(as_json(complete), allow_nan=False)))
    except (TypeError, ValueError) as error:
        raise ModelError(f"the model's configuration cannot be written as JSON: {error}") from error


def stored_dtype(folder: Path) -> str | None:
    """The dtype of the weights in a Hugging Face folder by its config.json; None where it names none.

    Raises ModelError as `model_config`.
    """
    given = _read_config(folder)
    found = given.get("dtype", given.get("torch_dtype"))  # the second one before transformers 4.56
    return found if isinstance(found, str) else None


def to_config(config: Mapping[str, Any]) -> PreTrainedConfig:
    """The transformers configuration object of a dict. Raises ModelError when transformers refuses it."""
    values = {key: value for key, value in config.items() if key not in _VOLATILE_KEYS}
    model_type = values.pop("model_type", None)
    if not isinstance(model_type, str) or not model_type:
        raise ModelError("the model's configuration has no model_type; add one, for example 'llama'")
    if model_type not in CONFIG_MAPPING:
        hint = (
            did_you_mean(model_type, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
            or "; the documentation of transformers lists them"
        )
        raise ModelError(f"unknown model_type {model_type!r}{hint}")
    try:
        made = AutoConfig.for_model(model_type, **from_json(values))
    except Exception as error:  # every configuration class validates in its own way
        raise ModelError(f"the configuration of the {model_type} model is refused: {one_line(error)}") from error
    if type(made) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ModelError(f"model_type {model_type!r} is not a causal language model")
    made.use_cache = False
    return made


def preload(*families: str) -> None:
    """Load what a process loads with its first model: for processes that are forked, and would each do it again."""
    for family in families:
        MODEL_FOR_CAUSAL_LM_MAPPING[CONFIG_MAPPING[family]]  # imports the module of the family
    get_checkpoint_conversion_mapping("")  # compiles the patterns of all families


def unsupported(config: PreTrainedConfig, reason: str) -> ModelError:
    """The error that names a family, and why swarmflow does not train it."""
    return ModelError(f"models of type {config.model_type} are not supported: {reason}")


def dissect(config: PreTrainedConfig, *, dropout: bool = False) -> Anatomy:
    """Builds the whole model on the meta device (no memory) and finds out the role of each of its parts.

    dropout: whether training drops anything. Raises ModelError when the model cannot be cut into stages.
    """
    _check_kind(config)
    factory: Any = AutoModelForCausalLM  # untyped in transformers
    family: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    attention = attention_of(config, has_sdpa=family._supports_sdpa, dropout=dropout)
    try:
        with torch.device("meta"), _SkipInit():
            model = factory.from_config(config, dtype=torch.float32, attn_implementation=attention)
    except Exception as error:  # a constructor fails in its own way on sizes that do not fit each other
        raise ModelError(f"the {config.model_type} model cannot be built: {one_line(error)}") from error
    model.eval()
    if not hasattr(model, model.base_model_prefix) and hasattr(model, _USUAL_PREFIX):
        model.base_model_prefix = _USUAL_PREFIX  # llama4's text model names another model's part
    blocks_name = _blocks_name(model, config)
    names = {id(module): name for name, module in model.named_modules()}
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    if not isinstance(embedding, nn.Embedding) or head is None or not hasattr(head, "weight"):
        raise unsupported(config, "they have no plain input embedding and head")
    entry, leave = _cached_roles(model, blocks_name, attention)
    tied = f"{names[id(embedding)]}.weight" if head.weight is embedding.weight else None
    frozen = _frozen(model, blocks_name)
    blocks = model.get_submodule(blocks_name)
    assert isinstance(blocks, nn.ModuleList)
    shared = shared_groups(config, len(blocks))
    if unlike := why_unlike(config, blocks, shared):
        raise ModelError(f"models of type {config.model_type} with model.shared_blocks = {len(shared)}: {unlike}")
    if (lora := adapters_of(config)) is not None:
        attach_adapters(model, blocks_name, lora)
    return Anatomy(model, blocks_name, entry, leave, names[id(embedding)], names[id(head)], tied, shared, frozen)


def init_module(model: PreTrainedModel, module: nn.Module) -> None:
    """Gives the parameters and buffers of one module (not of its children) their first values, by the family's rule."""
    rule: Any = model._init_weights  # untyped in transformers
    with torch.no_grad():
        rule(module)


def fill_from_above(model: PreTrainedModel) -> None:
    """Give buffers their values where the rule of a family is one for its whole model (falcon_h1)."""
    for module in model.modules():
        if isinstance(module, PreTrainedModel):
            init_module(model, module)


def stored_names(model: PreTrainedModel) -> dict[str, str]:
    """Parameter name -> name in the family's checkpoints, where these differ (gpt_neox calls its head embed_out)."""
    conversions = get_model_conversion_mapping(model, add_legacy=False)
    # As transformers does in saving; what adds or removes a prefix depends on the checkpoint that was read.
    kept = [conversion for conversion in reversed(conversions) if not isinstance(conversion, PrefixChange)]
    back = [conversion.reverse_transform() for conversion in kept]
    renamings = [conversion for conversion in back if isinstance(conversion, WeightRenaming)]
    plain = (plain_name(name) for name in model.state_dict() if not is_adapter(name))
    names = ((name, apply_renamings(name, renamings)) for name in plain)
    return {name: stored for name, stored in names if stored != name}


def shrink(config: Mapping[str, Any], blocks: int, vocab_size: int | None = None) -> dict[str, Any]:
    """The same model with its first `blocks` blocks only, and with a smaller vocabulary if given.

    A model with fewer gets more like its last one. None of them share their weights.

    Raises ModelError when the configuration says how many blocks there are in a way that is not understood.
    """
    whole = to_config(config)
    count = int(whole.num_hidden_layers)
    values = whole.to_dict()
    for key, value in list(values.items()):
        if isinstance(value, list) and len(value) == count:
            values[key] = (value + value[-1:] * blocks)[:blocks]
    values[whole.attribute_map.get("num_hidden_layers", "num_hidden_layers")] = blocks
    if vocab_size is not None:
        values[whole.attribute_map.get("vocab_size", "vocab_size")] = vocab_size
        for key in ("pad_token_id", "bos_token_id", "eos_token_id"):  # some families need them
            values[key] = values[key] % vocab_size if isinstance(values.get(key), int) else None
    return {key: value for key, value in with_sharing(values, None).items() if key not in _VOLATILE_KEYS}


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.is_file():
        raise ModelError(f"{folder} is not a Hugging Face model folder: it has no config.json")
    if path.stat().st_size > CONFIG_BYTES_MAX:
        raise ModelError(f"{path} is larger than {CONFIG_BYTES_MAX} bytes; this is not a model's configuration")
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {one_line(error)}") from error
    if not isinstance(values, dict):
        raise ModelError(f"{path} does not hold a JSON object")
    return values


def _check_kind(config: PreTrainedConfig) -> None:
    """Raises ModelError, with what to do, for what is no decoder of text, or would be trained otherwise than asked."""
    if config.is_encoder_decoder:
        raise unsupported(config, "they have an encoder; train such a model as [model] module (docs/modules.md)")
    text = config.get_text_config(decoder=True)
    if text is not config:
        known = text.model_type in CONFIG_MAPPING and type(text) in MODEL_FOR_CAUSAL_LM_MAPPING
        hint = f"; train the text model alone, model_type {text.model_type!r}" if known else ""
        raise unsupported(config, f"they are made of several models{hint}")


def _frozen(model: PreTrainedModel, blocks_name: str) -> tuple[str, ...]:
    """Return the names of the buffers that checkpoints hold. Raises ModelError for any that a stage cannot keep."""
    trained = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    buffers = {name: value for name, value in model.state_dict().items() if name not in trained}
    for name, value in buffers.items():
        if value.dtype != torch.float32 or not name.startswith(f"{blocks_name}."):
            raise unsupported(model.config, f"their checkpoints hold values that no gradient trains ({name})")
    return tuple(buffers)


def _blocks_name(model: PreTrainedModel, config: PreTrainedConfig) -> str:
    count = getattr(config, "num_hidden_layers", None)
    prefix = f"{model.base_model_prefix}."
    found: list[str] = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) == count and name.startswith(prefix)
    ]
    # Lists inside a block (experts, heads) may have the same length: only the outermost one holds the blocks.
    outer = [name for name in found if not any(name.startswith(other + ".") for other in found)]
    if len(outer) != 1:
        raise unsupported(config, "their blocks are not one list of modules, so there is nothing to cut")
    return outer[0]


class _SkipInit(TorchFunctionMode):
    """Skips first values: on the meta device there are none, and gpt2 would spend half of the time on them."""

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> object:
        named = kwargs or {}
        if getattr(func, "__module__", "") == init.__name__:
            return args[0] if args else named["tensor"]
        return func(*args, **named)


def _cached_roles(model: PreTrainedModel, blocks_name: str, attention: str) -> _Roles:
    """Return the roles; a process takes the same model apart many times."""
    key = model.config.to_json_string(use_diff=False), attention
    found = _role_cache.get(key)
    if found is None:
        if len(_role_cache) >= _ROLES_CACHED_MAX:
            _role_cache.clear()  # of a process that looks at so many models
        found = _role_cache[key] = _roles(model, blocks_name)
    return found


def _roles(model: PreTrainedModel, blocks_name: str) -> _Roles:
    """Runs the model on the meta device and sorts the leaf modules outside the blocks by when they are called."""
    config = model.config
    outside = [
        (name, module)
        for name, module in model.named_modules()
        if name and not name.startswith(blocks_name) and not any(True for _ in module.children())
    ]
    blocks = model.get_submodule(blocks_name)
    assert isinstance(blocks, nn.ModuleList)
    if not len(blocks):
        raise ModelError(f"this model of type {config.model_type} has no blocks: give it at least one")
    calls: list[str] = []

    def note(name: str) -> Callable[[nn.Module, object], None]:
        return lambda module, args: calls.append(name)

    handles = [module.register_forward_pre_hook(note(name)) for name, module in outside]
    handles += [block.register_forward_pre_hook(note(f"{blocks_name}.{i}")) for i, block in enumerate(blocks)]
    try:
        _run_on_meta(model, blocks, calls)
    finally:
        for handle in handles:
            handle.remove()
    expected = [f"{blocks_name}.{i}" for i in range(len(blocks))]
    if [name for name in calls if name in expected] != expected:
        raise unsupported(config, "they do not call their blocks once each, in order")
    first, last = calls.index(expected[0]), calls.index(expected[-1])
    entry, leave = tuple(dict.fromkeys(calls[:first])), tuple(dict.fromkeys(calls[last + 1 :]))
    both = set(entry) & set(leave)
    if trained := sorted(name for name in both if any(True for _ in model.get_submodule(name).parameters())):
        raise unsupported(config, f"their part {trained[0]} is used both before the first block and after the last")
    entry, leave = (tuple(name for name in names if name not in both) for names in (entry, leave))
    if between := sorted(set(calls[first : last + 1]) - set(expected)):
        raise unsupported(config, f"their part {between[0]} is used between their blocks")
    if unused := [n for n, m in outside if n not in calls and any(True for _ in m.parameters())]:
        raise unsupported(config, f"their part {unused[0]} is not used for text, or within the blocks only")
    return entry, leave


def _run_on_meta(model: PreTrainedModel, blocks: nn.ModuleList, calls: list[str]) -> None:
    """Runs what is outside the blocks. Blocks hand on what they get: some look at values, which meta tensors have not.

    The model is left as it was: a forward may keep tensors, of the meta device here, in its modules.
    """
    ids = torch.zeros(1, 2, dtype=torch.int64, device="meta")
    mask4d = torch.zeros(1, 1, 2, 2, device="meta")
    kept = [(module, dict(vars(module)), dict(module._buffers)) for module in model.modules()]
    failures: list[Exception] = []
    # A ready 4-d mask keeps transformers from looking at values; a few older families take no such mask, but do not
    # look either. Of what a block returns, some families take the first part.
    for mask, parts in itertools.product((mask4d, None), range(1 + _BLOCK_PARTS_MAX)):
        calls.clear()
        for block in blocks:
            block.forward = _handing_on(parts)
        try:
            with torch.no_grad():
                model(input_ids=ids, attention_mask=mask, **without_balance(model), use_cache=False)
        except Exception as error:  # any family fails in its own way; the first of the failures is reported
            failures.append(error)
        else:
            return
        finally:
            for module, attributes, buffers in kept:
                vars(module).clear()
                vars(module).update(attributes)
                module._buffers.clear()
                module._buffers.update(buffers)
    why = f"their parts cannot be told apart ({one_line(failures[0])})"
    if '"rope_type": "dynamic"' in model.config.to_json_string():
        why = 'rope_type "dynamic" looks at positions; set it to "default", the same within max_position_embeddings'
    raise unsupported(model.config, why) from failures[0]


def without_balance(model: PreTrainedModel) -> dict[str, Any]:
    """Return what a forward of a causal model takes so that it computes no loss that balances experts."""
    return {"output_router_logits": False} if hasattr(model.config, "output_router_logits") else {}


def _handing_on(parts: int) -> Callable[..., object]:
    """parts: of the tuple that a block returns; 0: it returns the hidden states themselves."""

    def forward(*args: object, **kwargs: object) -> object:
        hidden = args[0] if args else kwargs["hidden_states"]
        return (hidden, *[None] * (parts - 1)) if parts else hidden

    return forward


def one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
