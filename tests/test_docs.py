"""The pages against the code: keys, links, paths, commands and figures."""

import ast
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from config import get_cfg, load_config
from config.validate import ALLOWED, NO_EFFECT, NOT_IMPLEMENTED, flatten

ROOT = Path(__file__).parent.parent
DEFAULTS = dict(flatten(get_cfg()))
CONFIGURATION = ROOT / "docs" / "configuration.md"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
PACKAGES = sorted({path.parent.name for path in ROOT.glob("[a-z]*/*.py")} - {"tests"})
SOURCES = (*PACKAGES, "configs", "docs", "tests")
ROW = re.compile(r"^\| `(?P<key>[\w.]+)` \| `(?P<default>[^`]*)` \| (?P<meaning>.+) \|$", re.MULTILINE)
BLOCK = re.compile(r"^```(?P<language>\w*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def tables_of_keys() -> str:
    """The page without its last table, which is compared in tests/config/test_demo_defaults.py."""
    return CONFIGURATION.read_text().partition("## Defaults that differ")[0]


def rows() -> list[re.Match[str]]:
    """The rows of the tables of keys."""
    return list(ROW.finditer(tables_of_keys()))


def blocks(page: Path, *languages: str) -> list[str]:
    """The fenced blocks of a page in one of the languages."""
    return [m["body"] for m in BLOCK.finditer(page.read_text()) if m["language"] in languages]


def commands(page: Path, program: str) -> Iterator[list[str]]:
    """The arguments of each call of `program` in the shell blocks of a page."""
    for block in blocks(page, "bash", "sh", "shell", "console"):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if found := [index for index, word in enumerate(words) if Path(word).name == program]:
                yield words[found[0] + 1 :]


def test_pages_are_found() -> None:
    names = {page.name for page in PAGES}
    assert {"architecture.md", "configuration.md", "data.md", "method.md", "CONTRIBUTING.md"} <= names


def test_every_key_is_listed_once_and_no_other() -> None:
    assert Counter(row["key"] for row in rows()) == Counter(list(DEFAULTS))


def test_no_table_row_escapes_the_comparison() -> None:
    """A row of a table of keys that is written in another form would not be compared."""
    text = BLOCK.sub("", tables_of_keys())
    lines = [line for line in text.splitlines() if line.startswith("|")]
    headings = [line for line in lines if line == "| key | default | meaning |"]
    rules = [line for line in lines if line == "|---|---|---|"]
    assert len(lines) == len(rows()) + len(headings) + len(rules)


@pytest.mark.parametrize("row", rows(), ids=lambda row: row["key"])
def test_defaults_are_those_of_the_code(row: re.Match[str]) -> None:
    written, default = ast.literal_eval(row["default"]), DEFAULTS[row["key"]]
    assert (type(written), written) == (type(default), default)


def test_keys_stand_in_their_sections() -> None:
    for section in re.split(r"^## ", tables_of_keys(), flags=re.MULTILINE)[1:]:
        title = section.partition("\n")[0]
        for row in ROW.finditer(section):
            expected = row["key"].partition(".")[0] if "." in row["key"] else "The run folder"
            assert title == expected, row["key"]


def test_refused_keys_and_keys_without_effect_are_marked() -> None:
    refused = {row["key"] for row in rows() if "Refused at any other value" in row["meaning"]}
    without_effect = {row["key"] for row in rows() if row["meaning"].startswith("No effect")}
    assert refused == set(NOT_IMPLEMENTED)
    assert without_effect == set(NO_EFFECT)


def test_choices_are_named() -> None:
    meanings = {row["key"]: row["meaning"] for row in rows()}
    for key, choices in ALLOWED.items():
        for choice in choices:
            assert f"`{choice}`" in meanings[key], f"{key} does not mention {choice}"


@each_page
def test_keys_named_in_the_text_exist(page: Path) -> None:
    sections = "|".join(key for key in get_cfg() if key != "OUTPUT_DIR")
    named = re.findall(rf"\b(?:{sections})\.[A-Z][A-Z0-9_]+\b", page.read_text())
    examples = {"MODEL.USE_SDTP", "MODEL.BASE_LR", "MODEL.GATED"}
    assert set(named) - set(DEFAULTS) - examples == set()


def test_every_real_data_set_and_the_weights_have_an_address() -> None:
    from datasets.sources import SOURCES

    addresses = (ROOT / "docs" / "data.md").read_text().partition("## Addresses")[2]
    for name in (name for name, source in SOURCES.items() if source.draw is None):
        assert re.search(rf"^\| {name} \| .*https://.* \| .*https://.* \|$", addresses, re.MULTILINE), name
    assert re.search(r"https://\S+/[0-9a-f]{64}/ViT-B-16\.pt", addresses)


@each_page
def test_relative_links_lead_somewhere(page: Path) -> None:
    text = BLOCK.sub("", page.read_text())
    targets = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r"""(?:src|href)=["']([^"']+)["']""", text)
    for target in targets:
        if not re.match(r"[a-z]+:|#", target):
            assert (page.parent / target.partition("#")[0]).exists(), f"{page.name} links to {target}"


