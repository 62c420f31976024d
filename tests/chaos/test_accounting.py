"""What is lost, stuck or doubled is found, whatever else is right."""

from collections import Counter

from chaos.accounting import Books, settle
from chaos.work import ATTEMPTS, Fate, fate_of, name_of, number_of

HOPELESS, FAILS_ONCE, FINE = 0, 1, 11


def books(**found: object) -> Books:
    books = Books(confirmed={HOPELESS, FAILS_ONCE, FINE})
    books.done = Counter([FAILS_ONCE, FINE])
    books.parked = Counter([HOPELESS])
    for name, value in found.items():
        setattr(books, name, value)
    return books


def test_the_numbers_have_the_fates_that_these_tests_are_about() -> None:
    assert [fate_of(number) for number in (HOPELESS, FAILS_ONCE, FINE)] == [Fate.HOPELESS, Fate.FAILS_ONCE, Fate.FINE]
    assert number_of(f'[["{name_of(FINE)}"], {{}}]'.encode()) == FINE
    assert number_of(b"something else") is None


def test_done_or_parked_is_all_that_is_wanted() -> None:
    account = settle(books())

    assert account.sound
    assert (account.confirmed, account.parked, account.doubled) == (3, 1, 0)


def test_what_is_nowhere_is_lost() -> None:
    account = settle(books(done=Counter([FINE])))

    assert (account.lost, account.stuck, account.sound) == ([FAILS_ONCE], [], False)


def test_a_hopeless_one_that_is_not_parked_is_lost() -> None:
    assert settle(books(parked=Counter())).lost == [HOPELESS]


def test_what_is_still_in_a_queue_is_stuck() -> None:
    account = settle(books(done=Counter([FINE]), left=Counter([FAILS_ONCE])))

    assert (account.lost, account.stuck, account.sound) == ([], [FAILS_ONCE], False)


def test_a_duplicate_that_is_left_in_a_queue_is_not_stuck() -> None:
    assert settle(books(left=Counter([FINE]))).sound


def test_effects_beyond_the_first_are_doubled() -> None:
    account = settle(books(done=Counter({FAILS_ONCE: 1, FINE: 3})))

    assert (account.doubled, account.sound) == (2, True)


def test_what_could_be_done_and_was_parked_is_told() -> None:
    account = settle(books(done=Counter([FAILS_ONCE]), parked=Counter([HOPELESS, FINE])))

    assert (account.parked_wrongly, account.sound) == ([FINE], False)


def test_what_was_tried_too_often_is_told() -> None:
    ledger = books()
    ledger.read_effects([b"%d %d failed" % (HOPELESS, attempt) for attempt in range(1, ATTEMPTS + 2)])

    assert settle(ledger).beyond_limit == [HOPELESS]


def test_books_are_read_from_lines() -> None:
    ledger = Books()
    ledger.read_confirmed([b"0", b"11", b"1"])
    ledger.read_effects([b"1 1 failed", b"1 2 done", b"11 1 done", b"11 1 done"])

    assert ledger.confirmed == {0, 1, 11}
    assert ledger.done == {1: 1, 11: 2}
    assert ledger.attempts == {1: 1}
    assert (ledger.open(), ledger.hopeless()) == (set(), {0})
