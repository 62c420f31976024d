"""What each type of exchange matches, and how bindings are kept. Destinations are names here."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pytest

from redrive.broker.dialect import DIALECTS, Dialect
from redrive.broker.exchanges import MATCHERS, Bindings, Direct, Fanout, Headers, InvalidBinding, Topic
from redrive.wire.values import FieldValue, Table

OLD, NEW = DIALECTS["3.10"], DIALECTS["4.3"]
NEW_YEAR = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
NEW_YEAR_IN_SECONDS = 1_704_067_200


@pytest.fixture(params=MATCHERS)
def matcher(request: pytest.FixtureRequest) -> Bindings[str]:
    """One of each type; without arguments each matches the key "key" by a binding of that key."""
    return MATCHERS[request.param]()


def found(matcher: Bindings[str], key: str = "key", headers: Table | None = None) -> list[str]:
    return sorted(matcher.match(key, headers or {}))


# Bindings, the same for every type ------------------------------------------------------------------


def test_a_new_exchange_matches_nothing(matcher: Bindings[str]) -> None:
    assert found(matcher) == []
    assert len(matcher) == 0


def test_what_is_bound_is_found(matcher: Bindings[str]) -> None:
    assert matcher.bind("q", "key", {})

    assert found(matcher) == ["q"]
    assert list(matcher.bindings()) == [("q", "key", {})]


def test_to_bind_again_is_to_do_nothing(matcher: Bindings[str]) -> None:
    matcher.bind("q", "key", {"a": 1})

    assert not matcher.bind("q", "key", {"a": 1})
    assert len(matcher) == 1


def test_an_exchange_leads_somewhere_as_long_as_there_is_a_binding(matcher: Bindings[str]) -> None:
    matcher.bind("q", "key", {})
    matcher.bind("q", "other", {})

    matcher.unbind("q", "key", {})
    assert matcher.leads_to("q")

    matcher.unbind("q", "other", {})
    assert not matcher.leads_to("q")


@pytest.mark.parametrize("other", [{}, {"a": True}, {"a": 1.0}, {"a": "1"}, {"a": 1, "b": 1}, {"b": 1}], ids=str)
def test_bindings_with_other_arguments_are_others(matcher: Bindings[str], other: Table) -> None:
    matcher.bind("q", "key", {"a": 1})

    assert not matcher.unbind("q", "key", other)
    assert matcher.bind("q", "key", other)
    assert len(matcher) == 2


def test_the_order_of_arguments_does_not_matter(matcher: Bindings[str]) -> None:
    matcher.bind("q", "key", {"a": 1, "b": 2})

    assert matcher.unbind("q", "key", {"b": 2, "a": 1})


def test_a_destination_bound_in_several_ways_gets_a_message_once(matcher: Bindings[str]) -> None:
    matcher.bind("q", "key", {})
    matcher.bind("q", "key", {"x-other": 1})

    assert list(matcher.match("key", {})) == ["q"]


def test_a_destination_gets_messages_until_its_last_binding_is_gone(matcher: Bindings[str]) -> None:
    matcher.bind("q", "key", {})
    matcher.bind("q", "key", {"x-other": 1})

    assert matcher.unbind("q", "key", {})
    assert found(matcher) == ["q"]
    assert matcher.unbind("q", "key", {"x-other": 1})
    assert found(matcher) == []


def test_to_unbind_what_is_not_bound_is_to_do_nothing(matcher: Bindings[str]) -> None:
    matcher.bind("q", "key", {})

    assert not matcher.unbind("other", "key", {})
    assert not matcher.unbind("q", "other", {})
    assert found(matcher) == ["q"]


def test_a_destination_that_is_dropped_loses_all_its_bindings_and_no_others(matcher: Bindings[str]) -> None:
    matcher.bind("q", "key", {})
    matcher.bind("q", "second", {"x-other": 1})
    matcher.bind("other", "key", {})

    assert matcher.drop("q")
    assert not matcher.drop("q")
    assert found(matcher) == ["other"]
    assert list(matcher.bindings()) == [("other", "key", {})]
    assert len(matcher) == 1


def test_what_was_found_stays_as_it_was_when_bindings_change(matcher: Bindings[str]) -> None:
    matcher.bind("q", "key", {})
    answer = matcher.match("key", {})

    matcher.drop("q")

    assert list(answer) == ["q"]


def test_a_matcher_introduces_itself() -> None:
    topic: Topic[str] = Topic()
    topic.bind("q", "a", {})
    topic.bind("q", "b", {})

    assert repr(topic) == "<Topic bindings=2 destinations=1>"


def test_only_a_headers_exchange_needs_headers() -> None:
    assert [kind for kind, matcher in MATCHERS.items() if matcher.needs_headers] == ["headers"]


# direct and fanout ----------------------------------------------------------------------------------


def test_direct_wants_the_very_key() -> None:
    direct: Direct[str] = Direct()
    direct.bind("q", "a.*", {})
    direct.bind("empty", "", {})

    assert found(direct, "a.*") == ["q"]
    assert found(direct, "a.b") == []
    assert found(direct, "") == ["empty"]


def test_fanout_takes_any_key() -> None:
    fanout: Fanout[str] = Fanout()
    fanout.bind("one", "a", {})
    fanout.bind("two", "b", {})

    assert found(fanout, "c") == ["one", "two"]


# topic ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "fitting", "others"),
    [
        ("a.b", ["a.b"], ["a", "a.b.c", "a.c", "", "A.b"]),
        ("*", ["a", "*", "#"], ["", "a.b", "."]),
        ("#", ["", "a", "a.b", ".", "a..b"], []),
        ("a.*", ["a.b", "a."], ["a", "a.b.c"]),
        ("*.a", ["b.a", ".a"], ["a"]),
        ("a.#", ["a", "a.b", "a.b.c", "a."], ["", "b.a"]),
        ("#.a", ["a", "b.a", "c.b.a", ".a"], ["a.b", ""]),
        ("a.#.b", ["a.b", "a.x.b", "a.b.b", "a..b"], ["a", "b", "a.b.c"]),
        ("#.a.#", ["a", "b.a", "a.b", "b.a.b"], ["", "b"]),
        ("#.#", ["", "a", "a.b"], []),
        ("*.#", ["a", "a.b", "."], [""]),
        ("#.*", ["a", "a.b", "."], [""]),
        ("#.*.#", ["a", "a.b.c"], [""]),
        ("", [""], ["a", "."]),
        (".", ["."], ["", "a.", ".a"]),
        ("*.*", ["a.b", ".", "a."], ["a", "a.b.c"]),
        ("a..b", ["a..b"], ["a.b", "a.x.b"]),
        ("a*", ["a*"], ["ab", "a"]),
        ("a#.b", ["a#.b"], ["a.b"]),
    ],
)
def test_a_pattern_fits_these_keys_and_not_those(pattern: str, fitting: list[str], others: list[str]) -> None:
    topic: Topic[str] = Topic()
    topic.bind("q", pattern, {})

    assert [key for key in [*fitting, *others] if found(topic, key)] == fitting


def test_a_destination_reached_by_several_patterns_is_found_once() -> None:
    topic: Topic[str] = Topic()
    for pattern in ("a.b", "a.*", "*.b", "#", "a.#", "#.b"):
        topic.bind("q", pattern, {})

    assert list(topic.match("a.b", {})) == ["q"]


def test_a_pattern_that_goes_leaves_the_longer_and_shorter_ones() -> None:
    topic: Topic[str] = Topic()
    for queue, pattern in (("short", "a.b"), ("middle", "a.b.c"), ("long", "a.b.c.d")):
        topic.bind(queue, pattern, {})

    topic.unbind("middle", "a.b.c", {})

    assert [found(topic, key) for key in ("a.b", "a.b.c", "a.b.c.d")] == [["short"], [], ["long"]]


def test_since_4_3_a_pattern_has_at_most_two_hashes() -> None:
    topic: Topic[str] = Topic(NEW)
    topic.bind("q", "#.a.#", {})

    with pytest.raises(
        InvalidBinding, match=r"Topic binding key '#\.a\.#\.b\.#' uses 3 '#' wildcards, at most 2 are allowed"
    ):
        topic.bind("q", "#.a.#.b.#", {})
    assert len(topic) == 1


def test_before_4_3_it_has_as_many_as_it_likes_and_costs_no_more_for_it() -> None:
    topic: Topic[str] = Topic(OLD)
    topic.bind("q", ".".join(["#", "a"] * 30), {})

    assert found(topic, ".".join("a" * 60)) == ["q"]
    assert found(topic, ".".join("a" * 60) + ".b") == []


# headers --------------------------------------------------------------------------------------------


def headers_match(arguments: Table, headers: Table, dialect: Dialect = NEW) -> bool:
    exchange: Headers[str] = Headers(dialect)
    exchange.bind("q", "", arguments)
    return found(exchange, "", headers) == ["q"]


@pytest.mark.parametrize(
    ("mode", "none", "some", "every"),
    [(None, False, False, True), ("all", False, False, True), ("any", False, True, True)],
)
def test_all_wants_every_header_and_any_wants_one(mode: str | None, none: bool, some: bool, every: bool) -> None:
    arguments: dict[str, FieldValue] = {"a": 1, "b": "two", **({} if mode is None else {"x-match": mode})}

    assert headers_match(arguments, {"c": 1, "a": 2}) == none
    assert headers_match(arguments, {"a": 1, "b": "three"}) == some
    assert headers_match(arguments, {"a": 1, "b": "two", "c": 3}) == every


@pytest.mark.parametrize(
    ("mode", "expected"), [("all", True), ("all-with-x", True), ("any", False), ("any-with-x", False)]
)
def test_to_want_nothing_is_to_match_everything_with_all_and_nothing_with_any(mode: str, expected: bool) -> None:
    assert headers_match({"x-match": mode}, {"a": 1}) == expected
    assert headers_match({"x-match": mode}, {}) == expected


@pytest.mark.parametrize(
    ("mode", "without", "having"),
    [("all", True, True), ("any", False, False), ("all-with-x", False, True), ("any-with-x", False, True)],
)
def test_headers_with_x_count_only_when_asked_for(mode: str, without: bool, having: bool) -> None:
    arguments: Table = {"x-match": mode, "x-matches": 1}

    assert headers_match(arguments, {}) == without
    assert headers_match(arguments, {"x-matches": 1, "x-match": mode}) == having


@pytest.mark.parametrize("value", ["x", 0, False, None, "", [], {}], ids=repr)
@pytest.mark.parametrize("mode", ["all", "any"])
def test_an_argument_without_a_value_wants_the_header_to_be_there(mode: str, value: FieldValue) -> None:
    assert headers_match({"x-match": mode, "a": None}, {"a": value})
    assert not headers_match({"x-match": mode, "a": None}, {"b": value})


EQUAL: list[tuple[FieldValue, FieldValue]] = [
    (1, 1),
    (1 << 40, 1 << 40),
    ("a", b"a"),
    (b"a", "a"),
    ("ä", "ä".encode()),
    (bytearray(b"a"), "a"),
    (True, True),
    (1.5, 1.5),
    (Decimal("1.0"), Decimal("1.0")),
    ([1, "a", [None]], [1, "a", [None]]),
    ({"a": 1, "b": {"c": 2}}, {"a": 1, "b": {"c": 2}}),
    (NEW_YEAR, NEW_YEAR_IN_SECONDS),
]
DIFFERENT: list[tuple[FieldValue, FieldValue]] = [
    (1, 2),
    (1, "1"),
    (1, True),
    (0, False),
    (True, 1),
    ("true", True),
    ("undefined", None),
    ("a", "A"),
    ("", None),
    (Decimal("1.0"), Decimal("1.00")),
    (Decimal("1"), 1),
    ([1], [1.0]),
    ([1], [True]),
    (["a"], [b"a"]),
    ([1, 2], [2, 1]),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    ({}, "x"),
]


@pytest.mark.parametrize("dialect", [OLD, NEW], ids=["3.10", "4.3"])
@pytest.mark.parametrize(("wanted", "value"), EQUAL)
def test_values_match_when_erlang_finds_them_equal(wanted: FieldValue, value: FieldValue, dialect: Dialect) -> None:
    assert headers_match({"a": wanted}, {"a": value}, dialect)


@pytest.mark.parametrize("dialect", [OLD, NEW], ids=["3.10", "4.3"])
@pytest.mark.parametrize(("wanted", "value"), DIFFERENT)
def test_other_values_do_not_match(wanted: FieldValue, value: FieldValue, dialect: Dialect) -> None:
    assert not headers_match({"a": wanted}, {"a": value}, dialect)


@pytest.mark.parametrize(("wanted", "value"), [(1, 1.0), (1.0, 1), (0.0, -0.0), (0, -0.0)])
def test_whole_numbers_and_floats_are_equal_in_3_10_only(wanted: FieldValue, value: FieldValue) -> None:
    assert headers_match({"a": wanted}, {"a": value}, OLD)
    assert not headers_match({"a": wanted}, {"a": value}, NEW)


def test_a_timestamp_matches_its_seconds_in_3_10_and_its_milliseconds_since() -> None:
    for wanted, old, new in (
        (NEW_YEAR, True, False),
        (NEW_YEAR_IN_SECONDS, True, False),
        (NEW_YEAR_IN_SECONDS * 1000, False, True),
    ):
        assert headers_match({"a": wanted}, {"a": NEW_YEAR}, OLD) == old
        assert headers_match({"a": wanted}, {"a": NEW_YEAR}, NEW) == new


WRONG: list[tuple[FieldValue, str]] = [
    ("foo", 'value <<"foo">>'),
    ("", "value <<>>"),
    ('a"b\n', r'value <<"a\"b\n">>'),
    ("schön", 'value <<"schön"/utf8>>'),
    ("\x01", "value <<1>>"),
    (1, "type signedint (value 1)"),
    (1 << 40, "type long (value 1099511627776)"),
    (None, "type void (value undefined)"),
    (True, "type bool (value true)"),
    (False, "type bool (value false)"),
    (1.5, "type double (value 1.5)"),
    (b"all", 'type binary (value <<"all">>)'),
    (b"\xff\x00", "type binary (value <<255,0>>)"),
    (NEW_YEAR, "type timestamp (value 1704067200)"),
    (Decimal("1.25"), "type decimal (value {2,125})"),
    (["all"], 'type array (value [{longstr,<<"all">>}])'),
    ({"a": 1}, 'type table (value [{<<"a">>,signedint,1}])'),
]


@pytest.mark.parametrize(("mode", "what"), WRONG)
def test_an_unknown_x_match_is_refused_in_the_words_of_rabbitmq(mode: FieldValue, what: str) -> None:
    exchange: Headers[str] = Headers()

    with pytest.raises(InvalidBinding) as refused:
        exchange.bind("q", "", {"x-match": mode})

    expected = "all, any, all-with-x, or any-with-x" if what.startswith("value") else "longstr"
    assert str(refused.value) == f"Invalid x-match field {what}; expected {expected}"
    assert not len(exchange)


def test_a_destination_with_several_wishes_needs_one_of_them_granted() -> None:
    exchange: Headers[str] = Headers()
    exchange.bind("q", "", {"a": 1})
    exchange.bind("q", "", {"x-match": "any", "b": 1, "c": None})
    exchange.bind("other", "", {"a": 2})

    assert found(exchange, "", {"a": 1, "b": 1, "c": 1}) == ["q"]
    assert found(exchange, "", {"c": 5}) == ["q"]
    assert found(exchange, "", {"a": 2}) == ["other"]
    exchange.unbind("q", "", {"x-match": "any", "b": 1, "c": None})
    assert found(exchange, "", {"c": 5}) == []
    assert found(exchange, "", {"a": 1}) == ["q"]
