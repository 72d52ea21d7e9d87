"""The choices of the person: the model, mode and project of a conversation, read marks, preferences and projects."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import msgspec

from tenax.config import Config
from tenax.errors import InvalidInput, NoSuchConversation
from tenax.events import ConversationConfigured, Mode
from tenax.journal.aio import AsyncJournal
from tenax.journal.arguments import checked
from tenax.journal.preferences import Preferences, ReadMarks
from tenax.journal.projects import NAME_CHARS_MAX, Project, Projects
from tenax.runtime.agents import Agents

__all__ = ["Choices", "UserProjects"]


@checked
class UserProjects:
    """The projects of a user, checked against the settings and the folders of the machine."""

    def __init__(self, journal: AsyncJournal, agents: Agents) -> None:
        self._threads = journal.threads
        self._agents = agents
        self._rows = Projects(journal.journal)

    async def all(self) -> list[Project]:
        """Return the projects, oldest first."""
        return await self._threads.run(self._rows.all)

    async def get(self, id: str) -> Project:  # noqa: A002  (the field's name)
        """Return a project. Raises `NoSuchConversation`."""
        return await self._threads.run(partial(self._rows.get, id))

    async def add(
        self,
        name: str,
        *,
        folder: str = "",
        instructions: str = "",
        model: str = "",
        key: str = "",
    ) -> Project:
        """Add a project, once for every `key`. An empty folder is the folder of the user."""
        project = Project(
            Projects.id_of(key or os.urandom(16).hex()),
            name,
            folder,
            instructions,
            model,
        )
        return await self._threads.run(lambda: self._rows.add(self._check(project)))

    async def of_folder(self, folder: str) -> Project:
        """Return the first project with the folder. Add a project, named as the folder, if there is none."""

        def find_or_add() -> Project:
            real = self._agents.check_folder(folder)
            for project in self._rows.all():
                if project.folder == str(real):
                    return project
            # The same id for the same folder: two terminals that start together add one project.
            new = Project(
                Projects.id_of(f"here:{real}"), real.name[:NAME_CHARS_MAX], str(real)
            )
            added = self._rows.add(new)
            if added.folder == new.folder:
                return added
            # The person has given another folder to the project with this id.
            return self._rows.add(
                msgspec.structs.replace(new, id=Projects.id_of(os.urandom(16).hex()))
            )

        return await self._threads.run(find_or_add)

    async def change(
        self,
        id: str,  # noqa: A002
        *,
        name: str | None = None,
        folder: str | None = None,
        instructions: str | None = None,
        model: str | None = None,
    ) -> Project:
        """Change the given fields of a project. Raises `NoSuchConversation`."""
        given = {"name": name, "folder": folder, "instructions": instructions, "model": model}  # fmt: skip
        changes = {field: value for field, value in given.items() if value is not None}

        def store_change() -> Project:
            before = self._rows.get(id)
            changed = msgspec.structs.replace(before, **changes)
            # A folder or a model that was removed since must not refuse another change.
            checked_project = self._check(changed, only=set(changes))
            self._rows.change(checked_project)
            return self._rows.get(id)

        return await self._threads.run(store_change)

    async def remove(self, id: str) -> None:  # noqa: A002
        """Remove a project. Its conversations stay. Raises `NoSuchConversation`."""
        await self._threads.run(partial(self._rows.remove, id))

    def _check(self, project: Project, only: set[str] | None = None) -> Project:
        if only is None or "model" in only:
            check_model(self._agents.config, project.model)
        if only is not None and "folder" not in only:
            return project
        if not project.folder:
            return project
        folder = self._agents.check_folder(project.folder)
        return msgspec.structs.replace(project, folder=str(folder))


@checked
class Choices:
    """The choices for the conversations of a user."""

    def __init__(
        self, journal: AsyncJournal, agents: Agents, projects: UserProjects
    ) -> None:
        self._journal = journal
        self._agents = agents
        self._projects = projects
        self._preferences = Preferences(journal.journal)
        self._marks = ReadMarks(journal.journal)

    async def make_event(
        self,
        *,
        model: str | None = None,
        mode: Mode | None = None,
        project: str | None = None,
    ) -> ConversationConfigured:
        """Return the event of a choice. Raises `InvalidInput` for an unknown model or project."""
        if model:
            check_model(self._agents.config, model)
        if project:
            try:
                await self._projects.get(project)
            except NoSuchConversation as error:
                raise InvalidInput(str(error), hint="Choose another project.") from None
        return ConversationConfigured(model, mode, project)

    async def configure(
        self,
        conversation: str,
        *,
        model: str | None = None,
        mode: Mode | None = None,
        project: str | None = None,
    ) -> None:
        """Choose model, mode and project of a conversation. `None` changes nothing, "" chooses the default.

        A choice that the conversation already has stores nothing.
        """
        wanted = await self.make_event(model=model, mode=mode, project=project)
        present = await self._journal.summary(conversation)
        changes = {
            name: value
            for name, value in msgspec.structs.asdict(wanted).items()
            if value is not None and value != getattr(present, name)
        }
        if changes:
            await self._journal.append(
                conversation, [ConversationConfigured(**changes)]
            )
            self._agents.forget_setting(conversation)

    async def mark_read(self, conversation: str, seq: int) -> None:
        """Note that the person has read a conversation up to a seq. An earlier mark stays if it is greater."""
        await self._journal.threads.run(partial(self._marks.mark, conversation, seq))

    async def preferences(self) -> dict[str, Any]:
        """Return the preferences: JSON values by name."""
        return await self._journal.threads.run(self._preferences.all)

    async def change_preferences(self, changes: dict[str, Any]) -> None:
        """Set preferences. The value `None` removes a preference."""
        await self._journal.threads.run(partial(self._preferences.change, changes))


def check_model(config: Config, label: str) -> None:
    """Raise `InvalidInput` if the settings have no model with the label. An empty label is the default."""
    if label and label not in config.models:
        known = ", ".join(sorted(config.models)) or "none"
        raise InvalidInput(
            f"There is no model {label:.60} in the settings.",
            hint=f"Choose one of them: {known:.200}.",
        )
