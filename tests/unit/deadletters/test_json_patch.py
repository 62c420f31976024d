"""JSON Patch: every operation as RFC 6902 has it, all or nothing, and numbers as they were written."""

from __future__ import annotations

import copy
import json
import pickle
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.deadletters.json_patch import (
    Json,
    JsonPatch,
    Number,
    PatchStep,
    is_equal,
    parse_pointer,
    read_json,
    write_json,
)
from redrive.errors import NotJson, PatchError


def patched(document: str, *steps: dict[str, Any]) -> str:
    return JsonPatch.parse(json.dumps(steps)).apply_to(document.encode()).decode()


def step(op: str, path: str, **other: Any) -> dict[str, Any]:
    return {"op": op, "path": path, **other}


# The cases of RFC 6902, appendix A --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("document", "steps", "wanted"),
    [
        pytest.param('{"a":"x"}', [step("add", "/b", value="y")], '{"a":"x","b":"y"}', id="A.1 add a member"),
        pytest.param('{"a":[1,3]}', [step("add", "/a/1", value=2)], '{"a":[1,2,3]}', id="A.2 add an element"),
        pytest.param('{"a":1,"b":2}', [step("remove", "/b")], '{"a":1}', id="A.3 remove a member"),
        pytest.param('{"a":[1,2,3]}', [step("remove", "/a/1")], '{"a":[1,3]}', id="A.4 remove an element"),
        pytest.param('{"a":1,"b":2}', [step("replace", "/a", value=9)], '{"a":9,"b":2}', id="A.5 replace"),
        pytest.param(
            '{"a":{"x":1,"y":2},"b":{"z":3}}',
            [step("move", "/b/y", **{"from": "/a/y"})],
            '{"a":{"x":1},"b":{"z":3,"y":2}}',
            id="A.6 move a value",
        ),
        pytest.param(
            '{"a":["w","x","y","z"]}',
            [step("move", "/a/3", **{"from": "/a/1"})],
            '{"a":["w","y","z","x"]}',
            id="A.7 move an element",
        ),
        pytest.param(
            '{"a":"x","b":["p",2,"q"]}',
            [step("test", "/a", value="x"), step("test", "/b/1", value=2)],
            '{"a":"x","b":["p",2,"q"]}',
            id="A.8 a test that succeeds",
        ),
        pytest.param(
            '{"a":1}', [step("add", "/b", value={"c": {}})], '{"a":1,"b":{"c":{}}}', id="A.10 add a nested object"
        ),
        pytest.param(
            '{"a":1}', [step("add", "/b", value=2, unheard="of")], '{"a":1,"b":2}', id="A.11 others are ignored"
        ),
        pytest.param(
            '{"/":9,"~1":10}', [step("test", "/~01", value=10)], '{"/":9,"~1":10}', id="A.14 the order of escapes"
        ),
        pytest.param('{"a":[1]}', [step("add", "/a/-", value=[2, 3])], '{"a":[1,[2,3]]}', id="A.16 add at the end"),
    ],
)
def test_the_examples_of_the_rfc(document: str, steps: list[dict[str, Any]], wanted: str) -> None:
    assert patched(document, *steps) == wanted


@pytest.mark.parametrize(
    ("document", "steps", "problem"),
    [
        pytest.param('{"a":"x"}', [step("test", "/a", value="y")], r"the test failed \(", id="A.9 a test fails"),
        pytest.param('{"a":1}', [step("add", "/b/c", value=2)], "the document has no 'b'", id="A.12 no parent"),
        pytest.param(
            '{"~1":10}', [step("test", "/~01", value="10")], "it is a number, not text", id="A.15 text, no number"
        ),
    ],
)
def test_the_failures_of_the_rfc(document: str, steps: list[dict[str, Any]], problem: str) -> None:
    with pytest.raises(PatchError, match=problem):
        patched(document, *steps)


def test_an_operation_with_two_ops_is_refused() -> None:  # A.13
    with pytest.raises(PatchError, match="the key 'op' stands twice"):
        JsonPatch.parse('[{"op":"add","path":"/b","value":1,"op":"remove"}]')


