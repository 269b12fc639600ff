"""What is remembered: the memory bank, neighbor indexes and durable folders."""

from nearwise.memory.bank import DEFAULT_SPACE, BankRow, MemoryBank
from nearwise.memory.store import Folder, StoreError, read_folder, write_folder

__all__ = [
    "DEFAULT_SPACE",
    "BankRow",
    "Folder",
    "MemoryBank",
    "StoreError",
    "read_folder",
    "write_folder",
]
