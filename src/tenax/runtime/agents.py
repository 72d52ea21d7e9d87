"""Who answers in a conversation: the models, the tools behind their gate, the memory, and what files want to be known.

Most conversations of a user have the same agent, the whole one. Where nothing is remembered there is another: in a tour the
script, for a task that was handed on one that can hand on no further, in a temporary conversation one without a memory.
Whatever changes, another agent answers next, and a run that is under way keeps its own to its end.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from tenax.agent.instructions import instructions
from tenax.agent.loop import Agent, Limits
from tenax.agent.prompt import PROMPT
from tenax.agent.skills import ReadSkill, Skills
from tenax.agent.tour import TOUR, tour_model
from tenax.config import Config, ModelSettings, secrets
from tenax.config.write import Rules
from tenax.errors import ConfigError
from tenax.events import DELEGATE
from tenax.journal import LOCAL_USER
from tenax.journal.aio import AsyncJournal
from tenax.memory.service import UNREMEMBERED, Readers
from tenax.memory.tool import UseMemory
from tenax.models import Model, connect
from tenax.tools.ask import Ask
from tenax.tools.base import Tool
from tenax.tools.delegate import BRIEF, STEPS_MAX
from tenax.tools.files.edit import EditFile, ReadFile, WriteFile
from tenax.tools.files.find import FindFiles, SearchFiles
from tenax.tools.gate import Gate
from tenax.tools.mcp.servers import McpServers
from tenax.tools.paths import real_folder
from tenax.tools.recollect import SearchConversations
from tenax.tools.redact import Redact
from tenax.tools.shell.commands import Background, Finished, Shell
from tenax.tools.shell.sandbox import Sandbox
from tenax.tools.todo import Todo
from tenax.workspace.folders import folder_of

__all__ = ["Answerers", "own_files"]

_SOURCES_MAX = 10_000


class Answerers:
    """Those who answer for one user.

    `ended` is told of a background process that ended. `offers` are tools that only the whole agent has: those with
    which it sets other runs going.
    """

    def __init__(
        self,
        config: Config,
        journal: AsyncJournal,
        ended: Callable[[Finished], Awaitable[None]],
        offers: Callable[[], list[Tool[Any]]],
        *,
        models: Sequence[Model] | None,
        limits: Limits,
        context_files: bool,
    ) -> None:
        self.config = config
        self.owner = journal.user == LOCAL_USER
        self.rules = Rules(config, allows=self.owner)
        self.folder = folder_of(config, journal.user or "")
        """Where the tools of this user work, as long as this lasts: another `tools.folder` holds from the next start on."""
        # from now on it is this one, whatever is put in its place
        real_folder(self.folder)
        self.mcp = McpServers(
            config.places.servers, config.places.state / "mcp", self._other_tools
        )
        """The servers whose tools are offered beside our own. They are the owner's, and nobody else's."""
        self.readers = Readers(journal, config, self._reviewer, self._made_anew)
        self._redact = Redact(lambda: secrets(self.config))
        # The folder of the owner may lie where every command sees the programs of the system.
        hidden = [*own_files(config), *([] if self.owner else [config.tools_folder])]
        traces, sandbox = config.places.data / "background", Sandbox(hidden)
        self.background = Background(
            sandbox, ended, traces, journal.user or "", self._redact
        )
        self._journal = journal
        self._offers = offers
        self._models = models
        self._limits = limits
        self._context_files = context_files
        self._skills = Skills(
            config.places.data / "skills" if self.owner else None,
            self.folder if context_files else None,
        )
        self._whole: Agent | None = None
        self._apart: dict[str, Agent] = {}
        """Who answers where nothing is remembered, by the source of the conversation."""
        self._reached: dict[ModelSettings, Model] = {}
        """Every model that was connected: what has nothing to do with it changes no connection, and a run keeps its own to its end."""
        self._sources: dict[str, str] = {}

    def start(self) -> None:
        """Begin to connect the servers of the configuration."""
        self.mcp.use(self.config.mcp if self.owner else {})

    def use(self, config: Config) -> None:
        """Answer with this configuration from now on."""
        self.config = config
        self.start()
        self._made_anew()

    async def close(self) -> None:
        """Let go of the models."""
        for model in (*(self._models or ()), *self._reached.values()):
            await model.close()

    # -- which agent -----------------------------------------------------------------------------------------

    @property
    def whole(self) -> Agent:
        """Who answers where something is remembered. Raises ConfigError where no model is set up."""
        if self._whole is None:
            self._whole = Agent(
                self._connected(),
                PROMPT,
                self._gate(),
                limits=self._limits,
                memory=self.readers.memory,
                instructions=self._instructions,
            )
        return self._whole

    async def of(self, conversation: str) -> Agent:
        """Who answers there. Raises ConfigError where nobody can."""
        source = await self.source(conversation)
        if source not in UNREMEMBERED:
            return self.whole
        if source not in self._apart:
            self._apart[source] = self._made_for(source)
        return self._apart[source]

    async def why_silent(self, conversation: str) -> str:
        """Why nobody can answer there; "" where somebody can."""
        try:
            await self.of(conversation)
        except ConfigError as error:
            return str(error)
        return ""

    async def source(self, conversation: str) -> str:
        """What opened it."""
        if conversation not in self._sources:
            if len(self._sources) >= _SOURCES_MAX:
                self._sources.clear()
            self._sources[conversation] = (
                await self._journal.summary(conversation)
            ).source
        return self._sources[conversation]

    def _made_for(self, source: str) -> Agent:
        if source == TOUR:
            rules = Rules(self.config, allows=False)
            gate = Gate([ReadFile(), WriteFile(rules)], rules, self._redact)
            return Agent((tour_model(),), PROMPT, gate, limits=self._limits)
        whole = self.whole
        if source == DELEGATE:
            return replace(
                whole,
                prompt=f"{whole.prompt}\n\n{BRIEF}",
                gate=whole.gate.only(
                    [each for each in whole.gate.tools() if each.delegated]
                ),
                limits=msgspec.structs.replace(
                    whole.limits, steps=min(STEPS_MAX, whole.limits.steps)
                ),
                memory=None,
            )
        return replace(
            whole, gate=Gate(self._tools(), self.rules, self._redact), memory=None
        )

    def _made_anew(self) -> None:
        """Whoever answers next is made anew: another model, or other tools."""
        self._whole = None
        self._apart.clear()

    def _other_tools(self) -> None:
        """The tools of a server are others: whoever answers next has them. The models stay."""
        if self._whole is not None:
            self._whole = replace(self._whole, gate=self._gate())
            self._apart.clear()

    # -- what it has -----------------------------------------------------------------------------------------

    def _connected(self) -> tuple[Model, ...]:
        if self._models is not None:
            return tuple(self._models)
        if self.config.model is None:
            raise ConfigError(
                "No model is set up, so nobody can answer.",
                hint="Run `tenax setup`, or `tenax demo` for a tour that needs none.",
            )
        labels = (self.config.model, *self.config.fallback)
        return tuple(self._model(self.config.models[label]) for label in labels)

    def _model(self, settings: ModelSettings) -> Model:
        if settings not in self._reached:
            self._reached[settings] = connect(settings)
        return self._reached[settings]

    def _gate(self) -> Gate:
        tools: list[Tool[Any]] = [*self._tools(), UseMemory(self.readers.memory)]
        tools += [SearchConversations(self._journal, UNREMEMBERED), *self._offers()]
        tools += self.readers.tools({each.name for each in tools})
        return Gate(tools, self.rules, self._redact)

    def _tools(self) -> list[Tool[Any]]:
        """What every agent can do, but for that of a tour."""
        from tenax.tools.web import fetch as web  # noqa: PLC0415  (brings HTTP along)

        config, rules = self.config, self.rules
        own: list[Tool[Any]] = [
            ReadFile(),
            WriteFile(rules),
            EditFile(rules),
            FindFiles(rules),
            SearchFiles(rules),
        ]
        own.append(web.FetchPage())
        if config.searxng is not None:
            own.append(web.SearchWeb(web.Searxng(config.searxng)))
        elif config.brave is not None:
            own.append(web.SearchWeb(web.Brave(config.brave)))
        elif config.tavily is not None:
            own.append(web.SearchWeb(web.Tavily(config.tavily)))
        own += [Shell(self.background.sandbox, self._redact), *self.background.tools()]
        own += [Ask(), Todo(), ReadSkill(self._skills, rules)]
        return [*own, *self.mcp.tools({each.name for each in own})]

    def _instructions(self) -> str:
        """What files want whoever answers to know. It is read when a stretch begins."""
        personal = self.config.places.config / "AGENTS.md"
        read = partial(
            instructions, self.folder, personal, Path.home(), owner=self.owner
        )
        return "\n\n".join(
            filter(None, [read() if self._context_files else "", self._skills.told()])
        )

    # -- what its model is good for --------------------------------------------------------------------------

    def is_set_up(self) -> bool:
        """Whether there is any model."""
        return self._models is not None or self.config.model is not None

    def is_real(self, model: Model) -> bool:
        """Whether it is a model that the person connected: not the practice model, not a script."""
        found = [
            each for each in self.config.models.values() if each.name == model.name
        ]
        return any(each.api in {"openai", "anthropic"} for each in found)

    def can_summarise(self, model: Model) -> bool:
        """Whether a summary may be asked of it: it is real, or whoever made this runtime brought it along."""
        return self._models is not None or self.is_real(model)

    async def _reviewer(self, conversation: str) -> Model | None:
        """Who looks a conversation over: the model that answers there, if it is one that the person connected."""
        if not self.config.memory_review or await self.why_silent(conversation):
            return None
        model = (await self.of(conversation)).models[0]
        over = self._limits.dollars_day
        spent = await self._journal.spent()
        return (
            model
            if self.is_real(model) and (over is None or spent.cost < over)
            else None
        )


def own_files(config: Config) -> list[Path]:
    """What no command may see: the settings with their keys, the store, the logs."""
    places = config.places
    store = (
        [config.store_url.removeprefix("sqlite:///")]
        if config.store_url.startswith("sqlite:///")
        else []
    )
    settings = [config.file, config.file.with_name("secrets.toml")]
    return [places.config, places.data, places.state, *settings, *map(Path, store)]
