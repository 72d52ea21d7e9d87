"""The preferences and projects of a user, followed live with the list."""

from __future__ import annotations

from typing import Any

from tenax.journal import Journal
from tenax.journal.preferences import Preferences
from tenax.journal.projects import Project, Projects

__all__ = ["PersonalRows"]


class PersonalRows:
    """The last known preferences and projects. Every change has a number; 0 before the first read."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._revision = -1
        self._incarnation = ""
        self.preferences: dict[str, Any] = {}
        self.preferences_number = 0
        self.projects: list[Project] = []
        self.projects_number = 0

    def refresh(self) -> bool:
        """Read the rows if their revision changed. Return whether something differs. Blocks; one thread at a time."""
        journal = self._journal
        # A restored copy of the store may repeat a revision with other rows.
        incarnation = journal.incarnation
        rows = journal.store.query("personal", owner=journal.owner)
        revision = int(rows[0][0]) if rows else 0
        if (revision, incarnation) == (self._revision, self._incarnation):
            return False
        # The rows are read after the revision, so a later change is read again with the next revision.
        preferences = Preferences(journal).all()
        projects = Projects(journal).all()
        is_first = not self.preferences_number
        differs = False
        if is_first or preferences != self.preferences:
            self.preferences = preferences
            self.preferences_number += 1
            differs = True
        if is_first or projects != self.projects:
            self.projects = projects
            self.projects_number += 1
            differs = True
        self._revision, self._incarnation = revision, incarnation
        return differs
