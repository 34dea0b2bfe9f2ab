"""Checks of single RUN.toml values: each returns the checked value or raises `Disallowed` with what is allowed."""

from __future__ import annotations

import codecs
import dataclasses
import itertools
import json
import math
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_type_hints

from swarmflow.boundary import Boundary
from swarmflow.core.protocol.timeouts import SECONDS_MAX, Timeouts
from swarmflow.errors import ConfigError
from swarmflow.finetuning import ALL_LINEAR, RANK_MAX, Lora
from swarmflow.suggestions import did_you_mean

Check = Callable[[object], Any]

# Large enough for every count in practice, small enough for a signed 32-bit field on the wire.
COUNT_MAX = 2**31 - 1
SEED_MAX = 2**63 - 1
_SHOWN_CHARS_MAX = 80
FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """The content of a TOML file. what: it should be, for the person. Raises ConfigError."""
    try:
        # Some editors begin a UTF-8 file with a mark, which TOML does not know.
        return tomllib.loads(path.read_bytes().removeprefix(codecs.BOM_UTF8).decode("utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; give the path of {what}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text (byte {error.start})") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error


class Disallowed(ValueError):
    """A value is not allowed; the text says what is, and reads on after "must be "."""


def integer(minimum: int, maximum: int = COUNT_MAX) -> Check:
    """An integer in [minimum, maximum]; true and false are not integers."""

    def check(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise Disallowed(f"an integer, at least {minimum}")
        if value > maximum:
            raise Disallowed(f"an integer from {minimum} to {maximum}")
        return value

    return check


def number(*, at_least: float | None = None, above: float | None = None, below: float | None = None) -> Check:
    """A finite number within the limits given; integers are taken as floats."""
    limits = [
        f"{word} {limit:g}"
        for word, limit in (("at least", at_least), ("above", above), ("below", below))
        if limit is not None
    ]
    allowed = "a finite number " + " and ".join(limits)

    def check(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise Disallowed(allowed)
        try:
            result = float(value)
        except OverflowError as error:
            raise Disallowed(allowed) from error
        inside = (
            math.isfinite(result)
            and (at_least is None or result >= at_least)
            and (above is None or result > above)
            and (below is None or result < below)
        )
        if not inside:
            raise Disallowed(allowed)
        return result

    return check


def boolean(value: object) -> bool:
    """true or false."""
    if not isinstance(value, bool):
        raise Disallowed("true or false")
    return value


def text(value: object) -> str:
    """A string that is not empty and has no NUL (which no path can hold)."""
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise Disallowed("a string that is not empty")
    return value


def name(value: object) -> str:
    """A short name that is safe in file names, in the DHT and as a metric's label."""
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", value):
        raise Disallowed('1 to 64 letters, digits, ".", "_" or "-"')
    return value


def choice(*names: str) -> Check:
    """One of the names."""
    allowed = " or ".join(f'"{option}"' for option in names)

    def check(value: object) -> str:
        if value not in names or not isinstance(value, str):
            raise Disallowed(f"{allowed}{did_you_mean(value, names)}")
        return value

    return check


def one_of(*numbers: int) -> Check:
    """One of the integers."""

    def check(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value not in numbers:
            raise Disallowed(" or ".join(map(str, numbers)))
        return value

    return check


def betas(value: object) -> tuple[float, float]:
    """The two decay rates of adamw and lamb, each in [0, 1)."""
    allowed = "two numbers, each at least 0 and below 1"
    if not isinstance(value, list) or len(value) != 2:
        raise Disallowed(allowed)
    rate = number(at_least=0, below=1)
    try:
        return rate(value[0]), rate(value[1])
    except Disallowed as error:
        raise Disallowed(allowed) from error


def block_numbers(value: object) -> tuple[int, ...]:
    """The first block of every stage but stage 0: positive and strictly increasing."""
    allowed = "a list of positive block numbers, each larger than the one before"
    if not isinstance(value, list):
        raise Disallowed(allowed)
    try:
        numbers = tuple(integer(1)(item) for item in value)
    except Disallowed as error:
        raise Disallowed(allowed) from error
    if any(later <= earlier for earlier, later in itertools.pairwise(numbers)):
        raise Disallowed(allowed)
    return numbers


def boundary(value: object) -> str:
    """How the tensors between stages are compressed, as text; whether the model allows it is checked with the model."""
    allowed = '"bottleneck:K", K the width that travels, or "maxout:K", K the factor of the reduction'
    try:
        return str(Boundary.parse(text(value)))
    except ValueError as error:  # Disallowed is one too
        raise Disallowed(allowed) from error


def model_table(value: object) -> Mapping[str, object]:
    """What would stand in a config.json: JSON values only, with a model_type."""
    if not isinstance(value, dict) or not isinstance(value.get("model_type"), str):
        raise Disallowed('a table with a model_type, such as { model_type = "llama", hidden_size = 256 }')
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise Disallowed("a table of strings, finite numbers, true, false, lists and tables") from error
    return value


def function_name(value: object) -> str:
    """The name of a function that can be imported: its package, a colon, its own name."""
    if not isinstance(value, str) or not FUNCTION.fullmatch(value):
        raise Disallowed('the name of a function in a package, such as "my_package.networks:two_branches"')
    return value


def json_table(value: object) -> Mapping[str, object]:
    """A table of JSON values."""
    try:
        if isinstance(value, dict):
            json.dumps(value, allow_nan=False)
            return value
    except (TypeError, ValueError):
        pass
    raise Disallowed("a table of strings, finite numbers, true, false, lists and tables")


def cut_places(value: object) -> tuple[int, ...] | tuple[str, ...]:
    """As `block_numbers`, or the names of a module's submodules, before each of which it is cut."""
    if isinstance(value, list) and value and all(isinstance(item, str) and item for item in value):
        return tuple(value)
    try:
        return block_numbers(value)
    except Disallowed as error:
        raise Disallowed(f"{error}; for model.module, the names of its submodules are allowed too") from error


def lora(value: object) -> Mapping[str, object]:
    """A table of a rank, an alpha, targets (names of modules, or "all-linear") and a dropout; each has a default."""
    allowed = (
        'a table such as { rank = 16, alpha = 32, targets = "all-linear", dropout = 0.05 }, with a rank from 1 to '
        f'{RANK_MAX}, the names of modules, or "{ALL_LINEAR}", as targets, and a dropout below 1'
    )
    if not isinstance(value, dict) or not value.keys() <= {"rank", "alpha", "targets", "dropout"}:
        raise Disallowed(allowed)
    rank, alpha, targets = value.get("rank", 16), value.get("alpha", 32), value.get("targets", ALL_LINEAR)
    names = [] if targets == ALL_LINEAR else targets
    if targets != ALL_LINEAR and not names:
        raise Disallowed(allowed)
    given: dict[str, object] = {"rank": rank, "alpha": alpha, "targets": targets}
    given |= {"dropout": value["dropout"]} if "dropout" in value else {}
    try:
        found = Lora.of_json({**given, "targets": names, "half": False, "quantized": False})
    except ValueError as error:
        raise Disallowed(allowed) from error
    if not found.dropout:  # left out, so that a run that was begun before there was some goes on
        given.pop("dropout", None)
    return given


def shown(value: object) -> str:
    """The value as a user wrote it in TOML, as far as it matters, and not too long for a line."""
    if isinstance(value, bool):
        text_form = "true" if value else "false"
    elif isinstance(value, str):
        text_form = json.dumps(value, ensure_ascii=False)
    else:
        try:
            text_form = str(list(value) if isinstance(value, tuple) else value)
        except ValueError:  # Python refuses to write integers of more than 4300 digits, which TOML can hold in hex
            text_form = "a number of thousands of digits"
    return text_form if len(text_form) <= _SHOWN_CHARS_MAX else text_form[: _SHOWN_CHARS_MAX - 3] + "..."


def its_section(key: str, sections: Mapping[str, type]) -> str:
    """Return ` (it belongs in [X])` for a key of one of the sections, or of several; an empty string for others."""
    owners = [f"[{section}]" for section, owner in sections.items() if key in checks_of(owner)]
    return f" (it belongs in {' or '.join(owners)})" if owners else ""


def checks_of(owner: type) -> dict[str, Check]:
    """The check of each key of a section: the annotation of the field of that name, `Annotated[type, check]`."""
    if owner is Timeouts:  # they are decided by core, which knows nothing of files
        return dict.fromkeys((field.name for field in dataclasses.fields(owner)), number(above=0, below=SECONDS_MAX))
    hints = get_type_hints(owner, include_extras=True)
    return {field.name: hints[field.name].__metadata__[0] for field in dataclasses.fields(owner)}


def checked_section(source: str, section: str, raw: object, owner: type) -> dict[str, Any]:
    """The keys of one section of RUN.toml, each as the field of `owner` (a dataclass) of that name checks it.

    Raises ConfigError for a section that is no table, an unknown key and a value that its check refuses.
    """
    values, problems = section_problems(source, section, raw, owner)
    if problems:
        raise ConfigError(problems[0])
    return values


def section_problems(
    source: str, section: str, raw: object, owner: type, sections: Mapping[str, type] = MappingProxyType({})
) -> tuple[dict[str, Any], list[str]]:
    """As `checked_section`: the values that are allowed, and a line for each key that is not.

    sections: all of the file, by name; a key of another one is then reported with its place.
    """
    if not isinstance(raw, dict):
        return {}, [f"{source}: {section} = {shown(raw)}: must be a section: write [{section}] and its keys below"]
    checks = checks_of(owner)
    values: dict[str, Any] = {}
    problems: list[str] = []
    for name_given, value in raw.items():
        if name_given not in checks:
            bare = name_given if re.fullmatch(r"[A-Za-z0-9_-]+", name_given) else shown(name_given)
            hint = its_section(name_given, sections) or did_you_mean(name_given, checks)
            problems.append(
                f"{source}: unknown key {section}.{bare} = {shown(value)}{hint}; "
                f"allowed in [{section}]: {', '.join(checks)}"
            )
            continue
        try:
            values[name_given] = checks[name_given](value)
        except Disallowed as error:
            problems.append(f"{source}: {section}.{name_given} = {shown(value)}: must be {error}")
    return values, problems
