"""Study files: what they mean, and the sentence that each mistake gets."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import ROOT, SMALL_MODEL
from studies.__main__ import main
from studies.spec import SpecError, StudySpec, read_spec

STUDIES = sorted(set((ROOT / "studies" / "specs").glob("*.yml")) - {ROOT / "studies/specs/common.yml"})
GOOD = f"base: {SMALL_MODEL}\nseeds: [1, 2]\nvariants:\n  base: {{}}\n"

Read = Callable[[str], StudySpec]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Read a study from its text."""

    def read_text(text: str) -> StudySpec:
        (tmp_path / "study.yml").write_text(text)
        return read_spec(tmp_path / "study.yml")

    return read_text


def test_values_are_read_as_on_a_command_line(read: Read) -> None:
    spec = read(
        f"base: {SMALL_MODEL}\nseeds: [7]\noverrides: {{SOLVER.MAX_EPOCHS: 3}}\nvariants:\n"
        "  one: {MODEL.SLIM_LAYERS: [2, 3], MODEL.SDTPS_USE_GUMBEL: yes, TEST.RE_RANKING: yes}\n"
        "  two: {SOLVER.BASE_LR: 1e-3, SOLVER.MAX_EPOCHS: 4}\n"
    )
    first, second = spec.runs
    assert first.words[:4] == ("SOLVER.MAX_EPOCHS", "3", "MODEL.SLIM_LAYERS", "[2, 3]")
    assert first.cfg.MODEL.SDTPS_USE_GUMBEL is True
    assert (first.cfg.TEST.RE_RANKING, second.cfg.SOLVER.BASE_LR) == ("yes", 1e-3)
    assert (first.epochs_left, second.epochs_left, first.cfg.SOLVER.SEED) == (3, 4, 7)
    assert spec.reference == "one"  # none is called base


def test_a_file_builds_on_another(read: Read, tmp_path: Path) -> None:
    (tmp_path / "common.yml").write_text(
        f"base: {SMALL_MODEL}\nseeds: [1, 2]\njobs: 2\n"
        "overrides: {SOLVER.MAX_EPOCHS: 3, SOLVER.BASE_LR: 0.5}\n"
    )
    spec = read("_BASE_: common.yml\nseeds: [3]\noverrides: {SOLVER.BASE_LR: 0.25}\nvariants: {base: {}}")
    assert (spec.jobs, spec.seeds) == (2, (3,))
    assert (spec.runs[0].epochs_left, spec.runs[0].cfg.SOLVER.BASE_LR) == (3, 0.25)
    for text, message in (
        ("_BASE_: nothing.yml", "_BASE_ nothing.yml: the file does not exist"),
        ("_BASE_: study.yml", "_BASE_ study.yml leads back to itself"),
        ("_BASE_: [common.yml]", "_BASE_ is the name of a study file beside this one"),
    ):
        with pytest.raises(SpecError, match=message):
            read(text)


def test_runs_are_folders_by_variant_and_seed_and_come_seed_by_seed(read: Read) -> None:
    spec = read(GOOD + "  wide: {SOLVER.BASE_LR: 1e-3}\noutput: some/where\n")
    assert [run.name for run in spec.runs] == ["base/seed_1", "wide/seed_1", "base/seed_2", "wide/seed_2"]
    assert spec.runs[1].folder == Path("some/where/wide/seed_1")
    assert spec.runs[1].cfg.OUTPUT_DIR == "some/where/wide/seed_1"
    assert read(GOOD).output == Path("runs/studies/study")
    assert read(GOOD.replace("variants:\n", "variants:\n  first: {SOLVER.BASE_LR: 1}\n")).reference == "base"


