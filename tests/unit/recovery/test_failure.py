"""A failure is told whole while it is small, cut where it is not, and never fails itself."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from redrive.recovery.failure import MOST_STACK, Failure, describe, stack_of
from redrive.recovery.fingerprint import fingerprint

NOW = datetime(2024, 5, 17, 12, 30, tzinfo=UTC)


def caught(function: Callable[..., object], *arguments: object) -> BaseException:
    try:
        function(*arguments)
    except BaseException as error:
        return error
    raise AssertionError("it did not fail")


def _raise(error: BaseException) -> None:
    raise error


def _wrap(error: BaseException, cause: BaseException) -> None:
    raise error from cause


# A failure ----------------------------------------------------------------------------------------------


def test_a_failure_says_what_was_raised_and_when() -> None:
    error = caught(int, "seven")

    failure = describe(error, NOW)

    assert failure == Failure(
        error_type="ValueError",
        message="invalid literal for int() with base 10: 'seven'",
        stack=stack_of(error),
        fingerprint=fingerprint(error),
        at=NOW,
    )


def test_a_failure_holds_on_to_nothing_of_the_error() -> None:
    failure = describe(caught(_raise, ValueError()), NOW)

    assert {type(getattr(failure, name)) for name in Failure.__slots__} == {str, datetime}


def test_a_message_of_more_than_a_thousand_characters_is_cut() -> None:
    assert describe(ValueError("x" * 1000), NOW).message == "x" * 1000
    assert describe(ValueError("x" * 1001), NOW).message == "x" * 999 + "…"


# The stack ----------------------------------------------------------------------------------------------


def test_the_stack_leads_from_the_handler_to_the_raise() -> None:
    lines = stack_of(caught(_raise, KeyError("k"))).splitlines()

    assert lines[0] == "Traceback (most recent call last):"
    assert [line.rpartition(" in ")[2] for line in lines[1:-1]] == ["caught", "_raise"]
    assert lines[2].startswith(f'  File "{__file__}", line ')
    assert lines[-1] == "KeyError: 'k'"


def test_an_error_that_was_never_raised_has_no_frames() -> None:
    assert stack_of(ValueError("x")) == "ValueError: x\n"
    assert stack_of(ValueError()) == "ValueError\n"


def test_causes_are_told_first() -> None:
    stack = stack_of(caught(_wrap, RuntimeError("top"), KeyError("root")))

    assert stack.index("KeyError: 'root'") < stack.index("was the direct cause") < stack.index("RuntimeError: top")


def test_what_was_being_handled_is_told_unless_the_handler_said_that_it_does_not_matter() -> None:
    def handle(suppress: bool) -> None:
        try:
            raise KeyError("first")
        except KeyError:
            if suppress:
                raise ValueError("second") from None
            raise ValueError("second")  # noqa: B904

    assert "During handling of the above exception" in stack_of(caught(handle, False))
    assert "first" not in stack_of(caught(handle, True))


def test_causes_in_circles_are_told_once() -> None:
    a, b = ValueError("a"), KeyError("b")
    a.__cause__, b.__cause__ = b, a

    stack = stack_of(a)

    assert stack.startswith("(ValueError: told elsewhere)\n")
    assert stack.count("ValueError: a\n") == stack.count("KeyError: 'b'\n") == 1


def test_of_a_long_chain_of_causes_the_nearest_are_told() -> None:
    error: BaseException = ValueError("root")
    for number in range(5000):
        error = caught(_wrap, RuntimeError(number), error)

    stack = stack_of(error)

    assert stack.startswith("(RuntimeError: and more, left out)\n")
    assert stack.endswith("RuntimeError: 4999\n")


def test_members_of_a_group_are_told() -> None:
    stack = stack_of(ExceptionGroup("both", [caught(_raise, ValueError("a")), KeyError("b")]))  # type: ignore[list-item]

    assert stack.index("ExceptionGroup: both (2 sub-exceptions)") < stack.index("Member 1 of 2:\nTraceback")
    assert stack.index("ValueError: a") < stack.index("Member 2 of 2:\nKeyError: 'b'")


def test_of_thousands_of_members_the_first_are_told_and_the_others_counted() -> None:
    stack = stack_of(ExceptionGroup("many", [ValueError(number) for number in range(10_000)]))

    assert "Member 5 of 10000:\nValueError: 4\n" in stack
    assert "ValueError: 5\n" not in stack
    assert "... and 9995 more members ..." in stack


def test_groups_within_groups_are_told_up_to_a_number_of_errors() -> None:
    group = ExceptionGroup("leaf", [ValueError(number) for number in range(9)])
    for _ in range(50):
        group = ExceptionGroup("node", [group] * 9)

    assert stack_of(group).count("ExceptionGroup: node") <= 10


def test_a_recursion_is_folded() -> None:
    def descend(depth: int) -> None:
        if depth:
            descend(depth - 1)
        raise ValueError

    stack = stack_of(caught(descend, 15))

    assert stack.count("descend") == 3 + 1
    assert "  [the same 12 more times]\n" in stack


def test_of_endless_recursion_both_ends_are_told() -> None:
    def descend() -> None:
        ascend()

    def ascend() -> None:
        descend()

    error = caught(descend)
    assert isinstance(error, RecursionError)

    stack = stack_of(error)

    assert stack.splitlines()[1].endswith(" in caught")
    assert " frames left out ..." in stack
    assert stack.splitlines()[-1] == "RecursionError: maximum recursion depth exceeded"
    assert len(stack) < MOST_STACK


def test_notes_are_told() -> None:
    error = ValueError("x")
    for note in ("order 17", "customer 4"):
        error.add_note(note)

    assert stack_of(error) == "ValueError: x\norder 17\ncustomer 4\n"


def test_notes_that_are_none_are_not() -> None:
    error = ValueError("x")
    error.__notes__ = "odd"  # type: ignore[assignment]

    assert stack_of(error) == "ValueError: x\n"


def test_a_stack_that_is_too_long_keeps_both_ends() -> None:
    source = "".join(f"def {'f' * 300}{n}():\n    {'f' * 300}{n - 1}()\n" for n in range(1, 40))
    functions: dict[str, Callable[[], None]] = {}
    exec(f"def {'f' * 300}0():\n    raise ValueError('the end')\n" + source, functions)

    stack = stack_of(caught(functions["f" * 300 + "39"]))

    assert len(stack) <= MOST_STACK
    assert stack.splitlines()[1].endswith(" in caught")
    assert stack.endswith(f" in {'f' * 300}0\nValueError: the end\n")
    assert stack.count(" bytes cut ...\n") == 1


# Errors that mean harm ----------------------------------------------------------------------------------


class Mute(Exception):
    def __str__(self) -> str:
        raise SystemExit("no comment")

    __repr__ = __str__


class Hidden(Exception):
    @property
    def __cause__(self) -> BaseException | None:  # type: ignore[override]
        raise RuntimeError("mine")


class NoText(Exception):
    def __str__(self) -> str:
        return self.args[0]  # type: ignore[no-any-return]


class Shy(Exception):
    def __getattribute__(self, name: str) -> object:
        raise KeyboardInterrupt


def _raised_by_odd_code() -> BaseException:
    code = compile("raise ValueError", "odd", "exec")
    odd = code.replace(co_filename="\0" * 10**6, co_name="\x1b[2J" * 10**5, co_qualname="\ud800")
    return caught(exec, odd, {"__name__": Mute()})


HOSTILE: dict[str, Callable[[], BaseException]] = {
    "text that raises": Mute,
    "a cause that raises": Hidden,
    "text that is no text": lambda: NoText(17),
    "attributes that raise": Shy,
    "a cause without text": lambda: caught(_wrap, ValueError(), Mute()),
    "members without text": lambda: BaseExceptionGroup("", [Mute(), Hidden(), Shy()]),
    "ten megabytes": lambda: ValueError("x" * 10**7),
    "a thousand lines": lambda: ValueError("x\n" * 10**6),
    "half a surrogate pair": lambda: caught(_raise, ValueError("\ud800 \udcff \0")),
    "odd code": _raised_by_odd_code,
    "one of the system's": lambda: SystemExit(3),
}


@pytest.mark.parametrize("make", HOSTILE.values(), ids=HOSTILE)
def test_every_error_can_be_described_in_bounds(make: Callable[[], BaseException]) -> None:
    failure = describe(make(), NOW)

    assert failure.error_type
    assert len(failure.fingerprint) == 12
    assert len(failure.error_type) <= 200
    assert len(failure.message) <= 1000
    assert len(failure.stack.encode()) <= MOST_STACK
    for text in (failure.error_type, failure.message, failure.stack):
        text.encode()
        assert "\0" not in text
        assert "\x1b" not in text
