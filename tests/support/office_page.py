"""The page of the Office add-in in headless Chromium with a stand-in of Office.js: cells call functions, buttons write.

usage: python tests/support/office_page.py PYODIDE_FOLDER

With a folder of Pyodide (``pyodide_host.py`` fetches one) the real engine answers the example of every function in the
page, to the last bit; a table of plans; a search that is cancelled, and one that is not. A test runs the page with a
stand-in of the engine.
"""

from __future__ import annotations

import json
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

OFFICE = "https://appsforoffice.microsoft.com/lib/1/hosted/office.js"
STAND_IN = """
window.addEventListener("error", (event) =>
  fetch("/done", {method: "POST", body: JSON.stringify({thrown: event.message})}));
const registered = {}, commands = {};
const codes = {notAvailable: "#N/A", invalidValue: "#VALUE!", invalidNumber: "#NUM!", invalidReference: "#REF!",
  invalidName: "#NAME?", divisionByZero: "#DIV/0!"};
class CellError extends Error { constructor(code, message) { super(message); this.code = code; } }
window.CustomFunctions = {ErrorCode: codes, Error: CellError, associate: (id, call) => { registered[id] = call; }};
window.Office = {onReady: (call) => window.addEventListener("load", call),
  actions: {associate: (name, call) => { commands[name] = call; }}};

// A cell shows #BUSY! until the promise of its function is settled. The invocation is the last argument.
function enter(id, ...given) {
  const cell = {shows: "#BUSY!"}, invocation = {};
  cell.cancel = () => invocation.onCanceled();
  const plain = (one) => one instanceof CellError ? {error: one.code, message: one.message} : one;
  cell.done = registered[id](...given, invocation).then(
    (rows) => { cell.shows = rows.map((row) => row.map(plain)); }, (error) => { cell.shows = plain(error); });
  return cell;
}

// A sheet: values and formulas of the cells from the cursor on.
const sheet = {cells: [], bold: [], selected: [[""]]};
const at = (row) => sheet.cells[row] || ["", ""];
const cursor = {
  getResizedRange: (rows, columns) => ({
    format: {autofitColumns: () => { sheet.fitted = [rows, columns]; }},
    load: () => {}, get values() { return Array.from({length: rows + 1}, (_, row) => at(row).slice(0, columns + 1)); },
    set formulasR1C1(cells) { cells.forEach((row, number) => { sheet.cells[number] = row; }); },
  }),
  getOffsetRange: (row) => ({format: {font: {set bold(_) { sheet.bold.push(row); }}}}),
};
window.Excel = {run: async (act) => act({sync: async () => {},
  workbook: {getActiveCell: () => cursor, getSelectedRange: () => ({load: () => {}, values: sheet.selected})}})};
const later = (seconds) => new Promise((done) => setTimeout(done, 1000 * seconds));
const until = async (met) => { while (!met()) await later(0.02); };
"""
RUN = """
window.addEventListener("load", async () => {
  let result;
  try { result = await (async () => { %s })(); } catch (error) { result = {thrown: String(error.stack)}; }
  await fetch("/done", {method: "POST", body: JSON.stringify(result)});
});
"""


