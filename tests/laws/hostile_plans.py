"""Reads hostile launch texts one after the other in a process of its own, and prints what each one cost.

A law of :mod:`test_hostile_plans` starts it, so that memory and processor time can be limited.
"""

from __future__ import annotations

import json
import os
import random
import resource
import sys
import time
from collections.abc import Iterator

SIZE = 999_000 if os.environ.get("XLPERF_LAWS") else 60_000
"""Characters of a text: as many as are read, or a sixteenth of that: a quadratic reader shows in either. [-]"""
GIVEN = {"model": "Llama3-70B", "accelerator": "H100-SXM-80GB", "num_accelerators": "8", "num accelerators": "8"}


def filled(unit: str, before: str = "", after: str = "") -> str:
    """A unit as often as a text may be long."""
    return before + unit * ((SIZE - len(before) - len(after)) // len(unit)) + after


def doubling(form: str, count: int) -> str:
    """Variables, each of which holds the one before several times."""
    return "\n".join(form.format(new=f"v{place + 1}", old=f"v{place}") for place in range(count))


def texts() -> Iterator[tuple[str, str]]:
    """Names and texts: each reader's own worst ones."""
    # variables that grow
    yield "doubled", "v0=aaaaaaaaaa\n" + doubling('{new}="${old}${old}"', 20_000) + "\nrun --tp $v20000"
    yield "doubled arrays", "v0=(a a)\n" + doubling("{new}=(${{{old}[@]}} ${{{old}[@]}})", 10_000)
    yield "added", filled('A+=" $A"\n', "A=aaaaaaaaaaaaaaaaaaaa\n")
    yield "used often", f"A={'a' * 19_000}\n" + filled("$A ", "run --tp ")
    yield "used in each line", f"A={'a' * 19_000}\n" + filled("run --tp $A\n")
    yield "doubled defaults", doubling("{new}=${{a:-${{{old}:-$" + "{{{old}}}}}${{{old}}}}}", 5_000)
    yield "nested defaults", "run --tp " + "${a:-" * (SIZE // 10) + "}" * (SIZE // 10)
    yield "open defaults", filled("${a:-x", "run --tp ")
    yield "arithmetic", filled("$((9*9*9*9*9*9*9)) ", "run --tp ")
    yield "arithmetic of variables", f"A={'9' * 19_000}\n" + filled("$((A+A+A+A)) ", "run --tp ")
    yield "parentheses", "run --tp $((" + "(" * (SIZE // 2)
    yield "commands within commands", filled("$(a ", "run --tp ")
    yield "braces", "x=" + filled("${a}}}}}}}}}}", after='"')
    yield "exported", "".join(f"export V{place}=1\n" for place in range(SIZE // 40)) + "./a.sh\n" * (SIZE // 20)
    # blocks, tests, branches
    yield "whiles", filled("while a\n")
    yield "ifs", filled("if a\n")
    yield "loops", filled("for i in {1..1000000000}; do echo $i; done\n")
    yield "test of spaces", "if [ " + " " * (SIZE - 10)
    yield "tests", filled("if [ a ]; then b; fi\n")
    yield "pattern", f"if [[ {'a' * 9_000} == {'*a' * 9_000}*b ]]; then x; fi\n"
    yield "branches", "case aaaaaaaaaaaaaaaaaaaa in\n" + "".join(f"*{place}*) b ;;\n" for place in range(SIZE // 16))
    yield "branch", "case aaa in\n" + filled("a*|", after="b) c ;;\nesac\n")
    # words and quotes
    yield "options", filled("--a ", "torchrun ")
    yield "options with values", filled("--a b ", "torchrun --tensor-model-parallel-size 8 ")
    yield "quoted options", filled("'a --b' ", "torchrun ")
    yield "one word", filled("a")
    yield "one quote", filled("a", '"')
    yield "quotes", filled('"')
    yield "backslashes", filled("\\")
    yield "semicolons", filled(";")
    yield "comments", filled("#")
    yield "spaces", filled(" ")
    yield "lines", filled("\n")
    yield "zeros", filled("\0")
    yield "here-documents", filled("cat <<A\n")
    yield "here-documents within", "".join(f"cat <<A{place}\n" for place in range(SIZE // 16))
    yield "here-document of variables", f"A={'a' * 19_000}\ncat <<E\n" + filled("$A ") + "\nE\n"
    yield "arrays", filled("${a[@]} ", "torchrun --tensor-model-parallel-size 8 ")
    # YAML
    yield "blocks", "\n".join(" " * depth + "a: |" for depth in range(1_400))
    yield "anchors", "a0: &a0 [x,x]\n" + doubling("{new}: &{new} [*{old},*{old}]", 20_000)
    yield "keys", filled("a: b\n")
    yield "deep keys", "\n".join(" " * depth + "a:" for depth in range(1_400)) + " 1"
    yield "long keys", "a" * (SIZE // 2) + ":\n" + "  b: 1\n" * (SIZE // 20)
    yield "flow", filled("[", "a: ")
    yield "braces in YAML", filled("{", "a: ")
    yield "items", filled("- ", "a:\n")
    yield "item lines", filled("- --tp 8\n", "a:\n")
    yield "references", "".join(f"a{place}: ${{a{place + 1}}}\n" for place in range(SIZE // 25))
    yield "reference to itself", filled("a: ${a}\n")
    yield "defaults in YAML", filled("${A:8", "a: ")
    yield "point keys", filled("a.", after=": 1")
    # TOML
    yield "dotted keys", "[t]\n" + filled("a.", after="b = 1")
    yield "dotted table", filled("a.", "[t]\n[", "b]\n")
    yield "long number", "[t]\na = " + "9" * (SIZE - 20)
    yield "arrays in arrays", "[t]\na = " + "[" * (SIZE - 20)
    yield "tables in tables", filled("{a=", "[t]\na = ")
    yield "many tables", "".join(f"[t{place}]\na=1\n" for place in range(SIZE // 16))
    yield "many points", "[t]\n" + filled("a = 1.0\n")
    # JSON and logs
    yield "JSON arrays", "{" + '"a":' + "[" * (SIZE - 10)
    yield "JSON objects", filled('{"a":')
    yield (
        "JSON long keys",
        '{"' + "k" * (SIZE // 3) + '": {' + ", ".join(f'"a{n}": 1' for n in range(SIZE // 25)) + "}}",
    )
    yield "JSON number", '{"a": ' + "9" * (SIZE - 10) + "}"
    yield "JSON option", "vllm serve m --speculative-config '" + '{"a":' * (SIZE // 6)
    yield "dumped", filled("  " + "a" * 61 + " ... " + "b" * 500 + "c\n")
    yield "dumped spaces", filled(" " * 79 + "a\n")
    yield "dumped points", filled("  a_b " + "." * 61 + "\n")
    yield "engine", "ServerArgs(" + "a" * (SIZE - 20)
    yield "engine pairs", "ServerArgs(" + filled("a_b='")
    yield "engine spaces", "ServerArgs(" + filled("ab   ")
    yield "marks", filled("# xlperf: a = b\n")
    yield "long mark", "# xlperf: " + "a" * (SIZE - 20)
    yield "long model", "vllm serve " + "a-" * (SIZE // 2 - 10)
    yield "variant model", "vllm serve " + "fp8-" * (SIZE // 4 - 10)
    yield "long precision", "vllm serve m --quantization " + "a" * (SIZE - 40)
    yield "batch of sbatch", filled("#SBATCH --nodes=4\n")
    chosen = random.Random(36)
    for place in range(3):
        yield f"noise {place}", "".join(chosen.choices("${}()[]\"'|;:-=<>.,#*\\ \n\tabA10", k=SIZE))


def main() -> None:
    """Read every text; a line of JSON with name, processor seconds, lines of the error and memory so far."""
    from xlperf.base.errors import InputError
    from xlperf.catalog.catalog import load_catalog
    from xlperf.interop.launch import read_launch

    models = load_catalog().tables["models"]
    resource.setrlimit(resource.RLIMIT_CPU, (900, 900))
    for name, text in texts():
        start, shown = time.process_time(), []
        try:
            read_launch(text, "noise", given=GIVEN, models=models)
        except InputError as error:
            shown = error.lines()
        longest = max(map(len, shown), default=0)
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(json.dumps([name, time.process_time() - start, len(shown), longest, used]), flush=True)


if __name__ == "__main__":
    sys.exit(main())
