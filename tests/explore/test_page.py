"""The page in a real browser: it solves, lets people interfere, refuses with a sentence, and draws."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

import longthink as lt
from tests.explore.conftest import Served, held_up

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
TABS = ("maze", "bits", "sudoku", "chess", "expressions", "race")
SOLVED = '.verdict[data-right="true"]'
OpenPage = Callable[..., "Page"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    driver = pytest.importorskip("playwright.sync_api", reason="no Playwright to drive a browser")
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        pytest.skip("no Chromium on this machine")
    with driver.sync_playwright() as playwright:
        sandbox = [] if os.getuid() else ["--no-sandbox"]  # Chromium has none for root
        browser = playwright.chromium.launch(executable_path=program, args=sandbox)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Browser, served: Served) -> Iterator[OpenPage]:
    """Opens a link; afterwards nobody may have complained or asked another host."""
    complaints: list[str] = []
    contexts = []

    def open_it(hash: str = "", width: int = 1100, height: int = 800, **options: Any) -> Page:
        context = browser.new_context(viewport={"width": width, "height": height}, accept_downloads=True, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(30_000)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
        page.on("request", lambda asked: complaints.append(asked.url) if not ours(asked.url) else None)
        page.goto(f"{served.address}/{hash}")
        return page

    def ours(url: str) -> bool:
        return url.startswith((f"{served.address}/", "blob:", "data:"))

    yield open_it
    for context in contexts:
        context.close()
    assert complaints == []


def pixels(page: Page, selector: str = ".board canvas") -> np.ndarray:
    """What is drawn: [height, width, 4]."""
    data = page.eval_on_selector(selector, "canvas => canvas.toDataURL()")
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data.partition(",")[2]))))


def share(picture: np.ndarray, colour: str) -> float:
    """How much of a picture has exactly this colour."""
    wanted = [int(colour[at : at + 2], 16) for at in (1, 3, 5)]
    return float((picture[..., :3] == wanted).all(-1).mean())


def drag(page: Page, side: int, start: tuple[int, int], end: tuple[int, int]) -> None:
    """From cell to cell of a maze, as (row, column)."""
    box = page.locator(".board canvas").bounding_box()
    assert box is not None
    cell = box["width"] / (side + 2)
    places = [(box["x"] + (x + 1.5) * cell, box["y"] + (y + 1.5) * cell) for y, x in (start, end)]
    page.mouse.move(*places[0])
    page.mouse.down()
    page.mouse.move(*places[1], steps=6)
    page.mouse.up()


def picture_label(page: Page) -> str:
    return page.locator(".board canvas").get_attribute("aria-label") or ""


def wait_for_label(page: Page, words: str) -> None:
    page.wait_for_function("words => document.querySelector('.board canvas').ariaLabel.includes(words)", arg=words)


def at_rest(page: Page) -> Locator:
    """Paused, so that nothing moves any more."""
    page.get_by_role("button", name="Play", exact=True).wait_for()
    return page.locator(".verdict")


def test_a_maze_is_solved_the_goal_is_moved_and_it_is_solved_again(open_page: OpenPage) -> None:
    _, mazes, _ = lt.load("mazes")
    batch = mazes.sample(1, 9, 3)
    rows = [line[1:-1] for line in mazes.show(batch.targets[0], batch).split("\n")[1:-1]]
    goal = next((y, row.index("G")) for y, row in enumerate(rows) if "G" in row)
    far = next((y, x) for y, row in enumerate(rows) for x, cell in enumerate(row) if cell == " ")

    page = open_page("#tab=maze&weights=mazes&size=9&seed=3")
    page.get_by_role("button", name="Play", exact=True).click()
    page.wait_for_selector(SOLVED)
    before = pixels(page)
    assert share(before, "#2f62e6") > 0.02  # the path
    assert share(before, "#33414e") > 0.2  # the walls
    assert share(before, "#ffffff") > 0.02  # other cells

    drag(page, 9, goal, far)
    page.wait_for_function("() => document.querySelector('.happened li')?.textContent.startsWith('new problem')")
    wait_for_label(page, f"goal at row {far[0] + 1}, column {far[1] + 1}.")
    page.wait_for_selector('.verdict[data-right="false"]')
    page.wait_for_selector(SOLVED)
    assert (pixels(page) != before).any()


def test_walls_are_drawn_and_a_maze_without_a_way_is_refused(open_page: OpenPage) -> None:
    maze = "~".join(["XXXXX", "XS..X", "XXX.X", "XG..X", "XXXXX"])
    page = open_page(f"#tab=maze&weights=mazes&text={maze}&step=3")
    at_rest(page)
    page.wait_for_selector('.verdict[data-step="3"]')
    page.get_by_role("button", name="Draw walls").click()
    drag(page, 3, (1, 2), (1, 2))
    page.get_by_text("No path leads from S to G").wait_for()
    before = share(pixels(page), "#33414e")
    drag(page, 3, (1, 1), (1, 1))  # opens another instead: what was drawn is still there
    page.wait_for_function("() => decodeURIComponent(location.hash).includes('XS..X~XX.XX~XG..X')")
    assert share(pixels(page), "#33414e") < before
    assert page.locator(".message").is_hidden()
    page.get_by_role("button", name="No walls").click()
    page.get_by_text("Several paths are shortest here").wait_for()


def test_everything_works_from_the_keyboard(open_page: OpenPage) -> None:
    maze = "~".join(["XXXXX", "XS..X", "XXX.X", "XG..X", "XXXXX"])
    page = open_page(f"#tab=maze&weights=mazes&text={maze}&step=1")
    page.wait_for_selector('.verdict[data-step="1"]')
    page.keyboard.press("ArrowRight")
    page.wait_for_selector('.verdict[data-step="2"]')
    page.keyboard.press("Space")
    page.get_by_role("button", name="Pause").wait_for()
    page.keyboard.press("Space")
    at_rest(page)
    page.locator(".board canvas").focus()
    for key in ("ArrowRight", "ArrowRight", "g"):  # from the goal
        page.keyboard.press(key)
    page.wait_for_function(
        "() => document.querySelector('.board canvas').ariaLabel.includes('goal at row 3, column 3')"
    )
    page.wait_for_function("() => location.hash.includes('problem')")
    page.locator(".skip").focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "stage"
    page.wait_for_timeout(400)  # a link would have been followed by now
    assert "problem" in page.evaluate("location.hash")
    page.locator("#tab-maze").focus()
    page.keyboard.press("ArrowRight")
    page.get_by_role("heading", name="Is the number of ones so far odd?").wait_for()
    page.keyboard.press("?")
    page.get_by_role("dialog").wait_for()
    page.keyboard.press("Escape")
    unnamed = """() => [...document.querySelectorAll('button, input, select, textarea, canvas')].filter(one =>
        one.checkVisibility() && !(one.ariaLabel || one.textContent.trim() || one.labels?.length)).length"""
    assert page.evaluate(unnamed) == 0


def test_after_a_stop_it_thinks_on_from_a_change(open_page: OpenPage) -> None:
    page = open_page("#tab=expressions&weights=group/arithmetic-toy")
    page.get_by_role("button", name="Pause").wait_for()
    end = int(at_rest(page).get_attribute("data-step") or 0)  # all its steps
    assert end >= 4
    page.keyboard.press("n")
    page.wait_for_function("end => Number(document.querySelector('.verdict').dataset.step) >= end + 4", arg=end)
    assert page.get_by_label("Depth").get_attribute("max") == "12"
    assert page.get_by_label("Attention of").inner_text().split("\n") == ["all heads", "head 0", "head 1"]


def test_a_slow_server_is_waited_for_in_sight(open_page: OpenPage, served: Served) -> None:
    with held_up(served):
        page = open_page("#tab=bits&weights=prefix_sums&text=1011&step=99999")
        page.get_by_text("working …").wait_for()
    page.wait_for_selector(".verdict[data-step]")
    assert page.get_by_text("working …").is_hidden()
    assert page.locator(".message").is_hidden()  # more steps than there are mean as many as there are


def test_bits_are_flipped_while_it_thinks(open_page: OpenPage) -> None:
    page = open_page("#tab=bits&weights=prefix_sums&text=1011001110100101")
    page.get_by_role("button", name="Play", exact=True).click()
    page.wait_for_selector(SOLVED)
    page.locator(".board canvas").click(position={"x": 12, "y": 12})
    wait_for_label(page, "0010001011000110; 0 are wrong")
    page.get_by_label("Or type them").fill("1111001110100101")  # as long as before: it keeps its thoughts
    wait_for_label(page, "1010001011000110; 0 are wrong")
    assert page.locator(".happened li").count() == 2


@pytest.mark.parametrize(
    ("name", "text", "problem", "answer"),
    [
        ("listops", "[SM [MAX 2 9] 3 [MED 1 4 8]]", "MED+1+4+8", "6"),
        ("arithmetic", "((4*7)+2)", "4*7", "0"),
        ("ctl", "101 d a b", "d+a+b", None),
    ],
)
def test_shipped_routers_answer(open_page: OpenPage, name: str, text: str, problem: str, answer: str | None) -> None:
    page = open_page(f"#tab=expressions&weights={name}")
    page.get_by_label("Type one").fill(text)
    page.get_by_role("button", name="Think about this").click()
    page.wait_for_function(f"() => decodeURIComponent(location.hash).includes('{problem}')")
    _, task, _ = lt.load(name)
    batch = task.parse(text)
    truth = task.show(batch.targets[0], batch)
    assert answer in (None, truth)
    page.get_by_text(f"The network answers {truth}").first.wait_for()


def test_an_expression_is_typed_and_answered(open_page: OpenPage, runs: Path) -> None:
    name, text = "group/listops-toy", "[MAX 2 [MIN 9 4] 0]"
    page = open_page(f"#tab=expressions&weights={name}")
    page.get_by_label("Type one").fill(text)
    page.get_by_role("button", name="Think about this").click()
    page.wait_for_function("() => location.hash.includes('MIN+9+4')")
    page.wait_for_function("() => Number(document.querySelector('.verdict').dataset.step) >= 5")
    page.get_by_role("button", name="Pause").click()
    step = int(at_rest(page).get_attribute("data-step") or 0)
    model, task, _ = lt.load(runs / name)
    batch = task.parse(text)
    answer = task.show(task.predict(lt.think(model, batch.inputs, step).logits, batch)[0], batch)
    assert page.locator(".note").first.inner_text() == f"The network answers {answer}; right is 4."
    assert len(np.unique(pixels(page)[..., :3].reshape(-1, 3), axis=0)) > 20  # gates, attention, bars
    page.locator(".board canvas").hover(position={"x": 10, "y": 30})
    assert re.fullmatch(r"0: \d+%", page.locator(".tip").inner_text())


def test_a_malformed_expression_is_refused(open_page: OpenPage) -> None:
    page = open_page("#tab=expressions&weights=group/arithmetic-toy")
    page.wait_for_selector(".verdict[data-step]")
    page.get_by_label("Type one").fill("((4*7)+")
    page.get_by_label("Type one").press("Enter")
    page.get_by_text("Token 1, '(', is never closed").wait_for()
    assert "((4*7)+(2*(3+5)))" in picture_label(page)  # the old one is still there


def test_a_link_shows_exactly_what_was_on_the_screen(open_page: OpenPage) -> None:
    page = open_page("#tab=maze&weights=mazes&size=9&seed=3&step=6")
    page.wait_for_selector('.verdict[data-step="6"]')
    page.get_by_role("button", name="Noise").click()
    page.wait_for_function("() => Number(document.querySelector('.verdict').dataset.step) >= 9")
    page.get_by_role("button", name="Pause").click()
    page.get_by_role("button", name="Another maze").click()
    page.get_by_role("button", name="Pause").click()
    page.wait_for_function("() => document.querySelectorAll('.happened li').length === 2")
    at_rest(page)
    page.get_by_role("button", name="One step on").click()
    page.wait_for_timeout(600)
    step, words, hash = (
        page.locator(".verdict").get_attribute("data-step"),
        picture_label(page),
        page.url.split("/")[-1],
    )
    assert f"step={step}" in hash
    again = open_page(hash)
    again.wait_for_selector(f'.verdict[data-step="{step}"]')
    again.wait_for_timeout(300)
    assert picture_label(again) == words
    assert again.locator(".happened").inner_text() == page.locator(".happened").inner_text()
    assert (pixels(again) == pixels(page)).all()


def test_picture_animation_and_trace_are_saved(open_page: OpenPage, tmp_path: Path) -> None:
    page = open_page("#tab=maze&weights=mazes&size=9&seed=3&step=20")
    page.wait_for_selector('.verdict[data-step="20"]')
    for button, name in (("Picture", "a.png"), ("GIF", "a.gif"), ("Trace", "a.json")):
        with page.expect_download() as got:
            page.get_by_role("button", name=button, exact=True).click()
        got.value.save_as(tmp_path / name)
    picture = np.asarray(Image.open(tmp_path / "a.png").convert("RGB"))
    assert share(picture, "#2f62e6") > 0.01
    assert share(picture, "#33414e") > 0.1
    with Image.open(tmp_path / "a.gif") as film:
        assert film.n_frames == 21
        film.seek(0)
        first = np.asarray(film.convert("RGB")).astype(int)
        film.seek(20)
        last = np.asarray(film.convert("RGB")).astype(int)
    assert (np.abs(first - last).sum(-1) > 60).mean() > 0.02  # the path has appeared
    assert (np.abs(last - [47, 98, 230]).sum(-1) < 30).mean() > 0.02
    trace = json.loads((tmp_path / "a.json").read_text())
    (network,) = trace["networks"]
    assert network["script"]["problem"] == {"size": 9, "seed": 3}
    assert len(network["steps"]) >= 21
    assert network["steps"][20]["right"] is True


def test_two_networks_race(open_page: OpenPage, tmp_path: Path) -> None:
    page = open_page("#tab=race&weights=mazes&rival=group/mazes-toy&size=9&seed=3&step=25")
    page.get_by_text("Solved, first at step").wait_for()
    page.wait_for_function("() => document.querySelector('.where').textContent === 'step 25'")
    page.wait_for_function("() => location.hash.includes('step=25')")
    cards = page.locator(".racers .card")
    assert "✓ Solved" in cards.nth(0).inner_text()
    assert "Not solved" in cards.nth(1).inner_text()
    for card in (cards.nth(0), cards.nth(1)):
        assert "Cost of a step" in card.inner_text()
        assert "Accuracy in validation" in card.inner_text()
    assert "100.0% after 30, 100.0% after 300 steps (n\u00a0=\u00a01000)" in cards.nth(0).inner_text()
    page.get_by_label("Size").fill("8")
    page.get_by_label("Size").press("Enter")
    page.get_by_text("an odd number of cells").wait_for()
    assert "size=9" in page.evaluate("location.hash")  # the problem that is on the screen
    page.get_by_role("button", name="Zeros into both").click()
    page.wait_for_function("() => location.hash.includes('zeros') && !document.querySelector('.message').offsetParent")
    assert "size=9" in page.evaluate("location.hash")
    page.keyboard.press("t")
    page.wait_for_function("() => location.hash.includes('swapped')")
    assert int(page.locator(".where").inner_text().split()[1]) >= 24
    with page.expect_download() as got:
        page.get_by_role("button", name="Picture").click()
    got.value.save_as(tmp_path / "race.png")
    picture = np.asarray(Image.open(tmp_path / "race.png").convert("RGB"))
    half = picture.shape[1] // 2
    assert share(picture[:, :half], "#33414e") > 0.1
    assert share(picture[:, half:], "#33414e") > 0.1


def test_if_one_refuses_both_go_back(open_page: OpenPage) -> None:
    page = open_page("#tab=race&weights=group/arithmetic-toy&rival=group/arithmetic-short&text=(1*2)&step=6")
    same = """() => [...document.querySelectorAll('.racers canvas')].filter(one =>
        one.ariaLabel.startsWith('The expression (1*2). The network answers')).length === 2"""
    page.wait_for_function(same)
    page.wait_for_function("() => document.querySelector('.where').textContent === 'step 6'")  # all frames are there
    page.get_by_label("Size").fill("4")
    page.get_by_label("Size").press("Enter")
    page.get_by_text("depth from 1 to 2, not 4").wait_for()
    page.wait_for_function(same)
    page.wait_for_function("() => location.hash.includes('1*2') && location.hash.includes('step=6')")
    page = open_page("#tab=race&weights=mazes&rival=sudoku&size=5&seed=3&step=1")
    page.get_by_text("There are no weights named sudoku").wait_for()
    page.wait_for_function("() => location.hash.includes('rival=mazes')")
    assert page.locator(".message").is_visible()


def test_chess_shows_a_move_and_sudoku_names_wrong_cells(open_page: OpenPage, runs: Path) -> None:
    page = open_page("#tab=chess&weights=group/chess-toy")
    page.get_by_text("White to move. The network marks").wait_for()
    page.get_by_label("Or type a position (FEN)").fill("nonsense")
    page.get_by_role("button", name="Think about this").click()
    page.get_by_text("This is not a position").wait_for()
    typed = "8/8/8/8/k1Pp4/8/8/K7 b - c3 0 1"
    page.get_by_label("Or type a position (FEN)").fill(typed)
    page.get_by_role("button", name="Think about this").click()
    wait_for_label(page, typed)
    assert page.get_by_label("Or type a position (FEN)").input_value() == typed  # en passant too
    page = open_page("#tab=sudoku&weights=group/sudoku-toy&size=40&seed=1&step=3")
    page.wait_for_selector('.verdict[data-step="3"]')
    page.get_by_text("Wrong: row 1 column").wait_for()
    cells = page.get_by_label("Or type 81 cells").input_value()
    blank = cells.replace("\n", "").index(".")
    _, sudoku, _ = lt.load(runs / "group/sudoku-toy")
    digit = str(int(sudoku.parse(cells).targets.flatten()[blank]) + 1)
    page.locator(".board canvas").focus()
    for key in [*["ArrowRight"] * blank, digit]:  # the right digit in the first blank cell: it is still a puzzle
        page.keyboard.press(key)
    page.get_by_text("new problem at").wait_for()
    given = next(d for d in cells.split("\n")[blank // 9] if d != ".")
    page.keyboard.press(given)
    page.get_by_text("is given twice in row").wait_for()
    page.get_by_text("Given twice: row").wait_for()
    assert share(pixels(page), "#b85f06") > 0.002  # the corners, and the mark
    page.keyboard.press(digit)
    page.wait_for_function("() => !document.querySelector('.message').offsetParent")
    assert page.get_by_label("Or type 81 cells").input_value().replace("\n", "")[blank] == digit


def test_another_problem_is_seen_from_its_beginning(open_page: OpenPage) -> None:
    page = open_page("#tab=maze&weights=mazes&size=9&seed=3&step=12")
    page.wait_for_selector('.verdict[data-step="12"]')
    page.evaluate(
        """() => { const press = (name) =>
            [...document.querySelectorAll('button')].find((one) => one.textContent === name).click();
        press('No walls'); press('Noise'); }"""
    )  # noise in the same moment is not meant for a problem that nobody has seen
    page.wait_for_function("() => location.hash.includes('text=')")
    page.wait_for_selector('.verdict[data-step="0"]')
    assert "changes" not in page.evaluate("location.hash")
    assert "step" not in page.evaluate("location.hash")
    page.locator(".board canvas").focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("() => /^Row .* column/.test(document.getElementById('announce').textContent)")
    page.get_by_role("tab", name="Prefix sums").click()
    page.wait_for_selector("#stage[data-shown=bits]")
    page.wait_for_function("() => location.hash.includes('tab=bits&weights')")
    page.go_back()
    page.wait_for_selector("#stage[data-shown=maze]")
    page.wait_for_function("() => location.hash.includes('tab=maze') && location.hash.includes('text=')")


def test_a_tab_without_weights_says_how_to_get_them(open_page: OpenPage) -> None:
    page = open_page("#tab=maze&weights=mazes&size=9&seed=3&step=1")

    def without(route: Any) -> None:
        reply = route.fetch()
        found = reply.json()
        found["weights"] = [one for one in found["weights"] if one["task"] != "sudoku"]
        route.fulfill(response=reply, json=found)

    page.route("**/api/catalogue", without)
    page.get_by_role("tab", name="Sudoku").click()
    page.get_by_text("longthink train sudoku-long").wait_for()
    page.unroute("**/api/catalogue")
    page.get_by_role("button", name="Look again").click()
    page.locator(".verdict").wait_for()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_tab_fits_a_phone(open_page: OpenPage, theme: str) -> None:
    page = open_page("", 360, 740, color_scheme=theme, has_touch=True, is_mobile=True)
    for tab in TABS:
        page.locator(f"#tab-{tab}").click()
        page.wait_for_selector(f"#stage[data-shown={tab}]")
        page.wait_for_function("() => document.querySelector('.board canvas')?.style.width")
        assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth"), tab
        assert len(np.unique(pixels(page)[..., :3].reshape(-1, 3), axis=0)) > 3, tab
    dark = page.evaluate("() => getComputedStyle(document.body).backgroundColor") == "rgb(17, 21, 26)"
    assert dark == (theme == "dark")
    page.locator("#theme").click()
    assert (page.evaluate("() => getComputedStyle(document.body).backgroundColor") == "rgb(17, 21, 26)") != dark


@pytest.mark.parametrize(
    "hash",
    [
        "#tab=nowhere",
        "#tab=maze&weights=../../etc",
        "#tab=maze&weights=mazes&changes=%7Bbroken",
        "#tab=maze&weights=mazes&size=9&seed=3&changes=[1,null,{}]",
        "#tab=maze&weights=mazes&size=99999999&step=7",
        "#tab=bits&text=<img src=x onerror=alert(1)>",
    ],
)
def test_mangled_links_do_no_harm(open_page: OpenPage, hash: str) -> None:
    page = open_page(hash)
    page.wait_for_function(
        "() => document.querySelector('.verdict')?.dataset.step || document.querySelector('.message')?.textContent"
    )
    page.locator("#tab-bits").click()
    page.wait_for_function("() => document.querySelector('.board canvas')?.ariaLabel?.includes('bits')")