def test_jobs_devices_and_threads(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert (read(GOOD).jobs, read(GOOD + "devices: [0, 1]").jobs) == (1, 2)
    spec = read(GOOD + "devices: [2, 3]\njobs: 1\nthreads: 4")
    assert (spec.jobs, spec.devices, spec.num_threads(1)) == (1, ("2", "3"), 4)
    assert spec.runs[0].cfg.MODEL.DEVICE_ID == "0"
    assert read(GOOD).num_threads(10_000) == 1


def test_threads_of_the_environment_are_obeyed(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert read(GOOD).num_threads(10_000) == 3
    assert read(GOOD + "threads: 4").num_threads(10_000) == 4
    monkeypatch.setenv("OMP_NUM_THREADS", "many")
    with pytest.raises(SpecError, match="OMP_NUM_THREADS is a whole number from 1 to 1000, not 'many'"):
        read(GOOD).num_threads(1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must hold base:"),
        ("base: [", "not valid YAML"),
        (GOOD + "variant: 3", "unknown key 'variant'; did you mean variants"),
        (GOOD + "zzz: 3", "unknown key 'zzz'; the keys are base"),
        (GOOD.replace("seeds: [1, 2]", ""), "seeds is missing"),
        (GOOD.replace("[1, 2]", "3"), "seeds is a list of whole numbers"),
        (GOOD.replace("[1, 2]", "[1, -2]"), "seeds is a list of whole numbers"),
        (GOOD.replace("[1, 2]", "[01, 1]"), "seeds is a list of whole numbers"),
        (GOOD.replace("[1, 2]", "[2, 1, 2]"), "seeds: 2 appears more than once"),
        (GOOD.replace("[1, 2]", "[99999999999]"), "SOLVER.SEED takes finite numbers"),
        (GOOD + "  base: {SOLVER.BASE_LR: 1}", "the file has 'base' twice, in lines 4 and 5"),
        (
            GOOD + "  Base: {SOLVER.BASE_LR: 1}",
            "small and capital letters alike: base appears more than once",
        ),
        (GOOD + "  a/b: {}", "'a/b' cannot be a folder"),
        (GOOD + "  ..: {}", "'..' cannot be a folder"),
        (GOOD + "  summary.md: {}", "cannot be a folder"),
        (GOOD + f"  {'x' * 61}: {{}}", "cannot be a folder"),
        (GOOD + "  a: 3", "variant 'a' takes overrides"),
        (GOOD + "  a: [SOLVER.BASE_LR, 1]", "variant 'a' takes overrides"),
        (GOOD + "  a: {SOLVER: {BASE_LR: 1}}", "write overrides as SECTION.KEY: VALUE"),
        (GOOD + "  a: {SOLVER.SEED: 1}", "must not set SOLVER.SEED"),
        (GOOD + "overrides: {OUTPUT_DIR: x}", "must not set OUTPUT_DIR"),
        (GOOD + "  a: {MODEL.USE_SDTP: True}", "variant 'a': unknown key 'MODEL.USE_SDTP'; did you mean"),
        (GOOD + "  a: {SOLVER.BASE_LR: fast}", "variant 'a': SOLVER.BASE_LR takes a number"),
        (GOOD + "  a: {MODEL.ATM: True}", "variant 'a': .*HDM"),
        (GOOD + "  a: {MODEL.USE_SDTPS: True}", "'base' and 'a' are the same"),
        (GOOD + "  a: {program: nowhere.py}", "the program nowhere.py does not exist"),
        (GOOD.replace(str(SMALL_MODEL), "nowhere.yml"), "nowhere.yml does not exist"),
        (GOOD + "jobs: 0", "jobs is a whole number from 1 to 1000"),
        (GOOD + "threads: many", "threads is a whole number from 1"),
        (GOOD + "devices: [0]\njobs: 2", "one run per device"),
        (GOOD + "devices: [0, 0]", "devices: 0 appears more than once"),
        (GOOD + "epoch: first", "epoch is one of last, best, not 'first'"),
        (GOOD + "epoch: best", "epoch: best needs DATASETS.VAL_IDS in every variant, but 'base' has 0"),
        (
            GOOD + "  a: {DATASETS.VAL_IDS: 0}\noverrides: {DATASETS.VAL_IDS: 4}\nepoch: best",
            "but 'a' has 0: its best epoch would be chosen on the test set",
        ),
        (GOOD + "pattern: 4", "pattern is one of 1, 2, 3, not '4'"),
        ("base: &a [*a]\nseeds: [1]\nvariants: {base: {}}", "a value that contains itself"),
        (GOOD + "jobs: " + "9" * 5000, "jobs is a whole number from 1 to 1000"),
        (GOOD.replace("[1, 2]", "[" + "9" * 5000 + "]"), "seeds is a list of whole numbers"),
    ],
)
def test_mistakes(read: Read, text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        read(text)
    assert "study.yml: " in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"nothing\.yml: the file does not exist"):
        read_spec(tmp_path / "nothing.yml")


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.stem)
def test_dry_runs_of_our_studies(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)  # nothing of an earlier start is there
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    (tmp_path / "studies").symlink_to(ROOT / "studies")
    main(["run", str(study), "--dry_run", "--jobs", "3"])
    spec, out = read_spec(study), capsys.readouterr().out
    assert out.count("to be trained") == len(spec.variants) * len(spec.seeds)
    assert len(spec.seeds) >= (1 if study.stem in ("sources", "ratios") else 3)
    assert "3 at once" in out
    assert not (tmp_path / "runs").exists()


def test_the_page_shows_our_studies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example of docs/results.md can be read, and the tables have the rows that `compare` would write."""
    monkeypatch.chdir(ROOT)
    page = (ROOT / "docs" / "results.md").read_text()
    (example,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    (tmp_path / "common.yml").write_text((ROOT / "studies/specs/common.yml").read_text())
    (tmp_path / "study.yml").write_text(example)
    assert read_spec(tmp_path / "study.yml").variants == ("base", "gumbel")
    page += (ROOT / "docs" / "selectors.md").read_text()
    tables = dict(re.findall(r"<!-- study (\w+) -->\n(.*?)\n<!-- end -->", page, re.DOTALL))
    assert len(tables) >= 5
    for name, table in tables.items():
        spec = read_spec(ROOT / "studies" / "specs" / f"{name}.yml")
        header, _, *rows = table.splitlines()
        usual = f"| variant | mAP | Δ mAP to {spec.reference} [95 %] | R-1 | on person |"
        assert header in (usual, f"{usual} best possible | GFLOPs |")
        assert tuple(row.split()[1] for row in rows) == spec.variants


def test_there_are_studies() -> None:
    assert {"parts", "gumbel", "selection"} <= {study.stem for study in STUDIES}
