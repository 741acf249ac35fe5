"""Figures for papers, from the command line to the files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

import train_net as train_entry
from config import ConfigError
from conftest import SMALL_MODEL
from datasets.dataset import DatasetError
from errors import UserError
from modeling.checkpoint_file import WeightsError
from reporting.figures import RankCell
from reporting.pictures import Maps
from structures import ImageRecord, PerModality
from tools import figures
from tools.figures import choose_pattern, find_queries, main, parse_arguments

FILES = {f"{kind}.{ending}" for kind in ("ranks", "selection", "attention") for ending in ("pdf", "png")}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, mini_settings: list[str]) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    quick = ["TEST.CONTROLS", "False", "SOLVER.EVAL_PERIOD", "2", "OUTPUT_DIR", str(folder)]
    train_entry.main(["--config_file", str(SMALL_MODEL), *mini_settings, *quick])
    return folder


def draw(run: Path, output: Path, *more: str) -> set[str]:
    arguments = ["--config_file", str(run / "config.yml"), "--weights", str(run / "best.pth")]
    main([*arguments, "--output", str(output), *more])
    return {path.name for path in output.iterdir()}


def test_all_figures_are_written_and_named_in_the_log(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert draw(run, tmp_path / "figures", "--count", "2", "--top", "3") == FILES
    log = capsys.readouterr().out
    for name in FILES:
        assert str(tmp_path / "figures" / name) in log
    assert "query 000009_cam1_0_00.jpg: AP" in log
    assert "glyph" not in log  # matplotlib's font library talks a lot


def test_lists_show_the_nearest_triples_and_mark_the_positives(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gallery without the query's own camera, nearest first; the last query of the miniature."""
    drawn: list[list[RankCell]] = []
    original = figures.draw_ranks

    def keep(lists: list[list[RankCell]], **options: Any) -> Figure:
        drawn.extend(lists)
        return original(lists, **options)

    monkeypatch.setattr(figures, "draw_ranks", keep)
    assert draw(run, tmp_path, "--kind", "ranks", "--queries", "15", "--top", "20") == {
        "ranks.pdf",
        "ranks.png",
    }
    (cells,) = drawn
    query, found = cells[0], cells[1:]
    assert (query.caption, query.is_positive) == ("id 12", None)
    assert len(found) == 14  # 16 triples, two of them of the same identity and camera
    assert sum(bool(cell.is_positive) for cell in found) == 2
    distances = []
    for cell in found:
        person, distance = cell.caption.removeprefix("id ").split(" · ")
        assert cell.is_positive == (person == "12")
        distances.append(float(distance))
    assert distances == sorted(distances)
    assert query.pictures.shape == (3, 128, 64, 3)
    assert 0 <= query.pictures.min() < query.pictures.max() <= 1


