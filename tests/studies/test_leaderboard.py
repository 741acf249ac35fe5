"""The page that holds what was measured here apart from what others have published."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from conftest import ROOT
from errors import UserError
from studies.__main__ import main
from studies.leaderboard import page_of, read_published, read_records


def write_study(folder: Path, data: str, scores: dict[str, list[tuple[float, float]]]) -> str:
    """A finished study: mAP and Rank-1 of each seed by variant."""
    variants = []
    for name, runs in scores.items():
        for seed, _ in enumerate(runs):
            run = folder / name / f"seed_{seed}"
            run.mkdir(parents=True)
            (run / "config.yml").write_text(
                f"DATASETS: {{NAMES: {data}}}\nSOLVER: {{MAX_EPOCHS: 2, WARMUP_ITERS: 0}}\n"
            )
            (run / "log.txt").write_text("INFO run folder x, commit abc1234, torch 2\n")
            (run / "metrics.json").write_text('{"epochs": [], "summary": {}}')
        by_seed = {str(seed): {"mAP": mean, "R-1": rank} for seed, (mean, rank) in enumerate(runs)}
        variants.append({"name": name, "patterns": [3], "runs": by_seed})
    folder.mkdir(exist_ok=True)
    (folder / "summary.json").write_text(json.dumps({"epoch": "last epoch", "variants": variants}))
    return str(folder)


def tables(page: Path) -> list[list[list[str]]]:
    """The cells of each table of a page."""
    found: list[list[list[str]]] = []
    previous = ""
    for line in page.read_text().splitlines():
        if line.startswith("|"):
            if not previous.startswith("|"):
                found.append([])
            found[-1].append([cell.strip() for cell in line.strip("|").split("|")])
        previous = line
    return found


def test_measured_and_published_numbers_are_in_tables_of_their_own(tmp_path: Path) -> None:
    studies = [
        write_study(
            tmp_path / "one", "Synthetic", {"base": [(60, 70), (62, 74)], "Signal": [(64, 75)], "later": []}
        ),
        write_study(tmp_path / "two", "SyntheticAnywhere", {"base": [(8, 10)]}),
    ]
    page, records = tmp_path / "page.md", tmp_path / "records.json"
    written = ["--page", str(page), "--records", str(records)]
    main(["leaderboard", *studies, *written])
    measured, published = tables(page)
    assert measured[0] == [
        "method",
        "Synthetic, measured here",
        "SyntheticAnywhere, measured here",
        "conditions",
    ]
    assert measured[2][:3] == ["base", "61.0 ± 1.4 / 72.0 ± 2.8", "8.0 / 10.0"]
    assert measured[3][:3] == ["Signal", "64.0 / 75.0", "–"]
    assert measured[3][3] == "one: ViT-B-16, 1 seed, 2 epochs, last epoch, return pattern 3, commit abc1234"
    assert len(measured) == 4  # not the variant without a finished run
    # Nothing is in both.
    sets = [{cell.partition(",")[0] for cell in table[0] if ", " in cell} for table in (measured, published)]
    assert not sets[0] & sets[1]
    assert all(cell.endswith(", published") for cell in published[0][1:4])
    signal = next(row for row in published if row[0] == "Signal")
    assert signal[1:] == [
        *("80.3 / 85.2", "53.2 / 72.4", "86.3 / 97.6"),
        *("CLIP ViT-B/16", "yes", "code", "AAAI 2026, arXiv 2511.17965"),
    ]


def test_every_published_row_says_where_it_is_from() -> None:
    for row in read_published():
        assert set(row) == {"method", "source", "trunk", "epoch_on_test", "seen", "scores"}
        assert row["epoch_on_test"] in ("yes", "no", "unknown")
        assert row["seen"] in ("code", "page", "quoted")
        for pair in row["scores"].values():
            assert len(pair) == 2
            assert all(cell == "–" or isinstance(cell, float) for cell in pair)


def test_the_page_of_the_documentation_is_what_the_command_writes() -> None:
    rows = read_records(ROOT / "studies" / "measured" / "leaderboard.json")
    assert {"SDTPS", "Signal", "EDITOR"} <= {row.method for row in rows}
    assert (ROOT / "docs" / "leaderboard.md").read_text() == page_of(rows)


def test_measured_rows_stay_without_their_runs_until_they_are_measured_again(tmp_path: Path) -> None:
    page, records = tmp_path / "page.md", tmp_path / "records.json"
    written = ["--page", str(page), "--records", str(records)]
    study = write_study(tmp_path / "one", "Synthetic", {"base": [(60, 70)], "Signal": [(64, 75)]})
    main(["leaderboard", study, *written])
    first = page.read_text()
    shutil.rmtree(study)
    main(["leaderboard", *written])
    assert page.read_text() == first
    again = write_study(tmp_path / "two", "Synthetic", {"Signal": [(65, 76)]})
    main(["leaderboard", again, *written])
    measured = tables(page)[0]
    assert [row[:2] for row in measured[2:]] == [["base", "60.0 / 70.0"], ["Signal", "65.0 / 76.0"]]


def test_studies_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    page = ["--page", str(tmp_path / "page.md"), "--records", str(tmp_path / "records.json")]
    with pytest.raises(
        UserError, match=r"has no summary\.json; make it with `python -m studies compare SPEC`"
    ):
        main(["leaderboard", str(tmp_path / "nowhere"), *page])
    both = [write_study(tmp_path / name, "Synthetic", {"base": [(60, 70)]}) for name in ("a", "b")]
    with pytest.raises(UserError, match=r"base on Synthetic is in two of the studies \(a and b\)"):
        main(["leaderboard", *both, *page])
    assert list(tmp_path.glob("*.*")) == []
    (tmp_path / "records.json").write_text('{"method": 1}')
    with pytest.raises(UserError, match=r"records\.json cannot be read as the rows of a leaderboard"):
        main(["leaderboard", *page])
