"""Execute blocks of Python one after the other in one namespace, in a process of the page's own.

Asked by lines of JSON on stdin, it answers by lines of JSON on stdout: what the code printed, and its traceback if it
failed. As in a notebook, `await` may stand outside of functions.
"""

from __future__ import annotations

import ast
import asyncio
import importlib
import inspect
import io
import json
import linecache
import os
import sys
import traceback
import warnings
from contextlib import redirect_stderr, redirect_stdout
from typing import Any


class Interpreter:
    def __init__(self) -> None:
        self.namespace: dict[str, Any] = {"__name__": "__page__"}
        self.runner = asyncio.Runner()

    def execute(self, text: str, where: str) -> None:
        linecache.cache[where] = (len(text), None, text.splitlines(keepends=True), where)
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        tree = ast.parse(text, where)
        if tree.body and isinstance(last := tree.body[-1], ast.Expr):  # its value is `_`, as at Python's own prompt
            tree.body[-1] = ast.copy_location(ast.Assign([ast.Name("_", ast.Store())], last.value), last)
            ast.fix_missing_locations(tree)
        code = compile(tree, where, "exec", flags=flags, dont_inherit=True)
        if code.co_flags & inspect.CO_COROUTINE:
            self.runner.run(eval(code, self.namespace))
        else:
            exec(code, self.namespace)

    def load(self, module: str) -> None:
        """Import a file that the page has just written, anew if it was there before."""
        sys.modules.pop(module, None)
        importlib.invalidate_caches()
        importlib.import_module(module)


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what the code does not print, but writes
    os.dup2(1, 2)
    sys.path[0] = ""
    warnings.simplefilter("error", DeprecationWarning)
    interpreter = Interpreter()
    for line in sys.stdin:
        question = json.loads(line)
        printed, failure = io.StringIO(), None
        with redirect_stdout(printed), redirect_stderr(printed):
            try:
                getattr(interpreter, question.pop("do"))(**question)
            except BaseException:
                failure = traceback.format_exc()
        print(json.dumps({"printed": printed.getvalue(), "failure": failure}), file=answers, flush=True)


if __name__ == "__main__":
    main()
