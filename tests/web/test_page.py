"""The page in front of made-up processes."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from tests.web.scenes import (
    SCENES,
    catching_up,
    failing,
    healthy,
    large,
    late,
    paused,
    rejecting,
    restoring,
    ten_channels,
    topology,
    workflows,
)
from tests.web.visit import accessibility, overflow, rows, until

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.web.stage import Stage
    from tests.web.visit import Visits

RESUME = "headrace resume flights --of ann -c /etc/headrace/headrace.yaml"
PHONE = {"width": 360, "height": 740}


def _tab_to(page: Page, selector: str) -> None:
    """Go on by the keyboard until the focus is there."""
    for _ in range(200):
        page.keyboard.press("Tab")
        if page.evaluate("(wanted) => document.activeElement?.matches(wanted)", selector):
            return
    pytest.fail(f"the keyboard does not get to {selector}")


def _first_number_is(page: Page, text: str) -> bool:
    return page.inner_text(".numbers dd >> nth=0") == text


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("scene", sorted(SCENES))
def test_the_page_is_accessible(stage: Stage, visits: Visits, scene: str, scheme: str) -> None:
    """Names, roles, order and contrast are right in every state and both themes."""
    stage.process = SCENES[scene]()
    page = visits.open(stage.url, color_scheme=scheme)
    page.wait_for_selector("#partitions tbody tr")
    assert accessibility(page) == []


@pytest.mark.parametrize("scene", sorted(SCENES))
def test_a_phone_needs_no_sideways_scrolling(stage: Stage, visits: Visits, scene: str) -> None:
    """At 360 points everything is within the width, and as accessible as elsewhere."""
    stage.process = SCENES[scene]()
    page = visits.open(stage.url, viewport=PHONE, has_touch=True)
    page.wait_for_selector("#partitions tbody tr")
    assert overflow(page) == 0
    assert accessibility(page) == []


def test_faults_come_first(stage: Stage, visits: Visits) -> None:
    """Faults come before what should be looked at, and say what is known."""
    stage.process = failing()
    page = visits.open(stage.url)
    assert page.inner_text("#verdict-title") == "2 faults, 3 warnings"
    problems = page.locator("#problems li").all_inner_texts()
    assert "clicks has failed the sink views is gone" in problems[0]
    assert "flights-15 fails at offset" in problems[1]
    assert "14 attempts" in problems[1]
    assert "did you mean max_records?" in problems[-1]
    assert page.title().startswith("(2 faults, 3 warnings) mill-1")


def test_dead_letters_and_suspect_records_are_shown(stage: Stage, visits: Visits) -> None:
    """Counts of overflow and of dead letters; and among how many records a partition looks."""
    stage.process = failing()
    page = visits.open(stage.url)
    page.wait_for_selector("#partitions tbody tr")
    counted = page.locator(".numbers div", has_text="dead letters").locator("dd")
    assert counted.all_inner_texts() == ["2 · 5 · 0", "2 · 5 · 3"]
    assert "looks for what fails among 250 records" in page.inner_text("#partitions")


def test_a_channel_with_state_shows_its_size(stage: Stage, visits: Visits) -> None:
    """Keys, bytes, timers and what was rejected, and no such numbers in other channels."""
    stage.process = restoring()
    page = visits.open(stage.url)
    page.wait_for_selector("#partitions tbody tr")
    first, second = page.locator(".panel.channel").all()
    assert first.locator("h4", has_text="State by key").is_visible()
    assert not second.locator("h4", has_text="State by key").is_visible()
    said = {
        each.locator("dt").inner_text(): each.locator("dd").inner_text()
        for each in first.locator(".numbers div").all()
    }
    assert said["keys"] == "1.2M"
    assert said["timers"] == "88,120"
    assert said["late · rejected since start"] == "17 · 3"
    assert said["in quarantine"] == "2"
    assert said["to restore, of 1 partition"] == "66,000"


def test_channels_of_workflows_show_open_instances_and_pools(stage: Stage, visits: Visits) -> None:
    """Instances by phase with the oldest, calls and attempts; of the other one its pool."""
    stage.process = workflows()
    page = visits.open(stage.url)
    page.wait_for_selector("#partitions tbody tr")
    reducer, worker = (
        {
            each.locator("dt").inner_text(): each.locator("dd").inner_text()
            for each in panel.locator(".declared div").all()
        }
        for panel in page.locator(".panel.channel").all()
    )
    assert reducer == {
        "open": "12",
        "oldest open": "3 min",
        "failing": "0",
        "completed": "136",
        "failed": "3",
        "calls in flight": "17",
        "attempts": "610",
        "attempts returned": "580",
        "attempts timed out": "4",
    }
    assert worker == {
        "returned": "580",
        "failed": "9",
        "abandoned": "4",
        "not needed": "2",
        "not stored": "0",
        "threads busy": "7 of 8",
        "calls waiting": "5",
    }
    stage.process = healthy()
    page = visits.open(stage.url)
    page.wait_for_selector("#partitions tbody tr")
    assert not page.locator("h4", has_text="Phases and calls").first.is_visible()


def test_a_topology_is_drawn_with_its_parts_topics_and_figures(
    stage: Stage, visits: Visits
) -> None:
    """Parts stand after the topics that they read; arrows connect what the plan connects."""
    stage.process = topology()
    page = visits.open(stage.url)
    page.wait_for_selector(".plan .part-of")
    columns = [
        [" ".join(text.split()) for text in column.locator(".topic-of, h4").all_inner_texts()]
        for column in page.locator(".plan .column-of").all()
    ]
    assert columns == [
        ["topic orders", "topic payments", "topic people"],
        ["shop.orders running"],
        ["topic shop.minutes.by-key"],
        ["shop.minutes running"],
        ["topic minutes"],
    ]
    assert page.locator(".plan .arrow").count() == 6
    first, second = page.locator(".plan .part-of").all()
    assert "did not wait 7 times" in first.inner_text()
    joined = "join settled store of join of orders, payments rows 907 bytes 61 kB"
    assert [" ".join(text.split()) for text in first.locator("li").all_inner_texts()] == [
        f"{joined} records 61,204 late 3 alone 212 skipped 1",
        "table people store of table of people rows 297 bytes 27 kB records 61,204",
        "lookup named of join settled, people records 61,204 alone 4 skipped 0",
        "key by minutes",
    ]
    (windows, _) = second.locator("li").all_inner_texts()
    assert "closed 4,120 skipped 0 time lag 63 s" in " ".join(windows.split())
    assert page.locator("li[data-late]").count() == 1
    stage.process = healthy()
    until(page, lambda: not page.locator("#topologies").is_visible())


def test_arrows_of_a_plan_end_at_the_boxes_that_they_connect(stage: Stage, visits: Visits) -> None:
    """They do beside each other, on a phone one below the other, and after the window changed."""
    stage.process = topology()
    page = visits.open(stage.url)
    page.wait_for_selector(".plan .arrow")
    assert _loose_arrows(page) == []
    page.set_viewport_size({"width": PHONE["width"], "height": PHONE["height"]})
    until(page, lambda: _loose_arrows(page) == [])
    assert overflow(page) == 0


def _loose_arrows(page: Page) -> list[str]:
    """Return the arrows that do not begin and end at the edge of their boxes."""
    found: list[str] = page.evaluate(
        """() => {
            const boxes = new Map([...document.querySelectorAll(".part-of, .topic-of")]
                .map((box) => [box.dataset.key, box.getBoundingClientRect()]));
            const frame = document.querySelector(".drawing").getBoundingClientRect();
            const isAt = (box, x, y) => x >= box.left - 2 && x <= box.right + 2
                && y >= box.top - 2 && y <= box.bottom + 2;
            return [...document.querySelectorAll(".arrow")].filter((arrow) => {
                const [from, to] = arrow.dataset.key.split(" > ");
                const [start, end] = [...arrow.getAttribute("d").matchAll(/M(-?\\d+) (-?\\d+)/g)]
                    .map(([, x, y]) => [Number(x) + frame.left, Number(y) + frame.top]);
                return !isAt(boxes.get(from), ...start) || !isAt(boxes.get(to), ...end);
            }).map((arrow) => arrow.dataset.key);
        }""".replace("\\\\", "\\")
    )
    return found


def test_a_part_of_a_topology_leads_to_its_channel_by_keyboard(
    stage: Stage, visits: Visits
) -> None:
    """The link opens the channel's details, which were closed, and puts the focus there."""
    stage.process = topology()
    page = visits.open(stage.url)
    page.wait_for_selector(".plan .part-of")
    assert page.locator(".panel.channel").count() == 0
    _tab_to(page, ".part-of a")
    page.keyboard.press("Enter")
    assert page.locator(".panel.channel h3").all_inner_texts() == ["shop.orders"]
    assert page.evaluate("() => document.activeElement.id") == "channel shop.orders"
    assert page.url == f"{stage.url}/"


