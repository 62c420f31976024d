"""The page about the embedded broker says what the code says."""

import write_unsupported


def test_the_table_of_limits_is_current() -> None:
    text = write_unsupported.PAGE.read_text()

    assert write_unsupported.page(text) == text, "run tools/write_unsupported.py"
