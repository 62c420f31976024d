"""A pair of conversations, given whole reads and single bytes: nothing may come out differently."""

from __future__ import annotations

import pytest

from tests.support.connection_pair import ConnectionPair, Split, byte_by_byte, whole


@pytest.fixture(params=[whole, byte_by_byte], ids=lambda split: split.__name__)
def split(request: pytest.FixtureRequest) -> Split:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def pair(split: Split) -> ConnectionPair:
    """Open, with channel 1."""
    pair = ConnectionPair(split=split)
    pair.open()
    pair.open_channel()
    return pair