MINUTES = "/api/v1/topologies/shop/stores/minutes"


def _answer_of_minutes(key: str, **standby: Any) -> tuple[int, str]:
    """Return rows of a key as the API has them, with a number that is too large for a double."""
    row = (
        f'{{"key":{json.dumps(key)},"hex":false,"partition":1,"window":{{"start":"2013-01-01T05:00:00Z"'
        ',"end":"2013-01-01T05:01:00Z"},"time":"2013-01-01T05:00:09Z","timers":[],"problem":null,'
        '"row":{"who":"<b>ann</b>","n":9007199254740993,"rate":1.0}}'
    )
    position = {
        "partition": 1,
        "offset": None if standby else 400,
        "offsets": {} if standby else {"orders": 400},
        "operator_time": "2013-01-01T05:00:09Z",
        "standby": standby or None,
    }
    head = {"topology": "shop", "store": "minutes", "partitions": 2, "position": position}
    return 200, f'{json.dumps(head)[:-1]},"rows":[{row}]}}'


def test_a_key_is_looked_up_in_a_store_with_its_windows(stage: Stage, visits: Visits) -> None:
    """Rows are shown digit by digit, with their place, once the page has the token."""
    stage.process = topology()
    stage.process.rows[f"{MINUTES}/a/b"] = _answer_of_minutes("a/b")
    stage.questions.clear()
    page = visits.open(stage.url)
    visits.expect_failures()
    form = page.get_by_role("search", name="Look up a key in topology shop")
    store = form.get_by_label("Store")
    # a join of streams has no rows by key
    assert store.locator("option").all_inner_texts() == ["minutes", "people"]
    assert form.get_by_label("Windows from").is_visible()
    store.select_option("people")
    assert not form.get_by_label("Windows from").is_visible()
    store.select_option("minutes")
    form.get_by_label("Key").fill("a/b")
    form.get_by_label("Windows from").fill("2013-01-01T05:00:00Z")
    form.get_by_label("Key").press("Enter")
    page.wait_for_selector("#token:not([hidden])")
    page.fill("#token-value", stage.token)
    page.press("#token-value", "Enter")
    form.get_by_role("button", name="Look up").click()
    page.wait_for_selector(".answer tbody tr")
    found = page.locator(".answer")
    cells = found.locator("tbody tr").locator("th, td").all_inner_texts()
    window = "2013-01-01T05:00:00Z to 2013-01-01T05:01:00Z"
    assert cells == ["a/b", window, '{"who":"<b>ann</b>","n":9007199254740993,"rate":1.0}']
    place = "partition 1 · of the records before 400 of orders · operator time 2013-01-01T05:00:09Z"
    assert found.locator("p").inner_text() == place
    assert stage.questions == ["from=2013-01-01T05%3A00%3A00Z"]
    assert page.inner_text("#announce") == "1 row"
    assert accessibility(page) == []
    page.set_viewport_size({"width": PHONE["width"], "height": PHONE["height"]})
    until(page, lambda: overflow(page) == 0)


