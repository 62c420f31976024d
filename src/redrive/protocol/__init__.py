"""The conversation of AMQP 0-9-1, for either side, without I/O.

| module       | what                                                                             |
|--------------|----------------------------------------------------------------------------------|
| `lifecycle`  | the life of a connection and of a channel, as tables                             |
| `connection` | bytes in, events out; methods in, bytes out; violations of AMQP are refused      |
| `outgoing`   | what this side sends, and the states of the connection and its channels          |
| `messages`   | deliveries and publications, decoded only as far as needed                       |
| `handshake`  | credentials and tuning                                                           |
| `heartbeat`  | silence, as deadlines                                                            |
| `confirms`   | which publishes the broker has answered for                                      |
| `acks`       | which deliveries are settled, told in the fewest frames                          |

Time is an argument here, and a socket is somebody else's: the client wraps this in asyncio, the embedded
broker does the same, and the tests connect two of them by hand.
"""
