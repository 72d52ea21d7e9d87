"""What a test of Tenax, or of something built on it, is made of. No mock library is needed.

`memory()` is a journal without a file. `SimClock` is time that passes when the test says so. `FaultyJournal` has named
points at which it fails, hangs or dies. `FaultVfs` is a disk that is slow, or fails the n-th write, flush or statement.
`contract.JournalContract` is every promise of the journal, one test each, for an engine to run; it needs pytest.
"""

from tenax.testing.clock import SimClock
from tenax.testing.faults import Faults, FaultyJournal, Hold
from tenax.testing.memory import memory
from tenax.testing.vfs import Fault, FaultVfs

__all__ = ["Fault", "FaultVfs", "Faults", "FaultyJournal", "Hold", "SimClock", "memory"]
