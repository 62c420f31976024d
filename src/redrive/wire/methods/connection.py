"""Class 10: connection. The handshake, the tuning, the farewell, and RabbitMQ's alarms."""

from __future__ import annotations

from dataclasses import field

from redrive.wire.argument_types import Arguments, Bit, Explanation, Long, LongStr, Octet, Short, ShortStr
from redrive.wire.method import Method, Sender, method


@method(10, 10, sender=Sender.SERVER, replies="connection.start-ok")
class ConnectionStart(Method):
    version_major: Octet = 0
    version_minor: Octet = 9
    server_properties: Arguments = field(default_factory=dict)
    mechanisms: LongStr = b"PLAIN"
    locales: LongStr = b"en_US"


@method(10, 11, sender=Sender.CLIENT)
class ConnectionStartOk(Method):
    client_properties: Arguments = field(default_factory=dict)
    mechanism: ShortStr = "PLAIN"
    response: LongStr = field(default=b"", repr=False)  # holds the password
    locale: ShortStr = "en_US"


@method(10, 20, sender=Sender.SERVER, replies="connection.secure-ok")
class ConnectionSecure(Method):
    challenge: LongStr = field(default=b"", repr=False)


@method(10, 21, sender=Sender.CLIENT)
class ConnectionSecureOk(Method):
    response: LongStr = field(default=b"", repr=False)


@method(10, 30, sender=Sender.SERVER, replies="connection.tune-ok")
class ConnectionTune(Method):
    channel_max: Short = 0
    frame_max: Long = 0
    heartbeat: Short = 0


@method(10, 31, sender=Sender.CLIENT)
class ConnectionTuneOk(Method):
    channel_max: Short = 0
    frame_max: Long = 0
    heartbeat: Short = 0


@method(10, 40, sender=Sender.CLIENT, replies="connection.open-ok")
class ConnectionOpen(Method):
    virtual_host: ShortStr = "/"
    capabilities: ShortStr = ""  # reserved-1
    insist: Bit = False  # reserved-2


@method(10, 41, sender=Sender.SERVER)
class ConnectionOpenOk(Method):
    known_hosts: ShortStr = ""  # reserved-1


@method(10, 50, sender=Sender.EITHER, replies="connection.close-ok")
class ConnectionClose(Method):
    reply_code: Short = 200
    reply_text: Explanation = ""
    class_id: Short = 0
    method_id: Short = 0


@method(10, 51, sender=Sender.EITHER)
class ConnectionCloseOk(Method):
    pass


@method(10, 60, sender=Sender.SERVER)
class ConnectionBlocked(Method):
    reason: Explanation = ""


@method(10, 61, sender=Sender.SERVER)
class ConnectionUnblocked(Method):
    pass


@method(10, 70, sender=Sender.CLIENT, replies="connection.update-secret-ok")
class ConnectionUpdateSecret(Method):
    new_secret: LongStr = field(default=b"", repr=False)
    reason: ShortStr = ""


@method(10, 71, sender=Sender.SERVER)
class ConnectionUpdateSecretOk(Method):
    pass
