"""The overview, the header and what goes on paper."""

import pytest
from browser_page import find, numbers, open_report, resize, state_of, texts, wait_until
from made_up_report import CONDITIONS, MadeUpReport
from report_steps import shown_query
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select

pytest_plugins = ("browser_driver", "report_fixtures")
pytestmark = pytest.mark.browser


def test_header_names_what_was_measured(page: webdriver.Chrome, full_report: MadeUpReport) -> None:
    open_report(page, full_report.folder)
    header = find(page, ".masthead").text
    for key in ("title", "dataset", "commit", "created"):
        assert full_report.summary[key] in header
    assert "gallery images of the same person and camera as the query are left out" in header
    assert page.title == full_report.summary["title"]


def test_a_long_path_is_cut_in_its_middle(page: webdriver.Chrome, full_report: MadeUpReport) -> None:
    weights = full_report.summary["weights"]
    for width in (1440, 1024):
        resize(page, width, 900)
        open_report(page, full_report.folder)
        assert texts(page, ".fact-weights dd") == [weights]
        script = """
            const [folders, file] = document.querySelectorAll(".fact-weights dd > *");
            const [before, after] = [folders, file].map((node) => node.getBoundingClientRect());
            const range = document.createRange();
            range.selectNodeContents(file);
            const isWhole = range.getBoundingClientRect().width <= after.width; // scrollWidth is rounded
            const { direction } = getComputedStyle(folders);
            return [direction, before.left < after.left, isWhole, folders.textContent[0], file.textContent];
        """
        assert page.execute_script(script) == ["ltr", True, True, "/", "/best.pth"]


def test_selection_is_compared_with_the_same_patches_in_every_image(
    page: webdriver.Chrome, full_report: MadeUpReport
) -> None:
    open_report(page, full_report.folder)
    same = full_report.summary["selection"]["same_patches"]
    card = find(page, "#card-selection").text
    assert "the same patches in every image RGB 66.3, NI 65.2, TI 61.8 %" in card
    script = "return [...document.querySelectorAll('.mark.same')].map((mark) => parseFloat(mark.style.left))"
    assert page.execute_script(script) == list(same.values())


def test_colours_of_camera_pairs_have_a_scale(page: webdriver.Chrome, full_report: MadeUpReport) -> None:
    open_report(page, full_report.folder)
    assert texts(page, "#camera-legend") == ["mAP 0100 %"]
    script = """
        const { tint } = REPORT.colours;
        const probe = (colour) => {
            const node = document.createElement("i");
            node.style.color = colour;
            return node.style.color;
        };
        const { backgroundImage } = getComputedStyle(document.querySelector("#camera-legend .scale"));
        return [backgroundImage, probe(tint(0)), probe(tint(1))];
    """
    scale, lowest, highest = page.execute_script(script)
    assert scale == f"linear-gradient(to right, {lowest}, {highest})"


def test_any_to_any_cell_has_a_line_for_each_score(page: webdriver.Chrome, full_report: MadeUpReport) -> None:
    open_report(page, full_report.folder)
    shown = [cell.text for cell in page.find_elements(By.CSS_SELECTOR, "#any-matrix td")]
    cells = full_report.summary["any_to_any"]["cells"]
    assert shown == [f"{cell['mAP']:.1f}\nR-1 {cell['rank_1']:.1f}" for cell in cells]


def test_any_to_any_matrix_is_readable_and_clear_of_its_legend(
    page: webdriver.Chrome, full_report: MadeUpReport
) -> None:
    open_report(page, full_report.folder)
    script = """
        const colour = (selector) => getComputedStyle(document.querySelector(selector)).color;
        const table = document.querySelector("#any-matrix").getBoundingClientRect();
        const key = document.querySelector("#card-any .cross-key").getBoundingClientRect();
        return [colour("#any-matrix button"), colour("#camera-matrix b"), key.top - table.bottom];
    """
    score, readable, gap = page.execute_script(script)
    assert score == readable
    assert gap > 2  # the outline of the key


def test_any_to_any_cell_opens_its_rank_lists_and_stays_marked(
    page: webdriver.Chrome, full_report: MadeUpReport
) -> None:
    open_report(page, full_report.folder)
    find(page, "#any-matrix button[data-cell='r-n']").click()
    wait_until(page, lambda: "any-to-any: RGB → NI · leave the matrix" in texts(page, "#query .about p"))
    marked = "#any-matrix td.current button"
    assert [node.get_attribute("data-cell") for node in page.find_elements(By.CSS_SELECTOR, marked)] == [
        "r-n"
    ]
    find(page, "#leave-matrix").click()
    assert not page.find_elements(By.CSS_SELECTOR, marked)


