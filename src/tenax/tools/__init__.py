"""The tools of a model, and the gate in front of the tools."""
