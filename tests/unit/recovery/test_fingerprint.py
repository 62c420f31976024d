"""One kind of failure has one fingerprint: on every machine, after every redeploy, for every customer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.recovery.fingerprint import fingerprint, normalise, safe_str, type_name


def raised(error: BaseException) -> BaseException:
    return caught(_raise, error)


def _raise(error: BaseException) -> None:
    raise error


def caught(function: Callable[..., object], *arguments: object) -> BaseException:
    """What the function raises; that it passed through here is not to be seen."""
    try:
        function(*arguments)
    except BaseException as error:
        return error.with_traceback(error.__traceback__ and error.__traceback__.tb_next)
    raise AssertionError("it did not fail")


def module(source: str, name: str = "shop.orders", file: str = "/srv/shop/orders.py", first_line: int = 1) -> Any:
    """A module made of that source, as if it had been imported from that file."""
    namespace: dict[str, Any] = {"__name__": name}
    exec(compile("\n" * (first_line - 1) + source, file, "exec"), namespace)
    return namespace


HANDLER = """
def load(key):
    return {}[key]

def handle(key):
    return load(key)
"""

ids = st.one_of(
    st.integers().map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(str),
    st.integers(0, 2**128).map("{:#x}".format),
    st.integers(2**32, 2**128).map("{:x}".format),
    st.uuids().map(str),
    st.datetimes().map(lambda at: at.isoformat()),
    st.emails(domains=st.just("example.com")).filter(lambda address: "'" not in address),
    st.text().map(lambda text: repr(text.replace("'", "").replace('"', ""))),
)


# Whoever meets the same failure again -----------------------------------------------------------------


@given(st.text(), st.text())
def test_what_an_error_says_does_not_matter_if_it_was_raised_somewhere(one: str, other: str) -> None:
    assert fingerprint(raised(ValueError(one))) == fingerprint(raised(ValueError(other)))


@given(ids, ids)
def test_of_an_error_that_was_never_raised_the_words_count_without_their_values(one: str, other: str) -> None:
    said = "order {} can't be shipped: is {} right?"

    assert fingerprint(ValueError(said.format(one, one))) == fingerprint(ValueError(said.format(other, other)))


def test_neither_lines_nor_paths_matter() -> None:
    here = module(HANDLER, file="/srv/shop/orders.py")
    there = module(HANDLER, file="C:\\shop\\releases\\2\\orders.py", first_line=300)

    assert fingerprint(caught(here["handle"], 1)) == fingerprint(caught(there["handle"], 2))


def test_how_deep_a_recursion_was_does_not_matter() -> None:
    def descend(depth: int) -> None:
        if not depth:
            raise ValueError
        descend(depth - 1)

    assert fingerprint(caught(descend, 2)) == fingerprint(caught(descend, 300))


def test_comprehensions_do_not_matter_since_newer_pythons_have_no_frames_for_them() -> None:
    source = "def check(row):\n    raise ValueError\n"
    plain = module(source + "def handle(rows):\n    for row in rows: check(row)\n")
    comprehended = module(source + "def handle(rows):\n    return [check(row) for row in rows]\n")

    assert fingerprint(caught(plain["handle"], [1])) == fingerprint(caught(comprehended["handle"], [1]))


def test_what_was_being_handled_when_it_happened_does_not_matter() -> None:
    def handle(context: BaseException | None) -> None:
        try:
            if context:
                raise context
        except BaseException:
            _raise(ValueError())
        _raise(ValueError())

    assert fingerprint(caught(handle, KeyError())) == fingerprint(caught(handle, None))


def test_the_machinery_on_the_way_does_not_matter() -> None:
    handle = module("async def handle():\n    raise ValueError\n")["handle"]

    alone = caught(handle().send, None)
    waited_for = caught(asyncio.run, asyncio.wait_for(handle(), 10))

    assert fingerprint(alone) == fingerprint(waited_for)


def test_the_order_of_a_groups_members_does_not_matter_nor_how_many_are_of_a_kind() -> None:
    a, b = raised(ValueError("a")), raised(KeyError("b"))

    assert fingerprint(BaseExceptionGroup("", [a, b])) == fingerprint(BaseExceptionGroup("", [b, a, b, a]))


# Whoever meets another one ------------------------------------------------------------------------------


def test_the_same_way_with_other_words_is_the_same_kind_and_with_another_cause_is_not() -> None:
    def handle(number: int, cause: Exception | None = None) -> None:
        raise ValueError(f"order {number}") from cause

    first = fingerprint(caught(handle, 1))

    assert fingerprint(caught(handle, 2)) == first
    assert fingerprint(caught(handle, 1, OSError())) != first


def test_more_kinds_than_are_remembered_keep_theirs() -> None:
    ways = [module(f"def f{number}():\n    raise ValueError")[f"f{number}"] for number in range(1_100)]

    once, again = ([fingerprint(caught(way)) for way in ways] for _ in range(2))

    assert len(set(once)) == len(ways)
    assert [*again] == once


def test_another_type_is_another_kind() -> None:
    assert fingerprint(raised(ValueError())) != fingerprint(raised(TypeError()))


def test_another_raise_site_is_another_kind() -> None:
    def elsewhere() -> None:
        raise ValueError

    assert fingerprint(caught(elsewhere)) != fingerprint(raised(ValueError()))


def test_another_caller_of_the_same_function_is_another_kind() -> None:
    def refund() -> None:
        _raise(ValueError())

    def charge() -> None:
        _raise(ValueError())

    assert fingerprint(caught(refund)) != fingerprint(caught(charge))


def test_a_caller_far_away_does_not_matter() -> None:
    source = "def f0(e):\n    raise e\n" + "".join(f"def f{n}(e):\n    f{n - 1}(e)\n" for n in range(1, 9))
    functions = module(source)

    assert fingerprint(caught(functions["f5"], ValueError())) == fingerprint(caught(functions["f8"], ValueError()))
    assert fingerprint(caught(functions["f2"], ValueError())) != fingerprint(caught(functions["f3"], ValueError()))


def test_the_same_function_of_another_module_is_another_kind() -> None:
    orders, invoices = module(HANDLER), module(HANDLER, name="shop.invoices")

    assert fingerprint(caught(orders["handle"], 1)) != fingerprint(caught(invoices["handle"], 1))


def test_a_wrapper_is_as_many_kinds_as_there_are_causes_behind_it() -> None:
    def handle(cause: BaseException) -> None:
        raise RuntimeError("it failed") from cause

    assert fingerprint(caught(handle, raised(KeyError(1)))) != fingerprint(caught(handle, raised(OSError(1))))
    assert fingerprint(caught(handle, raised(KeyError(1)))) == fingerprint(caught(handle, raised(KeyError(2))))


def test_a_group_with_another_member_is_another_kind() -> None:
    a, b = raised(ValueError("a")), raised(KeyError("b"))

    assert fingerprint(BaseExceptionGroup("", [a])) != fingerprint(BaseExceptionGroup("", [a, b]))


def test_other_words_of_an_error_that_was_never_raised_are_another_kind() -> None:
    assert fingerprint(ValueError("no customer 17")) != fingerprint(ValueError("no invoice 17"))


def test_an_error_that_only_the_machinery_has_seen_is_known_by_its_words() -> None:
    decode = module("def decode(error):\n    raise error\n", name="redrive.worker.codecs")["decode"]

    assert fingerprint(caught(decode, ValueError("Expected `int`, got `str` - at `$.amount`"))) != fingerprint(
        caught(decode, ValueError("Expected `int`, got `str` - at `$.customer`"))
    )
    assert fingerprint(caught(decode, ValueError("line 1 column 5"))) == fingerprint(
        caught(decode, ValueError("line 20 column 33"))
    )


# Values -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("order 17", "order #"),
        ("order -17", "order #"),
        ("order-17", "order-#"),
        ("took 3.5 of 1e-05 s", "took # of # s"),
        ("rows 1, 2, 3", "rows #"),
        ("no rows, none", "no rows, none"),
        ("at 0x7f3a10", "at #"),
        ("commit deadbeef, face", "commit #, face"),
        ("id 0b7e3f9c-aaaa-bbbb-cccc-ddddeeeeffff gone", "id # gone"),
        ("until 2024-01-01T10:00:00.5+02:00", "until #"),
        ("connect 10.0.0.1:5432 failed", "connect # failed"),
        ("no user 'ann'", "no user #"),
        ('no user "ann b."', "no user #"),
        ("can't find 'it' or b'that'", "can't find # or #"),
        ("'O'Brien' is 'late'", "# is #"),
        ("ann.b+c@example.co.uk, please", "#, please"),
        ("row A12, sku 7X", "row #, sku #"),
        ("unmatched 'quote", "unmatched 'quote"),
        ("missing `amount`", "missing `amount`"),
        ("", ""),
    ],
)
def test_values_are_taken_out_of_words(text: str, kind: str) -> None:
    assert normalise(text) == kind


@given(st.text(max_size=1000))
def test_normal_words_are_never_longer_than_they_may_be(text: str) -> None:
    assert len(normalise(text)) <= 200


# Errors that mean harm ----------------------------------------------------------------------------------


class Mute(Exception):
    def __str__(self) -> str:
        raise SystemExit("no comment")


class Hidden(Exception):
    @property
    def __cause__(self) -> BaseException | None:  # type: ignore[override]
        raise RuntimeError("mine")


class Nameless(type):
    def __getattribute__(cls, name: str) -> Any:
        if name == "__qualname__":
            raise RuntimeError("mine")
        return super().__getattribute__(name)


class Unnamed(Exception, metaclass=Nameless):
    pass


class Loud(str):
    __slots__ = ()

    def __getitem__(self, _: object) -> str:
        return "x" * 10**6


class Shouting(Exception):
    def __str__(self) -> str:
        return Loud("quiet")


def _in_circles() -> BaseException:
    a, b = ValueError("a"), KeyError("b")
    a.__cause__, b.__cause__ = b, a
    return a


def _contains_itself() -> BaseException:
    error = ValueError()
    error.args = (error,)
    return error


HOSTILE: dict[str, Callable[[], BaseException]] = {
    "text that raises": Mute,
    "a cause that raises": Hidden,
    "a name that raises": Unnamed,
    "text that is no plain text": Shouting,
    "causes in circles": _in_circles,
    "an error that contains itself": _contains_itself,
    "a thousand members": lambda: ExceptionGroup("many", [ValueError(number) for number in range(10_000)]),
    "ten megabytes": lambda: ValueError("x" * 10**7),
    "a number too long to print": lambda: ValueError(10**5000),
    "half a surrogate pair": lambda: ValueError("\ud800 \udcff \0"),
}
hostile = pytest.mark.parametrize("make", HOSTILE.values(), ids=HOSTILE)


@hostile
def test_every_error_has_a_fingerprint_of_twelve_hex_digits(make: Callable[[], BaseException]) -> None:
    for error in (make(), raised(make())):
        mark = fingerprint(error)
        assert len(mark) == 12
        assert set(mark) <= set("0123456789abcdef")


@hostile
def test_every_error_has_a_name_and_words_that_can_be_encoded(make: Callable[[], BaseException]) -> None:
    error = make()
    assert 0 < len(type_name(error).encode()) <= 800
    assert len(safe_str(error)) <= 1000
    safe_str(error).encode()


@pytest.mark.parametrize(
    ("error", "name"),
    [(ValueError(), "ValueError"), (Mute(), f"{__name__}.Mute"), (Unnamed(), "an error without a name")],
)
def test_a_type_is_named_with_its_module_unless_everybody_knows_it(error: BaseException, name: str) -> None:
    assert type_name(error) == name


def test_an_error_that_cannot_talk_is_told_so() -> None:
    assert safe_str(Mute()) == "(its text could not be had: SystemExit)"
