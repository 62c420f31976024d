"""What a page consists of."""

import pytest

from docs.markdown import Block, Unreadable, read

PAGE = """\
<!-- page: rabbitmq postgres -->

# A title

Say `redrive ping`, or ``a `tick` ``.

```python
# shop.py
app = 1
```

<!-- hidden python
assert app == 1
-->

<!-- not run: needs a container engine -->
<!-- exits: 4 -->

```console
$ docker run
```

1. In a list:

   ```toml
   name = "x"
   ```
"""


def test_blocks_have_a_language_a_text_and_a_line() -> None:
    first = read(PAGE).blocks[0]
    assert first == Block("python", "# shop.py\napp = 1\n", 8)


def test_a_block_whose_first_line_names_a_file_is_that_file() -> None:
    assert [block.file for block in read(PAGE).blocks] == ["shop.py", None, None, None]


def test_a_sentence_in_a_comment_is_not_a_file() -> None:
    assert Block("python", "# the shop.py of yesterday\n", 1).file is None


def test_hidden_blocks_are_blocks() -> None:
    hidden = read(PAGE).blocks[1]
    assert (hidden.language, hidden.text, hidden.hidden) == ("python", "assert app == 1\n", True)


def test_marks_are_those_right_before_a_block() -> None:
    _, hidden, marked, _ = read(PAGE).blocks
    assert marked.mark("not run") == "needs a container engine"
    assert marked.mark("exits") == "4"
    assert marked.mark("logged") is None
    assert hidden.marks == ()


def test_a_mark_before_other_text_is_not_the_blocks() -> None:
    page = read("<!-- logged -->\nText.\n\n```text\nx\n```\n")
    assert page.blocks[0].marks == ()


def test_a_mark_of_one_word_says_nothing() -> None:
    assert read("<!-- logged -->\n```text\nx\n```\n").blocks[0].mark("logged") == ""


def test_blocks_in_lists_lose_their_indent() -> None:
    assert read(PAGE).blocks[3].text == 'name = "x"\n'


def test_the_page_says_what_it_needs() -> None:
    assert read(PAGE).needs == {"rabbitmq", "postgres"}


def test_spans_are_what_stands_in_single_backticks_outside_of_blocks() -> None:
    assert (5, "redrive ping") in read(PAGE).spans
    assert all("shop" not in span for _, span in read(PAGE).spans)


def test_a_block_without_an_end_is_told_of() -> None:
    with pytest.raises(Unreadable, match="line 3"):
        read("\n\n```python\nx = 1\n")


def test_an_empty_block_is_one() -> None:
    assert read("```text\n```\n").blocks == (Block("text", "", 2),)
