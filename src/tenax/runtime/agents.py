"""The agent of a conversation: the models, the tools behind the gate, the memory, and the instruction files.

Most conversations of a user share the whole agent. Conversations without memory have other agents: a tour has a
scripted model, a sub-agent cannot delegate further, and a temporary conversation has the whole agent without memory.
A conversation with another model or a project has a variant of its agent, shared by the conversations with the same
choices. After a change of the configuration or of a choice, another agent answers the next run. A run in progress keeps
its agent to the end.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from tenax.agent.instructions import instructions
from tenax.agent.loop import UNREMEMBERED, Agent, Limits
from tenax.agent.prompt import PROMPT
from tenax.agent.skills import ReadSkill, Skills
from tenax.agent.titles import give_title
from tenax.agent.tour import TOUR, tour_model
from tenax.config import Config, ModelSettings, find_secrets
from tenax.config.write import Rules
from tenax.errors import ConfigError, NoSuchConversation, Refused, TenaxError
from tenax.events import DELEGATE, Mode
from tenax.journal import LOCAL_USER
from tenax.journal.aio import AsyncJournal
from tenax.journal.projects import Project, Projects
from tenax.models import Model, connect
from tenax.runtime.extensions import Extensions
from tenax.runtime.tasks import BackgroundTasks
from tenax.tools.ask import Ask
from tenax.tools.base import Tool
from tenax.tools.delegate import BRIEF, STEPS_MAX
from tenax.tools.files.edit import EditFile, ReadFile, WriteFile
from tenax.tools.files.find import FindFiles, SearchFiles
from tenax.tools.folders import check_folder
from tenax.tools.gate import Gate
from tenax.tools.paths import keep_real
from tenax.tools.recollect import SearchConversations
from tenax.tools.redact import Redact
from tenax.tools.shell.commands import Background, Finished, Shell
from tenax.tools.shell.sandbox import Sandbox
from tenax.tools.todo import Todo

__all__ = ["Agents", "Setting", "list_private_paths"]

_SETTINGS_MAX = 10_000
_TITLE_SECONDS = 30.0
_VARIANTS_MAX = 100


class Setting(msgspec.Struct, frozen=True):
    """The source of a conversation, and the choices of the person for the conversation."""

    source: str
    model: str = ""
    """The label of the chosen model. The settings may not have the model any more."""
    mode: Mode = "ask"
    project: Project | None = None


class Agents:
    """The agents of a user.

    `ended` is called after the end of a background process.
    """

    def __init__(
        self,
        config: Config,
        journal: AsyncJournal,
        ended: Callable[[Finished], Awaitable[None]],
        extensions: Extensions,
        *,
        models: Sequence[Model] | None,
        limits: Limits,
    ) -> None:
        self.config = config
        self.owner = journal.user == LOCAL_USER
        self.rules = Rules(config, allows=self.owner)
        self.folder = extensions.changes.folder
        """The folder of the user's tools. A changed `tools.folder` applies at the next start."""
        self._servers = extensions.servers
        self._memory_service = extensions.memory
        self._redact = Redact(lambda: find_secrets(self.config))
        # The folder of the owner may lie where every command sees the programs of the system.
        hidden_paths = [
            *list_private_paths(config),
            *([] if self.owner else [config.tools_folder]),
        ]
        traces = config.directories.data / "background"
        sandbox = Sandbox(hidden_paths)
        self.background = Background(
            sandbox, ended, traces, journal.user or "", self._redact, config.timing
        )
        self.tasks = BackgroundTasks()
        self.offers: list[Tool[Any]] = []
        """The tools of the whole agent for starting other runs. No other agent has the tools."""
        self._journal = journal
        self._models = models
        self.limits = limits
        self._skills = Skills(
            config.directories.data / "skills" if self.owner else None,
            self.folder if config.context_files else None,
        )
        self._offered: list[object] = [[], []]
        """The offers of the MCP servers and the memory providers to the present agents."""
        self.current: Agent | None = None
        """The agent of conversations with memory, as last built; `None` before the first use and after a change."""
        self._agents_by_source: dict[str, Agent] = {}
        """The agents of conversations without memory, by the source of the conversation."""
        self._variants: dict[tuple[str, str, Project | None], tuple[Agent, Agent]] = {}
        """By source, label of the model, and project: the agent without these choices, and the agent with them."""
        self._projects = Projects(journal.journal)
        self._connected_models: dict[ModelSettings, Model] = {}
        """Every connected model. Unrelated changes keep the connection, and a run keeps the model to the end."""
        self._settings: dict[str, Setting] = {}
        """The choices for conversations, as last read."""

    def start(self) -> None:
        """Start connecting to the MCP servers of the configuration."""
        self._servers.use(self.config.mcp if self.owner else {})

    def use(self, config: Config) -> None:
        """Use a configuration from now on."""
        self.config = config
        self.start()
        self._drop_agents()

    def require_owner(self, action: str = "makes its rules") -> None:
        """Raise `Refused` unless the user is the person who runs Tenax."""
        if not self.owner:
            raise Refused(f"Only the person who runs this Tenax {action}.")

    async def close(self) -> None:
        """Close the models."""
        for model in (*(self._models or ()), *self._connected_models.values()):
            await model.close()

    # -- agents ----------------------------------------------------------------------------------------------

    @property
    def full_agent(self) -> Agent:
        """The agent of conversations with memory. Raises `ConfigError` if no model is set up."""
        self._drop_outdated_agents()
        if self.current is None:
            self.current = Agent(
                self.connect_models(),
                PROMPT,
                self._make_gate(),
                limits=self.limits,
                memory=self._memory_service.memory,
                instructions=self._read_instructions,
            )
        return self.current

    async def of(self, conversation: str) -> Agent:
        """Return the agent of a conversation. Raises `ConfigError` if no model is set up."""
        return self.agent_of(await self.setting(conversation))

    def agent_of(self, setting: Setting) -> Agent:
        """Return the agent for the choices of a conversation. Raises `ConfigError` if no model is set up."""
        plain = self._agent_of_source(setting.source)
        label = self._find_label(setting)
        is_default = label in {"", self.config.model} and setting.project is None
        if setting.source == TOUR or is_default:
            return plain
        key = (setting.source, label, setting.project)
        known = self._variants.get(key)
        # A changed configuration or other tools make a new plain agent.
        if known is None or known[0] is not plain:
            if len(self._variants) >= _VARIANTS_MAX:
                self._variants.clear()
            known = self._variants[key] = (plain, self._vary(plain, label, setting))
        return known[1]

    def _vary(self, plain: Agent, label: str, setting: Setting) -> Agent:
        """Return an agent with the model and the project of a conversation."""
        models = self.connect_models(label) if label else plain.models
        project = setting.project
        if project is None:
            return replace(plain, models=models)
        read_instructions = None
        if plain.instructions is not None:
            read_instructions = partial(self._read_instructions, project)
        scope = msgspec.json.encode([project.id, project.folder, project.instructions])
        return replace(
            plain,
            models=models,
            instructions=read_instructions,
            scope=hashlib.sha256(scope).hexdigest()[:16],
        )

    def _agent_of_source(self, source: str) -> Agent:
        if source not in UNREMEMBERED:
            return self.full_agent
        self._drop_outdated_agents()
        if source not in self._agents_by_source:
            self._agents_by_source[source] = self._make_agent(source)
        return self._agents_by_source[source]

    async def setting(self, conversation: str) -> Setting:
        """Read the choices for a conversation. A removed project is no project."""
        read = partial(self.read_setting, conversation)
        setting = await self._journal.threads.run(read)
        self.remember_setting(conversation, setting)
        return setting

    def read_setting(self, conversation: str) -> Setting:
        """Read the choices for a conversation. Blocks."""
        choice = self._journal.journal.choice(conversation)
        project = None
        if choice.project:
            with contextlib.suppress(NoSuchConversation):
                project = self._projects.get(choice.project)
        return Setting(choice.source, choice.model, choice.mode, project)

    def remember_setting(self, conversation: str, setting: Setting) -> None:
        """Remember the choices for a conversation, as last read."""
        if len(self._settings) >= _SETTINGS_MAX:
            self._settings.clear()
        self._settings[conversation] = setting

    def forget_setting(self, conversation: str) -> None:
        """Forget the choices for a conversation, because the person made another choice."""
        self._settings.pop(conversation, None)

    async def require_agent(self, conversation: str) -> None:
        """Raise `ConfigError` if no agent can answer, by the choices as last read. The run reads the choices again."""
        known = self._settings.get(conversation)
        if known is None or not self._can_answer(known):
            await self.of(conversation)

    def _can_answer(self, setting: Setting) -> bool:
        try:
            self.agent_of(setting)
        except ConfigError:
            return False
        return True

    def _find_label(self, setting: Setting) -> str:
        """Return the label of the first model: of the conversation, of the project, or "" for the default model."""
        wanted = [setting.model]
        if setting.project is not None:
            wanted.append(setting.project.model)
        known = [label for label in wanted if label in self.config.models]
        return known[0] if known else ""

    def label_of(self, setting: Setting) -> str:
        """Return the label of the model that answers."""
        return self._find_label(setting) or self.config.model or ""

    def explain_model(self, setting: Setting) -> str:
        """Return a sentence about a chosen model that the settings do not have any more; "" otherwise."""
        if not setting.model or setting.model in self.config.models:
            return ""
        label = self.label_of(setting) or "the default model"
        return f"The model {setting.model:.60} is no longer in the settings. {label} answers instead."

    # -- folders ---------------------------------------------------------------------------------------------

    def folder_of(self, setting: Setting) -> Path:
        """Return the folder of a conversation: the folder of the project, or the folder of the user."""
        if setting.project is None or not setting.project.folder:
            return self.folder
        return keep_real(Path(setting.project.folder))

    def check_folder(self, folder: str) -> Path:
        """Return the real path of a project's folder. Blocks. Raises `InvalidInput` or `Refused`."""
        private = list_private_paths(self.config)
        return check_folder(folder, self.folder, private, owner=self.owner)

    def explain_folder(self, project: Project) -> str:
        """Return the reason why the folder of a project cannot be used now; "" if it can. Blocks."""
        try:
            found = self.check_folder(project.folder)
        except TenaxError as error:
            return f"The project {project.name} cannot be used: {error} {error.hint}"
        if str(found) == project.folder:
            return ""
        return (
            f"The project {project.name} cannot be used: a link leads from {project.folder} to another folder. "
            "Choose the folder of the project again."
        )

    async def explain_silence(self, conversation: str) -> str:
        """Return the reason for the lack of an agent in a conversation; "" if an agent can answer."""
        try:
            await self.of(conversation)
        except ConfigError as error:
            return str(error)
        return ""

    def _make_agent(self, source: str) -> Agent:
        if source == TOUR:
            rules = Rules(self.config, allows=False)
            gate = self._make_gate_for([ReadFile(), WriteFile(rules)], rules)
            return Agent((tour_model(),), PROMPT, gate, limits=self.limits)
        full_agent = self.full_agent
        if source == DELEGATE:
            return replace(
                full_agent,
                prompt=f"{full_agent.prompt}\n\n{BRIEF}",
                gate=full_agent.gate.only(
                    [tool for tool in full_agent.gate.tools() if tool.delegated]
                ),
                limits=msgspec.structs.replace(
                    full_agent.limits, steps=min(STEPS_MAX, full_agent.limits.steps)
                ),
                memory=None,
            )
        gate = self._make_gate_for(self._make_tools(), self.rules)
        return replace(full_agent, gate=gate, memory=None)

    def _drop_agents(self) -> None:
        """Drop the agents, because models or tools changed. The next run gets a new agent."""
        self.current = None
        self._agents_by_source.clear()
        self._variants.clear()

    def _drop_outdated_agents(self) -> None:
        """Drop the agents if MCP servers or memory providers offer other tools now. The models stay connected."""
        offered: list[object] = [
            self._servers.offered(),
            self._memory_service.offered(),
        ]
        if offered != self._offered:
            self._offered = offered
            self._drop_agents()

    # -- after a turn ----------------------------------------------------------------------------------------

    def handle_answer(self, conversation: str) -> None:
        """Give the conversation a title, and tell the memory about the finished turn, in the background."""
        self.tasks.start(
            f"title {conversation}", partial(self._give_title, conversation)
        )
        self._memory_service.handle_answer(conversation)

    def handle_eviction(self, conversation: str) -> None:
        """Record a memory boundary after the eviction of an unused history."""
        record = partial(self._memory_service.record_boundary, conversation, "evicted")
        self.tasks.start(f"left {conversation}", record)

    async def _give_title(self, conversation: str) -> None:
        """Ask a real model for the title of an untitled conversation."""
        if not any(map(_is_provider, self.config.models.values())):
            return
        summary = await self._journal.summary(conversation)
        if summary.title is not None:
            return
        model = (await self.of(conversation)).models[0]
        if self.is_real(model):
            await give_title(self._journal, model, conversation, silence=_TITLE_SECONDS)

    # -- models and tools ------------------------------------------------------------------------------------

    def connect_models(self, chosen: str = "") -> tuple[Model, ...]:
        """Return the chosen model, or the default model, and the fallbacks. Raises `ConfigError` if none is set up."""
        if self._models is not None:
            settings = self.config.models.get(chosen)
            name = settings.name if settings is not None else ""
            return tuple(sorted(self._models, key=lambda model: model.name != name))
        if self.config.model is None:
            raise ConfigError(
                "No model is set up.",
                hint="Run `tenax setup`, or `tenax demo` for a tour that needs none.",
            )
        first = chosen or self.config.model
        labels = dict.fromkeys((first, *self.config.fallback))
        return tuple(self._connect_model(self.config.models[label]) for label in labels)

    def find_model(self, agent: Agent, name: str) -> Model | None:
        """Return a model by its name: a model of the agent, or of the settings. Return `None` for an unknown name."""
        for model in agent.models:
            if model.name == name:
                return model
        for settings in self.config.models.values():
            if settings.name == name and self._models is None:
                return self._connect_model(settings)
        return None

    def _connect_model(self, settings: ModelSettings) -> Model:
        if settings not in self._connected_models:
            self._connected_models[settings] = connect(settings, self.config.timing)
        return self._connected_models[settings]

    def _make_gate(self) -> Gate:
        tools: list[Tool[Any]] = [*self._make_tools(), self._memory_service.tool()]
        tools += [SearchConversations(self._journal, UNREMEMBERED), *self.offers]
        tools += self._memory_service.provider_tools({tool.name for tool in tools})
        return self._make_gate_for(tools, self.rules)

    def _make_gate_for(self, tools: list[Tool[Any]], rules: Rules) -> Gate:
        return Gate(tools, rules, self._redact, self.config.timing)

    def _make_tools(self) -> list[Tool[Any]]:
        """Return the tools of every agent except the agent of a tour."""
        from tenax.tools.web import fetch as web  # noqa: PLC0415  (brings HTTP along)

        config, rules = self.config, self.rules
        tools: list[Tool[Any]] = [
            ReadFile(),
            WriteFile(rules),
            EditFile(rules),
            FindFiles(rules, config.timing),
            SearchFiles(rules, config.timing),
        ]
        tools.append(web.FetchPage())
        if config.search.searxng is not None:
            tools.append(web.SearchWeb(web.Searxng(config.search.searxng)))
        elif config.search.brave is not None:
            tools.append(web.SearchWeb(web.Brave(config.search.brave)))
        elif config.search.tavily is not None:
            tools.append(web.SearchWeb(web.Tavily(config.search.tavily)))
        tools += [
            Shell(self.background.sandbox, self._redact),
            *self.background.tools(),
        ]
        tools += [Ask(), Todo(), ReadSkill(self._skills, rules)]
        return [*tools, *self._servers.tools({tool.name for tool in tools})]

    def _read_instructions(self, project: Project | None = None) -> str:
        """Return the text of the instruction files, of the project, and of the skills; read when a segment begins."""
        folder = self.folder
        if project is not None and project.folder:
            folder = Path(project.folder)
        texts = [self._skills.in_folder(folder).describe_skills()]
        if project is not None and project.instructions:
            about = f"The person's instructions for the project {project.name}:"
            texts.insert(0, f"{about}\n\n{project.instructions}")
        if self.config.context_files:
            personal = self.config.directories.config / "AGENTS.md"
            home = Path.home()
            texts.insert(0, instructions(folder, personal, home, owner=self.owner))
        return "\n\n".join(filter(None, texts))

    # -- abilities of a model --------------------------------------------------------------------------------

    def is_set_up(self) -> bool:
        """Return whether a model is set up."""
        return self._models is not None or self.config.model is not None

    def is_real(self, model: Model) -> bool:
        """Return whether a person connected the model. The practice model and scripted models are not real."""
        matches = [
            settings
            for settings in self.config.models.values()
            if settings.name == model.name
        ]
        return any(map(_is_provider, matches))

    def can_summarise(self, model: Model) -> bool:
        """Return whether a model may write summaries: a real model, or a model passed to the runtime by the caller."""
        return self._models is not None or self.is_real(model)

    async def find_reviewer(self, conversation: str) -> Model | None:
        """Return the model for the memory review of a conversation: the model of the agent, if real.

        Return `None` if the review is turned off, no agent can answer, or the budget of the day is spent.
        """
        if not self.config.memory.review or await self.explain_silence(conversation):
            return None
        model = (await self.of(conversation)).models[0]
        limit = self.limits.dollars_day
        totals = await self._journal.spent()
        return (
            model
            if self.is_real(model) and (limit is None or totals.cost < limit)
            else None
        )


def _is_provider(settings: ModelSettings) -> bool:
    """Return whether the model is a service or a local server, and not the practice model or a script."""
    return settings.api in {"openai", "anthropic"}


def list_private_paths(config: Config) -> list[Path]:
    """Return the paths hidden from commands: the settings with the keys, the store, the logs."""
    directories = config.directories
    store = (
        [config.store_url.removeprefix("sqlite:///")]
        if config.store_url.startswith("sqlite:///")
        else []
    )
    settings = [config.file, config.file.with_name("secrets.toml")]
    return [
        directories.config,
        directories.data,
        directories.state,
        *settings,
        *map(Path, store),
    ]