def chromium() -> str | None:
    """The program of a headless browser."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def answered(site: Path, scenario: str, worker: str | None = None, limit: float = 300.0) -> Any:
    """What a scenario (JavaScript that returns something) returns in the page of a folder; ``worker`` replaces its
    engine.
    """
    results: queue.Queue[Any] = queue.Queue()
    page = (site / "taskpane.html").read_text(encoding="utf-8")
    assert OFFICE in page
    made = {
        "/taskpane.html": page.replace(OFFICE, "office.js").replace("</body>", '<script src="run.js"></script></body>'),
        "/office.js": STAND_IN,
        "/run.js": RUN % scenario,
        **({"/engine_worker.js": worker} if worker is not None else {}),
    }

    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments, directory=str(site))

        def do_GET(self) -> None:
            text = made.get(self.path)
            if text is None:
                super().do_GET()
                return
            content = text.encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html" if self.path.endswith("html") else "text/javascript")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def do_POST(self) -> None:
            results.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        address = f"http://127.0.0.1:{server.server_port}/taskpane.html"
        browser = subprocess.Popen(
            [str(chromium()), *options, f"--user-data-dir={profile}", "--remote-debugging-port=0", address],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            return results.get(timeout=limit)
        finally:
            browser.kill()
            browser.wait()
            server.shutdown()
            server.server_close()


def given(value: Any) -> Any:
    """An argument as Excel hands it over: rows of cells, null where it is left out."""
    return value if isinstance(value, list) or value is None else [[value]]


EXAMPLES = """
const calls = %s, began = performance.now();
await until(() => cells.version || cells.failed);
const ready = performance.now() - began;
const entered = calls.map(([id, given]) => enter(id, ...given));
await Promise.all(entered.map((cell) => cell.done));
const shows = entered.map((cell) => cell.shows);
const [header, row] = %s;
const rows = Array.from({length: 1000}, (_, number) => row.map((cell) => cell === 64 ? 64 * (number + 1) : cell));
const before = performance.now();
const table = rows.map((one) => enter("XLPERF.STEP.TIME", [one], null, [header]));
await Promise.all(table.map((cell) => cell.done));
const seconds = (performance.now() - before) / 1000;
const [plan, wide] = %s;
const search = enter("XLPERF.SEARCH", wide, null, null, null, null, null, null);
await later(1);
const busy = search.shows;
search.cancel();
await search.done;
const next = enter("XLPERF.SEARCH", plan, [[3]], null, null, null, null, null);
const quick = enter("XLPERF.DIE.YIELD", [[814]], [[0.1]], null, null, null, null);
await quick.done;
const meanwhile = next.shows;
await next.done;
return {ready, shows, seconds, table: table.map((cell) => cell.shows), busy, cancelled: search.shows, meanwhile,
  next: next.shows, state: document.getElementById("state").textContent};
"""


def main() -> int:
    from host_calls import example, plain

    from xlperf.addin.functions import example_ranges, functions
    from xlperf.addin.office import write_office
    from xlperf.addin.worker import Session

    names = [name for name in functions() if not functions()[name].arguments[-1].repeated]
    session = Session()
    padded = {name: (e := example(name)[1]) + [None] * (len(functions()[name].arguments) - len(e)) for name in names}
    calls = [[name.replace("_", "."), [given(value) for value in padded[name]]] for name in names]
    training, plan = ([list(row) for row in example_ranges()[name]] for name in ("training", "open"))
    table = [list(row) for row in zip(*training, strict=True)]
    wide = [["model", "Llama3-70B"], ["accelerator", "H100-SXM-80GB"], ["num accelerators", 1024.0]]
    with tempfile.TemporaryDirectory() as folder:
        site = Path(folder) / "site"
        write_office(str(site), "https://localhost", sys.argv[1])
        began = time.monotonic()
        found = answered(site, EXAMPLES % tuple(map(json.dumps, (calls, table, (plan, wide)))), limit=600.0)
    if "thrown" in found:
        raise SystemExit(found["thrown"])

    def shown(cell: Any) -> Any:
        return cell["error"] if isinstance(cell, dict) and "error" in cell else cell

    wrong = []
    for name, rows in zip(names, found["shows"], strict=True):
        got = [[shown(cell) for cell in row] for row in rows] if isinstance(rows, list) else shown(rows)
        if plain(got) != plain(session.call(name, padded[name])):
            wrong.append(name)
    assert [plain(one) for one in found["table"][:2]] == [
        plain(session.call("XLPERF_STEP_TIME", [[[*row]], None, [table[0]]]))
        for row in (table[1], [128.0 if cell == 64.0 else cell for cell in table[1]])
    ]
    assert found["busy"] == found["meanwhile"] == "#BUSY!" and found["cancelled"]["error"] == "#N/A"
    assert plain(found["next"]) == plain(session.call("XLPERF_SEARCH", [plan, 3.0]))
    print(f"ready after {found['ready'] / 1000:.1f} s; {len(names)} examples; 1,000 plans in {found['seconds']:.1f} s;")
    print(f"a search cancelled and one answered; {time.monotonic() - began:.0f} s in all; {found['state']}", end=" ")
    print(wrong or "all equal to the last bit")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
