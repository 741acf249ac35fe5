import json
import os
from pathlib import Path

import numpy as np
import pytest
from toy_training import FreeOfCharge

from engine.files import save_json
from engine.results import (
    EvaluationResult,
    log_results,
    missing_table,
    read_history,
    result_table,
    save_results,
)
from evaluation.breakdown import Breakdown
from evaluation.selection import SelectionMetrics
from structures import MISSING_SETTINGS, PerModality, RankingMetrics


def make_metrics(mean_ap: float, rank_1: float) -> RankingMetrics:
    queries = np.full(4, mean_ap)
    return RankingMetrics(
        mean_ap=mean_ap,
        cmc=np.array([rank_1, 1.0]),
        num_queries=4,
        mean_inp=mean_ap / 2,
        average_precisions=queries,
        inverse_negative_penalties=queries / 2,
        first_hits=np.ones(4, dtype=np.int64),
    )


def make_result(mean_ap: float, *, patterns: tuple[int, ...] = (1, 2, 3)) -> EvaluationResult:
    ranking = {pattern: make_metrics(mean_ap + pattern / 100, mean_ap) for pattern in patterns}
    return EvaluationResult(ranking, None, num_samples=8, seconds=1.0)


@pytest.fixture
def results() -> dict[str, EvaluationResult]:
    return {setting: make_result(0.6 - 0.05 * place) for place, setting in enumerate(MISSING_SETTINGS)}


def test_the_table_shows_patterns_controls_and_kept_patches() -> None:
    result = EvaluationResult(
        {1: make_metrics(0.625, 0.75)},
        SelectionMetrics(PerModality(0.5, 0.25, 0.125), 0.4, 0.8, PerModality(0.3, 0.2, 0.1)),
        8,
        1.0,
    )
    table = result_table(result, {"control: untrained": make_result(0.1, patterns=(1,)).main.as_dict()})
    rows = [line.split() for line in table.splitlines()]
    assert rows[0] == ["feature", "mAP", "mINP", "R-1", "R-5", "R-10"]
    assert rows[1] == ["1", "original", "62.5", "31.2", "75.0", "100.0", "100.0"]
    assert rows[2][:4] == ["control:", "untrained", "11.0", "5.5"]
    assert "RGB 50.0%, NI 25.0%, TI 12.5% (chance 40.0%, best possible 80.0%)" in table
    assert result.as_dict()["kept_patch_precision"]["NI"] == 25.0
    assert result.as_dict()["kept_patch_precision"]["same_places_RGB"] == 30.0
    assert "the same patches in every image: RGB 30.0%, NI 20.0%, TI 10.0%" in result_table(result)


def test_the_table_of_missing_modalities(results: dict[str, EvaluationResult]) -> None:
    lines = missing_table(results).splitlines()
    assert [line[:12].strip() for line in lines] == [
        "",
        "missing",
        "nothing",
        "RGB",
        "NI",
        "TI",
        "RGB + NI",
        "RGB + TI",
        "NI + TI",
        "mean of 6",
    ]
    assert lines[2].split()[1:] == ["61.0", "60.0", "62.0", "60.0", "63.0", "60.0"]
    assert lines[3].split()[1:3] == ["56.0", "55.0"]
    assert lines[-1].split()[3:5] == ["43.5", "42.5"]  # the mean of 0.55, 0.5, …, 0.3 is 0.425
    assert max(map(len, lines)) <= 80


def test_one_setting_has_no_table_of_its_own(
    caplog: pytest.LogCaptureFixture, results: dict[str, EvaluationResult]
) -> None:
    with caplog.at_level("INFO"):
        log_results("w.pth", {"nt": results["nt"]}, FreeOfCharge())
    assert "result of w.pth without NI + TI" in caplog.text
    assert "mean of" not in caplog.text
    with caplog.at_level("INFO"):
        log_results("w.pth", results, FreeOfCharge())
    assert "mean of 6" in caplog.text


def test_all_numbers_are_saved(tmp_path: Path, results: dict[str, EvaluationResult]) -> None:
    save_results(tmp_path / "m.json", results, Breakdown((), ()), FreeOfCharge())
    content = json.loads((tmp_path / "m.json").read_text())
    assert content["result"] == content["missing"]["complete"]
    assert content["missing"]["nt"]["pattern_3"]["mAP"] == pytest.approx(33)
    assert content["breakdown"] == {"identities": [], "camera_pairs": []}
    assert content["cost"] == {"gflops": 0}


