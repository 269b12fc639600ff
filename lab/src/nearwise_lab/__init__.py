"""The lab: methods compared, the study replayed, layers timed, and the reports on all of them.

It builds on the library, which does not depend on it.
"""

__version__ = "0.1.0"
