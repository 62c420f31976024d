"""Who may do which act to which queue."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.admin.access.roles import Permission, Principal, Role

VIEWING = {Permission.LOOK}
OPERATING = VIEWING | {
    Permission.PLAN,
    Permission.REDRIVE,
    Permission.STEER,
    Permission.RETRY_OUTBOX,
    Permission.READ_AUDIT,
    Permission.EXPORT,
    Permission.SPEND,
    Permission.ANY_QUEUE,
}
ALLOWED = {Role.VIEWER: VIEWING, Role.OPERATOR: OPERATING, Role.ADMIN: set(Permission)}
ABOUT_A_QUEUE = set(Permission) - {Permission.RETRY_OUTBOX, Permission.DISCARD_OUTBOX}


@pytest.mark.parametrize(("role", "act"), list(product(Role, Permission)))
def test_each_role_may_do_what_is_its_own_and_nothing_else(role: Role, act: Permission) -> None:
    assert Principal("ann", role).may(act) is (act in ALLOWED[role])
    assert Principal("ann", role).may(act, "orders.dlq") is (act in ALLOWED[role])


def test_roles_are_ordered_by_what_they_may_and_not_by_the_alphabet() -> None:
    assert Role.VIEWER < Role.OPERATOR < Role.ADMIN
    assert Role.ADMIN > Role.OPERATOR >= Role.OPERATOR > Role.VIEWER
    assert Role.VIEWER <= Role.VIEWER
    assert max(Role) is Role.ADMIN


def test_a_role_is_not_compared_with_a_word() -> None:
    with pytest.raises(TypeError, match="'admin' is no Role"):
        _ = Role.VIEWER < "admin"
    with pytest.raises(TypeError, match="'viewer' is no Role"):
        _ = Role.ADMIN <= "viewer"


def test_every_act_needs_a_role() -> None:
    assert {act.needs for act in Permission} == set(Role)


@pytest.mark.parametrize("act", sorted(ABOUT_A_QUEUE))
def test_an_admin_of_some_queues_is_none_of_the_others(act: Permission) -> None:
    ann = Principal("ann", Role.ADMIN, ("orders.*", "mail"))
    assert ann.may(act, "orders.dlq")
    assert ann.may(act, "mail")
    assert not ann.may(act, "payments.dlq")


def test_of_lists_one_gets_ones_part_and_for_all_else_the_queue_must_be_said() -> None:
    ann = Principal("ann", Role.ADMIN, ("orders.*",))
    assert {act for act in Permission if ann.may(act)} == {Permission.LOOK, Permission.READ_AUDIT}


def test_the_outbox_is_for_who_is_unrestricted_whatever_queue_is_said() -> None:
    ann = Principal("ann", Role.ADMIN, ("orders.*",))
    for act in (Permission.RETRY_OUTBOX, Permission.DISCARD_OUTBOX):
        assert not ann.may(act)
        assert not ann.may(act, "orders.dlq")
        assert Principal("bob", Role.ADMIN).may(act)


def test_patterns_mind_the_case_and_match_the_whole_name() -> None:
    ann = Principal("ann", Role.VIEWER, ("orders.*", "a[12]"))
    assert [name for name in ("orders.dlq", "orders.", "a1") if not ann.sees(name)] == []
    assert [name for name in ("Orders.dlq", "xorders.dlq", "orders", "a3", "a1x", "") if ann.sees(name)] == []


@given(st.lists(st.text()), st.text())
def test_without_patterns_nothing_is_seen_and_with_a_star_everything(patterns: list[str], queue: str) -> None:
    assert not Principal("ann", Role.ADMIN, ()).sees(queue)
    everything = Principal("ann", Role.ADMIN, (*patterns, "*"))
    assert everything.is_unrestricted
    assert everything.sees(queue)


@given(st.sampled_from(Role), st.sampled_from(Permission), st.lists(st.text()), st.text())
def test_nobody_acts_on_what_they_do_not_see(role: Role, act: Permission, patterns: list[str], queue: str) -> None:
    ann = Principal("ann", role, tuple(patterns))
    assert not ann.may(act, queue) or ann.sees(queue)


def test_who_came_by_cookie_says_so() -> None:
    assert Principal("ann", Role.VIEWER, how="session").is_by_cookie
    assert not Principal("ann", Role.VIEWER, how="key abc").is_by_cookie
