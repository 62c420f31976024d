"""The page about the embedded broker says what the code says."""

import write_limits


def test_the_table_of_limits_is_current() -> None:
    text = write_limits.PAGE.read_text()

    assert write_limits.page(text) == text, "run tools/write_limits.py"