def test_a_look_up_says_why_there_is_no_row_and_how_far_a_copy_is(
    stage: Stage, visits: Visits
) -> None:
    """A refusal is shown with its next step, in place of the answer before."""
    stage.process = topology()
    copy = _answer_of_minutes("b", partition=1, position=80, lag=12, problem=None)
    refusal = {
        "error": "held_elsewhere",
        "message": "key c is in events-1, which member two has",
        "value": "c",
        "next_step": "ask two's own API",
    }
    answers = {"b": copy, "c": (421, json.dumps(refusal))}
    stage.process.rows |= {f"{MINUTES}/{key}": found for key, found in answers.items()}
    stage.questions.clear()
    page = visits.open(stage.url)
    visits.expect_failures()
    form = page.get_by_role("search", name="Look up a key in topology shop")
    form.get_by_role("button", name="Look up").click()
    page.fill("#token-value", stage.token)
    page.press("#token-value", "Enter")
    form.get_by_label("Copies, too").check()
    form.get_by_label("Key").fill("b")
    form.get_by_label("Key").press("Enter")
    page.wait_for_selector(".answer tbody tr")
    place = "a copy as of offset 80 of the changelog, 12 offsets behind"
    assert place in page.inner_text(".answer")
    assert stage.questions == ["stale=true"]
    form.get_by_label("Key").fill("c")
    form.get_by_label("Key").press("Enter")
    page.wait_for_selector(".answer .wrong")
    said = "key c is in events-1, which member two has: ask two's own API"
    assert page.inner_text(".answer") == said
    assert accessibility(page) == []


