"""The pages against the code: keys, links, paths, commands and figures."""

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from config import get_cfg, load_config
from config.demo_keys import DEMO_KEYS
from config.schema import flatten

ROOT = Path(__file__).parent.parent
DEFAULTS = dict(flatten(get_cfg()))
CONFIGURATION = ROOT / "docs" / "configuration.md"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
PACKAGES = sorted({path.parent.name for path in ROOT.glob("[a-z]*/*.py")} - {"tests"})
SOURCES = (*PACKAGES, "configs", "docs", "tests")
BLOCK = re.compile(r"^```(?P<language>\w*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


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
    listed = {
        "architecture.md",
        "configuration.md",
        "data.md",
        "deployment.md",
        "method.md",
        "CONTRIBUTING.md",
    }
    assert listed <= names


@each_page
def test_keys_named_in_the_text_exist(page: Path) -> None:
    sections = "|".join(key for key in get_cfg() if key != "OUTPUT_DIR")
    named = re.findall(rf"\b(?:{sections})\.[A-Z][A-Z0-9_]+\b", page.read_text())
    examples = {"MODEL.USE_SDTP", "MODEL.BASE_LR", "MODEL.GATED", "MODEL.LENGTH_LOSS"}
    assert set(named) - set(DEFAULTS) - set(DEMO_KEYS) - examples == set()


def test_every_real_data_set_and_the_weights_have_an_address() -> None:
    from datasets.sources import SOURCES

    addresses = (ROOT / "docs" / "data.md").read_text().partition("## Addresses")[2]
    for name in (name for name, source in SOURCES.items() if source.folder and source.draw is None):
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


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page.name != "CHANGELOG.md"],  # that one names files of earlier versions
    ids=lambda page: page.relative_to(ROOT).as_posix(),
)
def test_paths_named_in_the_text_exist(page: Path) -> None:
    missing = [path for path in paths_in(page.read_text()) if not (ROOT / path).exists()]
    assert not missing


def test_files_in_the_plan_exist() -> None:
    """The block below "Packages" names every package, and every file of each package, once."""
    plan = (ROOT / "docs" / "architecture.md").read_text().partition("## Packages")[2].split("```")[1]
    package = ""
    planned: dict[str, list[str]] = {}
    for line in plan.strip().splitlines():
        if found := re.match(r"(\w+)/\s", line):
            package = found[1]
        elif not line.startswith(" "):
            package = "."
        planned.setdefault(package, []).extend(re.findall(r"(?<![\w/])(?:\w+/)*\w+\.py\b", line))
    for package in (*PACKAGES, "."):
        pattern = "*.py" if package == "." else "**/*.py"
        paths = [path for path in (ROOT / package).glob(pattern) if path.name != "__init__.py"]
        files = [path.relative_to(ROOT / package).as_posix() for path in paths if "build" not in path.parts]
        assert Counter(planned[package]) == Counter(files), package


WORD_LIMITS = {"architecture.md": 870, "method.md": 1610, "seps.md": 750, "extending.md": 600}
BANNED = (
    "right match",
    "wrong match",
    "ahead of",
    "lest",
    "be it",
    "said plainly",
    "is no strip",
    "house",
    "behind the (?:backbone|blocks|block)",
    "at the same place",
    "settings of missing",
)
"""Words that STYLE replaces: positive and negative, before and after, patch index, conditions."""


def count_words(page: Path) -> int:
    """As `wc -w` counts, without the tables that `studies compare --page` writes."""
    text = re.sub(r"^<!-- study .*?^<!-- end -->", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return len(text.split())


def test_all_pages_together_stay_short() -> None:
    pages = [page for page in ROOT.glob("docs/*.md") if page.name != "leaderboard.md"]  # a command's table
    assert sum(map(count_words, pages)) <= 15_000
    assert count_words(ROOT / "README.md") <= 1215


@pytest.mark.parametrize(("name", "limit"), WORD_LIMITS.items())
def test_each_page_stays_short(name: str, limit: int) -> None:
    assert count_words(ROOT / "docs" / name) <= limit


@each_page
def test_the_words_of_the_field(page: Path) -> None:
    text = " ".join(BLOCK.sub("", page.read_text()).split())
    assert re.findall(rf"\b(?:{'|'.join(BANNED)})\b", text, re.IGNORECASE) == []


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


def gradient_norms(use_gumbel: bool, dim: int) -> tuple[float, float]:
    """Of the score networks and of the tokens, under a random direction in place of a head."""
    from modeling.seps import MultiModalSDTPS

    torch.manual_seed(0)
    sdtps = MultiModalSDTPS(dim, num_patches=128, use_gumbel=use_gumbel)
    patches = [torch.randn(8, 128, dim, requires_grad=True) for _ in range(3)]
    guides = [torch.randn(8, dim) for _ in range(3)]
    direction = torch.randn(8, 3 * dim)
    pooled = torch.cat([result.tokens.mean(dim=1) for result in sdtps(patches, guides)], dim=1)
    (pooled * direction).mean().backward()

    def norm(tensors: Iterable[Tensor]) -> float:
        return torch.cat([tensor.grad.flatten() for tensor in tensors]).norm().item()  # type: ignore[union-attr]

    return norm(sdtps.selectors.parameters()), norm(patches)


@pytest.mark.parametrize("mask", ["Gumbel off", "Gumbel, D as a factor"])
def test_gradient_norms_of_the_method_page(mask: str) -> None:
    row = re.search(rf"^\| {mask} \| (.+) \|$", (ROOT / "docs" / "method.md").read_text(), re.MULTILINE)
    assert row is not None
    use_gumbel = mask != "Gumbel off"
    measured = [*gradient_norms(use_gumbel, 512), *gradient_norms(use_gumbel, 64)]
    # The Gumbel noise of one seed differs between builds of torch; the rest differs by rounding only.
    tolerance = 0.3 if use_gumbel else 0.02
    assert [float(cell) for cell in row[1].split("|")] == pytest.approx(measured, rel=tolerance)


def test_token_counts_of_the_method_page() -> None:
    from modeling.seps.sdtps import num_aggregated, num_kept

    page = (ROOT / "docs" / "method.md").read_text()
    for patches in (196, 128):
        kept, aggregated = num_kept(patches, 0.5), num_aggregated(patches, 0.5, 0.4)
        row = rf"^\| {patches} \(.*\) \| {kept} \| {aggregated} \(.*\) \| {aggregated + 1} \|$"
        assert re.search(row, page, re.MULTILINE), f"{patches} -> {kept} -> {aggregated}"
