"""Every promise of the journal, one test each. An engine keeps its word if it passes them all.

A test file of an engine says how its journal is made, and inherits the rest:

    class TestMine(JournalContract):
        @pytest.fixture
        def journal(self, clock): ...

The docstrings of the tests, read in order, are the specification. `base.py` names what an engine may override.
"""

from tenax.testing.contract.appending import AppendContract
from tenax.testing.contract.compacting import CompactContract
from tenax.testing.contract.editing import EditContract
from tenax.testing.contract.following import FollowContract
from tenax.testing.contract.leasing import LeaseContract
from tenax.testing.contract.reading import ReadContract
from tenax.testing.contract.refusing import RefuseContract
from tenax.testing.contract.remembering import RememberContract
from tenax.testing.contract.removing import RemoveContract
from tenax.testing.contract.running import RunContract
from tenax.testing.contract.sharing import ShareContract

__all__ = ["JournalContract"]


class JournalContract(
    AppendContract,
    RefuseContract,
    ReadContract,
    EditContract,
    CompactContract,
    RunContract,
    LeaseContract,
    FollowContract,
    RemoveContract,
    RememberContract,
    ShareContract,
):
    """The whole contract. Override `journal`, and whatever else of `Engine` the engine does in its own way."""
