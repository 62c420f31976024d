"""What the broker must not forget, and where it is kept.

The broker knows `journal` and chooses `memory` or `sqlite`; the rest is theirs:

    journal    the contract: changes are appended, and after a commit they are known to be on disk
    memory     the journal that keeps nothing
    sqlite     the journal that keeps everything: group commit by one background thread
    datafile   the SQLite file: how it is made, checked, written and read back
    directory  the data directory: made to last, and one process's alone
"""

from redrive.broker.storage.journal import Definition, Journal, Recovered, StoredMessage
from redrive.broker.storage.memory import MemoryJournal
from redrive.broker.storage.sqlite import SQLiteJournal

__all__ = ["Definition", "Journal", "MemoryJournal", "Recovered", "SQLiteJournal", "StoredMessage"]