SCORES = {"pattern_1": {"mAP": 30.0, "rank_1": 40, "skipped": 0}, "samples": 12}
EPOCHS = [
    {"epoch": 1, "loss": 2.0, "accuracy": 0.1, "lr": {"all": 0.1}},
    {"epoch": 2, "loss": 1, "accuracy": 0.5, "validation": SCORES},
]
SUMMARY = {"last epoch": SCORES, "untrained": SCORES}


def test_history_of_the_run_that_made_the_weights(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    weights = str(tmp_path / "best.pth")
    assert read_history(weights) == {"choice": ""}
    history = {"epochs": EPOCHS, "summary": SUMMARY}
    save_json(tmp_path / "metrics.json", {**history, "cost": 3})
    assert read_history(weights) == {"choice": "", **history}
    assert not caplog.records


def strange_histories() -> dict[str, str]:
    """Files that are not what a run writes, by what is wrong with them."""

    def with_epoch(**changes: object) -> str:
        return json.dumps({"epochs": [EPOCHS[0], {**EPOCHS[1], **changes}], "summary": SUMMARY})

    def with_control(control: object) -> str:
        return json.dumps({"epochs": EPOCHS, "summary": {**SUMMARY, "untrained": control}})

    return {
        "not JSON": "{",
        "no text": "\udcff",
        "too deep": "[" * 100_000,
        "a list": "[]",
        "null": "null",
        "a number": "3",
        "an unfinished run": json.dumps({"epochs": EPOCHS}),
        "epochs by name": json.dumps({"epochs": {"1": EPOCHS[0]}, "summary": SUMMARY}),
        "epochs that are text": json.dumps({"epochs": "12", "summary": SUMMARY}),
        "epochs that are numbers": json.dumps({"epochs": [1, 2], "summary": SUMMARY}),
        "epochs that are null": json.dumps({"epochs": [None], "summary": SUMMARY}),
        "an epoch without a loss": json.dumps({"epochs": [{"epoch": 1}], "summary": SUMMARY}),
        "a loss that is text": with_epoch(loss="1.0"),
        "a loss that is a switch": with_epoch(loss=True),
        "an accuracy that is a list": with_epoch(accuracy=[0.5]),
        "an epoch that is null": with_epoch(epoch=None),
        "scores that are null": with_epoch(validation=None),
        "scores that are a list": with_epoch(validation=[1]),
        "scores of no pattern": with_epoch(validation={"samples": 3}),
        "scores that are text": with_epoch(validation={"pattern_1": "good"}),
        "an mAP that is null": with_epoch(validation={"pattern_1": {"mAP": None, "rank_1": 1.0}}),
        "an mAP that is nested": with_epoch(validation={"pattern_1": {"mAP": {"a": 1}, "rank_1": 1.0}}),
        "no rank 1": with_epoch(test={"pattern_1": {"mAP": 1.0}}),
        "a summary that is a list": json.dumps({"epochs": EPOCHS, "summary": [SUMMARY]}),
        "a summary that is null": json.dumps({"epochs": EPOCHS, "summary": None}),
        "a control that is null": with_control(None),
        "a control that is a number": with_control(3),
        "a control without scores": with_control({}),
        "a control with scores that are lists": with_control({"pattern_3": [1, 2]}),
        "a control with a score that is text": with_control({"pattern_3": {"mAP": "1", "rank_1": 1}}),
    }


@pytest.mark.parametrize("case", strange_histories())
def test_a_strange_history_is_left_out_with_a_warning(
    case: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    content = strange_histories()[case].encode(errors="surrogateescape")
    (tmp_path / "metrics.json").write_bytes(content)
    assert read_history(str(tmp_path / "best.pth")) == {"choice": ""}
    assert caplog.text.count("training is not shown") == 1
    assert (tmp_path / "metrics.json").read_bytes() == content


def test_a_history_that_is_not_a_file_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    os.mkfifo(tmp_path / "metrics.json")
    assert read_history(str(tmp_path / "best.pth")) == {"choice": ""}
    (tmp_path / "metrics.json").unlink()
    (tmp_path / "metrics.json").mkdir()
    assert read_history(str(tmp_path / "best.pth")) == {"choice": ""}
    assert caplog.text.count("training is not shown") == 2
