"""Serving engines that run on an accelerator: rows of ``catalog/serving_engines.csv``, each with its source."""

from __future__ import annotations

from xlperf.base.errors import Fault, InputError, nearest
from xlperf.base.resources import rows
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.interop.launch_rules import SOFTWARE

_OWN = "nvidia"
"""Vendor whose engines an accelerator without a vendor runs: a chip of one's own, with its kernels."""
_TITLES = {"vllm": "vLLM", "sglang": "SGLang", "tensorrt-llm": "TensorRT-LLM"}


def engine_title(engine: str) -> str:
    """Name of an engine as its makers write it.

    >>> engine_title("vllm"), engine_title("my-engine")
    ('vLLM', 'my-engine')
    """
    return _TITLES.get(engine, engine)


def engines_of(form: Table, catalog: Catalog) -> list[str]:
    """Serving engines to compare on the accelerator of a form: the one that the form names, else all that run there.

    ``form``: one row with a column ``accelerator``, and ``software``, blank for all. Raises InputError where the
    named engine is unknown or does not run on the accelerator. An engine that only the calibration names runs
    anywhere.
    """
    table = catalog.tables["accelerators"]
    row = catalog.rows("accelerators", form.text("accelerator"), form, "accelerator")[0]
    vendor = str(table.text("vendor")[row]).casefold() or _OWN
    generation = str(table.text("generation")[row]).casefold()
    known = rows("catalog/serving_engines.csv")
    own = [one for one in known if one["vendor"] == vendor]
    runs = [one for one in own if not one["generations"] or generation in one["generations"].split()]
    # A generation that no row names has the engines of its vendor.
    named = {word for one in own for word in one["generations"].split()}
    runs = runs if generation in named else own
    found = list(dict.fromkeys(one["engine"] for one in runs if one["searched"] == "yes")) or ["vllm"]
    asked = str(form.text("software")[0]).strip().casefold()
    asked = SOFTWARE.get(asked, asked)
    if not asked:
        return found
    if asked in {one["engine"] for one in runs}:
        return [asked]
    place, accelerator = form.place(0, "software"), str(form.text("accelerator")[0])
    if asked in {one["engine"] for one in known}:
        names = ", ".join(found)
        problem = f"{engine_title(asked)} does not run on {accelerator}; engines that do: {names}; or auto for all"
        raise InputError(Fault(place, problem))
    if catalog.calibration.knows_software("serving_software", asked):
        return [asked]
    words = nearest(asked, sorted({one["engine"] for one in known}))
    raise InputError(Fault(place, f'unknown serving engine "{form.text("software")[0]}"; {words}'))
