"""The page of the Office add-in in a browser, with stand-ins of Excel and of the engine."""

from __future__ import annotations

import office_page
import pytest

from xlperf import __version__
from xlperf.addin.functions import blocks, functions
from xlperf.addin.office import write_office

# An engine that is known by what it answers: the functions that it was asked for, in messages.
WORKER = """
const asked = [];
let version = "VERSION";
function rows({function: name, arguments: given}) {
  if (name === "XLPERF_CATALOG") return [["xlperf:" + given.length + given[0][0][0]]];
  if (name === "XLPERF_MFU") return [[{error: "#N/A", message: "3 does not divide 8"}]];
  if (name === "XLPERF_CHECK") return given[0].map(() => ["fine"]);
  if (name === "XLPERF_TRAINING") return [["mfu", null], [{error: "#NUM!", message: "no number"}, true]];
  return [[JSON.stringify(given)]];
}
self.onmessage = async ({data}) => {
  if (!data.calls) return postMessage({version});
  const calls = JSON.parse(data.calls);
  asked.push(calls.map((call) => call.function));
  const last = calls[calls.length - 1];
  if (last.function === "XLPERF_HFU") return postMessage({failed: "out of memory"});
  if (last.function === "XLPERF_SEARCH" && last.arguments[0][0][0] === "long") await new Promise(() => {});
  if (last.function === "XLPERF_SEARCH") await new Promise((done) => setTimeout(done, 400));
  const answers = calls.map((call) => ({id: call.id,
    rows: call.function === "XLPERF_EXPLAIN" ? [[JSON.stringify(asked)]] : rows(call)}));
  postMessage({answers: JSON.stringify(answers)});
};
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    if office_page.chromium() is None:
        pytest.skip("no headless browser: chromium is not on the path")
    folder = tmp_path_factory.mktemp("office") / "site"
    write_office(str(folder), "https://example.com/xlperf")
    return folder


@pytest.fixture(scope="module")
def page(site):
    def result(scenario, version=__version__):
        returned = office_page.answered(site, scenario, WORKER.replace("VERSION", version), limit=120.0)
        assert "thrown" not in returned, returned
        return returned

    return result


def test_functions_of_the_metadata_are_those_of_the_page(page):
    known = page(
        """const {functions} = await (await fetch("functions.json")).json();
        await until(() => cells.version);
        return {ids: functions.map(({id}) => id), page: Object.keys(registered), buttons: Object.keys(commands),
          state: document.getElementById("state").textContent};"""
    )
    assert known["ids"] == known["page"] and len(known["ids"]) == len(functions())
    assert known["buttons"] == ["check", *blocks()] and known["state"] == f"xlperf {__version__} computes."


def test_calls_of_one_moment_are_one_message_and_errors_are_errors_of_excel(page):
    shown = page(
        """const entered = [
          enter("XLPERF.STEP.TIME", [["a", 8], ["", true]], undefined, null),
          enter("XLPERF.MFU", [["a", 1]], null, null),
          enter("XLPERF.TRAINING", [["a", 1]], null, null, null),
          enter("XLPERF.EXPLAIN", [["a", 1]], null, null)];
        const first = entered.map((cell) => cell.shows);
        await Promise.all(entered.map((cell) => cell.done));
        return {first, shows: entered.map((cell) => cell.shows)};"""
    )
    assert shown["first"] == ["#BUSY!"] * 4
    assert shown["shows"] == [
        [['[[["a",8],["",true]],null,null]']],
        {"error": "#N/A", "message": "3 does not divide 8"},
        [["mfu", ""], [{"error": "#NUM!", "message": "no number"}, True]],
        [['[["XLPERF_STEP_TIME","XLPERF_MFU","XLPERF_TRAINING","XLPERF_EXPLAIN"]]']],
    ]


def test_a_long_search_is_busy_while_cells_are_answered_and_then_has_its_answer(page):
    shown = page(
        """const search = enter("XLPERF.SEARCH", [["plan"]], null, null, null, null, null, null);
        const cell = enter("XLPERF.STEP.TIME", [["a", 8]], null, null);
        const open = enter("XLPERF.STEP.TIME", [["tensor parallel", "Auto "]], null, null);
        await cell.done;
        const meanwhile = [search.shows, open.shows], listed = document.querySelectorAll("#calls li").length;
        await Promise.all([search.done, open.done]);
        const left = document.querySelectorAll("#calls li").length;
        return {meanwhile, listed, left, shows: [search.shows, open.shows]};"""
    )
    assert shown["meanwhile"] == ["#BUSY!", "#BUSY!"] and shown["listed"] == 2 and shown["left"] == 0
    assert shown["shows"] == [
        [['[[["plan"]],null,null,null,null,null,null]']],
        [['[[["tensor parallel","Auto "]],null,null]']],
    ]


def test_a_cancelled_search_ends_and_the_next_one_knows_the_catalog(page):
    shown = page(
        """const table = [["network", "tier"], ["N", 1]], search = (plan, handle) =>
          enter("XLPERF.SEARCH", [[plan]], null, null, handle, null, null, null);
        const catalog = enter("XLPERF.CATALOG", [table, table]);
        await catalog.done;
        const running = search("long", catalog.shows), waiting = search("dropped", catalog.shows);
        const next = search("short", catalog.shows), last = search("last", null);
        await later(0.3);
        const busy = [running, waiting, next].map((cell) => cell.shows);
        waiting.cancel();
        document.querySelector("#calls button").click();
        await Promise.all([running, waiting, next, last].map((cell) => cell.done));
        const told = searches.ask("XLPERF_EXPLAIN", []);
        const quick = enter("XLPERF.STEP.TIME", [["late"]], null, null);
        quick.cancel();
        await quick.done;
        return {handle: catalog.shows, busy, asked: JSON.parse((await told.promise)[0][0]),
          shows: [running, waiting, next, last, quick].map((cell) => cell.shows)};"""
    )
    assert shown["handle"] == [["xlperf:2network"]] and shown["busy"] == ["#BUSY!"] * 3
    cancelled = {"error": "#N/A", "message": "cancelled; enter the formula again to ask again"}
    assert [shown["shows"][place] for place in (0, 1, 4)] == [cancelled] * 3
    assert shown["shows"][2] == [['[[["short"]],null,null,[["xlperf:2network"]],null,null,null]']]
    assert shown["shows"][3] == [['[[["last"]],null,null,null,null,null,null]']]
    assert shown["asked"] == [["XLPERF_CATALOG", "XLPERF_SEARCH"], ["XLPERF_SEARCH"], ["XLPERF_EXPLAIN"]], (
        "a new engine"
    )


def test_an_engine_that_ends_is_started_again(page):
    shown = page(
        """const ends = enter("XLPERF.HFU", [["a"]], null, null);
        await ends.done;
        const state = document.getElementById("state").textContent;
        const next = enter("XLPERF.FITS", [["b"]], null, null);
        await next.done;
        await until(() => cells.version);
        return {state, shows: [ends.shows, next.shows], after: document.getElementById("state").textContent};"""
    )
    assert shown["state"] == "The engine cannot run: out of memory"
    assert shown["shows"] == [
        {"error": "#N/A", "message": "the engine of xlperf ended: out of memory"}, [['[[["b"]],null,null]']],
    ]  # fmt: skip
    assert shown["after"] == f"xlperf {__version__} computes."


def test_buttons_write_blocks_at_the_cursor_and_check_the_selection(page):
    shown = page(
        """let completed = 0;
        const press = (name) => commands[name]({completed: () => { completed += 1; }});
        await press("serve");
        const written = sheet.cells.slice(), bold = sheet.bold.slice();
        await press("search");
        const words = document.getElementById("words").textContent, kept = sheet.cells.length;
        sheet.selected = [["model", "a"], ["tensor parallel", 3]];
        await press("check");
        const checked = document.getElementById("words").textContent;
        sheet.cells = [];
        document.getElementById("write-diagnose").click();
        await until(() => sheet.cells.length);
        return {written, bold, words, kept, checked, completed, clicked: sheet.cells, fitted: sheet.fitted};"""
    )
    rows = blocks()["serve"]
    assert shown["written"] == [[row.label, row.value] for row in rows] and shown["bold"] == [0]
    assert shown["words"].startswith(f"The block needs {len(blocks()['search'])} rows") and shown["kept"] == len(rows)
    assert shown["checked"] == "fine\nfine" and shown["completed"] == 3
    assert shown["fitted"] == [len(blocks()["diagnose"]) - 1, 0]
    assert shown["clicked"][-1] == [blocks()["diagnose"][-1].value, ""]


def test_a_page_beside_another_wheel_says_so(page):
    shown = page(
        """await until(() => cells.version);
        const check = enter("XLPERF.CHECK", [["a", 1]], null, null);
        await check.done;
        return {state: document.getElementById("state").textContent, check: check.shows};""",
        version="99.0",
    )
    words = f"The page is of xlperf {__version__} and xlperf 99.0 computes: run xlperf install office again"
    assert shown == {"state": words, "check": [[f"fine; {words}"]]}


def test_without_pyodide_cells_say_why(site):
    broken = "self.onmessage = () => postMessage({failed: 'pyodide.js failed to load'});"
    shown = office_page.answered(
        site,
        """const cell = enter("XLPERF.MFU", [["a"]], null, null);
        await cell.done;
        return cell.shows;""",
        broken,
        limit=120.0,
    )
    assert shown == {"error": "#N/A", "message": "the engine of xlperf ended: pyodide.js failed to load"}
