"""RUN.toml: what a run trains, on what and how. Reads it, checks it, and compares two of them at a resume."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from swarmflow import config_check as check
from swarmflow.boundary import Boundary
from swarmflow.config_finetune import FinetuneSection, finetune_problems
from swarmflow.config_paths import make_absolute
from swarmflow.core.protocol.timeouts import Timeouts
from swarmflow.errors import ConfigError
from swarmflow.finetuning import Lora
from swarmflow.suggestions import did_you_mean

EXPORT_DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, kw_only=True)
class RunSection:
    """[run]: its name and where its results go (absolute once loaded).

    peers: whether a peer needs an invite from the run's owner, or anyone may serve a stage. export_every: steps between
    two `step-N`, 0: none, None: one with every checkpoint. keep_exports: how many of the newest `step-N` stay, 0: all.
    export_dtype: of the numbers in exports; "source": of the weights that the run begins from.
    """

    name: Annotated[str, check.name] = "run"
    output: Annotated[Path, check.text] = Path("out")
    peers: Annotated[str, check.choice("invited", "anyone")] = "invited"
    export_every: Annotated[int | None, check.integer(0)] = None
    keep_exports: Annotated[int, check.integer(0)] = 2
    export_dtype: Annotated[str, check.choice("source", *EXPORT_DTYPES)] = "source"


@dataclass(frozen=True, kw_only=True)
class ModelSection:
    """[model]: exactly one of `path` (a Hugging Face folder, absolute once loaded), `config` and `module` is set.

    module: "package:function", which returns a torch.nn.Module; module_config: its keyword arguments. cut: the first
    block of stages 1 .. stages - 1, or None where the run measures an even cut; of a module the first operators, or the
    names of submodules. stages: always set by `load`, also when only `cut` was given. boundary: as `Boundary.parse`
    reads it; None: hidden states travel whole. shared_blocks: the groups of blocks that share their weights, or None.
    attention: transformers' implementation; None: the family's own.
    """

    path: Annotated[Path | None, check.text] = None
    config: Annotated[Mapping[str, object] | None, check.model_table] = None
    module: Annotated[str | None, check.function_name] = None
    module_config: Annotated[Mapping[str, object] | None, check.json_table] = None
    stages: Annotated[int, check.integer(1)] = 1
    cut: Annotated[tuple[int, ...] | tuple[str, ...] | None, check.cut_places] = None
    dropout: Annotated[bool, check.boolean] = False
    shared_blocks: Annotated[int | None, check.integer(1)] = None
    boundary: Annotated[str | None, check.boundary] = None
    attention: Annotated[str | None, check.choice("sdpa", "eager")] = None

    @property
    def parsed_boundary(self) -> Boundary | None:
        """The boundary, as a value."""
        return Boundary.parse(self.boundary) if self.boundary is not None else None

    @property
    def numbered_cut(self) -> tuple[int, ...] | None:
        """The cut in numbers; None: it is to be measured, or given by names."""
        places = tuple(place for place in self.cut or () if isinstance(place, int))
        return None if self.cut is None or len(places) < len(self.cut) else places


@dataclass(frozen=True, kw_only=True)
class DataSection:
    """[data]: exactly one of `path` (file, folder or glob, absolute once loaded) and `dataset` is set.

    collate: "package:function" of a run with model.module: records -> the named tensors of a microbatch. format: what
    records are, and which of their tokens count in the loss. packing: how records become rows of seq_len tokens; for
    "prompt" and "chat" `load` sets "bfd" where it is not given.
    """

    path: Annotated[str | None, check.text] = None
    dataset: Annotated[str | None, check.text] = None
    dataset_config: Annotated[str | None, check.text] = None
    split: Annotated[str, check.text] = "train"
    text_field: Annotated[str, check.text] = "text"
    tokenizer: Annotated[str, check.text] = "bytes"
    seq_len: Annotated[int, check.integer(1)] = 128
    order: Annotated[str, check.choice("sequential", "shuffled")] = "sequential"
    validation_path: Annotated[str | None, check.text] = None
    collate: Annotated[str | None, check.function_name] = None
    format: Annotated[str, check.choice("text", "prompt", "chat")] = "text"
    packing: Annotated[str, check.choice("wrapped", "bfd", "none")] = "wrapped"

    @property
    def of_records(self) -> bool:
        """Whether each record is a document of its own, of which some tokens may not count in the loss."""
        return self.format != "text" or self.packing != "wrapped"


@dataclass(frozen=True, kw_only=True)
class OptimizerSection:
    """[optimizer]: betas and eps are those of adamw and lamb, momentum that of sgd. state_bits: of their numbers."""

    name: Annotated[str, check.choice("adamw", "lamb", "sgd")] = "adamw"
    lr: Annotated[float, check.number(above=0)] = 3e-4
    betas: Annotated[tuple[float, float], check.betas] = (0.9, 0.95)
    momentum: Annotated[float, check.number(at_least=0, below=1)] = 0.9
    eps: Annotated[float, check.number(at_least=0)] = 1e-8
    weight_decay: Annotated[float, check.number(at_least=0)] = 0.1
    state_bits: Annotated[int, check.one_of(8, 32)] = 32
    schedule: Annotated[str, check.choice("constant", "cosine", "linear")] = "constant"
    warmup_steps: Annotated[int, check.integer(0)] = 0
    clip_grad_norm: Annotated[float, check.number(at_least=0)] = 1.0


@dataclass(frozen=True, kw_only=True)
class TrainSection:
    """[train]: a step has `microbatches` microbatches of `microbatch_sequences` sequences.

    compression_ratio: of the slowest boundary with the codec "adatopk", for which `load` always sets it.
    """

    steps: Annotated[int, check.integer(1)] = 100
    microbatches: Annotated[int, check.integer(1)] = 8
    microbatch_sequences: Annotated[int, check.integer(1)] = 4
    precision: Annotated[str, check.choice("fp32", "bf16")] = "fp32"
    accumulate: Annotated[str, check.choice("fp32", "exact")] = "fp32"
    codec: Annotated[str, check.choice("blockwise8", "fp16", "none", "adatopk")] = "blockwise8"
    compression_ratio: Annotated[float | None, check.number(at_least=1)] = None
    reduce_codec: Annotated[str, check.choice("blockwise16", "none")] = "blockwise16"
    delay: Annotated[int, check.integer(0, 1)] = 0
    router: Annotated[str, check.choice("shortest", "iwrr", "flow", "gwtf", "gwtf-sum")] = "shortest"
    placement: Annotated[str, check.choice("auto", "planned")] = "auto"
    seed: Annotated[int, check.integer(0, check.SEED_MAX)] = 0
    checkpoint_every: Annotated[int, check.integer(1)] = 50
    validate_every: Annotated[int, check.integer(0)] = 0


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """RUN.toml as a whole: one field a section."""

    run: RunSection
    model: ModelSection
    data: DataSection
    optimizer: OptimizerSection
    train: TrainSection
    timeouts: Timeouts = field(default_factory=Timeouts)
    finetune: FinetuneSection = field(default_factory=FinetuneSection)

    @property
    def adapters(self) -> Lora | None:
        """The adapters of the run, if it has some."""
        return self.finetune.adapters(self.train.precision)


# What runs have that were begun before there was the key.
_LATER_KEYS = {"optimizer.state_bits": 32, "data.format": "text", "data.packing": "wrapped"}
COMPRESSION_RATIO = 50.0  # of the slowest boundary, where the codec is adatopk and nothing else is asked
EPS_MIN = 1e-30  # with less, what has no gradient would be 0 / 0 in fp32
BLOCKWISE16_MAX = 512  # microbatches: both ends of a tied weight add theirs (compute/grid.ADDENDS_MAX)
_SECTIONS: dict[str, type] = {
    "run": RunSection,
    "model": ModelSection,
    "data": DataSection,
    "optimizer": OptimizerSection,
    "train": TrainSection,
    "timeouts": Timeouts,
    "finetune": FinetuneSection,
}

# May differ between a run and its resumption. What a path leads to counts by its content (the corpus' digest, the
# weights' digest), not by where it lies on this machine.
_FREE_KEYS = frozenset(
    {
        "run.output",
        "run.peers",
        "run.export_every",
        "run.keep_exports",
        "model.path",
        "data.path",
        "data.validation_path",
        "train.steps",
        "train.checkpoint_every",
        "train.validate_every",
        "train.placement",
    }
)
# Left out of the fingerprint only where they name something on this machine's disk.
_KEYS_MAYBE_PATHS = frozenset({"data.dataset", "data.tokenizer"})


def load(path: Path) -> RunConfig:
    """Reads and checks RUN.toml. Paths in it are relative to its folder and come back absolute.

    Raises ConfigError, one line that names the key, its value and what is allowed.
    """
    config, problems = read(path)
    if config is None:
        raise ConfigError(problems[0])
    return config


def read(path: Path) -> tuple[RunConfig | None, list[str]]:
    """As `load`: the configuration, or None and a line for each thing that is wrong. Raises ConfigError: no TOML."""
    raw = check.read_toml(path, "a RUN.toml")
    allowed = ", ".join(f"[{name}]" for name in _SECTIONS)
    problems: list[str] = []
    for name in raw:
        if name not in _SECTIONS:
            hint = check.its_section(name, _SECTIONS) or did_you_mean(name, _SECTIONS)
            problems.append(f"{path}: unknown section or key {name!r} at the top{hint}; allowed: {allowed}")
    values: dict[str, dict[str, Any]] = {}
    sound: set[str] = set()
    for name, cls in _SECTIONS.items():
        values[name], wrong = check.section_problems(str(path), name, raw.get(name, {}), cls, _SECTIONS)
        problems += wrong
        if not wrong:
            sound.add(name)
    together = {"model": _check_model, "data": _check_data, "optimizer": _check_optimizer, "train": _check_codec}
    for name, fits in together.items():
        if name in sound:  # what is missing may be what was refused
            try:
                fits(values[name])
            except check.Disallowed as error:
                problems.append(f"{path}: {error}")
    if problems:
        return None, problems
    make_absolute(values, path.absolute().parent)
    config = RunConfig(**{name: cls(**values[name]) for name, cls in _SECTIONS.items()})
    problems = [f"{path}: {line}" for line in _check_train(config)]
    return (None if problems else config), problems


def _check_train(config: RunConfig) -> list[str]:
    """What does not fit together over several sections."""
    problems: list[str] = []
    if config.optimizer.warmup_steps > config.train.steps:
        problems.append(
            f"optimizer.warmup_steps = {config.optimizer.warmup_steps}: "
            f"must be at most train.steps = {config.train.steps}"
        )
    if config.optimizer.name != "sgd" and config.optimizer.eps < EPS_MIN:
        problems.append(
            f"optimizer.eps = {config.optimizer.eps:g}: must be at least {EPS_MIN} with {config.optimizer.name}"
        )
    every, checkpoints = config.run.export_every, config.train.checkpoint_every
    if every is not None and every % checkpoints:
        problems.append(
            f"run.export_every = {every}: must be a multiple of train.checkpoint_every = {checkpoints}, or 0"
        )
    if config.train.validate_every and config.data.validation_path is None:
        problems.append(
            f"train.validate_every = {config.train.validate_every}: needs data.validation_path; "
            "give that, or leave validate_every at 0"
        )
    train = config.train
    if train.reduce_codec == "blockwise16" and train.accumulate == "fp32" and train.microbatches > BLOCKWISE16_MAX:
        problems.append(
            f"train.microbatches = {train.microbatches}: at most {BLOCKWISE16_MAX} add up in 16 bits; "
            'for more of them, train.reduce_codec = "none"'
        )
    if train.codec == "adatopk" and train.delay:
        problems.append('train.delay = 1: the codec "adatopk" needs train.delay = 0; or another train.codec')
    problems += [*_check_together(config), *finetune_problems(config.finetune, config.model, config.train.precision)]
    return [*problems, *(f"timeouts.{line}" for line in config.timeouts.problems())]


def fingerprint(config: RunConfig) -> dict[str, object]:
    """Every setting that must stay equal when a run is resumed: "section.key" -> a JSON value.

    A nested model.config is flattened ("model.config.hidden_size"). Missing and None are the same.
    """
    flat: dict[str, object] = {}
    for section in _SECTIONS:
        values = getattr(config, section)
        for key in dataclasses.fields(values):
            name, value = f"{section}.{key.name}", getattr(values, key.name)
            local = name in _KEYS_MAYBE_PATHS and value is not None and Path(value).is_absolute()
            if name not in _FREE_KEYS:
                _flatten(name, "(local files)" if local else value, flat)
    return flat


def first_difference(before: Mapping[str, object], now: Mapping[str, object]) -> str | None:
    """The first key, in the order of RUN.toml, whose value differs between two fingerprints; None when none does."""
    before, now = {**before, **_missing(before)}, {**now, **_missing(now)}
    names = list(before) + [name for name in now if name not in before]
    return next((name for name in names if before.get(name) != now.get(name)), None)


def _missing(found: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in _LATER_KEYS.items() if name not in found}


def _check_model(model: dict[str, Any]) -> None:
    given = [name for name in ("path", "config", "module") if name in model]
    if len(given) > 1:
        raise check.Disallowed(f"model.{given[0]} and model.{given[1]} are both given: keep one of them")
    if not given:
        raise check.Disallowed(
            "[model] needs path (a Hugging Face folder), config (a table with a model_type) or module (a function)"
        )
    if "module_config" in model and "module" not in model:
        raise check.Disallowed("model.module_config is given: goes only with model.module")
    for name in ("shared_blocks", "boundary", "attention"):
        if name in model and "module" in model:
            value = check.shown(model[name])
            raise check.Disallowed(f"model.{name} = {value}: is for the blocks of a decoder, not for a model.module")
    if model.get("dropout") and model.get("attention") == "sdpa":
        raise check.Disallowed(
            'model.attention = "sdpa": goes only without model.dropout; take "eager", or leave it out'
        )
    if "module" not in model and any(isinstance(place, str) for place in model.get("cut", ())):
        raise check.Disallowed(f"model.cut = {check.shown(model['cut'])}: names go only with model.module")
    if "stages" not in model and "cut" not in model:
        raise check.Disallowed("[model] needs stages (their number) or cut (the first block of stages 1, 2, ...)")
    if "cut" in model:
        stages = len(model["cut"]) + 1
        if model.setdefault("stages", stages) != stages:
            raise check.Disallowed(
                f"model.stages = {model['stages']}: model.cut = {list(model['cut'])} makes {stages} stages; "
                "leave one of them out or let them agree"
            )
    if "boundary" in model and model["stages"] == 1:
        raise check.Disallowed(
            f"model.boundary = {check.shown(model['boundary'])}: one stage has no boundary; ask for more stages, or "
            "leave it out"
        )


def _check_data(data: dict[str, Any]) -> None:
    if "path" in data and "dataset" in data:
        raise check.Disallowed("data.path and data.dataset are both given: keep one of them")
    if "path" not in data and "dataset" not in data:
        raise check.Disallowed("[data] needs path (a file, folder or glob) or dataset (a `datasets` name)")
    for name in ("dataset_config", "split"):
        if name in data and "dataset" not in data:
            raise check.Disallowed(f"data.{name} = {check.shown(data[name])}: goes only with data.dataset")
    form = data.get("format", "text")
    if form == "text":
        return
    data.setdefault("packing", "bfd")
    if "text_field" in data:
        raise check.Disallowed(
            f'data.text_field = {check.shown(data["text_field"])}: goes only with data.format = "text"; '
            f'records of "{form}" have fields of their own'
        )


def _check_together(config: RunConfig) -> list[str]:
    """What [model] module needs of other sections, and what goes only without it."""
    model, data = config.model, config.data
    if model.module is None:
        return [f"data.collate = {check.shown(data.collate)}: goes only with model.module"] if data.collate else []
    problems: list[str] = []
    if data.collate is None:
        problems.append(f"model.module = {check.shown(model.module)}: needs data.collate, which makes its batches")
    text = DataSection()
    for name in ("text_field", "tokenizer", "seq_len", "format", "packing"):
        if getattr(data, name) != getattr(text, name):
            value = check.shown(getattr(data, name))
            problems.append(f"data.{name} = {value}: is for text; data.collate makes the batches of a model.module")
    return problems


def _check_optimizer(optimizer: dict[str, Any]) -> None:
    name = optimizer.get("name", "adamw")
    wrong, right = ("betas", "adamw and lamb; use momentum") if name == "sgd" else ("momentum", "sgd; use betas")
    if wrong in optimizer:
        raise check.Disallowed(
            f'optimizer.{wrong} = {check.shown(optimizer[wrong])}: optimizer.name is "{name}", '
            f"and {wrong} belongs to {right}"
        )


def _check_codec(train: dict[str, Any]) -> None:
    codec = train.get("codec", "blockwise8")
    if codec == "adatopk":
        train.setdefault("compression_ratio", COMPRESSION_RATIO)
    elif "compression_ratio" in train:
        raise check.Disallowed(
            f"train.compression_ratio = {check.shown(train['compression_ratio'])}: "
            f'train.codec is "{codec}", and compression_ratio belongs to adatopk'
        )


def _flatten(name: str, value: object, into: dict[str, object]) -> None:
    if isinstance(value, Mapping) and value:
        for inner, item in value.items():
            _flatten(f"{name}.{inner}", item, into)
    else:
        into[name] = list(value) if isinstance(value, tuple) else value
