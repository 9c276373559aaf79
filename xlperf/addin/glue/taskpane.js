"use strict";
// The page of the add-in: functions of cells, buttons of the ribbon and the task pane share it and its engines.
// An engine is a worker that runs Python. One answers single cells, many in a message; another answers searches, one at
// a time, so that a cell never waits for a search, and a search that is cancelled ends with its worker.

const MOST_IN_MESSAGE = 1000;
const MOST_CATALOGS = 64;
const catalogs = new Map(); // arguments of XLPERF_CATALOG by the text that it returned

class Engine {
  constructor(most, changed) {
    Object.assign(this, { most, changed, worker: null, version: "", failed: "", busy: false });
    Object.assign(this, { waiting: [], running: new Map(), last: 0 });
  }

  start() {
    if (this.worker) return;
    this.known = new Set();
    this.worker = new Worker(SETTINGS.worker);
    this.worker.onmessage = ({ data }) => this.heard(data);
    this.worker.onerror = (event) => this.heard({ failed: event.message || "its worker cannot be loaded" });
    const address = (name) => new URL(name, document.baseURI).href;
    this.worker.postMessage({ pyodide: address(SETTINGS.pyodide), wheel: address(SETTINGS.wheel) });
    this.changed();
  }

  end(reason) {
    if (this.worker) this.worker.terminate();
    this.worker = null;
    this.version = "";
    this.busy = false;
    const ended = [...this.running.values()];
    this.running.clear();
    ended.forEach((call) => call.reject(reason));
  }

  ask(name, given) {
    const call = { id: ++this.last, name, given };
    call.promise = new Promise((resolve, reject) => Object.assign(call, { resolve, reject }));
    if (!this.waiting.length) setTimeout(() => this.send(), 0);
    this.waiting.push(call);
    this.changed();
    return call;
  }

  send() {
    if (this.busy || !this.waiting.length) return;
    this.start();
    this.busy = true;
    const calls = [];
    for (const call of this.waiting.splice(0, this.most)) {
      for (const handle of call.given.map(single)) {
        if (catalogs.has(handle) && !this.known.has(handle)) {
          this.known.add(handle);
          calls.push({ id: 0, function: "XLPERF_CATALOG", arguments: catalogs.get(handle) });
        }
      }
      this.running.set(call.id, call);
      calls.push({ id: call.id, function: call.name, arguments: call.given });
    }
    this.worker.postMessage({ calls: JSON.stringify(calls) });
    this.changed();
  }

  heard({ version, answers, failed }) {
    if (failed) {
      this.failed = failed;
      this.end(errorOf("#N/A", `the engine of xlperf ended: ${failed}`));
    } else if (version) {
      this.version = version;
      this.failed = "";
    } else {
      for (const { id, rows } of JSON.parse(answers)) {
        const call = this.running.get(id);
        if (!call) continue;
        if (call.name === "XLPERF_CATALOG" && typeof rows[0][0] === "string") {
          this.known.add(rows[0][0]);
          catalogs.set(rows[0][0], call.given);
          if (catalogs.size > MOST_CATALOGS) catalogs.delete(catalogs.keys().next().value);
        }
        this.running.delete(id);
        call.resolve(rows);
      }
      this.busy = false;
    }
    this.changed();
    this.send();
  }

  cancel(call) {
    const reason = errorOf("#N/A", "cancelled; enter the formula again to ask again");
    const place = this.waiting.indexOf(call);
    if (place >= 0) {
      this.waiting.splice(place, 1);
      call.reject(reason);
    } else if (this.running.has(call.id) && this.most > 1) {
      this.running.delete(call.id); // its answer comes soon and is dropped
      call.reject(reason);
    } else if (this.running.has(call.id)) {
      this.end(reason);
      setTimeout(() => this.send(), 0);
    }
    this.changed();
  }
}

const cells = new Engine(MOST_IN_MESSAGE, shown);
const searches = new Engine(1, shown);

// --- functions of cells

function single(argument) {
  return Array.isArray(argument) && argument.length === 1 && argument[0].length === 1 ? argument[0][0] : argument;
}

function errorOf(code, message) {
  const codes = CustomFunctions.ErrorCode;
  const known = {
    "#N/A": codes.notAvailable, "#NUM!": codes.invalidNumber, "#REF!": codes.invalidReference,
    "#NAME?": codes.invalidName, "#DIV/0!": codes.divisionByZero,
  };
  return new CustomFunctions.Error(known[code] || codes.invalidValue, message);
}