# More of it ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("document", "steps", "wanted"),
    [
        ('{"a":1}', [step("replace", "", value=[1])], "[1]"),
        ('{"a":1}', [step("add", "", value=None)], "null"),
        ("[]", [step("add", "/-", value=1), step("add", "/0", value=0)], "[0,1]"),
        ('{"":{"":1}}', [step("replace", "//", value=2)], '{"":{"":2}}'),
        ('{"a/b":1,"m~n":2}', [step("remove", "/a~1b"), step("remove", "/m~0n")], "{}"),
        ('{"a":1}', [step("add", "/a", value=2)], '{"a":2}'),
        ('{"a":{"b":1}}', [step("copy", "/a/c", **{"from": "/a"})], '{"a":{"b":1,"c":{"b":1}}}'),
        ('{"a":{"b":1}}', [step("copy", "/c", **{"from": "/a"}), step("remove", "/a/b")], '{"a":{},"c":{"b":1}}'),
        ('{"a":1}', [step("move", "/a", **{"from": "/a"})], '{"a":1}'),
        ('{"a":1}', [step("move", "", **{"from": ""})], '{"a":1}'),
        ('{"a":{"b":1}}', [step("move", "", **{"from": "/a"})], '{"b":1}'),
        ('{"a":null}', [step("test", "/a", value=None), step("remove", "/a")], "{}"),
        ('{"a":[1]}', [step("move", "/a/-", **{"from": "/a/0"})], '{"a":[1]}'),
        ('{"a":[1,[{"b":1}],3]}', [step("replace", "/a/1/0/b", value=2)], '{"a":[1,[{"b":2}],3]}'),
    ],
)
def test_corners(document: str, steps: list[dict[str, Any]], wanted: str) -> None:
    assert patched(document, *steps) == wanted


@pytest.mark.parametrize(
    ("document", "one", "problem"),
    [
        ('{"a":[1]}', step("add", "/a/2", value=1), "'/a' has no place 2: the last is 1"),
        ('{"a":[1]}', step("replace", "/a/1", value=1), "has no place 1: the last is 0"),
        ('{"a":[]}', step("remove", "/a/0"), "'/a' is empty"),
        ('{"a":[1]}', step("remove", "/a/-"), "there is nothing yet"),
        ('{"a":[1]}', step("add", "/a/01", value=1), "'01' is no place in it"),
        ('{"a":[1]}', step("add", "/a/-1", value=1), "'-1' is no place in it"),
        ('{"a":[1]}', step("add", "/a/1e0", value=1), "'1e0' is no place in it"),
        ('{"a":[1]}', step("add", "/a/²", value=1), "is no place in it"),
        ('{"a":1}', step("add", "/a/b", value=1), "'/a' is a number: nothing can be added to it"),
        ('{"a":"x"}', step("replace", "/a/b/c", value=1), "'/a' is text: there is nothing in it"),
        ('{"a":1}', step("replace", "/b", value=1), "the document has no 'b'"),
        ('{"a":1}', step("copy", "/b", **{"from": "/c"}), "the document has no 'c'"),
        ('{"a":{}}', step("test", "/a", value=[]), "it is an object, not an array"),
        ('{"a":1}', step("test", "/a", value=True), "it is a number, not true or false"),
        ('{"a":"hunter2"}', step("test", "/a", value="guess"), r"the test failed \("),
        ('{"a":false}', step("test", "/a", value=True), r"the test failed \("),
    ],
)
def test_what_does_not_fit_says_so(document: str, one: dict[str, Any], problem: str) -> None:
    with pytest.raises(PatchError, match=problem) as caught:
        patched(document, step("test", "", value=json.loads(document)), one)

    assert caught.value.operation == 1
    assert caught.value.path == one["path"]
    assert str(caught.value).endswith(f" (operation 1, path {one['path']!r})")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "the patch is no JSON"),
        ("{}", "a patch is an array"),
        ("[1]", r"an operation is an object.* \(operation 0, path ''\)"),
        ('[{"path":"/a"}]', '"op" is missing'),
        ('[{"op":"add","value":1}]', '"path" is missing'),
        ('[{"op":"add","path":1,"value":1}]', '"path" must be text'),
        ('[{"op":"add","path":"/a"}]', "add needs a value"),
        ('[{"op":"move","path":"/a"}]', '"from" is missing'),
        ('[{"op":"delete","path":"/a"}]', "unknown op 'delete': there are add, remove"),
        ('[{"op":"remove","path":"a"}]', "'a' must begin with /"),
        ('[{"op":"remove","path":"/a~2"}]', "is written ~0"),
        ('[{"op":"remove","path":""}]', "cannot be removed: replace it"),
        ('[{"op":"move","path":"/a/b","from":"/a"}]', "cannot be moved into itself"),
        ('[{"op":"test","path":"/a","value":NaN}]', "JSON has no NaN"),
    ],
)
def test_a_patch_that_makes_no_sense_is_refused_when_it_is_read(text: str, problem: str) -> None:
    with pytest.raises(PatchError, match=problem):
        JsonPatch.parse(text)


