"""Projects: rows of the store beside the journal. A conversation names its project by id (`conversation.configured`)."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

import msgspec

from tenax.errors import InvalidInput, NoSuchConversation, TooLarge
from tenax.journal.plan import is_id
from tenax.text import is_storable

if TYPE_CHECKING:
    from tenax.journal.journal import Journal
    from tenax.journal.store import Tx

__all__ = [
    "FOLDER_CHARS_MAX",
    "INSTRUCTIONS_CHARS_MAX",
    "NAME_CHARS_MAX",
    "PROJECTS_MAX",
    "Project",
    "Projects",
]

PROJECTS_MAX: Final = 100
"""The largest number of projects of a user."""
NAME_CHARS_MAX: Final = 100
FOLDER_CHARS_MAX: Final = 4096
INSTRUCTIONS_CHARS_MAX: Final = 10_000


class Project(msgspec.Struct, frozen=True):
    """A project: a name, a folder, instructions and a default model for its conversations."""

    id: str
    name: str
    folder: str = ""
    """The absolute path of the folder. Empty: the folder of the user."""
    instructions: str = ""
    model: str = ""
    """The label of a model in the settings. Empty: the default."""
    created_at: int = 0
    """Microseconds since 1970."""


class Projects:
    """The projects of a user. Every method is thread-safe."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._store = journal.store
        self._user = journal.owner

    def all(self) -> list[Project]:
        """Return the projects, oldest first."""
        return [
            Project(*row) for row in self._store.query("projects", owner=self._user)
        ]

    def get(self, id: str) -> Project:  # noqa: A002  (the field's name)
        """Return a project. Raises `NoSuchConversation`."""
        if is_id(id):
            for row in self._store.query("project", owner=self._user, id=id):
                return Project(*row)
        raise _unknown(id)

    def add(self, project: Project) -> Project:
        """Store a new project. If the id exists, return the existing project unchanged."""
        new = msgspec.structs.replace(
            _check(project), created_at=self._journal.clock.now_us()
        )
        own = {"owner": self._user}

        def insert(tx: Tx) -> Project:
            # The row of the user is locked first, so concurrent changes cannot exceed the limit together.
            tx.run("change_personal", own)
            rows = tx.run("projects", own)
            for row in rows:
                if row[0] == new.id:
                    return Project(*row)
            if len(rows) >= PROJECTS_MAX:
                raise InvalidInput(
                    f"There are {PROJECTS_MAX} projects already.",
                    hint="remove one of them",
                )
            tx.run("put_project", {**own, **msgspec.structs.asdict(new)})
            return new

        added = self._store.change(insert)
        self._store.announce_rows()
        return added

    def change(self, project: Project) -> None:
        """Store the changed fields of a project. Raises `NoSuchConversation`."""
        changed = _check(project)
        own = {"owner": self._user}

        def update(tx: Tx) -> bool:
            tx.run("change_personal", own)
            if not tx.run("project", {**own, "id": changed.id}):
                return False
            tx.run("put_project", {**own, **msgspec.structs.asdict(changed)})
            return True

        if not self._store.change(update):
            raise _unknown(project.id)
        self._store.announce_rows()

    def remove(self, id: str) -> None:  # noqa: A002
        """Remove a project. Its conversations stay, without a project. Raises `NoSuchConversation`."""
        # A retried transaction finds nothing if the first attempt was committed.
        self.get(id)

        def drop(tx: Tx) -> None:
            tx.run("change_personal", {"owner": self._user})
            tx.run("drop_project", {"owner": self._user, "id": id})

        self._store.change(drop)
        self._store.announce_rows()

    @staticmethod
    def id_of(key: str) -> str:
        """Return the id of the project created by a call with the key."""
        return f"p_{hashlib.sha256(key.encode()).hexdigest()[:24]}"


def _check(project: Project) -> Project:
    """Return the project to store. Raises `InvalidInput` or `TooLarge`."""
    name = " ".join(project.name.split())
    if not name or not all(
        is_storable(text)
        for text in (name, project.folder, project.instructions, project.model)
    ):
        raise InvalidInput("A project needs a name, and may hold only text.")
    for what, text, most in (
        ("name", name, NAME_CHARS_MAX),
        ("folder", project.folder, FOLDER_CHARS_MAX),
        ("instructions", project.instructions, INSTRUCTIONS_CHARS_MAX),
        ("model", project.model, NAME_CHARS_MAX),
    ):
        if len(text) > most:
            raise TooLarge(f"The {what} of a project has at most {most:,} characters.")
    return msgspec.structs.replace(project, name=name)


def _unknown(id: object) -> NoSuchConversation:  # noqa: A002
    return NoSuchConversation(
        f"There is no project {id!s:.60}.", hint="Look at the list of projects."
    )
