"""Every promise of the journal, one test each. An engine keeps its word if it passes them all.

A test file of an engine says how its journal is made, and inherits the rest:

    class TestMine(JournalContract):
        @pytest.fixture
        def journal(self, clock): ...

The docstrings of the tests, read in order, are the specification. `base.py` names what an engine may override.
"""

from tests.contract.engine.appending import AppendContract
from tests.contract.engine.choosing import ChoiceContract
from tests.contract.engine.compacting import CompactContract
from tests.contract.engine.editing import EditContract
from tests.contract.engine.following import FollowContract
from tests.contract.engine.leasing import LeaseContract
from tests.contract.engine.personal import PersonalContract
from tests.contract.engine.reading import ReadContract
from tests.contract.engine.refusing import RefuseContract
from tests.contract.engine.remembering import RememberContract
from tests.contract.engine.removing import RemoveContract
from tests.contract.engine.running import RunContract
from tests.contract.engine.sharing import ShareContract

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
    ChoiceContract,
    PersonalContract,
):
    """The whole contract. Override `journal`, and whatever else of `Engine` the engine does in its own way."""
