"""The YAML file of a study: read, checked before anything runs, and turned into runs."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from config import ConfigError, load_config
from config.schema import show
from config.strict_yaml import YamlFileError, compose_yaml
from errors import UserError, on_one_line
from structures import RETURN_PATTERNS
from studies.run_folder import EPOCHS, Run, describe_training

KEYS = ("base", "overrides", "variants", "seeds", "jobs", "devices", "threads", "output", "pattern", "epoch")
SHARED = "_BASE_"
"""The key that names a study file beside this one, whose keys and overrides come first."""
RESERVED = ("OUTPUT_DIR", "SOLVER.SEED", "TEST.WEIGHT")
"""Keys that the study sets itself, or that make no sense in it."""
COUNT = "[1-9][0-9]{,2}|1000", "a whole number from 1 to 1000"


class SpecError(UserError):
    """A study file that cannot be used; the message names the file, the key and what to do."""


@dataclass(frozen=True)
class StudySpec:
    """A study."""

    variants: tuple[str, ...]  # their names, in the order of the file
    seeds: tuple[int, ...]  # each variant is trained once with each
    jobs: int  # runs at once
    devices: tuple[str, ...]  # CUDA devices, one run on each; empty for no choice
    threads: int | None  # of each run on the CPU; None for `num_threads` to decide
    output: Path  # the folder of the study
    pattern: int | None  # the return pattern that is compared; None for the last that a model has
    epoch: str  # what is compared: `last`, or `best` for the epoch that is best on validation
    runs: tuple[Run, ...]  # seed by seed, so that an unfinished study has whole seeds to compare

    @property
    def reference(self) -> str:
        """The variant that the others are compared with: the one called `base`, or the first."""
        return "base" if "base" in self.variants else self.variants[0]

    def num_threads(self, jobs: int) -> int:
        """CPU threads of each of `jobs` runs: of the study, or OMP_NUM_THREADS, or a share of the cores."""
        from_outside = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS") or None}
        asked = self.threads or _scalar(from_outside, "OMP_NUM_THREADS", *COUNT)
        return int(asked or max(1, len(os.sched_getaffinity(0)) // jobs))

    def check_jobs(self, jobs: int) -> None:
        """Refuse more runs at once than there are devices."""
        if self.devices and jobs > len(self.devices):
            raise SpecError(
                f"jobs is {jobs}, but there is one run per device, and devices has {len(self.devices)}"
            )


def read_spec(path: Path) -> StudySpec:
    """Read a study file and check all of it, with the configuration of every run."""
    try:
        spec = _parse(_read(path, ()), path.stem)
        spec.check_jobs(spec.jobs)
    except SpecError as error:
        raise SpecError(f"study {path}: {error}") from None
    return spec


def _read(path: Path, above: tuple[Path, ...]) -> dict[str, Any]:
    """The keys of a file over those of the file that it builds on; every scalar is the text as typed.

    Args:
        path: the file.
        above: the files that build on it.
    """
    try:
        node = compose_yaml(path)
    except YamlFileError as error:
        raise SpecError(f"the file {error}") from None
    content = None if node is None else _plain(node)
    if not isinstance(content, dict):
        raise SpecError("it must hold base:, variants: and seeds:")
    for key in content.keys() - {*KEYS, SHARED}:
        nearest = difflib.get_close_matches(key, KEYS, n=1)
        hint = f"did you mean {nearest[0]}?" if nearest else f"the keys are {', '.join(KEYS)}"
        raise SpecError(f"unknown key {show(key)}; {hint}")
    content["overrides"] = _overrides(content.get("overrides"), "overrides")
    # What this file says comes after what the other one says; their overrides are joined.
    name = _scalar(content, SHARED, ".+", "the name of a study file beside this one")
    if name is None:
        return content
    if (path.parent / name).resolve() in (*above, path.resolve()):
        raise SpecError(f"{SHARED} {name} leads back to itself")
    try:
        first = _read(path.parent / name, (*above, path.resolve()))
    except SpecError as error:
        raise SpecError(f"{SHARED} {name}: {error}") from None
    return {**first, **content, "overrides": {**first["overrides"], **content["overrides"]}}


def _plain(node: yaml.Node) -> Any:
    """Texts, lists and dictionaries of a YAML node; None for an empty value."""
    if isinstance(node, yaml.MappingNode):
        return {str(key.value): _plain(value) for key, value in node.value}
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item) for item in node.value]
    return None if node.tag == "tag:yaml.org,2002:null" else str(node.value)


def _parse(content: dict[str, Any], name: str) -> StudySpec:
    # The keys that every study needs.
    for key in ("base", "variants", "seeds"):
        if not content.get(key):
            raise SpecError(f"{key} is missing")
    base = Path(_scalar(content, "base", ".+", "a configuration file") or "")
    seeds = [
        int(seed) for seed in _list(content, "seeds", r"0|[1-9]\d{,19}", "whole numbers such as [1, 2, 3]")
    ]
    variants = _variants(content["variants"])
    # How it runs, where, and what is compared.
    devices = tuple(_list(content, "devices", ".+", "CUDA devices such as [0, 1]"))
    jobs, threads = (_scalar(content, key, *COUNT) for key in ("jobs", "threads"))
    output = Path(_scalar(content, "output", ".+", "a folder") or f"runs/studies/{name}")
    patterns = list(map(str, RETURN_PATTERNS))
    pattern = _scalar(content, "pattern", "|".join(patterns), f"one of {', '.join(patterns)}")
    epoch = _scalar(content, "epoch", "|".join(EPOCHS), f"one of {', '.join(EPOCHS)}") or "last"
    # The runs, with their configurations; a process sees one device alone.
    shared = {**content["overrides"], **({"MODEL.DEVICE_ID": "0"} if devices else {})}
    runs = []
    for seed in seeds:
        for variant, (overrides, program) in variants.items():
            folder = output / variant / f"seed_{seed}"
            pairs = {**shared, **overrides, "SOLVER.SEED": str(seed), "OUTPUT_DIR": str(folder)}
            words = tuple(word for pair in pairs.items() for word in pair)
            try:
                cfg = load_config(base, words)
            except ConfigError as error:
                message = str(error).removeprefix("command line: ")
                raise SpecError(f"variant {variant!r}: {message}") from None
            runs.append(Run(variant, seed, folder, base, words, cfg, program, epoch))
    _check_variants(runs[: len(variants)])
    return StudySpec(
        variants=tuple(variants),
        seeds=tuple(seeds),
        jobs=int(jobs or len(devices) or 1),
        devices=devices,
        threads=None if threads is None else int(threads),
        output=output,
        pattern=None if pattern is None else int(pattern),
        epoch=epoch,
        runs=tuple(runs),
    )


def _check_variants(runs: list[Run]) -> None:
    """Refuse variants that are the same, or whose best epoch would be chosen on the test set."""
    seen: dict[str, str] = {}
    for run in runs:
        if run.epoch == "best" and not run.cfg.DATASETS.VAL_IDS:
            raise SpecError(
                f"epoch: best needs DATASETS.VAL_IDS in every variant, but {run.variant!r} has 0: its best "
                "epoch would be chosen on the test set; set it under overrides, or compare the last epoch"
            )
        trained_with = describe_training(run.program_name, run.cfg)
        if trained_with in seen:
            raise SpecError(f"the variants {seen[trained_with]!r} and {run.variant!r} are the same")
        seen[trained_with] = run.variant


def _variants(content: Any) -> dict[str, tuple[dict[str, str], Path | None]]:
    """By name, the overrides of each variant, and the program that trains in place of train_net.py."""
    if not isinstance(content, dict):
        raise SpecError("variants takes names with their overrides, such as {base: {}, wide: {KEY: VALUE}}")
    _refuse_repeated([name.lower() for name in content], "variant names, small and capital letters alike")
    variants: dict[str, tuple[dict[str, str], Path | None]] = {}
    for name, value in content.items():
        if not re.fullmatch(r"(?!summary)[a-z0-9+][a-z0-9+=_.-]{,59}", name, re.IGNORECASE | re.ASCII):
            raise SpecError(
                f"the variant name {on_one_line(name)!r} cannot be a folder of the study; use up to 60 "
                "letters, digits and + = _ . -, beginning with a letter, a digit or +, and not with 'summary'"
            )
        program = _scalar(value, "program", ".+", "a Python file") if isinstance(value, dict) else None
        if program is not None and not Path(program).is_file():
            raise SpecError(f"variant {name!r}: the program {program} does not exist")
        overrides = _overrides(value, f"variant {name!r}")
        overrides.pop("program", None)
        variants[name] = overrides, None if program is None else Path(program)
    return variants


def _overrides(content: Any, where: str) -> dict[str, str]:
    """The values by key, as a command line has them."""
    if not isinstance(content or {}, dict):
        raise SpecError(f"{where} takes overrides, as {{KEY: VALUE}}, not {show(content)}")
    overrides = {}
    for key, value in (content or {}).items():
        if key in RESERVED:
            raise SpecError(f"{where} must not set {key}; the study does that (seeds, output)")
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            value = f"[{', '.join(value)}]"
        if not isinstance(value, str | None):
            raise SpecError(f"{where}: {show(value)} is not a value; write overrides as SECTION.KEY: VALUE")
        overrides[key] = value or ""
    return overrides


def _scalar(content: Mapping[str, Any], key: str, pattern: str, wanted: str) -> str | None:
    """The text under a key, or None; a text that is not of the pattern is refused."""
    value = content.get(key)
    if value is not None and (not isinstance(value, str) or not re.fullmatch(pattern, value)):
        raise SpecError(f"{key} is {wanted}, not {show(value)}")
    return value


def _list(content: Mapping[str, Any], key: str, pattern: str, wanted: str) -> list[str]:
    """The texts of a list under a key, each of the pattern and none twice."""
    value = content.get(key) or []
    if not isinstance(value, list) or not all(isinstance(v, str) and re.fullmatch(pattern, v) for v in value):
        raise SpecError(f"{key} is a list of {wanted}, not {show(value)}")
    _refuse_repeated(value, key)
    return value


def _refuse_repeated(values: list[str], what: str) -> None:
    if repeated := sorted({value for value in values if values.count(value) > 1}):
        raise SpecError(f"{what}: {', '.join(repeated)} appears more than once")
