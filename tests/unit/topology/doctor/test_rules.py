"""The table of findings: what it promises to scripts and to readers."""

import re
from pathlib import Path

import write_doctor
from redrive.topology.doctor import RULES, Severity, examine
from unit.topology.doctor.surveys import classic, only, quorum, seen

DOCS = Path(__file__).parents[4] / "docs" / "doctor.md"


def test_the_documentation_has_the_findings_of_the_code() -> None:
    documented = re.findall(r"^\| \[`([a-z0-9-]+)`\]", DOCS.read_text(), re.MULTILINE)

    assert documented == [rule.id for rule in RULES]


def test_the_documentation_is_up_to_date() -> None:
    """If not: python tools/write_doctor.py"""
    assert write_doctor.page(DOCS.read_text()) == DOCS.read_text()


def test_no_id_means_two_things() -> None:
    assert len({rule.id for rule in RULES}) == len(RULES)


def test_the_worst_comes_first() -> None:
    snapshot = seen(quorum("q.dlq"), classic("q"), classic("w.retry", {"x-message-ttl": 5}), consumers={"q": 1})

    severities = [finding.severity for finding in examine(snapshot)]

    assert severities == [Severity.ERROR, Severity.ERROR, Severity.WARNING]


def test_an_empty_broker_is_healthy() -> None:
    assert examine(seen()) == ()


def test_severities_are_ordered() -> None:
    assert Severity.ERROR.reaches(Severity.WARNING)
    assert Severity.WARNING.reaches(Severity.WARNING)
    assert not Severity.INFO.reaches(Severity.WARNING)


def test_over_plain_amqp_it_says_what_it_could_not_judge_and_how_it_could() -> None:
    finding = only(seen(classic("q"), complete=False), "not-examined")

    assert finding.severity is Severity.INFO
    assert "no policies, bindings, plugins" in finding.evidence
    assert {
        "no-dlq", "at-most-once", "ttl-no-way-back", "ttl-drops", "ttl-lost-by-name", "retry-shared", "mirrored",
        "delayed-no-plugin", "parked-elsewhere",
    } == set(finding.evidence.partition("not judged: ")[2].split(", "))  # fmt: skip
    assert "--management" in finding.fix


def test_a_finding_introduces_itself() -> None:
    finding = only(seen(quorum("q.dlq")), "peek-deletes")

    title = "tools that get and requeue messages can delete them from this dead-letter queue"
    assert str(finding) == f"error: q.dlq: {title} [peek-deletes]"
