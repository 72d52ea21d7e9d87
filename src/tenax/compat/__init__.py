"""The names that the contracts fix, built on the journal and the agent."""