def test_missing_modalities_are_white(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[np.ndarray] = []
    original, draw_ranks = figures.draw_maps, figures.draw_ranks

    def keep_ranks(rows: list[list[figures.RankCell]], **options: Any) -> Figure:
        drawn.append(np.stack([cell.pictures for cell in rows[0]])[:, :, None])
        return draw_ranks(rows, **options)

    def keep(maps: Maps, names: list[str], *, width: float) -> Figure:
        drawn.append(maps.pictures)
        return original(maps, names, width=width)

    monkeypatch.setattr(figures, "draw_maps", keep)
    monkeypatch.setattr(figures, "draw_ranks", keep_ranks)
    draw(run, tmp_path, "TEST.MISS", "nt")
    assert len(drawn) == 3
    for pictures in drawn:
        assert pictures[:, 0, 0].std() > 0.05
        assert (pictures[:, 1:] == 1).all()


def test_the_hardest_queries_come_first(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draw(run, tmp_path, "--kind", "ranks", "--hardest", "--count", "16", "--pattern", "1")
    lines = [line for line in capsys.readouterr().out.splitlines() if " query 0" in line]
    precisions = [float(line.split("AP ")[1].split()[0]) for line in lines]
    assert len(precisions) == 16
    assert precisions == sorted(precisions)
    assert "return pattern 1" in lines[0]


def test_a_model_without_selection_has_the_other_figures(
    run: Path, tmp_path: Path, mini_settings: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    plain = ["MODEL.USE_SDTPS", "False", "--allow_partial"]
    with pytest.raises(ConfigError, match=r"--kind selection.*MODEL\.USE_SDTPS"):
        draw(run, tmp_path, *plain, "--kind", "selection")
    with pytest.raises(UserError, match="--pattern 2 is not a return pattern of this model; choose from 1"):
        draw(run, tmp_path, *plain, "--pattern", "2")
    written = draw(run, tmp_path, *plain, "--count", "1", "--top", "2")
    assert written == {name for name in FILES if "selection" not in name}
    assert "no selection maps" in capsys.readouterr().out


def records(*names: str) -> list[ImageRecord]:
    return [ImageRecord(PerModality(Path(name), Path(name), Path(name)), 0, 0) for name in names]


def test_a_slimmed_model_has_selection_maps_and_no_rollout(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slim = ["MODEL.SLIM_LAYERS", "[2, 3]"]
    drawn = draw(run, tmp_path / "slim", "--count", "2", "--top", "3", *slim)
    assert drawn == {name for name in FILES if "attention" not in name}
    assert "no attention maps: rollout follows every patch" in capsys.readouterr().out
    without = ["--allow_partial", "MODEL.USE_SDTPS", "False"]
    assert "selection.pdf" in draw(run, tmp_path / "plain", "--kind", "selection", *without, *slim)
    with pytest.raises(ConfigError, match=r"set MODEL\.SLIM_LAYERS"):
        draw(run, tmp_path / "asked", "--kind", "attention", *slim)


def test_queries_are_found_by_name_stem_and_row() -> None:
    triples = records("a_1.jpg", "a_2.jpg", "7.jpg", "b.png")
    queries = np.array([3, 1, 2])  # row 0 is in the gallery alone
    assert find_queries(["a_2.jpg", "b", "2", "7", "3"], triples, queries) == [1, 0, 2, 2, 0]
    assert find_queries([], triples, queries) == []
    with pytest.raises(UserError, match=r"no query is called 'a_3\.jpg'; nearest are a_2\.jpg"):
        find_queries(["a_3.jpg"], triples, queries)
    with pytest.raises(UserError, match=r"no query is called '0'.*or give a row, from 1 to 3"):
        find_queries(["0"], triples, queries)


def test_the_last_return_pattern_is_the_default() -> None:
    assert choose_pattern(None, [1, 2, 3]) == 3
    assert choose_pattern(2, [1, 2, 3]) == 2


def test_settings_may_follow_a_list() -> None:
    args = parse_arguments(["A.B", "c", "--kind", "ranks", "attention", "TEST.MISS", "t", "SOLVER.SEED", "3"])
    assert args.kind == ["ranks", "attention"]
    assert args.overrides == ["TEST.MISS", "t", "SOLVER.SEED", "3", "A.B", "c"]
    args = parse_arguments(["--queries", "TEST.jpg", "5", "--top", "3", "OUTPUT_DIR", "x"])
    assert (args.queries, args.overrides, args.top) == (["TEST.jpg", "5"], ["OUTPUT_DIR", "x"], 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--kind", "rank"], "--kind rank is unknown; choose from ranks, selection, attention"),
        (["--count", "0"], "--count must be 1 or more, not 0"),
        (["--top", "-2"], "--top must be 1 or more, not -2"),
        (["--width", "0.1"], "--width must be from 2 to 30 inches, not 0.1"),
        (["--width", "nan"], "--width must be from 2 to 30 inches, not nan"),
        (["--queries", "1", "--hardest"], "--queries and --hardest contradict each other"),
    ],
)
def test_arguments_that_cannot_be_used(arguments: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_arguments(arguments)


def test_an_impossible_output_is_refused_before_the_data_are_read(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "build_test_data", lambda *_: pytest.fail("the data were read"))
    (tmp_path / "file").write_text("precious")
    (tmp_path / "ranks.pdf").mkdir()
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "selection.png").symlink_to(tmp_path / "file")
    for output, message in {
        tmp_path / "file": r"ranks\.pdf cannot be written: Not a directory",
        tmp_path / "file" / "below": r"ranks\.pdf cannot be written: Not a directory",
        tmp_path: r"ranks\.pdf cannot be written: it is a folder",
        tmp_path / "linked": r"selection\.png cannot be written: it is a symbolic link",
    }.items():
        with pytest.raises(UserError, match=message):
            draw(run, output)
    assert {path.name for path in tmp_path.iterdir()} == {"file", "ranks.pdf", "linked"}
    assert (tmp_path / "file").read_text() == "precious"


def test_files_that_are_missing_are_named(run: Path, tmp_path: Path) -> None:
    config = ["--config_file", str(run / "config.yml")]
    with pytest.raises(ConfigError, match="--weights"):
        main(config)
    with pytest.raises(WeightsError, match=r"nowhere\.pth"):
        main([*config, "--weights", str(tmp_path / "nowhere.pth")])
    with pytest.raises(DatasetError, match="no folder"):
        main([*config, "--weights", str(run / "best.pth"), "DATASETS.ROOT_DIR", str(tmp_path)])
    with pytest.raises(UserError, match=r"'000009_cam1'; nearest are .*000009_cam1_0_00\.jpg"):
        draw(run, tmp_path, "--queries", "000009_cam1")