def test_an_error_survives_a_process_boundary() -> None:
    error = pickle.loads(pickle.dumps(PatchError("no", 3, "/a")))

    assert (str(error), error.operation, error.path) == ("JSON Patch: no (operation 3, path '/a')", 3, "/a")


@pytest.mark.parametrize("deep", ["[" * 100_000, '{"a":' * 100_000])
def test_what_is_nested_too_deep_is_refused(deep: str) -> None:
    with pytest.raises(PatchError, match="the body is no JSON"):
        patched(deep)


def test_a_document_that_a_patch_makes_too_deep_is_refused() -> None:
    hundred = json.loads('{"a":' * 100 + "{}" + "}" * 100)
    steps = [step("add", "/a" * (100 * depth + 1), value=hundred) for depth in range(20)]

    with pytest.raises(PatchError, match="too deep"):
        patched("{}", *steps)


def test_documents_that_are_too_deep_to_be_compared_are_refused() -> None:
    deep = json.loads("[" * 400 + "]" * 400)
    steps = [step("add", "/0" * 399 + "/-", value=deep), step("copy", "/-", **{"from": "/0"})]
    patch = JsonPatch.parse(json.dumps(steps))
    document = patch.apply(read_json(json.dumps(deep)))

    with pytest.raises(PatchError, match=r"the document is nested too deep.* \(operation 0, path ''\)"):
        JsonPatch((PatchStep("test", "", (), (), patch.apply(document)),)).apply(patch.apply(document))


def test_a_pointer_is_read_as_names() -> None:
    assert parse_pointer("/a~1b/~01/-/") == ("a/b", "~1", "-", "")


# Exactly ---------------------------------------------------------------------------------------------------

NUMBERS = '{"price":1.10,"big":123456789012345678901234567890,"tiny":1E-400,"zero":-0.0,"half":0.50}'


def test_what_is_not_touched_stays_as_it_was_written() -> None:
    assert patched(NUMBERS, step("remove", "/half")) == NUMBERS.replace(',"half":0.50', "")


def test_a_number_is_moved_and_copied_as_it_was_written() -> None:
    assert patched('{"a":1.10}', step("copy", "/b", **{"from": "/a"})) == '{"a":1.10,"b":1.10}'


def test_a_patch_that_changes_nothing_gives_the_same_bytes() -> None:
    body = b'{ "a": 1.10,\n  "b": "\\u00e9" }'

    assert JsonPatch.parse('[{"op":"test","path":"/a","value":1.1}]').apply_to(body) is body


@pytest.mark.parametrize(("one", "other"), [("1", "1.0"), ("10", "1e1"), ("0", "-0"), ("1e400", "10E+399")])
def test_numbers_are_compared_by_what_they_are_worth(one: str, other: str) -> None:
    assert is_equal(Number(one), Number(other))


@pytest.mark.parametrize(("one", "other"), [("1", "1.0000000000000000000000000001"), ("1e9", f"1e{'9' * 30}")])
def test_other_numbers_are_others(one: str, other: str) -> None:
    assert not is_equal(Number(one), Number(other))


