"""The sessions in the documentation are what the commands say."""

import record_sessions


def test_the_recorded_sessions_are_up_to_date_and_on_the_page() -> None:
    recorded = record_sessions.record()
    kept = {path.stem: path.read_text() for path in record_sessions.SESSIONS.glob("*.txt")}
    assert kept == recorded, "run tools/record_sessions.py"
    text = record_sessions.PAGE.read_text()
    assert text == record_sessions.page(text, recorded)


def test_what_differs_from_run_to_run_is_made_the_same() -> None:
    said = "op_01m7jehe6cfcxt9p26ksn95dgb at 2024-05-17 12:00:00, 3s ago   \nop_01m7jehe…\n"
    assert record_sessions.stable(said) == (
        "op_01k3v6x8q2r5n7m4t9w0c1d2e3 at 2026-03-02 09:41:07, 1s ago\nop_01k3v6x8…\n"
    )