def test_plans_are_asked_for_where_a_channel_has_one(stage: Stage, visits: Visits) -> None:
    """A process without topologies is not asked for their plans."""
    stage.process = healthy()
    stage.asked.clear()
    page = visits.open(stage.url)
    page.wait_for_selector("#partitions tbody tr")
    assert "/api/v1/topologies" not in stage.asked
    assert not page.locator("#topologies").is_visible()


def test_a_partition_says_how_far_its_state_is(stage: Stage, visits: Visits) -> None:
    """In the words of the commands, in the table."""
    stage.process = restoring()
    page = visits.open(stage.url)
    page.wait_for_selector("#partitions tbody tr")
    assert "restoring 34 %, 12 s left" in page.inner_text("#partitions")


def test_all_is_well_where_nothing_is_wrong(stage: Stage, visits: Visits) -> None:
    """A healthy process has no list of problems."""
    stage.process = healthy()
    page = visits.open(stage.url)
    assert page.inner_text("#verdict-title") == "All is well"
    assert page.locator("#problems li").count() == 0
    assert page.title() == "mill-1 · Headrace"


def test_a_pause_is_shown_with_author_reason_and_the_command_that_ends_it(
    stage: Stage, visits: Visits
) -> None:
    """It is no fault; it says since and until when, and what to type."""
    stage.process = paused()
    page = visits.open(stage.url)
    text = page.inner_text("#problems li[data-rank=wanted]")
    for part in ("flights is paused by ann", "moved to the new bucket", "since", "until"):
        assert part in text
    assert page.inner_text("#problems [data-rank=wanted] code") == RESUME


def test_a_channel_that_is_late_and_falls_back_is_to_be_looked_at(
    stage: Stage, visits: Visits
) -> None:
    """It is told how late it is; a channel with another reducer than Spark's has no Spark stage."""
    stage.process = late()
    page = visits.open(stage.url)
    until(page, lambda: page.inner_text("#verdict-title") == "1 warning")
    assert "clicks is 62 min late, and falls further behind" in page.inner_text("#problems li")
    stages = page.locator(".stages").all_inner_texts()
    assert ["Spark: reduce" in text for text in stages] == [False, True]
    assert all("reduce" in text and "write, commit" in text for text in stages)


def test_a_channel_that_catches_up_is_not_said_to_fall_back(stage: Stage, visits: Visits) -> None:
    """The page says how long a channel takes whose lag shrinks though it is as late as before."""
    stage.process = catching_up()
    page = visits.open(stage.url)
    until(page, lambda: page.inner_text("#verdict-title") == "1 warning")
    said = page.inner_text("#problems li")
    assert "catches up in about 10 min" in said
    assert "falls" not in said
    assert "10 min" in page.locator("#overview tr", has_text="clicks").inner_text()


def test_a_sink_is_not_behind_where_nothing_is_left_to_read(stage: Stage, visits: Visits) -> None:
    """The age of its newest record says nothing of a channel that has no lag."""
    stage.process = healthy()
    stage.process.channels = [replace(each, lag=0) for each in stage.process.channels]
    page = visits.open(stage.url)
    page.wait_for_selector("#partitions tbody tr")
    behind = page.locator(".numbers div", has_text="sink lag").locator("dd")
    lags = page.locator(".numbers div", has_text="records behind").locator("dd")
    for lag, said in zip(lags.all_inner_texts(), behind.all_inner_texts(), strict=True):
        assert (lag == "0") == (said == "none")


