"""`/api/projects`: a name, a folder, instructions and a model for several conversations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from tenax.assembly import Runtime
from tenax.clock import rfc3339
from tenax.journal.projects import (
    FOLDER_CHARS_MAX,
    INSTRUCTIONS_CHARS_MAX,
    NAME_CHARS_MAX,
    Project,
)
from tenax.web.api import Id, RequestBody, ResponseBody, endpoint

Name = Annotated[str, Meta(min_length=1, max_length=NAME_CHARS_MAX)]
Folder = Annotated[str, Meta(max_length=FOLDER_CHARS_MAX)]
Instructions = Annotated[str, Meta(max_length=INSTRUCTIONS_CHARS_MAX)]
Label = Annotated[str, Meta(max_length=NAME_CHARS_MAX)]


class ShownProject(ResponseBody):
    """A project. An empty folder is the folder of the user, an empty model the default."""

    id: str
    name: str
    folder: str
    instructions: str
    model: str
    created_at: str


class ShownProjects(ResponseBody):
    """Projects, oldest first."""

    projects: list[ShownProject]

    @classmethod
    def of(cls, projects: Sequence[Project]) -> ShownProjects:
        return cls([_shown(project) for project in projects])


class NewProject(RequestBody):
    """A new project. Only the owner may choose a folder outside the folder of the user."""

    name: Name
    folder: Folder = ""
    instructions: Instructions = ""
    model: Label = ""


class ProjectChange(RequestBody):
    """The fields to change."""

    name: Name | None = None
    folder: Folder | None = None
    instructions: Instructions | None = None
    model: Label | None = None


def _shown(project: Project) -> ShownProject:
    return ShownProject(
        id=project.id,
        name=project.name,
        folder=project.folder,
        instructions=project.instructions,
        model=project.model,
        created_at=rfc3339(project.created_at),
    )


@endpoint("GET", "/api/projects")
async def list_projects(runtime: Runtime) -> ShownProjects:
    """List the projects."""
    return ShownProjects.of(await runtime.projects.all())


@endpoint("POST", "/api/projects", 201)
async def add_project(runtime: Runtime, body: NewProject, key: str) -> ShownProject:
    """Add a project, once per idempotency key."""
    project = await runtime.projects.add(
        body.name,
        folder=body.folder,
        instructions=body.instructions,
        model=body.model,
        key=f"page:{key}",
    )
    return _shown(project)


@endpoint("PATCH", "/api/projects/{id}")
async def change_project(
    runtime: Runtime,
    id: Id,  # noqa: A002  (its name in the path)
    body: ProjectChange,
) -> ShownProject:
    """Change a project."""
    project = await runtime.projects.change(
        id,
        name=body.name,
        folder=body.folder,
        instructions=body.instructions,
        model=body.model,
    )
    return _shown(project)


@endpoint("DELETE", "/api/projects/{id}", 204)
async def remove_project(runtime: Runtime, id: Id) -> None:  # noqa: A002
    """Remove a project. Its conversations and its folder stay."""
    await runtime.projects.remove(id)