def test_overview_shows_results_of_the_condition(page: webdriver.Chrome, full_report: MadeUpReport) -> None:
    open_report(page, full_report.folder)
    for condition in ("complete", "rt"):
        Select(find(page, "#condition-switch")).select_by_value(condition)
        for result in (r for r in full_report.summary["results"] if r["condition"] == condition):
            cells = texts(page, f"#result-table tr[data-pattern='{result['pattern']}'] td")
            expected = [result[key] for key in ("mAP", "mINP", "rank_1", "rank_5", "rank_10")]
            assert cells == [f"{value:.1f}" for value in expected]
    rows = texts(page, "#missing-table tbody tr")
    assert len(rows) == len(CONDITIONS) + 1
    assert rows[-1].startswith("mean of 6")
    assert texts(page, "#missing-table tr.current th") == ["without RGB, TI"]
    assert len(page.find_elements(By.CSS_SELECTOR, "#card-cmc path, #card-training path")) == 3 + 3


@pytest.mark.parametrize("width", [800, 1280, 1440])
def test_scores_of_the_conditions_are_aligned_and_none_is_cut_off(
    page: webdriver.Chrome, full_report: MadeUpReport, width: int
) -> None:
    resize(page, width, 900)
    open_report(page, full_report.folder)
    script = """
        const scoreEnd = (cell) => {
            const range = document.createRange();
            range.selectNodeContents(cell.firstChild);
            return Math.round(range.getBoundingClientRect().right);
        };
        const rows = [...document.querySelectorAll("#missing-table tbody tr")];
        const ends = rows.map((row) => [...row.querySelectorAll(".number")].map(scoreEnd));
        return [ends, document.querySelector("#card-missing .scroll-x").getBoundingClientRect().right];
    """
    ends, edge = page.execute_script(script)
    assert len({end for row in ends for end in row}) == 2 * len(full_report.summary["patterns"])
    assert max(map(max, ends)) <= edge


def test_identity_table_sorts_and_opens_the_rank_lists(
    page: webdriver.Chrome, full_report: MadeUpReport
) -> None:
    open_report(page, full_report.folder)
    identities = full_report.summary["breakdown"]["identities"]
    hardest = sorted(identities, key=lambda one: (one["mAP"], one["person"]))
    assert numbers(page, "#identity-table tbody tr", "person") == [one["person"] for one in hardest]
    find(page, "#identity-table th[data-key='mAP'] button").click()
    easiest = numbers(page, "#identity-table tbody tr", "person")
    assert easiest == [
        one["person"] for one in sorted(identities, key=lambda one: (-one["mAP"], one["person"]))
    ]
    find(page, f"#identity-table tr[data-person='{easiest[0]}'] button").click()
    assert state_of(page)["tab"] == "ranks"
    queries = {
        row for row, person in enumerate(full_report.summary["triples"]["person"]) if person == easiest[0]
    }
    assert find(page, "#query-count").text == f"{len(queries)} of 836 queries"
    assert shown_query(page) in queries


@pytest.mark.parametrize("size", [(800, 900), (1024, 768), (1440, 900)])
def test_nothing_is_wider_than_the_window(
    page: webdriver.Chrome, full_report: MadeUpReport, size: tuple[int, int]
) -> None:
    resize(page, *size)
    for state in ("#tab=overview", "#tab=ranks&overlay=tokens", "#tab=map"):
        open_report(page, full_report.folder, state)
        script = """
            const nodes = document.querySelectorAll("html, main, .panel, .pane, .side, .card, nav");
            const isWide = (node) => node.scrollWidth > node.clientWidth + 1;
            return [...nodes].filter(isWide).map((node) => node.className);
        """
        assert page.execute_script(script) == []


def test_print_holds_the_overview_and_the_query(page: webdriver.Chrome, full_report: MadeUpReport) -> None:
    open_report(page, full_report.folder, "#tab=map&query=300")
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        assert find(page, "#result-table").is_displayed()
        assert find(page, "#query").is_displayed()
        assert not find(page, ".toolbar").is_displayed()
        assert not find(page, "#panel-map").is_displayed()
    finally:
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    pdf = page.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True})["data"]
    assert len(pdf) > 50_000