def test_rejected_records_are_an_item_until_they_are_acknowledged(
    stage: Stage, visits: Visits
) -> None:
    """The button sends the counts that were shown, once the token is there."""
    stage.process = rejecting()
    page = visits.open(stage.url)
    visits.expect_failures()
    until(page, lambda: page.inner_text("#verdict-title") == "1 warning")
    item = page.locator("#problems li")
    assert "flights: 6,134 dead letters, 8,291 skipped records" in item.inner_text()
    assert "headrace acknowledge flights" in item.locator("code").inner_text()
    assert "docs/runbooks.md#" in (item.locator("a").get_attribute("href") or "")
    item.get_by_role("button", name="Acknowledge").click()
    page.fill("#token-value", "wrong")
    page.press("#token-value", "Enter")
    item.get_by_role("button", name="Acknowledge").click()
    page.wait_for_selector("#token-wrong:not([hidden])")
    page.fill("#token-value", stage.token)
    page.press("#token-value", "Enter")
    item.get_by_role("button", name="Acknowledge").click()
    until(page, lambda: bool(stage.posted))
    path, counts = stage.posted[0]
    assert path == "/api/v1/channels/flights/acknowledge"
    assert counts == {"dead_letters": 6134, "skipped_records": 8291}
    stage.process = healthy()
    until(page, lambda: page.inner_text("#verdict-title") == "All is well")


def test_ten_channels_are_a_table_whose_rows_open(stage: Stage, visits: Visits) -> None:
    """All ten are seen at a glance; the details of one come on demand, and go again."""
    stage.process = ten_channels()
    page = visits.open(stage.url)
    page.wait_for_selector("#overview tbody tr")
    assert page.locator("#overview tbody tr").count() == 10
    bottom = page.locator("#overview").bounding_box()
    assert bottom is not None
    assert bottom["height"] < 500
    assert page.locator(".panel.channel").count() == 0
    button = page.get_by_role("button", name="clicks-3", exact=True)
    button.click()
    assert page.locator(".panel.channel h3").all_inner_texts() == ["clicks-3"]
    assert button.get_attribute("aria-expanded") == "true"
    assert accessibility(page) == []
    button.click()
    assert page.locator(".panel.channel").count() == 0


def test_a_command_is_copied(stage: Stage, visits: Visits) -> None:
    """The button puts the command where it can be pasted from."""
    stage.process = paused()
    page = visits.open(stage.url, permissions=["clipboard-read", "clipboard-write"])
    page.click("#problems [data-rank=wanted] .command button")
    until(page, lambda: page.inner_text("[data-rank=wanted] .command button") == "Copied")
    assert page.evaluate("navigator.clipboard.readText()") == RESUME


def test_a_thousand_partitions_stay_readable(stage: Stage, visits: Visits) -> None:
    """All are cells with counts beside them; the table shows the most urgent and leads to all."""
    stage.process = large()
    page = visits.open(stage.url)
    page.wait_for_selector(".cells .cell")
    assert page.locator(".cells .cell").count() == 1000
    assert "666 elsewhere" in page.inner_text(".legend").replace("\n", " ")
    assert page.inner_text("#shown") == "1,000 partitions"
    assert len(rows(page)) == 20
    assert {row[2].split("\n")[0] for row in rows(page)[:3]} == {"failing"}
    page.click(".legend button:has-text('moving')")
    assert page.inner_text("#shown") == "5 of 1,000 partitions"
    page.click(".cells .cell[data-name=events-144]")
    assert [row[0] for row in rows(page)] == ["events-144"]


def test_cells_may_show_lag_or_owner(stage: Stage, visits: Visits) -> None:
    """The colours change with the legend, whose buttons find what they name."""
    stage.process = large()
    page = visits.open(stage.url)
    page.click("#color-by button:has-text('owner')")
    # owners come with the list of members, which the page does not wait for
    until(page, lambda: "mill-1 (this process)" in page.inner_text(".legend").split("\n"))
    until(page, lambda: page.locator(".cells [data-shade=owner-1]").count() == 333)
    page.click(".legend button:has-text('mill-2')")
    until(page, lambda: page.inner_text("#shown") == "333 of 1,000 partitions")
    page.click("#color-by button:has-text('lag')")
    assert page.locator(".cells [data-shade=lag-2]").count() == 8
    assert page.locator(".cells [data-shade=lag-none]").count() == 666
    assert accessibility(page) == []