def paths_in(text: str) -> Iterator[str]:
    """The words that look like files of this project; placeholders and patterns are not."""
    files = "|".join(re.escape(path.name) for path in ROOT.glob("*.py"))
    pattern = rf"(?<![\w./-])(?:(?:{'|'.join(SOURCES)})/[\w./*<>{{}}…-]*|(?:{files})\b)"
    for word in re.findall(pattern, text):
        if not re.search(r"[*<>{}…]", word):
            yield word.rstrip(".")


@each_page
def test_paths_named_in_the_text_exist(page: Path) -> None:
    missing = [path for path in paths_in(page.read_text()) if not (ROOT / path).exists()]
    assert not missing


def test_files_in_the_plan_exist() -> None:
    """The first block of the page names every package, and every file of each package."""
    plan = blocks(ROOT / "docs" / "architecture.md", "")[0]
    package = ""
    planned: dict[str, set[str]] = {}
    for line in plan.splitlines():
        if found := re.match(r"(\w+)/\s", line):
            package = found[1]
        elif not line.startswith(" "):
            package = "."
        planned.setdefault(package, set()).update(re.findall(r"(?<![\w/])(?:\w+/)?\w+\.py\b", line))
    for package in (*PACKAGES, "."):
        folders = {name.partition("/")[0] for name in planned[package] if "/" in name}
        paths = [path for folder in ("", *folders) for path in (ROOT / package / folder).glob("*.py")]
        files = {path.relative_to(ROOT / package).as_posix() for path in paths if path.name != "__init__.py"}
        assert planned[package] == files, package


@each_page
def test_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = page.read_text()
    code = [*re.findall(r"`([^`\n]+)`", BLOCK.sub("", text)), *blocks(page, "bash", "sh", "shell", "console")]
    named = re.findall(r"^(?:\$ )?make ([a-z]+)\b", "\n".join(code), re.MULTILINE)
    assert set(named) <= targets


def split_arguments(words: list[str]) -> tuple[dict[str, str], list[str]]:
    """Options with their values, and settings; a key such as SOLVER.SEED is never the value of an option."""
    options: dict[str, str] = {}
    settings: list[str] = []
    index = 0
    while index < len(words):
        following = words[index + 1] if index + 1 < len(words) else "--"
        if words[index].startswith("--"):
            has_value = not re.match(r"--|[A-Z_]+\.[A-Z]|OUTPUT_DIR$", following)
            options[words[index]] = following if has_value else ""
            index += 1 + has_value
        else:
            settings += words[index : index + 2]
            index += 2
    return options, settings


@each_page
@pytest.mark.parametrize("program", ["train_net.py", "test_net.py"])
def test_commands_have_valid_settings(page: Path, program: str) -> None:
    known = (ROOT / program).read_text() + (ROOT / "engine" / "arguments.py").read_text()
    for words in commands(page, program):
        options, settings = split_arguments(words)
        config_file = options.pop("--config_file", None)
        load_config(ROOT / config_file if config_file else None, settings)
        for option in options:
            assert option == "--help" or f'"{option}"' in known, f"{program} has no {option}"


def test_commands_are_found() -> None:
    assert list(commands(CONFIGURATION, "test_net.py"))
    assert next(commands(CONFIGURATION, "train_net.py")) == []


def test_yaml_examples_load(tmp_path: Path) -> None:
    examples = blocks(CONFIGURATION, "yaml")
    assert examples
    for example in examples:
        (tmp_path / "example.yml").write_text(example)
        load_config(tmp_path / "example.yml")


def test_gradient_norms_of_the_method_page() -> None:
    """The code of the page runs, and gives what the table above it says."""
    page = ROOT / "docs" / "method.md"
    (code,) = blocks(page, "python")
    namespace: dict[str, Any] = {}
    exec(compile(code, str(page), "exec"), namespace)
    measured: dict[str, tuple[float, ...]] = namespace["norms"]
    assert set(measured) == {"Gumbel off", "Gumbel, D as a factor"}
    for mask, values in measured.items():
        row = re.search(rf"^\| {mask} \| (.+) \|$", page.read_text(), re.MULTILINE)
        assert row is not None
        # The Gumbel noise of one seed differs between builds of torch; the rest differs by rounding only.
        tolerance = 0.02 if mask == "Gumbel off" else 0.3
        assert [float(cell) for cell in row[1].split("|")] == pytest.approx(values, rel=tolerance)


def test_token_counts_of_the_method_page() -> None:
    from modeling.sdtps import num_aggregated, num_kept

    page = (ROOT / "docs" / "method.md").read_text()
    for patches in (196, 128):
        kept, aggregated = num_kept(patches, 0.5), num_aggregated(patches, 0.5, 0.4)
        row = rf"^\| {patches} \(.*\) \| {kept} \| {aggregated} \(.*\) \| {aggregated + 1} \|$"
        assert re.search(row, page, re.MULTILINE), f"{patches} -> {kept} -> {aggregated}"
