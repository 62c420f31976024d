"""Class 20: channel. Many conversations over one connection."""

from __future__ import annotations

from redrive.wire.argument_types import Bit, Explanation, LongStr, Short, ShortStr
from redrive.wire.method import Method, Sender, method


@method(20, 10, sender=Sender.CLIENT, replies="channel.open-ok")
class ChannelOpen(Method):
    out_of_band: ShortStr = ""  # reserved-1


@method(20, 11, sender=Sender.SERVER)
class ChannelOpenOk(Method):
    channel_id: LongStr = b""  # reserved-1


@method(20, 20, sender=Sender.EITHER, replies="channel.flow-ok")
class ChannelFlow(Method):
    active: Bit = True


@method(20, 21, sender=Sender.EITHER)
class ChannelFlowOk(Method):
    active: Bit = True


@method(20, 40, sender=Sender.EITHER, replies="channel.close-ok")
class ChannelClose(Method):
    reply_code: Short = 200
    reply_text: Explanation = ""
    class_id: Short = 0
    method_id: Short = 0


@method(20, 41, sender=Sender.EITHER)
class ChannelCloseOk(Method):
    pass
