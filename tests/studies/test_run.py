"""Studies from the command line to the summary: with a pretended trainer, and once with the real one."""

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import yaml

from conftest import ROOT, SMALL_MODEL
from errors import UserError
from studies import run as run_command
from studies.__main__ import main
from studies.bootstrap import Difference
from studies.pages import markdown, show_mean
from studies.run import StudyRunner
from studies.run_folder import QueryScores, Run, RunState, is_trained, read_scores
from studies.spec import read_spec
from studies.summary import RunResult, Summary, summarise

FAKE = Path(__file__).parent / "fake_run.py"
SHIFTS = {"base": 0.0, "wide": 0.1, "narrow": -0.1}


class Study:
    """A study on disk whose runs are pretended; `kinds` says what the training of each run does."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.output = folder / "out"
        self.file = folder / "study.yml"
        self.kinds: dict[str, str] = {}
        self.content: dict[str, object] = {
            "base": str(SMALL_MODEL),
            "overrides": {"SOLVER.MAX_EPOCHS": 2, "SOLVER.WARMUP_ITERS": 1},
            "variants": {"base": {}, "wide": {"SOLVER.BASE_LR": 0.5}, "narrow": {"SOLVER.BASE_LR": 0.25}},
            "seeds": [1, 2],
            "jobs": 2,
            "threads": 1,
            "output": str(self.output),
        }
        runner = partial(StudyRunner, train=self.train, poll_seconds=0.02)
        monkeypatch.setattr(run_command, "StudyRunner", runner)

    def train(self, run: Run) -> list[str]:
        kind = self.kinds.get(run.name, "train")
        config = self.folder / f"{run.variant}_{run.seed}.yml"
        config.write_text(run.cfg.dump())
        how = "--resume" if (run.folder / "last.pth").exists() else "--overwrite"
        words = [kind, run.folder, config, run.seed, SHIFTS[run.variant], how, run.epoch]
        return [sys.executable, str(FAKE), *map(str, words)]

    def start(self, *options: str, command: str = "run") -> None:
        self.file.write_text(yaml.safe_dump(self.content, sort_keys=False))
        main([command, str(self.file), *options])

    def calls(self) -> list[list[str]]:
        """Kind, run, way, device and threads of each process, in order, since the last time."""
        path = self.output / "calls.txt"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return [line.split() for line in lines]


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    return Study(tmp_path, monkeypatch)


def test_every_run_is_trained_once(study: Study) -> None:
    study.start()
    calls = study.calls()
    assert sorted(name for _, name, *_ in calls) == sorted(
        f"{variant}/seed_{seed}" for variant in SHIFTS for seed in (1, 2)
    )
    assert {tuple(rest) for _, _, *rest in calls} == {("--overwrite", "-", "1")}
    record = json.loads((study.output / "wide" / "seed_1" / "study.json").read_text())
    assert record["program"] == "train_net.py"
    assert len(record["seconds"]) == 1
    assert record["seconds"][0] > 0

    written = {path.name: path.read_bytes() for path in study.output.glob("summary.*")}
    assert set(written) == {"summary.md", "summary.json", "summary.png"}
    study.start()  # everything is finished
    assert study.calls() == []
    assert {path.name: path.read_bytes() for path in study.output.glob("summary.*")} == written


def test_the_summary_says_what_was_put_in(study: Study) -> None:
    study.start()
    content = json.loads((study.output / "summary.json").read_text())
    base, wide, narrow = content["variants"]
    assert (content["reference"], content["epoch"], base["epochs"]) == ("base", "last epoch", [2])
    assert (base["differences"], wide["runs"]["1"]["on person"]) == ({}, 50.0)
    # The shift is the same for every query and seed: the interval has no width.
    found = wide["differences"]["mAP"]
    assert [found["estimate"], found["low"], found["high"]] == pytest.approx([10, 10, 10])
    assert (found["word"], found["num_seeds"], found["num_queries"]) == ("better", 2, 50)
    assert narrow["differences"]["mAP"]["word"] == "worse"

    values = [run["mAP"] for run in wide["runs"].values()]
    page = (study.output / "summary.md").read_text()
    assert re.search(r"\| wide \| \+10\.0 \[\+10\.0, \+10\.0\] \| better \|", page)
    kept = "| wide | 60.0 ± 0.0 | 50.0 ± 0.0 | 40.0 ± 0.0 | 50.0 ± 0.0 | +0.0 [+0.0, +0.0] |"
    mean = f"| wide | 2 of 2 | {np.mean(values):.1f} ± {np.std(values, ddof=1):.1f} |"
    for text in (mean, "last epoch** (epoch 2)", "| 50.0 ± 0.0 | 0.2500 |", "bootstrap over seeds and", kept):
        assert text in page.replace("\n", " ")
    assert "noise between seeds is not in" not in page
    assert wide["runs"]["1"]["NI"] == 50


def test_a_page_holds_the_table_of_a_study(study: Study) -> None:
    page = study.folder / "page.md"
    page.write_text("before\n<!-- study study -->\nold\n<!-- end -->\nafter\n<!-- end -->\n")
    study.start()
    study.start("--page", str(page), command="compare")
    first, marker, header, _, *rows, end, after, last = page.read_text().splitlines()
    assert (first, marker, end, after, last) == (
        "before", "<!-- study study -->", "<!-- end -->", "after", "<!-- end -->",
    )  # fmt: skip
    assert header.startswith("| variant | mAP | Δ mAP to base [95 %] | R-1 |")
    assert [row.split(" | ")[0] for row in rows] == ["| base", "| wide", "| narrow"]
    assert "| +10.0 [+10.0, +10.0] better |" in rows[1]
    content = page.read_text()
    study.start("--page", str(page), command="compare")
    assert page.read_text() == content
    study.start("--page", str(page), "--cost", command="compare")
    header, _, row = page.read_text().splitlines()[2:5]
    assert header.endswith("| R-1 | on person | best possible | GFLOPs |")
    assert row.endswith("| 50.0 ± 0.0 | 80.0 | 0.2500 |")

    page.write_text("no place\n")
    with pytest.raises(UserError, match="must have the lines <!-- study study --> and <!-- end --> once"):
        study.start("--page", str(page), command="compare")
    assert page.read_text() == "no place\n"
    with pytest.raises(UserError, match=r"exists and is not a \.md file"):
        study.start("--page", str(study.file), command="compare")
    with pytest.raises(UserError, match=r"nowhere\.md cannot be read"):
        study.start("--page", str(study.folder / "nowhere.md"), command="compare")


def test_the_best_epochs_on_validation_can_be_compared(study: Study) -> None:
    study.content["epoch"] = "best"
    study.content["overrides"] = {"DATASETS.VAL_IDS": 4, "SOLVER.MAX_EPOCHS": 2, "SOLVER.WARMUP_ITERS": 1}
    study.start()
    assert (study.output / "wide" / "seed_1" / "query_scores_best.npz").is_file()
    content = json.loads((study.output / "summary.json").read_text())
    assert (content["epoch"], content["variants"][0]["epochs"]) == ("best on validation", [1, 2])
    assert content["variants"][1]["differences"]["mAP"]["word"] == "better"
    page = (study.output / "summary.md").read_text()
    assert "best on validation** (epoch 1, 2), chosen on identities held out" in page
    assert "last epoch" not in page
    study.calls()
    # The pretended runs save the scores of one epoch alone: a study of the other resumes them.
    study.content["epoch"] = "last"
    study.start("--dry_run")
    assert {run.state for run in read_spec(study.file).runs} == {RunState.INTERRUPTED}


def test_a_failed_run_is_reported_and_the_others_go_on(
    study: Study, capsys: pytest.CaptureFixture[str]
) -> None:
    study.kinds = {"wide/seed_2": "fail"}
    with pytest.raises(SystemExit) as ended:
        study.start()
    out = capsys.readouterr().out
    assert ended.value.code == 1
    assert "wide/seed_2 failed: training ended with status 3" in out
    assert "the disk is on fire" in out
    assert "1 of 6 runs failed" in out
    assert "| wide | 1 of 2 |" in (study.output / "summary.md").read_text()
    wide = json.loads((study.output / "summary.json").read_text())["variants"][1]
    assert wide["differences"]["mAP"]["num_seeds"] == 1
    study.calls()
    study.kinds = {}
    study.start()
    assert [call[:2] for call in study.calls()] == [["train", "wide/seed_2"]]


def test_a_run_without_a_result_has_failed(study: Study, capsys: pytest.CaptureFixture[str]) -> None:
    study.content["seeds"] = [1]
    study.kinds = {"wide/seed_1": "nothing"}
    with pytest.raises(SystemExit):
        study.start()
    assert "training ended well, but without a result" in capsys.readouterr().out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_runs_in_order_and_the_next_start_resumes_them(
    study: Study, number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    study.kinds = {"wide/seed_1": "wait", "narrow/seed_1": "wait"}
    waiting = [study.output / name / "waits" for name in study.kinds]

    def interrupt() -> None:
        while not all(path.exists() for path in waiting):
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=interrupt, daemon=True)
    thread.start()
    with pytest.raises(SystemExit) as ended:
        study.start()
    thread.join()
    out = capsys.readouterr().out
    assert ended.value.code == 128 + number
    assert f"stopped by {number.name}; 1 of 6 runs are finished and will not be repeated" in out
    assert f"continue with: python -m studies run {study.file}" in out
    assert all((path.parent / "last.pth").read_text() == "half" for path in waiting)
    assert not list(study.output.glob("*/seed_2"))  # what had not started is left alone
    study.calls()
    study.content["seeds"] = [1]

    study.start()
    calls = study.calls()
    assert sorted(call[:3] for call in calls if call[0] == "wait") == [
        ["wait", "narrow/seed_1", "--resume"],
        ["wait", "wide/seed_1", "--resume"],
    ]
    assert len(calls) == 2
    seconds = json.loads((waiting[0].parent / "study.json").read_text())["seconds"]
    assert len(seconds) == 2
    summary = json.loads((study.output / "summary.json").read_text())
    assert summary["variants"][1]["runs"]["1"]["minutes"] == pytest.approx(sum(seconds) / 60)


def test_each_device_has_one_run_at_a_time(study: Study) -> None:
    study.content |= {"devices": [3, 5], "seeds": [1]}
    del study.content["jobs"]
    study.start()
    calls = study.calls()
    assert {call[3] for call in calls} == {"3", "5"}
    by_run = {call[1]: call[3] for call in calls}
    assert by_run["base/seed_1"] != by_run["wide/seed_1"]


def test_keys_that_have_changed_are_named(study: Study) -> None:
    study.start()
    study.calls()
    study.content["variants"] = {"base": {}, "wide": {"SOLVER.BASE_LR": 0.125}}
    for command in (["run"], ["run", "--dry_run"], ["compare"]):
        with pytest.raises(UserError, match=r"wide/seed_1 was .* SOLVER.BASE_LR was 0\.5 and is 0\.125 now"):
            study.start(*command[1:], command=command[0])
    assert study.calls() == []
    # What does not alter the result may change; new seeds and variants are added.
    study.content["overrides"] = {"SOLVER.MAX_EPOCHS": 2, "SOLVER.WARMUP_ITERS": 1, "SOLVER.LOG_PERIOD": 3}
    study.content |= {"variants": {"base": {}, "wide": {"SOLVER.BASE_LR": 0.5}}, "seeds": [1, 2, 4]}
    study.start()
    assert {call[1] for call in study.calls()} == {"base/seed_4", "wide/seed_4"}


def test_runs_with_different_numbers_of_threads_are_not_mixed(study: Study) -> None:
    study.start()
    study.calls()
    study.start(command="compare")
    study.content["threads"] = 2
    message = r"base/seed_1 was trained with 1 threads, but the study asks for 2, and their number changes"
    for options in ([], ["--dry_run"]):
        with pytest.raises(UserError, match=message):
            study.start(*options)
    assert study.calls() == []
    study.start(command="compare")  # nothing is going to be trained, and all runs are of one kind
    del study.content["threads"]
    metrics = study.output / "wide" / "seed_1" / "metrics.json"
    content = json.loads(metrics.read_text())
    metrics.write_text(json.dumps({**content, "environments": [{"threads": 5}]}))
    with pytest.raises(UserError, match=r"wide/seed_1 was trained with 5 threads, but .*base/seed_1 with 1"):
        study.start(command="compare")


def test_a_run_without_the_scores_of_its_queries_is_resumed(study: Study) -> None:
    study.start()
    study.calls()
    (study.output / "base" / "seed_1" / "query_scores.npz").unlink()
    study.start()
    assert [call[:3] for call in study.calls()] == [["train", "base/seed_1", "--resume"]]


def test_a_dry_run_writes_nothing_and_names_what_is_left(
    study: Study, capsys: pytest.CaptureFixture[str]
) -> None:
    study.start("--dry_run")
    out = capsys.readouterr().out
    assert not study.output.exists()
    assert out.count("to be trained") == 6
    assert "12 epochs are left" in out
    assert f"train_net.py --overwrite --config_file {SMALL_MODEL} SOLVER.MAX_EPOCHS 2" in out
    study.start()
    capsys.readouterr()
    (study.output / "base" / "seed_1" / "query_scores.npz").unlink()
    study.start("--dry_run")
    out = capsys.readouterr().out
    assert (out.count(" finished"), out.count("to be resumed")) == (5, 1)


def test_a_run_that_another_study_has_finished_is_copied(
    study: Study, capsys: pytest.CaptureFixture[str]
) -> None:
    study.start()
    study.calls()
    (study.output / "narrow" / "seed_1" / "query_scores.npz").unlink()  # not finished
    # The same runs under other names beside other ones.
    first, study.output = study.output, study.folder / "second"
    overrides = {**study.content["overrides"], "DATASETS.ROOT_DIR": "./data"}  # type: ignore[dict-item]
    study.content |= {"output": str(study.output), "seeds": [1, 5], "overrides": overrides}
    study.content["variants"] = {
        "base": {"SOLVER.BASE_LR": 0.5},
        "wide": {"SOLVER.LOG_PERIOD": 7},
        "narrow": {"SOLVER.BASE_LR": 0.25},
    }
    scratch = study.output / "base" / ".seed_1.copy"  # of a study that was killed while it copied
    scratch.mkdir(parents=True)
    (scratch / "metrics.json").write_text("half")
    study.start("--dry_run")
    assert f"to be copied from {first}/wide/seed_1" in capsys.readouterr().out
    study.start()
    assert f"base/seed_1: copied from {first}/wide/seed_1" in capsys.readouterr().out
    assert sorted(call[1] for call in study.calls()) == [
        "base/seed_5", "narrow/seed_1", "narrow/seed_5", "wide/seed_1", "wide/seed_5",
    ]  # fmt: skip
    record = json.loads((study.output / "base" / "seed_1" / "study.json").read_text())
    assert record["copied_from"] == str(first / "wide" / "seed_1")
    assert record["seconds"] == json.loads((first / "wide" / "seed_1" / "study.json").read_text())["seconds"]
    assert not scratch.exists()
    assert "| base | 2 of 2 |" in (study.output / "summary.md").read_text()


@pytest.mark.parametrize("change", ["threads", "program", "seed"])
def test_a_run_that_was_trained_in_another_way_is_not_copied(study: Study, change: str) -> None:
    study.content |= {"variants": {"base": {}}, "seeds": [1]}
    study.start()
    study.output = study.folder / "second"
    study.content["output"] = str(study.output)
    if change == "program":
        study.content["variants"] = {"base": {"program": str(FAKE)}}
    else:
        study.content |= {"threads": 2} if change == "threads" else {"seeds": [2]}
    study.start()
    assert len(study.calls()) == 1


def test_a_copy_that_fails_leaves_nothing_behind(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    study.content |= {"variants": {"base": {}}, "seeds": [1]}
    study.start()
    study.output = study.folder / "second"
    study.content["output"] = str(study.output)

    def fail(*_: object) -> None:
        raise OSError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(shutil.copytree, "__defaults__", (False, None, fail, False, False))
        with pytest.raises(UserError, match=r"cannot be copied to .*disk is full"):
            study.start()
    assert not list(study.output.glob("base/*"))
    study.start()
    assert study.calls() == []


def test_compare_alone(study: Study, capsys: pytest.CaptureFixture[str]) -> None:
    study.start(command="compare")
    assert "nothing to sum up" in capsys.readouterr().out
    study.start()
    study.calls()
    (study.output / "summary.md").unlink()
    study.start("--pattern", "2", command="compare")
    assert study.calls() == []
    assert "return pattern 2 (fused)" in (study.output / "summary.md").read_text()


def test_two_studies_do_not_share_a_folder(study: Study) -> None:
    study.output.mkdir()
    with (study.output / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="is in use by another study"):
            study.start()
    study.content["seeds"] = [1]
    study.start()


@pytest.mark.parametrize("name", [".lock", "summary.md", "summary.png", "base/seed_1/console.txt"])
def test_a_link_in_the_place_of_a_file_of_the_study_is_refused(study: Study, name: str) -> None:
    study.content["seeds"] = [1]
    mine = study.folder / "mine"
    mine.write_text("precious")
    (study.output / name).parent.mkdir(parents=True)
    (study.output / name).symlink_to(mine)
    with pytest.raises(UserError, match=rf"{name} cannot be written: it is a symbolic link"):
        study.start()
    assert (study.output / name).is_symlink()
    assert mine.read_text() == "precious"
    assert not (study.output / "calls.txt").exists()


def test_runs_of_an_earlier_start_are_waited_for(study: Study, capsys: pytest.CaptureFixture[str]) -> None:
    study.content["seeds"] = [1]
    run = study.output / "wide" / "seed_1"
    run.mkdir(parents=True)
    with (run / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)

        def release() -> None:
            while not (study.output / ".lock").exists():
                time.sleep(0.01)
            time.sleep(0.1)
            assert not (study.output / "calls.txt").exists()
            fcntl.flock(file, fcntl.LOCK_UN)

        thread = threading.Thread(target=release, daemon=True)
        thread.start()
        study.start()
        thread.join()
    assert "waiting for runs that an earlier start has left: wide/seed_1" in capsys.readouterr().out


def test_an_impossible_output_is_refused_before_runs_are_compared(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    with pytest.raises(UserError, match=r"file/summary\.md cannot be written: Not a directory"):
        main(["compare", "a", "b", "--output", str(tmp_path / "file")])
    assert (tmp_path / "file").read_text() == "precious"


def test_two_runs_are_compared_by_their_queries_alone(
    study: Study, capsys: pytest.CaptureFixture[str]
) -> None:
    study.start()
    capsys.readouterr()
    runs = [str(study.output / name / "seed_1") for name in ("base", "wide")]
    main(["compare", *runs, "--output", str(study.folder / "compared")])
    out = capsys.readouterr().out
    assert "SOLVER.BASE_LR: 0.003 → 0.5" in out
    assert "| B | +10.0 [+10.0, +10.0] | better |" in out
    assert "The noise between seeds is not in that interval" in out.replace("\n", " ")
    assert len(list((study.folder / "compared").iterdir())) == 3
    assert "threads" not in out
    metrics = study.output / "wide" / "seed_1" / "metrics.json"
    metrics.write_text(metrics.read_text().replace('"threads": 1', '"threads": 2'))
    main(["compare", *runs])
    assert "A was trained with [1] threads and B with [2], which alone changes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compare", "a", "b", "c"], "one study file or two run folders, not 3 names"),
        (["compare", "a", "b"], "a does not hold a finished run"),
        (["compare", "a", "a"], "two different runs"),
        (["compare", "a", "b", "--page", "p.md"], "--page belongs to a study"),
        (["compare", "x.yml", "--output", "a"], "--output belongs to two runs"),
        (["run", str(ROOT / "studies/specs/parts.yml"), "--jobs", "0"], "--jobs must be 1 or more"),
        (["run", "x.yml"], "does not exist"),
    ],
)
def test_arguments_that_do_not_fit(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    with pytest.raises(UserError, match=message):
        main(arguments)


@pytest.mark.parametrize(
    ("words", "message"), [([], "required: COMMAND"), (["ran"], "invalid choice: 'ran'")]
)
def test_commands_that_do_not_exist(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def result(mean_ap: float, precisions: list[float], names: tuple[str, ...] = ("a", "b")) -> RunResult:
    scores = QueryScores(3, np.array(names), np.array(precisions), np.array([1, 2]))
    measures = {"mAP": mean_ap, "R-1": 50.0, "on person": None, "GFLOPs": 1.5, "minutes": None}
    return RunResult(measures, 12, scores)


def test_means_and_deviations_by_hand() -> None:
    assert show_mean([]) == "–"
    assert show_mean([4.0]) == "4.0"
    assert show_mean([1.0, 2.0, 6.0]) == "3.0 ± 2.6"  # sqrt(7)


def test_only_seeds_that_both_variants_have_are_compared() -> None:
    results = {
        "base": {1: result(50, [0.5, 0.5]), 2: result(90, [0.9, 0.9])},
        "other": {1: result(60, [0.6, 0.6]), 3: result(10, [0.1, 0.1])},
        "none": {4: result(60, [0.6, 0.6])},
    }
    summary = Summary("t", "base", summarise(results, "base"), num_wanted=4, pattern=None)
    found = summary.variants[1].differences["mAP"]
    assert isinstance(found, Difference)
    assert (found.num_seeds, found.estimate) == (1, pytest.approx(10))
    page = markdown(summary)
    assert "| base | 2 of 4 | 70.0 ± 28.3 | 50.0 ± 0.0 | – | 1.5000 | – | 3 |" in page
    assert "| none | – | – | – | – | 0 |" in page
    assert "The noise between seeds is not in that" in page


def test_different_queries_cannot_be_compared() -> None:
    results = {"base": {1: result(50, [0.5, 0.5])}, "other": {1: result(50, [0.5, 0.5], ("a", "c"))}}
    with pytest.raises(UserError, match="different queries"):
        summarise(results, "base")


@pytest.fixture(scope="module")
def real_study(tmp_path_factory: pytest.TempPathFactory, mini_settings: list[str]) -> Path:
    """A study of the real trainer, 2 variants × 2 seeds, that was killed when its first run was finished."""
    folder = tmp_path_factory.mktemp("study")
    quick = ["SOLVER.MAX_EPOCHS", "1", "SOLVER.WARMUP_ITERS", "0", "TEST.CONTROLS", "False"]
    words = [*mini_settings, *quick]
    content = {
        "base": str(SMALL_MODEL),
        "overrides": dict(zip(words[::2], words[1::2], strict=True)),
        "variants": {"base": {}, "baseline": {"MODEL.USE_SDTPS": False}},
        "seeds": [1, 2],
        "threads": 1,
        "output": str(folder / "out"),
    }
    (folder / "study.yml").write_text(yaml.safe_dump(content))
    command = [sys.executable, "-m", "studies", "run", str(folder / "study.yml")]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: is_trained(folder / "out/base/seed_1"), process)
    finally:
        process.kill()
        process.wait()
    return folder


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    while not condition():
        assert process.poll() is None, "the study ended too early"
        time.sleep(0.05)


def test_a_killed_study_goes_on_and_repeats_no_finished_run(real_study: Path) -> None:
    finished = real_study / "out" / "base" / "seed_1"
    before = {
        name: (finished / name).stat().st_mtime_ns
        for name in ("metrics.json", "last.pth", "query_scores.npz")
    }
    main(["run", str(real_study / "study.yml")])
    assert {name: (finished / name).stat().st_mtime_ns for name in before} == before
    content = json.loads((real_study / "out" / "summary.json").read_text())
    base, baseline = content["variants"]
    assert set(base["runs"]) == set(baseline["runs"]) == {"1", "2"}
    assert (base["patterns"], baseline["patterns"]) == ([3], [1])
    assert 0 < base["runs"]["1"]["on person"] < 100
    assert baseline["runs"]["1"]["on person"] is None
    assert base["runs"]["1"]["GFLOPs"] > baseline["runs"]["1"]["GFLOPs"] > 0
    # The scores of the queries are those of the training run.
    for seed in ("1", "2"):
        folder = real_study / "out" / "base" / f"seed_{seed}"
        metrics = json.loads((folder / "metrics.json").read_text())["summary"]["last epoch"]
        for pattern in (1, 2, 3):
            scores = read_scores(folder, pattern)
            assert 100 * scores.average_precisions.mean() == pytest.approx(
                metrics[f"pattern_{pattern}"]["mAP"]
            )
            assert 100 * (scores.first_hits == 1).mean() == pytest.approx(
                metrics[f"pattern_{pattern}"]["rank_1"]
            )
        assert len(scores.names) == 16
        assert base["runs"][seed]["mAP"] == metrics["pattern_3"]["mAP"]
    difference = base["runs"]["1"]["mAP"] + base["runs"]["2"]["mAP"]
    difference -= baseline["runs"]["1"]["mAP"] + baseline["runs"]["2"]["mAP"]
    assert baseline["differences"]["mAP"]["estimate"] == pytest.approx(-difference / 2)
