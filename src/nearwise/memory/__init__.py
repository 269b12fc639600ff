"""Memory of labelled rows: memory bank, neighbor indexes and durable folders."""

from nearwise.memory.bank import DEFAULT_SPACE, BankRow, MemoryBank
from nearwise.memory.checks import UnknownIdError
from nearwise.memory.eviction import EVICTION_NAMES, EvictionName, choose_evicted
from nearwise.memory.index import ExactIndex, IndexName, NeighborIndex
from nearwise.memory.journal import JOURNAL, Change, Journal, JournalState
from nearwise.memory.make_index import AUTO_EXACT_BELOW, INDEX_NAMES, make_index
from nearwise.memory.store import (
    Folder,
    StoreError,
    check_writable,
    folder_generation,
    folder_kind,
    locked_folder,
    read_folder,
    verify_folder,
    write_folder,
)
from nearwise.memory.tokens import Recalled, TokenMemory

__all__ = [
    "AUTO_EXACT_BELOW",
    "DEFAULT_SPACE",
    "EVICTION_NAMES",
    "INDEX_NAMES",
    "JOURNAL",
    "BankRow",
    "Change",
    "EvictionName",
    "ExactIndex",
    "Folder",
    "IndexName",
    "Journal",
    "JournalState",
    "MemoryBank",
    "NeighborIndex",
    "Recalled",
    "StoreError",
    "TokenMemory",
    "UnknownIdError",
    "check_writable",
    "choose_evicted",
    "folder_generation",
    "folder_kind",
    "locked_folder",
    "make_index",
    "read_folder",
    "verify_folder",
    "write_folder",
]
