"""What the outbox promises, on SQLite and on PostgreSQL."""

import asyncio
import random
import re
import threading
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import OperationalError, ProgrammingError
from sqlalchemy.ext.asyncio import async_scoped_session

from redrive.database.application_tables import OutboxNames, RowState
from redrive.database.engine import Database
from redrive.database.schema import Schema
from redrive.errors import ConfigurationError
from redrive.outbox.envelope import CloudEvent, Envelope
from redrive.outbox.outbox import Outbox, OutboxPolicy
from redrive.outbox.repository import ClaimedBatch, OutboxRepository, OutboxRow, RefusedRow
from redrive.wire.properties import decode_properties

DOCUMENTATION = Path(__file__).parents[2] / "docs" / "outbox.md"


@pytest.fixture(params=["sqlite", "postgresql"])
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Database]:
    url = f"sqlite:///{tmp_path / 'store.db'}" if request.param == "sqlite" else _postgres(request)
    database = Database(url)
    Schema().upgrade(database)
    yield database
    await database.close()


def _postgres(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue("postgres_url")
    return url.replace("postgresql://", "postgresql+psycopg://")


@pytest.fixture
def outbox() -> Outbox:
    return Outbox()


@pytest.fixture
def claims(database: Database, outbox: Outbox) -> OutboxRepository:
    return OutboxRepository(database, outbox.table)


def add(database: Database, outbox: Outbox, *bodies: Any, **options: Any) -> list[str]:
    with database.sessions()() as session, session.begin():
        return [outbox.add(session, "events", "order.placed", body, **options) for body in bodies]


def claimed(claims: OutboxRepository, limit: int = 100) -> list[bytes]:
    with claims.claim(limit) as claim:
        return [row.body for row in claim.rows]


# Adding -------------------------------------------------------------------------------------------


def test_what_is_committed_is_there_with_an_identity(
    database: Database, outbox: Outbox, claims: OutboxRepository
) -> None:
    (identity,) = add(database, outbox, {"id": 7}, type="OrderPlaced", headers={"tenant": "t"}, correlation_id="c")
    with claims.claim(10) as claim:
        (row,) = claim.rows
    properties = decode_properties(row.properties)
    assert (row.exchange, row.routing_key, row.body) == ("events", "order.placed", b'{"id":7}')
    assert (properties.message_id, properties.type, properties.correlation_id) == (identity, "OrderPlaced", "c")
    assert (properties.headers, properties.content_type, properties.delivery_mode) == (
        {"tenant": "t"},
        "application/json",
        2,
    )


def test_what_is_rolled_back_never_was(database: Database, outbox: Outbox, claims: OutboxRepository) -> None:
    with database.sessions()() as session:
        outbox.add(session, "events", "k", "rolled back")
        session.rollback()
    with database.sessions()() as session:
        outbox.add(session, "events", "k", "closed early")
    assert claimed(claims) == []


def test_a_savepoint_takes_back_only_its_own(database: Database, outbox: Outbox, claims: OutboxRepository) -> None:
    with database.sessions()() as session, session.begin():
        outbox.add(session, "events", "k", "kept")
        savepoint = session.begin_nested()
        outbox.add(session, "events", "k", "taken back")
        savepoint.rollback()
    assert claimed(claims) == [b"kept"]


async def test_an_async_session_does_the_same(database: Database, outbox: Outbox, claims: OutboxRepository) -> None:
    async with database.async_sessions()() as session, session.begin():
        await outbox.add(session, "events", "k", "from async")
    async with database.async_sessions()() as session:
        await outbox.add(session, "events", "k", "rolled back")
    assert claimed(claims) == [b"from async"]


async def test_a_scoped_async_session_does_the_same(
    database: Database, outbox: Outbox, claims: OutboxRepository
) -> None:
    scoped = async_scoped_session(database.async_sessions(), scopefunc=asyncio.current_task)
    await outbox.add(scoped, "events", "k", "from a scoped session")
    await scoped.commit()
    await scoped.remove()
    assert claimed(claims) == [b"from a scoped session"]


def test_sql_alone_can_add_a_message(database: Database, claims: OutboxRepository) -> None:
    with database.engine.begin() as connection:
        connection.execute(
            sa.text(
                "INSERT INTO redrive_outbox (message_id, exchange, routing_key, body) VALUES ('m1', 'e', 'k', :body)"
            ),
            {"body": b'{"id": 1}'},
        )
    with claims.claim(1) as claim:
        properties = decode_properties(claim.rows[0].properties)
    assert (properties.message_id, properties.content_type, properties.delivery_mode) == ("m1", "application/json", 2)


def test_sql_may_write_a_body_as_text(database: Database, claims: OutboxRepository) -> None:
    text = "convert_to('{\"né\"\\: 1}', 'UTF8')" if database.is_postgresql else "'{\"né\"\\: 1}'"
    insert = "INSERT INTO redrive_outbox (message_id, exchange, routing_key, body) VALUES ('m1', 'e', 'k', "
    with database.engine.begin() as connection:
        connection.execute(sa.text(f"{insert}{text})"))
    assert claimed(claims) == ['{"né": 1}'.encode()]


def test_the_sql_of_the_documentation_does_so(database: Database, claims: OutboxRepository) -> None:
    if not database.is_postgresql:
        pytest.skip("it is PostgreSQL's")
    (sql,) = re.findall(r"```sql\n(.*?)```", DOCUMENTATION.read_text(), re.DOTALL)
    with database.engine.begin() as connection:
        connection.exec_driver_sql(sql)
    assert claimed(claims) == [b'{"id": 7}']


def test_the_table_and_its_columns_can_have_other_names(database: Database) -> None:
    names = OutboxNames("nfe_outbox_event", {"body": "payload", "message_id": "event_id"})
    outbox = Outbox(names)
    outbox.table.metadata.create_all(database.engine)
    add(database, outbox, {"nfe": 1})
    with database.engine.connect() as connection:
        (row,) = connection.execute(sa.text("SELECT payload, event_id FROM nfe_outbox_event"))
    assert bytes(row[0]) == b'{"nfe":1}'
    assert claimed(OutboxRepository(database, outbox.table)) == [b'{"nfe":1}']
    with pytest.raises(ConfigurationError, match="there is no column bdy, did you mean body"):
        OutboxNames(columns={"bdy": "payload"})


def test_an_envelope_says_what_an_event_is_about(database: Database, outbox: Outbox, claims: OutboxRepository) -> None:
    add(database, outbox, {"total": 5}, type="NfeEmitida", envelope=Envelope("Nfe", "35-1"), message_id="e-1")
    add(database, outbox, {"total": 5}, type="NfeEmitida", envelope=CloudEvent("Nfe", "35-1", source="/nfe"))
    first, second = claimed(claims)
    assert first.startswith(b'{"eventId":"e-1","eventType":"NfeEmitida","aggregateType":"Nfe","aggregateId":"35-1"')
    assert b'"specversion":"1.0"' in second
    assert b'"source":"/nfe"' in second


@pytest.mark.parametrize(
    ("body", "options", "complaint"),
    [
        (object(), {}, "object cannot be written as application/json"),
        (b"x" * 2_000_001, {}, "a body of 2,000,001 bytes, and the broker takes 2,000,000"),
        ("x", {"message_id": "m" * 256}, "message_id has 256 bytes"),
        ("x", {"ordering_key": "ü" * 200}, "ordering_key has 400 bytes"),
    ],
)
def test_what_no_broker_would_take_is_refused_where_it_is_added(
    database: Database, body: Any, options: dict[str, Any], complaint: str
) -> None:
    outbox = Outbox(policy=OutboxPolicy(largest_body=2_000_000))
    with pytest.raises(ConfigurationError, match=complaint):
        add(database, outbox, body, **options)


def test_a_body_of_five_megabytes_is_fine(database: Database, outbox: Outbox, claims: OutboxRepository) -> None:
    add(database, outbox, b"x" * 5_000_000)
    assert [len(body) for body in claimed(claims)] == [5_000_000]


def test_something_that_is_no_session_is_told_what_it_should_be(outbox: Outbox) -> None:
    with pytest.raises(ConfigurationError, match="wants a Session, AsyncSession or Connection of SQLAlchemy, not str"):
        outbox.add("session", "e", "k", "b")  # type: ignore[call-overload]


def test_a_missing_table_is_the_databases_error_and_nothing_is_lost(database: Database) -> None:
    outbox = Outbox(OutboxNames("not_there"))
    with pytest.raises((OperationalError, ProgrammingError), match="not_there"):
        add(database, outbox, "x")


# Claiming -----------------------------------------------------------------------------------------


def test_rows_are_claimed_in_order_and_settled(database: Database, outbox: Outbox, claims: OutboxRepository) -> None:
    add(database, outbox, "a", "b", "c")
    with claims.claim(2) as claim:
        assert [row.body for row in claim.rows] == [b"a", b"b"]
        claim.settle([row.id for row in claim.rows], [])
    assert claimed(claims) == [b"c"]
    assert claims.status()["pending"] == 1


def test_a_claim_that_ends_badly_gives_its_rows_back(
    database: Database, outbox: Outbox, claims: OutboxRepository
) -> None:
    add(database, outbox, "a")
    with pytest.raises(ZeroDivisionError), claims.claim(2):
        raise ZeroDivisionError
    assert claimed(claims) == [b"a"]


def test_rows_that_commit_late_are_seen(database: Database, outbox: Outbox, claims: OutboxRepository) -> None:
    """Ids are given when a row is written, not when it is committed."""
    if not database.is_postgresql:
        pytest.skip("SQLite has one writer: nothing commits out of order")
    with database.sessions()() as early, early.begin():
        outbox.add(early, "events", "k", "early id, late commit")
        add(database, outbox, "late id, early commit")
        with claims.claim(10) as claim:
            claim.settle([row.id for row in claim.rows], [])
    assert claimed(claims) == [b"early id, late commit"]


def test_a_refused_row_is_put_off_and_then_parked(database: Database, outbox: Outbox, claims: OutboxRepository) -> None:
    add(database, outbox, "a", "b")
    with claims.claim(10) as claim:
        first, second = claim.rows
        claim.settle(
            [], [RefusedRow(first.id, "unroutable", timedelta(hours=1)), RefusedRow(second.id, "too large", None)]
        )
    assert claimed(claims) == []
    assert claims.status() | {"oldest": None} == {"pending": 1, "oldest": None, "parked": 1}
    (parked,) = claims.list_rows(RowState.PARKED, 10)
    assert (parked["last_error"], parked["attempts"]) == ("too large", 1)
    assert claims.retry([parked["id"]]) == 1
    assert claimed(claims) == [b"b"]


def test_a_refused_row_comes_back_after_its_pause(database: Database, outbox: Outbox, claims: OutboxRepository) -> None:
    add(database, outbox, "a")
    with claims.claim(10) as claim:
        claim.settle([], [RefusedRow(claim.rows[0].id, "full", timedelta(milliseconds=-1))])
    with claims.claim(10) as claim:
        assert [(row.body, row.attempts) for row in claim.rows] == [(b"a", 1)]


def test_parked_rows_can_be_discarded(database: Database, outbox: Outbox, claims: OutboxRepository) -> None:
    add(database, outbox, "a")
    with claims.claim(1) as claim:
        claim.settle([], [RefusedRow(claim.rows[0].id, "bad", None)])
    (parked,) = claims.list_rows(RowState.PARKED, 10)
    assert claims.discard([parked["id"]]) == 1
    assert claims.status()["parked"] == 0


def test_published_rows_can_be_kept_for_a_while(database: Database, outbox: Outbox) -> None:
    claims = OutboxRepository(database, outbox.table, keep=timedelta(days=1))
    add(database, outbox, "a", "b")
    with claims.claim(10) as claim:
        claim.settle([row.id for row in claim.rows], [])
    assert len(claims.list_rows(RowState.PUBLISHED, 10)) == 2
    assert claims.prune(timedelta(days=1)) == 0
    assert claims.prune(timedelta(seconds=-5), batch=1) == 2


def test_two_relays_share_the_rows(database: Database, outbox: Outbox, claims: OutboxRepository) -> None:
    if not database.is_postgresql:
        pytest.skip("SQLite: one relay")
    add(database, outbox, *(str(number) for number in range(10)))
    with claims.claim(5) as one, claims.claim(10) as other:
        assert len(one.rows) == len(other.rows) == 5
        assert not {row.id for row in one.rows} & {row.id for row in other.rows}


def test_whoever_looks_does_not_wait_for_a_writer(database: Database, outbox: Outbox, claims: OutboxRepository) -> None:
    add(database, outbox, "a")
    with database.sessions()() as writer, writer.begin():
        outbox.add(writer, "events", "k", "not committed")
        assert claims.status()["pending"] == 1
        assert claimed(claims) == [b"a"]


# Ids ----------------------------------------------------------------------------------------------


@pytest.fixture
def forgetful(tmp_path: Path) -> Database:
    """SQLite with a table as older versions made it: the id of a deleted last row is given again."""
    database = Database(f"sqlite:///{tmp_path / 'old.db'}")
    with database.engine.begin() as connection:
        for statement in filter(str.strip, Schema().sql("sqlite").split(";\n")):
            connection.exec_driver_sql(statement.replace(" AUTOINCREMENT", ""))
    return database


@pytest.mark.parametrize("keep", [None, timedelta(days=1)], ids=["deleted", "kept"])
def test_a_row_that_has_got_the_id_of_a_settled_one_is_not_settled_with_it(
    forgetful: Database, outbox: Outbox, keep: timedelta | None
) -> None:
    add(forgetful, outbox, "a", "b")
    slow, quick = OutboxRepository(forgetful, outbox.table, keep=keep), OutboxRepository(forgetful, outbox.table)
    with slow.claim(10) as one:
        with quick.claim(10) as other:
            other.settle([row.id for row in other.rows], [])
        add(forgetful, outbox, "c", "d")
        first, second = one.rows
        one.settle([first.id], [RefusedRow(second.id, "unroutable", None)])
    with quick.claim(10) as claim:
        assert [(row.id, row.body) for row in claim.rows] == [(first.id, b"c"), (second.id, b"d")]
    forgetful.engine.dispose()


def test_a_row_that_another_has_settled_is_left_as_it_is(forgetful: Database, outbox: Outbox) -> None:
    claims = OutboxRepository(forgetful, outbox.table, keep=timedelta(days=1))
    add(forgetful, outbox, "a", "b")
    with claims.claim(10) as one:
        first, second = one.rows
        with claims.claim(10) as other:
            other.settle([first.id], [RefusedRow(second.id, "unroutable", None)])
        one.settle([second.id], [RefusedRow(first.id, "unroutable", None)])
    assert [row["id"] for row in claims.list_rows(RowState.PUBLISHED, 10)] == [first.id]
    assert [row["id"] for row in claims.list_rows(RowState.PARKED, 10)] == [second.id]
    forgetful.engine.dispose()


def test_an_id_is_not_given_again_when_its_row_is_gone(
    database: Database, outbox: Outbox, claims: OutboxRepository
) -> None:
    seen = []
    for body in ("a", "b", "c"):
        add(database, outbox, body)
        with claims.claim(1) as claim:
            seen += [row.id for row in claim.rows]
            claim.settle(seen[-1:], [])
    assert len(set(seen)) == 3


def test_a_table_of_an_older_version_is_as_good(forgetful: Database, outbox: Outbox) -> None:
    Schema().upgrade(forgetful)
    Schema().check(forgetful, outbox.table.name)
    add(forgetful, outbox, "a")
    assert claimed(OutboxRepository(forgetful, outbox.table)) == [b"a"]
    forgetful.engine.dispose()


# Order --------------------------------------------------------------------------------------------


def test_a_key_that_is_put_off_holds_back_only_itself(
    database: Database, outbox: Outbox, claims: OutboxRepository
) -> None:
    add(database, outbox, "a1", ordering_key="a")
    with claims.claim(10) as claim:
        claim.settle([], [RefusedRow(claim.rows[0].id, "full", timedelta(hours=1))])
    add(database, outbox, "a2", ordering_key="a")
    add(database, outbox, "b1", ordering_key="b")
    add(database, outbox, "free")
    assert claimed(claims) == [b"b1", b"free"]


def test_two_relays_never_have_one_key(database: Database, outbox: Outbox, claims: OutboxRepository) -> None:
    if not database.is_postgresql:
        pytest.skip("SQLite: one relay")
    for number in range(4):
        add(database, outbox, f"a{number}", ordering_key="a")
        add(database, outbox, f"b{number}", ordering_key="b")
    with claims.claim(2) as one:
        assert {row.body for row in one.rows} == {b"a0", b"b0"}
        assert claimed(claims) == []
        one.settle([row.id for row in one.rows], [])
    assert claimed(claims)[:2] == [b"a1", b"b1"]


def test_keys_that_wait_do_not_stand_in_the_way_however_many_rows_they_have(
    database: Database, outbox: Outbox, claims: OutboxRepository
) -> None:
    add(database, outbox, "a0", ordering_key="a")
    with claims.claim(1) as claim:
        claim.settle([], [RefusedRow(claim.rows[0].id, "full", timedelta(hours=1))])
    add(database, outbox, *(f"a{number}" for number in range(1, 10)), ordering_key="a")
    add(database, outbox, "b0", ordering_key="b")
    assert claimed(claims, limit=3) == [b"b0"]


def test_a_key_with_more_rows_than_a_batch_goes_on_where_it_was_refused(
    database: Database, outbox: Outbox, claims: OutboxRepository
) -> None:
    add(database, outbox, *(f"a{number}" for number in range(8)), ordering_key="a")
    with claims.claim(3) as claim:
        claim.settle([], [RefusedRow(claim.rows[0].id, "full", timedelta(milliseconds=-1))])
    published: list[bytes] = []
    for _ in range(5):
        with claims.claim(3) as claim:
            published += [row.body for row in claim.rows]
            claim.settle([row.id for row in claim.rows], [])
    assert published == [b"a%d" % number for number in range(8)]


def test_a_key_in_the_hands_of_another_relay_does_not_stand_in_the_way(
    database: Database, outbox: Outbox, claims: OutboxRepository
) -> None:
    if not database.is_postgresql:
        pytest.skip("SQLite: one relay")
    add(database, outbox, *(f"a{number}" for number in range(9)), ordering_key="a")
    add(database, outbox, "b0", ordering_key="b")
    with claims.claim(2) as one:
        assert [row.body for row in one.rows] == [b"a0", b"a1"]
        assert claimed(claims, limit=3) == [b"b0"]


class Line:
    """What is pending, by key, in the order in which it was added: nothing may leave but from the front."""

    def __init__(self, database: Database, outbox: Outbox, dice: random.Random) -> None:
        self.pending: dict[str, list[str]] = {}
        self.dice = dice
        self._database = database
        self._outbox = outbox

    def add(self) -> None:
        key = self.dice.choice(["a", "b", "c", None])
        identities = add(self._database, self._outbox, *range(self.dice.randint(1, 4)), ordering_key=key)
        if key is not None:
            self.pending.setdefault(key, []).extend(identities)

    def end_pauses(self, chance: float = 0.5) -> None:
        """For some of those that were put off."""
        late = sa.text("UPDATE redrive_outbox SET next_attempt_at = created_at WHERE id % 2 = :half")
        with self._database.engine.begin() as connection:
            for half in range(2):
                if self.dice.random() < chance:
                    connection.execute(late, {"half": half})

    def work(self, claim: ClaimedBatch, luck: float) -> None:
        """As a relay does: nothing more of a key once one of it has failed."""
        published: list[int] = []
        refused: list[RefusedRow] = []
        stuck: set[str | None] = set()
        for row in claim.rows:
            if row.ordering_key in stuck:
                continue
            if self.dice.random() < luck:
                self._leaves(row)
                published.append(row.id)
                continue
            stuck |= {row.ordering_key} - {None}
            if self.dice.random() < 0.2:
                self._leaves(row)
                refused.append(RefusedRow(row.id, "parked", None))
            else:
                refused.append(RefusedRow(row.id, "put off", timedelta(hours=self.dice.randint(1, 3))))
        claim.settle(published, refused)

    def _leaves(self, row: OutboxRow) -> None:
        if row.ordering_key is not None:
            assert self.pending[row.ordering_key].pop(0) == row.message_id


@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_refused_and_whoever_claims_nothing_leaves_before_what_is_in_front_of_it(
    database: Database, outbox: Outbox, claims: OutboxRepository, seed: int
) -> None:
    line = Line(database, outbox, random.Random(seed))
    for _ in range(20):
        line.add()
        if line.dice.random() < 0.3:
            line.end_pauses()
        with claims.claim(line.dice.randint(1, 4)) as one:
            if database.is_postgresql and line.dice.random() < 0.5:
                with claims.claim(line.dice.randint(1, 4)) as other:
                    line.work(other, luck=0.7)
            line.work(one, luck=0.7)
    while left := claims.status()["pending"]:
        line.end_pauses(chance=1)
        for _ in range(2):  # the first may do no more than line up what stands behind
            with claims.claim(5) as claim:
                line.work(claim, luck=1)
        assert claims.status()["pending"] < left, "it does not come to an end"
    assert not any(line.pending.values())


# Size ---------------------------------------------------------------------------------------------


def test_pending_rows_are_found_by_index_however_many_were_published(
    database: Database, outbox: Outbox, claims: OutboxRepository
) -> None:
    table = outbox.table
    done = [
        {"message_id": str(number), "exchange": "e", "routing_key": "k", "body": b"", "state": 1, "published_at": None}
        for number in range(20_000)
    ]
    waiting = [one | {"state": 0, "ordering_key": f"k{number % 500}"} for number, one in enumerate(done[:3000])]
    with database.engine.begin() as connection:
        connection.execute(sa.insert(table), done)
        connection.execute(sa.insert(table), waiting)
        if database.is_postgresql:
            connection.execute(sa.text("ANALYZE redrive_outbox"))
    explained = _explained(database, claims)
    assert "redrive_outbox_due" in explained
    assert "redrive_outbox_keys" in explained
    assert "Seq Scan" not in explained
    assert "SCAN redrive_outbox\n" not in explained
    if database.is_postgresql:
        assert "Index Cond: (next_attempt_at <= statement_timestamp())" in explained


def _explained(database: Database, claims: OutboxRepository) -> str:
    seen: list[str] = []
    lock = threading.Lock()

    @sa.event.listens_for(database.engine, "before_cursor_execute", retval=True)
    def explain(_connection: Any, cursor: Any, statement: str, parameters: Any, *_: Any) -> tuple[str, Any]:
        if statement.startswith("SELECT redrive_outbox") or "DISTINCT" in statement:
            prefix = "EXPLAIN " if database.is_postgresql else "EXPLAIN QUERY PLAN "
            cursor.execute(prefix + statement, parameters)
            with lock:
                seen.extend(" ".join(map(str, row)) for row in cursor.fetchall())
        return statement, parameters

    claimed(claims)
    sa.event.remove(database.engine, "before_cursor_execute", explain)
    return "\n".join([*seen, ""])


# Schema -------------------------------------------------------------------------------------------


def test_upgrading_twice_does_nothing(database: Database) -> None:
    assert Schema().upgrade(database) is False


def test_a_database_of_a_newer_redrive_is_left_alone(database: Database) -> None:
    with database.engine.begin() as connection:
        connection.execute(sa.text("UPDATE redrive_version SET version_num = '9999'"))
    with pytest.raises(ConfigurationError, match="made by a newer Redrive"):
        Schema().upgrade(database)


def test_the_sql_can_be_printed_and_makes_the_same(database: Database, tmp_path: Path) -> None:
    sql = Schema(OutboxNames("other_outbox"), "other_inbox").sql(database.kind)
    assert "CREATE TABLE" in sql
    with database.engine.begin() as connection:
        for statement in sql.split(";\n"):
            if statement.strip():
                connection.exec_driver_sql(statement)
    outbox = Outbox(OutboxNames("other_outbox"))
    add(database, outbox, "x")
    assert claimed(OutboxRepository(database, outbox.table)) == [b"x"]
    assert tmp_path.exists()


def test_a_url_that_makes_no_sense_is_explained() -> None:
    with pytest.raises(ConfigurationError, match="database URL: want"):
        Database("nonsense")
    with pytest.raises(ConfigurationError, match="knows sqlite and postgresql"):
        Database("mysql://localhost/x")
    assert "secret" not in repr(Database("postgresql://me:secret@localhost/x"))