def test_filter_and_sort_by_keyboard_alone(stage: Stage, visits: Visits) -> None:
    """Tab gets to everything, typing filters, Enter on a heading sorts and says how."""
    stage.process = large()
    page = visits.open(stage.url)
    page.wait_for_selector("#partitions tbody tr")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    _tab_to(page, "#find")
    page.keyboard.type("events-9 waiting")
    until(page, lambda: " of " in page.inner_text("#shown"))
    names = [row[0] for row in rows(page)]
    assert names
    assert all(name.startswith("events-9") for name in names)
    _tab_to(page, ".c-lag button")
    page.keyboard.press("Enter")
    assert page.get_attribute("#partitions .c-lag", "aria-sort") == "descending"
    lags = [int(row[4].replace(",", "")) for row in rows(page)]
    assert lags == sorted(lags, reverse=True)
    page.keyboard.press("Enter")
    assert page.get_attribute("#partitions .c-lag", "aria-sort") == "ascending"
    assert page.inner_text("#announce") == "Sorted by lag, lowest first"


def test_the_focus_stays_through_updates(stage: Stage, visits: Visits) -> None:
    """New numbers take neither the focus nor what is being typed away."""
    stage.process = healthy()
    page = visits.open(stage.url)
    page.focus("#find")
    page.keyboard.type("flights")
    stage.process = failing()
    page.wait_for_selector("#verdict[data-rank=broken]")
    assert page.evaluate("document.activeElement.id") == "find"
    assert page.input_value("#find") == "flights"


