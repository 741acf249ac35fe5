"""The YAML file of a study: read, checked before anything runs, and turned into runs."""

from __future__ import annotations

import difflib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from config import ConfigError, load_config
from config.strict_yaml import YamlFileError, compose_yaml
from config.validate import show
from structures import RETURN_PATTERNS, UserError, on_one_line
from tools.ablation.run_folder import Run
from tools.ablation.scores import EPOCHS

KEYS = ("base", "settings", "variants", "seeds", "jobs", "devices", "threads", "output", "pattern", "epoch")
OWN_SETTINGS = ("OUTPUT_DIR", "SOLVER.SEED", "TEST.WEIGHT")
"""What the study itself sets, or what makes no sense in it."""
NAME = re.compile(r"[A-Za-z0-9+][A-Za-z0-9+=_.-]*")
LONGEST_NAME = 60
PROGRAM = "program"
"""The key by which a variant names another program than train_net.py."""


class SpecError(UserError):
    """A study file that cannot be used; the message names the file, the key and what to do."""


@dataclass(frozen=True)
class Variant:
    """One way to train.

    Attributes:
        name: also that of its folder.
        overrides: `KEY VALUE KEY VALUE …`, behind those that all variants share.
        program: what trains in place of train_net.py, with the same arguments; None for train_net.py.
    """

    name: str
    overrides: tuple[str, ...]
    program: Path | None = None


@dataclass(frozen=True)
class StudySpec:
    """A study.

    Attributes:
        base: the configuration file that all variants start from.
        settings: `KEY VALUE KEY VALUE …` for all variants.
        variants: in the order of the file.
        seeds: each variant is trained once with each of them.
        jobs: runs at once.
        devices: CUDA devices, one run on each; empty for no choice.
        threads: of each run on the CPU; None for OMP_NUM_THREADS, or else the cores divided by the jobs.
        output: the folder of the study.
        pattern: the return pattern that is compared; None for the last that a model has.
        epoch: what is compared: `last`, or `best` for the epoch that is best on validation.
    """

    base: Path
    settings: tuple[str, ...]
    variants: tuple[Variant, ...]
    seeds: tuple[int, ...]
    jobs: int
    devices: tuple[str, ...]
    threads: int | None
    output: Path
    pattern: int | None
    epoch: str

    @property
    def reference(self) -> str:
        """The variant that the others are compared with: the one called `base`, or the first."""
        names = [variant.name for variant in self.variants]
        return "base" if "base" in names else names[0]

    def num_threads(self, jobs: int) -> int:
        """CPU threads of each of `jobs` runs; all runs of a study have the same number."""
        asked = self.threads or _whole(os.environ.get("OMP_NUM_THREADS") or None, "OMP_NUM_THREADS")
        return asked or max(1, len(os.sched_getaffinity(0)) // jobs)

    def runs(self) -> list[Run]:
        """All runs, seed by seed, so that an unfinished study has whole seeds to compare."""
        return [self._run(variant, seed) for seed in self.seeds for variant in self.variants]

    def _run(self, variant: Variant, seed: int) -> Run:
        folder = self.output / variant.name / f"seed_{seed}"
        words = (*self.settings, *variant.overrides, "SOLVER.SEED", str(seed), "OUTPUT_DIR", str(folder))
        if self.devices:  # the run sees its own device alone, under the number 0
            words = (*words, "MODEL.DEVICE_ID", "0")
        cfg = load_config(self.base, words)
        return Run(variant.name, seed, folder, self.base, words, cfg, variant.program, self.epoch)


def read_spec(path: Path) -> StudySpec:
    """Read a study file and check all of it, with the settings of every variant."""
    try:
        spec = _parse(path, _read(path))
        _check_settings(spec)
    except SpecError as error:
        raise SpecError(f"study {path}: {error}") from None
    return spec


def _read(path: Path) -> dict[str, Any]:
    """The content with every scalar as the text that was typed, as on a command line."""
    try:
        node = compose_yaml(path)
    except YamlFileError as error:
        raise SpecError(f"the file {error}") from None
    content = None if node is None else _plain(node)
    if not isinstance(content, dict):
        raise SpecError("it must hold base:, variants: and seeds:")
    return content


def _plain(node: yaml.Node) -> Any:
    """Texts, lists and dictionaries of a YAML node; None for an empty value."""
    if isinstance(node, yaml.MappingNode):
        return {str(key.value): _plain(value) for key, value in node.value}
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item) for item in node.value]
    return None if node.tag == "tag:yaml.org,2002:null" else str(node.value)


def _parse(path: Path, content: dict[str, Any]) -> StudySpec:
    for key in content:
        if key not in KEYS:
            nearest = difflib.get_close_matches(key, KEYS, n=1)
            hint = f"did you mean {nearest[0]}?" if nearest else f"the keys are {', '.join(KEYS)}"
            raise SpecError(f"unknown key {show(key)}; {hint}")
    for key in ("base", "variants", "seeds"):
        if not content.get(key):
            raise SpecError(f"{key} is missing")
    devices = tuple(_texts(content.get("devices"), "devices", "a list of CUDA devices such as [0, 1]"))
    _refuse_repeated(devices, "devices")
    jobs = _whole(content.get("jobs"), "jobs") or len(devices) or 1
    check_jobs(jobs, devices)
    pattern = content.get("pattern")
    if pattern is not None and pattern not in map(str, RETURN_PATTERNS):
        raise SpecError(f"pattern is one of {', '.join(map(str, RETURN_PATTERNS))}, not {show(pattern)}")
    epoch = content.get("epoch") or "last"
    if epoch not in EPOCHS:
        raise SpecError(f"epoch is one of {', '.join(EPOCHS)}, not {show(epoch)}")
    return StudySpec(
        base=Path(_text(content["base"], "base", "a configuration file")),
        settings=_overrides(content.get("settings"), "settings"),
        variants=_variants(content["variants"]),
        seeds=_seeds(content["seeds"]),
        jobs=jobs,
        devices=devices,
        threads=_whole(content.get("threads"), "threads"),
        output=Path(_text(content.get("output") or f"runs/studies/{path.stem}", "output", "a folder")),
        pattern=None if pattern is None else int(pattern),
        epoch=epoch,
    )


