"use strict";
// Runs the engine of xlperf in Pyodide: first a message with addresses, then messages with calls, answered in order.

let engine;

async function started({ pyodide, wheel }) {
  importScripts(`${pyodide}pyodide.js`);
  const python = await loadPyodide({ indexURL: pyodide });
  await python.loadPackage("numpy");
  const response = await fetch(wheel);
  if (!response.ok) throw new Error(`${wheel}: ${response.status} ${response.statusText}`);
  python.unpackArchive(await response.arrayBuffer(), "wheel");
  return python.pyimport("xlperf.addin.worker");
}

self.onmessage = async ({ data }) => {
  try {
    if (data.calls) {
      postMessage({ answers: (await engine).answers(data.calls) });
    } else {
      engine = started(data);
      postMessage({ version: (await engine).__version__ });
    }
  } catch (error) {
    postMessage({ failed: String(error.message || error).trim().split("\n").pop() });
  }
};
