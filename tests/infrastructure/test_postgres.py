"""Private PostgreSQL servers do what the tests that use them rely on."""

import psycopg
import pytest
import sqlalchemy

from redrive.testing import ServerFailed
from tests.support.postgres import Database, Postgres


def test_a_killed_server_comes_back_on_the_same_port_with_what_was_committed(own_postgres: Postgres) -> None:
    with psycopg.connect(own_postgres.dsn) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
    port, killed = own_postgres.port, own_postgres.pid

    with psycopg.connect(own_postgres.dsn) as idle:
        own_postgres.kill()
        with pytest.raises(psycopg.OperationalError):
            idle.execute("SELECT 1")
    own_postgres.start()

    assert own_postgres.port == port
    assert own_postgres.pid != killed
    with psycopg.connect(own_postgres.dsn) as connection:
        assert connection.execute("SELECT answer FROM kept").fetchone() == (42,)


def test_a_restarted_server_is_another_process_and_says_so(own_postgres: Postgres) -> None:
    before = repr(own_postgres)

    own_postgres.restart()

    assert repr(own_postgres) != before
    assert repr(own_postgres) == f"<Postgres port={own_postgres.port} RUNNING pid={own_postgres.pid}>"


def test_a_server_that_cannot_start_says_why_with_its_log(own_postgres: Postgres) -> None:
    own_postgres.stop()
    configuration = own_postgres.directory / "data" / "postgresql.conf"
    configuration.write_text(configuration.read_text() + "no_such_option = 1\n")

    with pytest.raises(ServerFailed, match=r"(?s)PostgreSQL did not start in .*no_such_option"):
        own_postgres.start()


def test_a_server_asks_for_a_password(postgres: Database) -> None:
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(postgres.dsn.replace(postgres.password, "wrong"))


def test_a_test_has_a_database_of_its_own(postgres: Database, postgres_url: str) -> None:
    engine = sqlalchemy.create_engine(postgres_url)
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text("CREATE TABLE mine (id int)"))
    engine.dispose()

    assert "a_test_has_a_database_of_its_own" in postgres_url
    with psycopg.connect(postgres.dsn) as elsewhere:
        assert elsewhere.execute("SELECT to_regclass('mine')").fetchone() == (None,)


def test_a_database_that_cannot_be_made_says_why(postgres: Database) -> None:
    with pytest.raises(RuntimeError, match="already exists"):
        postgres.create_database("postgres")