def check_jobs(jobs: int, devices: tuple[str, ...]) -> None:
    """Refuse a number of runs at once that cannot be."""
    if jobs < 1:
        raise SpecError(f"jobs must be 1 or more, not {jobs}")
    if devices and jobs > len(devices):
        raise SpecError(f"jobs is {jobs}, but there is one run per device, and devices has {len(devices)}")


def _variants(content: Any) -> tuple[Variant, ...]:
    if not isinstance(content, dict):
        raise SpecError("variants takes names with their settings, such as {base: {}, wide: {KEY: VALUE}}")
    for name in content:
        if not NAME.fullmatch(name) or len(name) > LONGEST_NAME or name.lower().startswith("summary"):
            raise SpecError(
                f"the variant name {on_one_line(name)!r} cannot be a folder of the study; use up to "
                f"{LONGEST_NAME} letters, digits and + = _ . -, beginning with a letter, a digit or +, "
                "and not with 'summary'"
            )
    _refuse_repeated([name.lower() for name in content], "variant names, small and capital letters alike")
    return tuple(_variant(name, value) for name, value in content.items())


def _variant(name: str, content: Any) -> Variant:
    program = None
    if isinstance(content, dict) and PROGRAM in content:
        content = dict(content)
        program = Path(_text(content.pop(PROGRAM), f"{PROGRAM} of variant {name!r}", "a Python file"))
        if not program.is_file():
            raise SpecError(f"variant {name!r}: the program {program} does not exist")
    return Variant(name, _overrides(content, f"variant {name!r}"), program)


def _overrides(content: Any, where: str) -> tuple[str, ...]:
    """A mapping of settings, or a list KEY, VALUE, …, as the words of a command line."""
    values = [word for pair in content.items() for word in pair] if isinstance(content, dict) else content
    if not values:
        return ()
    if not isinstance(values, list):
        raise SpecError(f"{where} takes settings, as {{KEY: VALUE}} or [KEY, VALUE], not {show(values)}")
    if len(values) % 2:
        raise SpecError(f"{where} takes KEY VALUE pairs, but {show(values[-1])} stands alone")
    keys = values[::2]
    for key in keys:
        if not isinstance(key, str):
            raise SpecError(f"{where}: {show(key)} is not the name of a setting")
        if key in OWN_SETTINGS:
            raise SpecError(f"{where} must not set {key}; the study does that (seeds, output)")
    _refuse_repeated(keys, where)
    texts = [_command_line_text(value, where) for value in values[1::2]]
    return tuple(word for pair in zip(keys, texts, strict=True) for word in pair)


def _command_line_text(value: Any, where: str) -> str:
    """A value of a study file as the command line takes it."""
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return f"[{', '.join(value)}]"
    if value is None:
        return ""
    if not isinstance(value, str):
        raise SpecError(f"{where}: {show(value)} is not a value; write settings as SECTION.KEY: VALUE")
    return value


def _seeds(content: Any) -> tuple[int, ...]:
    wanted = "a list of whole numbers such as [1, 2, 3]"
    texts = _texts(content, "seeds", wanted)
    if not all(text.isdecimal() and len(text) <= 20 for text in texts):
        raise SpecError(f"seeds is {wanted}, not {show(content)}")
    seeds = tuple(int(text) for text in texts)
    _refuse_repeated(seeds, "seeds")
    return seeds


def _text(value: Any, key: str, wanted: str) -> str:
    if not isinstance(value, str) or not value:
        raise SpecError(f"{key} is {wanted}, not {show(value)}")
    return value


def _texts(value: Any, key: str, wanted: str) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        raise SpecError(f"{key} is {wanted}, not {show(value)}")
    return value


def _whole(value: Any, key: str) -> int | None:
    if value is None:
        return None
    if not isinstance(value, str) or not re.fullmatch("[0-9]{1,4}", value) or not 1 <= int(value) <= 1000:
        raise SpecError(f"{key} is a whole number from 1 to 1000, not {show(value)}")
    return int(value)


def _refuse_repeated(values: Any, what: str) -> None:
    repeated = sorted({str(value) for value in values if list(values).count(value) > 1})
    if repeated:
        raise SpecError(f"{what}: {', '.join(repeated)} appears more than once")


def _check_settings(spec: StudySpec) -> None:
    """Load the configuration of every run, and refuse variants that are the same."""
    seen: dict[tuple[str, Path | None], str] = {}
    for variant in spec.variants:
        words = [*spec.settings, *variant.overrides]
        try:
            for seed in spec.seeds:
                load_config(spec.base, [*words, "SOLVER.SEED", str(seed)])
            cfg = load_config(spec.base, words)
            key = (cfg.dump(), variant.program)
        except ConfigError as error:
            raise SpecError(
                f"variant {variant.name!r}: {str(error).removeprefix('command line: ')}"
            ) from None
        if spec.epoch == "best" and not cfg.DATASETS.VAL_IDS:
            raise SpecError(
                f"epoch: best needs DATASETS.VAL_IDS in every variant, but {variant.name!r} has 0: its best "
                "epoch would be chosen on the test set; set it under settings, or compare the last epoch"
            )
        if key in seen:
            raise SpecError(f"the variants {seen[key]!r} and {variant.name!r} have the same settings")
        seen[key] = variant.name
