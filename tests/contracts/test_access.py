"""What keys and sessions promise, on SQLite and on PostgreSQL."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from threading import Barrier
from typing import Any, TypeVar

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from redrive.admin.access.keys import REFUSAL, Key, Keys, KeyState
from redrive.admin.access.roles import Principal, Role
from redrive.admin.access.secrets import new_secret
from redrive.admin.access.sessions import Sessions
from redrive.database.engine import Database
from redrive.database.schema import Schema
from redrive.errors import ConfigurationError, KeyNotFound, Unauthenticated
from redrive.operations.audit_entry import AuditEntry
from redrive.operations.audit_log import AuditLog
from redrive.testing.clock import ManualClock

T = TypeVar("T")

NOON = datetime(2026, 5, 17, 12, 0, 0, 123456, tzinfo=UTC)
ANN = Principal("ann", Role.OPERATOR, ("orders.*", "größe"))
SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)
HEADER_INJECTION = ["x\r\nSet-Cookie: a=b", "x\n", "x\0", "\x1b[2Jx", "x\u202ey", "x\u200b", "x\x85y", "x\u2028y"]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOON)


@pytest.fixture
def database(fresh_database: Database) -> Database:
    Schema().upgrade(fresh_database)
    return fresh_database


@pytest.fixture
def keys(database: Database, clock: ManualClock) -> Keys:
    return Keys(database, clock)


@pytest.fixture
def sessions(database: Database, clock: ManualClock) -> Sessions:
    return Sessions(database, clock)


def rows(database: Database, table: str) -> list[dict[str, Any]]:
    with database.reading_connection() as connection:
        return [dict(row) for row in connection.execute(sa.text(f"SELECT * FROM {table}")).mappings()]


def refusal(keys: Keys, text: str) -> Unauthenticated:
    with pytest.raises(Unauthenticated) as caught:
        keys.verify(text)
    return caught.value


@contextmanager
def nothing_can_be_written(database: Database) -> Iterator[None]:
    """The database says so itself, as one does whose disk is full or whose primary is gone."""
    order = "SET default_transaction_read_only = on" if database.is_postgresql else "PRAGMA query_only = ON"

    def tell(connection: Any, *_: Any) -> None:
        cursor = connection.cursor()
        cursor.execute(order)
        cursor.close()
        connection.commit()

    database.engine.dispose()
    sa.event.listen(database.engine, "checkout", tell)
    try:
        yield
    finally:
        sa.event.remove(database.engine, "checkout", tell)
        database.engine.dispose()


def at_once(works: list[Callable[[], T]]) -> list[T]:
    """Several who begin at the same moment."""
    start = Barrier(len(works))

    def begin(work: Callable[[], T]) -> T:
        start.wait(30)
        return work()

    with ThreadPoolExecutor(len(works)) as threads:
        return list(threads.map(begin, works))


# Keys ---------------------------------------------------------------------------------------------


def test_who_shows_a_key_is_its_principal(keys: Keys) -> None:
    key, text = keys.create("ci", Role.OPERATOR, ("orders.*", "größe"))
    assert keys.verify(text) == Principal("ci", Role.OPERATOR, ("orders.*", "größe"), f"key {key.id}")


def test_a_key_is_for_every_queue_unless_it_says_which(keys: Keys) -> None:
    assert keys.verify(keys.create("ci", Role.VIEWER)[1]).is_unrestricted


def test_a_key_has_256_random_bits_and_the_database_only_their_digest(keys: Keys, database: Database) -> None:
    key, text = keys.create("ci", Role.ADMIN)
    found = re.fullmatch(f"rdk_{key.id}_([0-9A-Za-z]{{43}})", text)
    assert found is not None
    (row,) = rows(database, "redrive_keys")
    assert row["digest"] == hashlib.sha256(found[1].encode()).hexdigest()
    kept = repr(row) + repr(rows(database, "redrive_audit")) + repr(key)
    assert found[1] not in kept


def test_no_two_keys_are_alike(keys: Keys) -> None:
    made = [keys.create(f"k{number}", Role.VIEWER) for number in range(20)]
    assert len({key.id for key, _ in made}) == len({text.split("_")[2] for _, text in made}) == 20


def test_whatever_is_wrong_with_a_key_the_answer_is_the_same(keys: Keys, clock: ManualClock) -> None:
    _, revoked = keys.create("revoked", Role.ADMIN)
    _, expired = keys.create("expired", Role.ADMIN, expires=SECOND)
    live, text = keys.create("live", Role.ADMIN)
    keys.revoke("revoked")
    clock.advance(SECOND)
    unknown = f"rdk_{new_secret(12)}_{new_secret()}"
    wrong = f"rdk_{live.id}_{new_secret()}"
    malformed = [
        "",
        "rdk_",
        "rdk__",
        text[:-1],
        text + "x",
        text + "\n",
        text.upper(),
        text.replace("_", "-"),
        "rdk_'; DROP TABLE redrive_keys; --",
        "rdk_" + "\0" * 12 + "_" + "\0" * 43,
        "rdk_" + "ü" * 12 + "_" + "٣" * 43,
        "\udcff",
        "rdk_" + "a" * 1_000_000,
    ]
    refusals = [refusal(keys, each) for each in (revoked, expired, unknown, wrong, *malformed)]
    assert {str(each) for each in refusals} == {each.why for each in refusals} == {REFUSAL}
    assert "`redrive admin keys ls`" in REFUSAL
    assert all(each.is_guess for each in refusals)
    assert keys.verify(text).name == "live"


def test_the_audit_can_be_told_what_was_wrong_and_never_the_secret(keys: Keys, clock: ManualClock) -> None:
    revoked, text = keys.create("old", Role.ADMIN)
    keys.revoke("old")
    brief, ended = keys.create("brief", Role.ADMIN, expires=SECOND)
    clock.advance(SECOND)
    wrong = f"rdk_{brief.id}_{new_secret()}"
    assert refusal(keys, text).detail == f"key {revoked.id} (old) is revoked"
    assert refusal(keys, ended).detail == f"key {brief.id} (brief) is expired"
    assert refusal(keys, wrong).detail == f"key {brief.id}: a wrong secret"
    assert refusal(keys, f"rdk_{'0' * 12}_{new_secret()}").detail == (
        f"key {'0' * 12}: there is none in {keys.database.location}"
    )


def test_a_key_expires_to_the_moment(keys: Keys, clock: ManualClock) -> None:
    key, text = keys.create("ci", Role.VIEWER, expires=HOUR)
    assert key.expires_at == NOON + HOUR
    clock.advance(HOUR - timedelta(microseconds=1))
    assert keys.verify(text).name == "ci"
    clock.advance(timedelta(microseconds=1))
    refusal(keys, text)


def test_the_use_of_a_key_is_written_once_a_minute(keys: Keys, clock: ManualClock) -> None:
    _, text = keys.create("ci", Role.VIEWER)

    def used() -> Any:
        keys.verify(text)
        return keys.list_keys()[0].used_at

    assert keys.list_keys()[0].used_at is None
    assert used() == NOON
    clock.advance(MINUTE - SECOND)
    assert used() == NOON
    clock.advance(SECOND)
    assert used() == NOON + MINUTE


def test_a_database_that_cannot_be_written_lets_keys_in(keys: Keys, database: Database) -> None:
    _, text = keys.create("ci", Role.VIEWER)
    with nothing_can_be_written(database):
        assert keys.verify(text).name == "ci"
        with pytest.raises(SQLAlchemyError):
            keys.create("another", Role.VIEWER)
    assert [key.used_at for key in keys.list_keys()] == [None]


def test_a_database_without_tables_is_no_refusal(fresh_database: Database, clock: ManualClock) -> None:
    with pytest.raises(SQLAlchemyError):
        Keys(fresh_database, clock).verify(f"rdk_{new_secret(12)}_{new_secret()}")


def test_keys_are_listed_the_newest_first_with_what_became_of_them(keys: Keys, clock: ManualClock) -> None:
    old, _ = keys.create("old", Role.VIEWER, by="ada")
    clock.advance(SECOND)
    brief, _ = keys.create("brief", Role.OPERATOR, ("a", "b.*"), expires=SECOND)
    clock.advance(SECOND)
    new, _ = keys.create("new", Role.ADMIN)
    revoked = keys.revoke("old")
    listed = keys.list_keys()
    assert listed == [new, brief, revoked]
    assert [key.state(clock.now()) for key in listed] == [KeyState.LIVE, KeyState.EXPIRED, KeyState.REVOKED]
    assert revoked == Key(old.id, "old", Role.VIEWER, ("*",), NOON, "ada", revoked_at=NOON + 2 * SECOND)


def test_there_are_keys_as_long_as_somebody_can_come_in_with_one(keys: Keys, clock: ManualClock) -> None:
    assert not keys.any()
    keys.create("brief", Role.VIEWER, expires=SECOND)
    assert keys.any()
    clock.advance(SECOND)
    assert not keys.any()
    keys.create("ci", Role.VIEWER)
    assert keys.any()
    keys.revoke("ci")
    assert not keys.any()


@pytest.mark.parametrize("name", ["", " ", " x", "x ", "x" * 256, "x\udcff", *HEADER_INJECTION])
def test_a_name_that_could_break_a_line_or_hide_is_refused(keys: Keys, name: str) -> None:
    with pytest.raises(ConfigurationError, match="is no name for a key") as caught:
        keys.create(name, Role.VIEWER)
    assert str(caught.value).isprintable()
    with pytest.raises(ConfigurationError, match="is no pattern for queues"):
        keys.create("ci", Role.VIEWER, ("orders.*", name))
    assert keys.list_keys() == []


def test_a_key_for_no_queue_or_for_the_letters_of_a_word_is_a_mistake(keys: Keys) -> None:
    for queues in ((), "orders.*", ["x"] * 101):
        with pytest.raises(ConfigurationError, match="want 1 to 100 patterns"):
            keys.create("ci", Role.VIEWER, queues)


@pytest.mark.parametrize("expires", [timedelta(0), -SECOND, timedelta.max])
def test_a_key_that_expires_at_once_or_never_is_a_mistake(keys: Keys, expires: timedelta) -> None:
    with pytest.raises(ConfigurationError, match="a key that expires"):
        keys.create("ci", Role.VIEWER, expires=expires)


def test_a_name_stands_for_one_key(keys: Keys) -> None:
    first, text = keys.create("ci", Role.VIEWER)
    with pytest.raises(ConfigurationError, match=r"there is a key ci already.*redrive admin keys revoke ci"):
        keys.create("ci", Role.ADMIN)
    keys.revoke("ci")
    second, again = keys.create("ci", Role.ADMIN)
    assert keys.revoke("ci").id == second.id
    refusal(keys, text)
    refusal(keys, again)
    assert keys.revoke(first.id).id == first.id


def test_of_several_who_make_a_key_of_one_name_one_succeeds(keys: Keys) -> None:
    def make() -> str:
        try:
            return keys.create("ci", Role.VIEWER)[1]
        except ConfigurationError:
            return ""

    assert len([text for text in at_once([make] * 6) if text]) == 1
    assert len(keys.list_keys()) == 1


def test_revoking_by_id_or_by_name_ends_it_once_and_for_all(keys: Keys, clock: ManualClock) -> None:
    for wanted in ("id", "name"):
        key, text = keys.create("ci", Role.VIEWER)
        at = clock.now()
        assert keys.revoke(getattr(key, wanted)).revoked_at == at
        clock.advance(HOUR)
        assert keys.revoke(key.id).revoked_at == at
        refusal(keys, text)


@pytest.mark.parametrize("unknown", ["", "nobody", "0" * 12, "x\0y", "%", "'; --", "\udcff"])
def test_revoking_what_there_is_not_says_so_and_harms_nobody(keys: Keys, unknown: str) -> None:
    _, text = keys.create("ci", Role.VIEWER)
    with pytest.raises(KeyNotFound, match="there is no key"):
        keys.revoke(unknown)
    assert keys.verify(text)


def test_what_is_done_to_keys_is_in_the_audit(keys: Keys, database: Database) -> None:
    key, _ = keys.create("ci", Role.OPERATOR, ("a", "b.*"), expires=HOUR, by="ada")
    keys.revoke("ci", by="bob")
    keys.revoke(key.id, by="eve")
    what = f"{key.id} ci: operator of a b.*, until 2026-05-17 13:00"
    assert [entry for _, entry in AuditLog(database).list_entries()] == [
        AuditEntry(NOON, "bob", "key revoked", "", allowed=True, detail=what),
        AuditEntry(NOON, "ada", "key created", "", allowed=True, detail=what),
    ]


def test_what_cannot_be_recorded_is_not_done(keys: Keys, database: Database) -> None:
    _, text = keys.create("ci", Role.OPERATOR)
    with database.engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE redrive_audit RENAME TO elsewhere")
    with pytest.raises(SQLAlchemyError):
        keys.create("another", Role.ADMIN)
    with pytest.raises(SQLAlchemyError):
        keys.revoke("ci")
    assert [key.name for key in keys.list_keys()] == ["ci"]
    assert keys.verify(text)


# Sessions -----------------------------------------------------------------------------------------


def test_who_has_the_cookie_is_who_signed_in(sessions: Sessions) -> None:
    cookie = sessions.open(ANN, None)
    assert sessions.find(cookie) == Principal("ann", Role.OPERATOR, ("orders.*", "größe"), "session")


def test_the_database_has_only_the_digest_of_a_cookie_and_of_a_link(sessions: Sessions, database: Database) -> None:
    secrets = [sessions.open(ANN, None), sessions.invite(ANN)]
    kept = repr(rows(database, "redrive_sessions"))
    for secret in secrets:
        assert re.fullmatch("[0-9A-Za-z]{43}", secret)
        assert secret not in kept
        assert hashlib.sha256(secret.encode()).hexdigest() in kept


@pytest.mark.parametrize("cookie", ["", "x", "0" * 43, "\0" * 43, "٣" * 43, "\udcff" * 43, "' OR 1=1 --", "a" * 10**6])
def test_any_other_cookie_is_nobodys(sessions: Sessions, cookie: str) -> None:
    mine = sessions.open(ANN, None)
    assert sessions.find(cookie) is None
    assert sessions.accept(cookie) is None
    sessions.close(cookie)
    assert sessions.find(mine) is not None


def test_the_digest_is_no_cookie(sessions: Sessions, database: Database) -> None:
    sessions.open(ANN, None)
    (row,) = rows(database, "redrive_sessions")
    assert sessions.find(row["digest"]) is None
    assert sessions.find(row["digest"][:43]) is None


def test_a_closed_session_is_over_and_others_are_not(sessions: Sessions) -> None:
    one, other = sessions.open(ANN, None), sessions.open(ANN, None)
    sessions.close(one)
    assert sessions.find(one) is None
    assert sessions.find(other) is not None


def test_a_session_nobody_uses_ends_after_eight_hours(sessions: Sessions, clock: ManualClock) -> None:
    cookie = sessions.open(ANN, None)
    clock.advance(8 * HOUR)
    assert sessions.find(cookie) is None


def test_one_that_is_used_goes_on_for_a_day_and_no_longer(sessions: Sessions, clock: ManualClock) -> None:
    cookie = sessions.open(ANN, None)
    for _ in range(3):
        clock.advance(7 * HOUR)
        assert sessions.find(cookie) is not None
    clock.advance(3 * HOUR - SECOND)
    assert sessions.find(cookie) is not None
    clock.advance(SECOND)
    assert sessions.find(cookie) is None


def test_the_use_of_a_session_is_written_once_a_minute(
    sessions: Sessions, clock: ManualClock, database: Database
) -> None:
    cookie = sessions.open(ANN, None)

    def seen() -> Any:
        assert sessions.find(cookie) is not None
        with database.reading_connection() as connection:
            return connection.execute(sa.select(sessions.table.c.seen_at)).scalar()

    clock.advance(MINUTE - SECOND)
    assert seen() == NOON
    clock.advance(SECOND)
    assert seen() == NOON + MINUTE


def test_a_database_that_cannot_be_written_signs_nobody_out(
    sessions: Sessions, clock: ManualClock, database: Database
) -> None:
    cookie = sessions.open(ANN, None)
    clock.advance(HOUR)
    with nothing_can_be_written(database):
        assert sessions.find(cookie) is not None


def test_a_session_ends_with_its_key(keys: Keys, sessions: Sessions, database: Database) -> None:
    one, _ = keys.create("one", Role.ADMIN)
    two, _ = keys.create("two", Role.ADMIN)
    ended, other, free = (sessions.open(ANN, key) for key in (one.id, two.id, None))
    link = sessions.invite(ANN, key=one.id)
    keys.revoke("one")
    assert len(rows(database, "redrive_sessions")) == 2
    assert sessions.find(ended) is None
    assert sessions.accept(link) is None
    assert sessions.find(other) is not None
    assert sessions.find(free) is not None


def test_a_session_that_is_opened_while_its_key_is_revoked_is_over(keys: Keys, sessions: Sessions) -> None:
    """The key was checked, then revoked, and then the session opened."""
    key, _ = keys.create("one", Role.ADMIN)
    keys.revoke("one")
    assert sessions.find(sessions.open(ANN, key.id)) is None
    assert sessions.find(sessions.open(ANN, "0" * 12)) is None


def test_a_session_ends_when_its_key_expires(keys: Keys, sessions: Sessions, clock: ManualClock) -> None:
    key, _ = keys.create("one", Role.ADMIN, expires=HOUR)
    cookie = sessions.open(ANN, key.id)
    clock.advance(HOUR - SECOND)
    assert sessions.find(cookie) is not None
    clock.advance(SECOND)
    assert sessions.find(cookie) is None


# Links --------------------------------------------------------------------------------------------


def test_a_link_opens_one_session(sessions: Sessions) -> None:
    link = sessions.invite(ANN)
    cookie = sessions.accept(link)
    assert cookie is not None
    assert cookie != link
    assert sessions.find(cookie) == Principal(ANN.name, ANN.role, ANN.queues, "session")
    assert sessions.accept(link) is None


def test_a_link_is_no_cookie_and_a_cookie_no_link(sessions: Sessions) -> None:
    link, cookie = sessions.invite(ANN), sessions.open(ANN, None)
    assert sessions.find(link) is None
    assert sessions.accept(cookie) is None
    sessions.close(link)
    assert sessions.accept(link) is not None
    assert sessions.find(cookie) is not None


def test_a_link_lasts_ten_minutes_or_as_long_as_is_said(sessions: Sessions, clock: ManualClock) -> None:
    brief, usual, long = sessions.invite(ANN, SECOND), sessions.invite(ANN), sessions.invite(ANN, HOUR)
    clock.advance(10 * MINUTE)
    assert sessions.accept(brief) is None
    assert sessions.accept(usual) is None
    assert sessions.accept(long) is not None


def test_the_session_of_a_link_ends_with_the_key_of_who_invited(keys: Keys, sessions: Sessions) -> None:
    key, _ = keys.create("one", Role.ADMIN)
    cookie = sessions.accept(sessions.invite(ANN, key=key.id))
    assert cookie is not None
    keys.revoke("one")
    assert sessions.find(cookie) is None


def test_of_many_who_race_for_a_link_one_gets_in(sessions: Sessions, database: Database) -> None:
    for _ in range(5):
        link = sessions.invite(ANN)
        cookies = [cookie for cookie in at_once([lambda link=link: sessions.accept(link)] * 6) if cookie]
        assert len(cookies) == 1
        assert sessions.find(cookies[0]) is not None
    assert len(rows(database, "redrive_sessions")) == 5


def test_what_is_over_is_deleted_on_the_way(sessions: Sessions, clock: ManualClock, database: Database) -> None:
    sessions.open(ANN, None)
    sessions.invite(ANN)
    clock.advance(8 * HOUR)
    cookie = sessions.open(ANN, None)
    assert len(rows(database, "redrive_sessions")) == 1
    assert sessions.find(cookie) is not None