def test_the_theme_follows_the_system_and_the_button(stage: Stage, visits: Visits) -> None:
    """Automatic is what the system has; the button's choice stays with the browser."""
    stage.process = healthy()
    page = visits.open(stage.url, color_scheme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(ground)
    page.emulate_media(color_scheme="light")
    light = page.evaluate(ground)
    assert dark != light
    page.click("#theme")
    assert page.inner_text("#theme") == "Theme: dark"
    assert page.evaluate(ground) == dark
    page.reload()
    page.wait_for_selector("#live[data-state=live]")
    assert page.inner_text("#theme") == "Theme: dark"
    page.click("#theme")
    page.emulate_media(color_scheme="dark")
    assert page.evaluate(ground) == light


def test_nothing_moves_that_was_asked_not_to(stage: Stage, visits: Visits) -> None:
    """With reduced motion there are no animations; without, one."""
    stage.process = healthy()
    still = visits.open(stage.url, reduced_motion="reduce")
    assert still.evaluate("document.getAnimations().length") == 0
    moving = visits.open(stage.url, reduced_motion="no-preference")
    assert moving.evaluate("document.getAnimations().length") == 1


#: A channel's lag beside its rate with which it is not late: that is said above everything.
LAG_SHARE = 20


def test_updates_shift_nothing(stage: Stage, visits: Visits) -> None:
    """While numbers change, everything stays in its place."""
    stage.process = healthy()
    page = visits.open(stage.url)
    page.wait_for_selector(".threads .thread")
    page.evaluate(
        """() => {
          window.shifts = [];
          const note = (list) => window.shifts.push(...list.getEntries().map((each) => each.value));
          new PerformanceObserver(note).observe({type: "layout-shift"});
        }"""
    )
    for rate in (1, 987_654, 33):
        faster = healthy()
        faster.channels[0] = type(faster.channels[0])(
            "clicks", {"clicks": 12, "views": 6}, rate, sink="json_lines", lag=rate // LAG_SHARE
        )
        stage.process = faster
        shown = {1: "1", 987_654: "988K", 33: "33"}[rate]
        until(page, partial(_first_number_is, page, shown))
    assert page.evaluate("window.shifts") == []


def test_figures_of_a_topology_shift_nothing(stage: Stage, visits: Visits) -> None:
    """Numbers that get longer keep their places."""
    stage.process = topology()
    page = visits.open(stage.url)
    page.wait_for_selector(".plan .figures-of span")
    size = page.locator(".plan").bounding_box()
    longer = topology()
    first = longer.channels[0]
    assert first.state_by_key is not None
    figures = {"records": 999_999_999, "rows": 999_999_999, "bytes": 999_000_000_000}
    operators = [
        each.model_copy(update=figures if each.store else {"records": 999_999_999})
        for each in first.state_by_key.operators
    ]
    state = first.state_by_key.model_copy(update={"operators": operators})
    longer.channels[0] = replace(first, state_by_key=state)
    stage.process = longer
    until(page, lambda: "records 1B" in page.inner_text(".plan .part-of >> nth=0"))
    assert page.locator(".plan").bounding_box() == size


def test_an_absent_process_is_shown_with_the_age_of_the_data(stage: Stage, visits: Visits) -> None:
    """The page says that no answer comes, calls nothing well, and goes on when there is one."""
    stage.process = healthy()
    page = visits.open(stage.url)
    visits.expect_failures()
    page.route("**/api/**", lambda route: route.abort())
    page.wait_for_selector("#away:not([hidden])")
    assert "The process does not answer. This is" in page.inner_text("#away-text")
    assert page.inner_text("#live-text").startswith("Old: ")
    assert page.inner_text("#verdict-title") == "Last known: all is well"
    assert page.inner_text("#announce") == "The process does not answer"
    assert accessibility(page) == []
    page.unroute("**/api/**")
    page.click("#retry")
    page.wait_for_selector("#live[data-state=live]")
    assert page.is_hidden("#away")
    assert page.inner_text("#verdict-title") == "All is well"


def test_a_silent_zookeeper_does_not_hold_up_the_rest(stage: Stage, visits: Visits) -> None:
    """While the members are waited for, everything else goes on; then that is said."""
    stage.process = healthy()
    page = visits.open(stage.url, before=_hold_members)
    stage.process = failing()
    page.wait_for_selector("#verdict[data-rank=broken]")
    assert page.inner_text("#live-text") == "Live"
    page.wait_for_selector("#group-problem:not([hidden])")
    assert "No answer from ZooKeeper: nothing within 10 s" in page.inner_text("#group-problem")


def _hold_members(page: Page) -> None:
    page.route("**/api/v1/members", lambda _: None)


def test_a_hidden_page_asks_for_nothing(stage: Stage, visits: Visits) -> None:
    """A tab in the background costs the process nothing; seen again, it asks at once."""
    stage.process = healthy()
    page = visits.open(stage.url)
    hide = """(state) => {
      Object.defineProperty(document, "hidden", {value: state === "hidden", configurable: true});
      document.dispatchEvent(new Event("visibilitychange"));
    }"""
    page.evaluate(hide, "hidden")
    # what is under way when the page is hidden may end
    until(page, lambda: _asks_for_nothing(page, stage))
    before = len(stage.asked)
    page.evaluate(hide, "visible")
    until(page, lambda: len(stage.asked) > before)


def _asks_for_nothing(page: Page, stage: Stage) -> bool:
    """Watch for three times as long as a page that is seen leaves between two questions."""
    before = len(stage.asked)
    page.wait_for_timeout(6000)
    return len(stage.asked) == before


def test_text_from_outside_never_becomes_markup(stage: Stage, visits: Visits) -> None:
    """An error with tags in it is shown as it is."""
    process = failing()
    process.events.append(
        (
            1,
            "commit_failed",
            "warning",
            process.events[0][3],
            1,
            {"error": "<img src=x onerror=alert(1)>"},
        )
    )
    stage.process = process
    page = visits.open(stage.url)
    page.wait_for_selector("#events li")
    assert "<img src=x onerror=alert(1)>" in page.inner_text("#events")
    assert page.locator("#events img").count() == 0


def test_events_are_filtered_by_kind(stage: Stage, visits: Visits) -> None:
    """Troubles, the group, pauses and configuration can be looked at alone."""
    stage.process = failing()
    page = visits.open(stage.url)
    page.wait_for_selector("#events li")
    assert "processor error" in page.inner_text("#events li >> nth=0")
    assert "\N{MULTIPLICATION SIGN} 14" in page.inner_text("#events li >> nth=0")
    page.click("#event-kinds button:has-text('Group')")
    shown = page.locator("#events strong").all_inner_texts()
    assert shown == ["partitions unowned", "partition claimed", "group rebalanced", "member joined"]
    assert page.get_attribute("#event-kinds button >> nth=2", "aria-pressed") == "true"
