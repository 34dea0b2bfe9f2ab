"""`swarmflow check`: all facts about a run that need no swarm, in one table, and all problems."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from swarmflow.compute.demands import StageDemands, graph_demands, stage_demands
from swarmflow.compute.export import export_note
from swarmflow.compute.layout import stage_layout
from swarmflow.config import RunConfig, read
from swarmflow.errors import ConfigError, DataError, ForeignFileError, ModelError, SwarmflowError
from swarmflow.files import existing_parent, free_bytes, readable_size
from swarmflow.manifest import Manifest
from swarmflow.peer_memory import PROCESS_BYTES
from swarmflow.preparation.manifests import graph_manifest_of, manifest_of
from swarmflow.preparation.model_check import check_model
from trainers.check.operators import operator_lines
from trainers.corpus import Sample, sample
from trainers.data import check_enough, check_vocabulary, document_renderer, record_sources_of, sources_of
from trainers.document_cache import sample_documents
from trainers.exports import check_unclaimed
from trainers.needs import disk_needs, shortfalls
from trainers.plan import examined_module
from trainers.records import open_records
from trainers.sources import CorpusSource, RecordSource
from trainers.tokens import Tokenizer, open_tokenizer

SAMPLE_BYTES = 1 << 22  # of text that is tokenized: all of a small corpus, the start of a large one
SAMPLE_TOKENS = 1 << 20  # of records: about as much

Facts = list[tuple[str, str]]


def main(run_toml: Path, state_dir: Path | None, *, operators: bool = False) -> int:
    """Print the facts about a run and its problems; return 1 where there are any, else 0.

    operators: of a module, list them.
    """
    facts, demands, problems = check_run(run_toml, state_dir, operators=operators)
    print("\n".join([*(f"{name:<10} {text}" for name, text in facts), *table(demands)]), flush=True)
    for problem in problems:
        print(f"swarmflow: {problem}", file=sys.stderr, flush=True)
    if not problems:
        print("nothing is wrong: start it with `swarmflow trainer`")
    return 1 if problems else 0


def check_run(
    run_toml: Path, state_dir: Path | None, *, operators: bool = False
) -> tuple[Facts, list[StageDemands], list[str]]:
    """Return the facts about a run (name, text), the needs of its stages, and a line for each problem."""
    try:
        config, lines = read(run_toml)
    except ConfigError as error:
        return [], [], [str(error)]
    if config is None:
        return [], [], lines
    manifest, demands, facts, problems = (
        _module(config, operators=operators) if config.model.module is not None else _model(config)
    )
    wrong = _output(config)
    problems += wrong
    if manifest is not None and not wrong:
        state = state_dir or config.run.output / "state" / "trainer-0"
        needs = disk_needs(manifest, config)
        facts.append(("disk", f"up to {needs}; free: {readable_size(free_bytes(config.run.output))}"))
        lines = shortfalls(needs, state / "checkpoints", config.run.output)
    return [("run", _steps(config)), *facts], demands, [*(str(problem) for problem in problems), *lines]


Checked = tuple[Manifest | None, list[StageDemands], Facts, list[SwarmflowError]]


def _model(config: RunConfig) -> Checked:
    """Check a model and its text."""
    checked = check_model(config)
    facts, wrong = _data(config, checked.vocab_size)
    problems = [*checked.problems, *wrong]
    if checked.model is None:
        return None, [], facts, problems
    try:
        manifest = manifest_of(config, checked.model, corpus_digest="", run_id="")
    except ModelError as error:
        return None, [], facts, [*problems, error]
    demands = stage_demands(manifest, checked.model.examined.activations)
    facts = [("model", _model_line(config, manifest, demands)), *_boundary(manifest), *facts]
    return manifest, demands, facts, problems


def _module(config: RunConfig, *, operators: bool) -> Checked:
    """Check a module and its records."""
    try:
        records = open_records(config)
        facts: Facts = [("data", f"{config.data.dataset or config.data.path}: {records.summary}")]
        examined = examined_module(config, records)
    except SwarmflowError as error:
        return None, [], [], [error]
    manifest = graph_manifest_of(config, examined, corpus_digest="", run_id="")
    count = sum(math.prod(each.shape) for each in examined.model.parameters)
    cut = f", cut before {', '.join(map(str, examined.cut))}" if examined.cut else ""
    line = f"{config.model.module}, {examined.model.operators} operators{cut}, {count:,} parameters"
    facts = [("model", line), *facts]
    if operators:
        facts.append(("operators", "\n".join(("", *operator_lines(examined)))))
    return manifest, graph_demands(manifest, examined.activation_bytes), facts, []


def table(demands: Sequence[StageDemands]) -> list[str]:
    """Return the needs of each stage, a line each, in 80 columns."""
    if not demands:
        return []
    head = ("stage", "blocks", "parameters", "memory", "microbatch", "each way", "step", "to join")
    rows: list[tuple[str, ...]] = [head]
    for one in demands:
        blocks = f"{one.blocks.start}-{one.blocks.stop - 1}"
        link = max(one.sent_bytes, one.received_bytes)
        sizes = (one.memory_bytes, one.microbatch_bytes, link, one.reduced_bytes, one.state_bytes)
        rows.append((str(one.stage), blocks, f"{one.parameters:,}", *(readable_size(size) for size in sizes)))
    device = readable_size(max(one.in_host.device_bytes for one in demands))
    host = readable_size(max(one.in_host.host_bytes for one in demands))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return [
        "",
        "what a peer of a stage needs, about:",
        *lines,
        f"memory: weights, gradients, optimizer; {readable_size(PROCESS_BYTES)} for the process, an eighth",
        "of a limit for repairs and `microbatch` for each one that it works on come on top.",
        "each way: sent and received a microbatch; step: the same at the end of a step,",
        "where a stage has several peers.",
        f"with --state host, at most {device} of a GPU's memory instead, and {host} of RAM.",
    ]


def _steps(config: RunConfig) -> str:
    train = config.train
    each = "records" if config.model.module is not None else f"sequences of {config.data.seq_len} tokens"
    return (
        f"{config.run.name}: {train.steps} steps of {train.microbatches} microbatches of {train.microbatch_sequences} "
        f"{each}"
    )


def _model_line(config: RunConfig, manifest: Manifest, demands: Sequence[StageDemands]) -> str:
    origin = "fresh weights" if manifest.from_seed else f"weights of {config.model.path}"
    blocks = demands[-1].blocks.stop
    whole = stage_layout(manifest.model, (), 0)  # in which what several stages hold counts once
    parameters = f"{whole.parameters:,} parameters"
    if (lora := config.adapters) is not None:
        kept = config.finetune.base or config.train.precision
        parameters = f"{sum(slot.elements for slot in whole.base):,} parameters, kept in {kept}"
        parameters += f", and {whole.parameters:,} of adapters of rank {lora.rank}, which are trained"
        origin = f"weights of {config.model.path}"
    if config.model.shared_blocks is not None:
        parameters += f" ({whole.stored_parameters:,} before blocks share theirs)"
    return f"{manifest.model['model_type']}, {blocks} blocks, {parameters}, {origin}"


def _boundary(manifest: Manifest) -> Facts:
    """Return the facts about boundaries that are learnt; none where there are none."""
    if manifest.boundary is None:
        return []
    whole = sum(stage_layout(manifest.model, manifest.cut, stage).parameters for stage in range(manifest.stages))
    travel = f"{manifest.boundary_width} of {manifest.hidden_size} numbers of a token travel"
    boundaries = "1 boundary" if len(manifest.cut) == 1 else f"{len(manifest.cut)} boundaries"
    learnt = f"{sum(manifest.parameters) - whole:,} parameters at {boundaries}"
    return [("boundary", f"{manifest.boundary}: {travel}, {learnt}"), ("exports", export_note(manifest.boundary))]


def _data(config: RunConfig, vocab_size: int | None) -> tuple[Facts, list[SwarmflowError]]:
    """Return the facts about the tokenizer and the start of the data."""
    facts: Facts = []
    problems: list[SwarmflowError] = []
    sources: Sequence[CorpusSource | RecordSource] = []
    try:
        sources = record_sources_of(config.data) if config.data.of_records else sources_of(config.data)
    except DataError as error:
        problems.append(error)
    try:
        tokenizer = open_tokenizer(config.data.tokenizer)
    except DataError as error:
        return facts, [*problems, error]
    if vocab_size is not None:
        text = f"{config.data.tokenizer}, {tokenizer.vocab_size:,} tokens of the model's {vocab_size:,}"
        facts.append(("tokenizer", text))
    try:
        check_vocabulary(config.data.tokenizer, tokenizer.vocab_size, vocab_size)
    except DataError as error:
        problems.append(error)
    for source in sources:
        try:
            if isinstance(source, RecordSource):
                facts.append(("data", _documents(source, tokenizer, config)))
                continue
            found = sample(source, tokenizer, SAMPLE_BYTES)
            if found.whole:
                check_enough(source.name, found.tokens, config.data.seq_len)
            facts.append(("data", _read(source.name, found, config)))
        except DataError as error:
            problems.append(error)
    return facts, problems


def _documents(source: RecordSource, tokenizer: Tokenizer, config: RunConfig) -> str:
    """Return what the first records are. Raises DataError."""
    render, _ = document_renderer(config.data, tokenizer)
    found = sample_documents(source, render, tokenizer.vocab_size, SAMPLE_TOKENS)
    if not found.targets:
        raise DataError(f"{source.name}: no token of its records counts in the loss")
    counted = f"{found.documents:,} records, {found.tokens:,} tokens, of which {found.targets:,} count in the loss"
    return f"{source.name}: {counted}" if found.whole else f"{source.name}: its first {counted}; the rest was not read"


def _read(name: str, found: Sample, config: RunConfig) -> str:
    if not found.whole:
        return f"{name}: its first {readable_size(found.size_bytes)} are {found.tokens:,} tokens; the rest was not read"
    sequences = (found.tokens - 1) // config.data.seq_len
    return f"{name}: {readable_size(found.size_bytes)}, {found.tokens:,} tokens, {sequences:,} sequences"


def _output(config: RunConfig) -> list[SwarmflowError]:
    """Whether the output folder can be made and written, and nothing of others is in the place of exports."""
    output = config.run.output
    if output.is_symlink() and not output.exists():
        return [ConfigError(f"run.output = {output}: it is a link to {os.readlink(output)}, which is not there")]
    try:
        check_unclaimed(output)
    except ForeignFileError as error:
        return [error]
    parent = existing_parent(config.run.output)
    if not parent.is_dir():
        return [ConfigError(f"run.output = {config.run.output}: {parent} is not a folder")]
    if not os.access(parent, os.W_OK | os.X_OK):
        return [ConfigError(f"run.output = {config.run.output}: {parent} cannot be written by this user")]
    return []
