"""The interface fixed by the contracts, built on the journal and the agent."""