function asCells(rows) {
  const shownRows = rows.map((row) => row.map((cell) => {
    if (cell === null) return "";
    return typeof cell === "object" ? errorOf(cell.error, cell.message) : cell;
  }));
  const one = single(shownRows);
  if (one instanceof CustomFunctions.Error) throw one; // with its words
  return shownRows;
}

function engineOf({ long }, given) {
  const searched = given.some((cell) => Array.isArray(cell) && cell.flat().some((one) => /^\s*auto\s*$/i.test(one)));
  return long || searched ? searches : cells;
}

function functionOf(about) {
  return async (...given) => {
    const invocation = given.pop();
    const asked = (about.repeated ? given[0] : given).map((cell) => (cell === undefined ? null : cell));
    const engine = engineOf(about, asked);
    const call = engine.ask(about.name, asked);
    invocation.onCanceled = () => engine.cancel(call);
    const rows = await call.promise;
    const stale = about.saysFaults ? staleWords() : "";
    return asCells(stale ? rows.map((row) => [`${row[0]}; ${stale}`]) : rows);
  };
}

function staleWords() {
  const version = cells.version || SETTINGS.version;
  if (version === SETTINGS.version) return "";
  return `The page is of xlperf ${SETTINGS.version} and xlperf ${version} computes: run xlperf install office again`;
}

SETTINGS.functions.forEach((about) => CustomFunctions.associate(about.id, functionOf(about)));

// --- buttons

function say(words) {
  document.getElementById("words").textContent = words;
}

async function writeBlock(name) {
  const rows = SETTINGS.blocks[name];
  await Excel.run(async (context) => {
    const corner = context.workbook.getActiveCell();
    const area = corner.getResizedRange(rows.length - 1, 1);
    area.load("values");
    await context.sync();
    if (area.values.flat().some((value) => value !== "")) {
      say(`The block needs ${rows.length} rows of two empty cells from the cursor down: choose another cell.`);
      return;
    }
    area.formulasR1C1 = rows.map(({ kind, label, value }) => (kind === "block" ? [value, ""] : [label, value]));
    rows.forEach(({ kind }, row) => {
      if (kind === "title") corner.getOffsetRange(row, 0).format.font.bold = true;
    });
    corner.getResizedRange(rows.length - 1, 0).format.autofitColumns();
    await context.sync();
    say("");
  }).catch((error) => say(`The block cannot be written here: ${error.message}`));
}

async function checkSelection() {
  await Excel.run(async (context) => {
    const area = context.workbook.getSelectedRange();
    area.load("values");
    await context.sync();
    say("Computes ...");
    const given = [area.values, null, null];
    const rows = await engineOf({}, given).ask("XLPERF_CHECK", given).promise;
    say(rows.map((row) => row[0]).join("\n"));
  }).catch((error) => say(`The selected cells cannot be checked: ${error.message}`));
}

const actions = { check: checkSelection };
Object.keys(SETTINGS.blocks).forEach((name) => { actions[name] = () => writeBlock(name); });

// --- the pane

function shown() {
  const state = document.getElementById("state");
  if (!state) return;
  const failed = cells.failed || searches.failed;
  if (failed) state.textContent = `The engine cannot run: ${failed}`;
  else state.textContent = cells.version ? staleWords() || `xlperf ${cells.version} computes.` : "The engine starts.";
  const calls = [...searches.running.values(), ...searches.waiting].map((call) => {
    const item = document.createElement("li");
    const button = document.createElement("button");
    button.textContent = "Cancel";
    button.onclick = () => searches.cancel(call);
    item.append(call.name, button);
    return item;
  });
  document.getElementById("calls").replaceChildren(...calls);
}

Office.onReady(() => {
  for (const [name, action] of Object.entries(actions)) {
    Office.actions.associate(name, (event) => action().finally(() => event.completed()));
  }
  document.getElementById("check").onclick = checkSelection;
  document.getElementById("blocks").replaceChildren(...Object.entries(SETTINGS.blocks).map(([name, rows]) => {
    const button = document.createElement("button");
    button.id = `write-${name}`;
    button.textContent = rows[0].label;
    button.onclick = actions[name];
    return button;
  }));
  cells.start();
});
