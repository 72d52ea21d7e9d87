"""Providers and local servers with a known address. The table contacts nobody."""

from __future__ import annotations

from typing import Final

import msgspec

from tenax.config import Api
from tenax.config.read import PROVIDER_DEFAULTS

__all__ = ["PRESETS", "Preset"]


class Preset(msgspec.Struct, frozen=True):
    """A provider or a local server."""

    id: str
    title: str
    api: Api
    url: str
    keys: str = ""
    """The page on which a person gets a key. Empty for a server without keys."""
    variable: str = ""
    """The environment variable with the key, by the custom of the provider."""

    @property
    def is_local(self) -> bool:
        """Whether the server runs on the same machine."""
        return not self.keys


PRESETS: Final = (
    Preset("openai", "OpenAI", "openai", PROVIDER_DEFAULTS["openai"][0],
           "https://platform.openai.com/api-keys", PROVIDER_DEFAULTS["openai"][1]),
    Preset("anthropic", "Anthropic", "anthropic", PROVIDER_DEFAULTS["anthropic"][0],
           "https://console.anthropic.com/settings/keys", PROVIDER_DEFAULTS["anthropic"][1]),
    Preset("openrouter", "OpenRouter", "openai", "https://openrouter.ai/api/v1",
           "https://openrouter.ai/settings/keys", "OPENROUTER_API_KEY"),
    Preset("groq", "Groq", "openai", "https://api.groq.com/openai/v1",
           "https://console.groq.com/keys", "GROQ_API_KEY"),
    Preset("gemini", "Google Gemini", "openai", "https://generativelanguage.googleapis.com/v1beta/openai",
           "https://aistudio.google.com/apikey", "GEMINI_API_KEY"),
    Preset("mistral", "Mistral", "openai", "https://api.mistral.ai/v1",
           "https://console.mistral.ai/api-keys", "MISTRAL_API_KEY"),
    Preset("deepseek", "DeepSeek", "openai", "https://api.deepseek.com/v1",
           "https://platform.deepseek.com/api_keys", "DEEPSEEK_API_KEY"),
    Preset("ollama", "Ollama", "openai", "http://localhost:11434/v1"),
    Preset("lm-studio", "LM Studio", "openai", "http://localhost:1234/v1"),
    Preset("llama.cpp", "llama.cpp", "openai", "http://localhost:8080/v1"),
)  # fmt: skip
"""Providers first, then local servers."""
