"""The sweep over layers and keep ratios, from the command line to the files."""

import json
from pathlib import Path

import pytest

import train_net as train_entry
from conftest import SMALL_MODEL
from errors import UserError
from studies.__main__ import main
from studies.slim import SweepPoint, parse_layers, read_points, show_change, table


def test_every_combination_is_measured(
    tmp_path: Path, mini_settings: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    quick = ["SOLVER.MAX_EPOCHS", "1", "SOLVER.WARMUP_ITERS", "0", "TEST.CONTROLS", "False"]
    train_entry.main(["--config_file", str(SMALL_MODEL), *mini_settings, *quick, "OUTPUT_DIR", str(run)])
    weights = [str(run / "last.pth"), str(run / "best.pth")]
    ways = ["--layers", "[0]", "[0,3]", "--keep", "0.5", "1.0", "--output", str(tmp_path / "sweep")]
    main(["slim", "--config_file", str(run / "config.yml"), "--weights", *weights, *ways])

    content = json.loads((tmp_path / "sweep.json").read_text())
    assert content["weights"] == weights
    full, *points = content["points"]
    assert (full["layers"], full["precision"]) == ([], [])
    assert [(point["method"], point["layers"], point["keep"]) for point in points] == [
        ("merge", [0], 0.5),
        ("merge", [0], 1.0),
        ("merge", [0, 3], 0.5),
        ("merge", [0, 3], 1.0),
    ]
    assert points[2]["gflops"] < points[0]["gflops"] < full["gflops"]
    for point in (points[1], points[3]):  # keeping all patches changes nothing
        assert point["mean_ap"] == pytest.approx(full["mean_ap"], abs=1e-6)
    assert points[0]["mean_ap"][0] == points[0]["mean_ap"][1]  # after one epoch the last is the best
    assert all(len(point["precision"]) == 2 for point in points)
    assert (tmp_path / "sweep.png").stat().st_size > 10_000
    assert "| none |" in capsys.readouterr().out

    # The controls beside it, drawn in one figure.
    ways = ["--layers", "[0]", "--keep", "0.5", "--controls", "random", "fixed"]
    ways += ["--beside", str(tmp_path / "sweep.json"), "--output", str(tmp_path / "all")]
    main(["slim", "--config_file", str(run / "config.yml"), "--weights", *weights[:1], *ways])
    full, merged, *controls = json.loads((tmp_path / "all.json").read_text())["points"]
    assert [point["method"] for point in controls] == ["random", "fixed"]
    assert all(merged["gflops"] * 0.98 < point["gflops"] <= merged["gflops"] for point in controls)
    assert merged["mean_ap"] == points[0]["mean_ap"][:1]
    scores = {tuple(point["mean_ap"]) for point in (full, merged, *controls)}
    assert len(scores) == 4


def test_an_impossible_output_is_refused_before_the_work(
    tmp_path: Path, mini_settings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("studies.slim.load_trained", lambda *_, **__: pytest.fail("read the weights"))
    (tmp_path / "sweep.png").symlink_to(tmp_path / "nowhere")
    arguments = ["slim", "--config_file", str(SMALL_MODEL), *mini_settings, "--weights", "w.pth"]
    with pytest.raises(UserError, match=r"sweep\.png cannot be written: it is a symbolic link"):
        main([*arguments, "--layers", "[2]", "--output", str(tmp_path / "sweep")])
    assert [path.name for path in tmp_path.iterdir()] == ["sweep.png"]


def test_the_table_has_means_and_standard_deviations() -> None:
    points = [
        SweepPoint("merge", (), 1.0, 2.0, [80.0, 82.0], [90.0, 90.0], []),
        SweepPoint("merge", (2, 3), 0.5, 1.0, [70.0, 74.0], [80.0, 84.0], [60.0, 70.0]),
    ]
    lines = table(points).splitlines()
    assert lines[2] == "| none | 2.0000 | 1.00 | 81.0 ± 1.4 | 90.0 ± 0.0 | – | – |"
    # Changes of -10 and -8: mean -9, standard error 1, times 12.71, the quantile of t with one degree.
    scores = "72.0 ± 2.8 | 82.0 ± 2.8 | 65.0 ± 7.1 | -9.00 ± 12.71"
    assert lines[3] == f"| merge, [2, 3], 0.5 | 1.0000 | 0.50 | {scores} |"
    assert show_change([80.0], [79.5]) == "-0.50"


@pytest.mark.parametrize("content", ["[", "{}", '{"points": [{"keep": 1}]}', '{"points": 3}'])
def test_a_file_beside_that_cannot_be_read(tmp_path: Path, content: str) -> None:
    (tmp_path / "other.json").write_text(content)
    with pytest.raises(UserError, match=r"--beside .*other\.json is no file that `studies slim` has written"):
        read_points(tmp_path / "other.json")


@pytest.mark.parametrize("text", ["2", "[2", "[a]", "blocks", "[]"])
def test_layers_that_cannot_be_read(text: str) -> None:
    with pytest.raises(UserError, match="--layers takes lists of blocks"):
        parse_layers(text)
    assert parse_layers("[2, 3]") == (2, 3)