def test_a_replaced_number_differs_even_if_it_is_worth_the_same() -> None:
    assert patched('{"a":1.10}', {"op": "replace", "path": "/a", "value": 1.1}) == '{"a":1.1}'


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b'{"a":1,"a":1}', "the key 'a' stands twice"),
        (b'{"a":{"b":1,"c":2,"b":3}}', "the key 'b' stands twice"),
        (b"{'a':1}", "line 1, column 2"),
        (b"\xff{}", "not UTF-8: byte 0"),
        (b"\xef\xbb\xbf{}", "BOM"),
        (b"[NaN]", "JSON has no NaN"),
        (b"[1] 2", "Extra data"),
        (b"", "Expecting value"),
    ],
)
def test_what_is_no_json_is_refused(body: bytes, problem: str) -> None:
    with pytest.raises(NotJson, match=problem):
        read_json(body)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ({"a": [1, 2.5, Decimal("1.10"), True, None, (), {}]}, b'{"a":[1,2.5,1.10,true,null,[],{}]}'),
        ('ü"\n\x00', b'"\xc3\xbc\\"\\n\\u0000"'),
        ("\ud800", b'"\\ud800"'),
        (10**30, b"1" + b"0" * 30),
    ],
)
def test_values_are_written(value: object, written: bytes) -> None:
    assert write_json(value) == written


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (float("nan"), "JSON has no nan"),
        (Decimal("Infinity"), "JSON has no Infinity"),
        ({1: 2}, "a key in JSON is text, and 1 is int"),
        ({"a": {1}}, "JSON has no form for set"),
        (b"x", "JSON has no form for bytes"),
    ],
)
def test_what_json_has_no_form_for_is_refused(value: object, problem: str) -> None:
    with pytest.raises(NotJson, match=problem):
        write_json(value)


def test_copies_of_copies_that_fit_nowhere_are_refused() -> None:
    doubling = [{"op": "copy", "from": "", "path": f"/{number}"} for number in range(60)]
    with pytest.raises(PatchError, match=r"would have more than 67,108,864 .* \(operation 2\d, path '/2\d'\)"):
        JsonPatch.parse(json.dumps(doubling)).apply_to(b'{"id": 1}')


def test_a_value_that_holds_itself_is_refused() -> None:
    value: list[object] = []
    value.append(value)

    with pytest.raises(NotJson, match="holds itself"):
        write_json(value)


# Properties ------------------------------------------------------------------------------------------------

names = st.sampled_from(["a", "b", "~", "/", "", "0", "-"])
numbers = st.sampled_from(["0", "-0.0", "1.10", "1e400", "12345678901234567890123"]).map(Number)
scalars = st.none() | st.booleans() | numbers | st.text(max_size=3)
documents: st.SearchStrategy[Any] = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3), max_leaves=8
)
pointers = st.lists(names.map(lambda name: "/" + name.replace("~", "~0").replace("/", "~1")), max_size=3).map("".join)
steps = st.fixed_dictionaries(
    {
        "op": st.sampled_from(["add", "remove", "replace", "move", "copy", "test"]),
        "path": pointers,
        "from": pointers,
        "value": documents,
    }
)


@given(documents)
def test_what_is_written_is_read_as_it_was(document: Json) -> None:
    assert read_json(write_json(document)) == document


@given(documents, st.lists(steps, max_size=4))
def test_a_document_is_never_changed_by_a_patch_whether_it_fails_or_not(
    document: Json, wanted: list[dict[str, Any]]
) -> None:
    before = copy.deepcopy(document)
    text = write_json(wanted)

    try:
        result = JsonPatch.parse(text).apply(document)
        assert is_equal(JsonPatch.parse(text).apply(before), result)
    except PatchError:
        pass

    assert write_json(document) == write_json(before)


@given(documents, pointers.filter(lambda path: not path.endswith("/-")), documents)
def test_what_was_added_is_found_there(document: Json, path: str, value: Json) -> None:
    def run(document: Json, op: str) -> Json:
        return JsonPatch.parse(write_json([{"op": op, "path": path, "value": value}])).apply(document)

    try:
        added = run(document, "add")
    except PatchError:
        return

    assert run(added, "test") is added
