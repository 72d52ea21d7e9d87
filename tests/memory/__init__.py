"""Memory: providers, their manager, what is owed, and the fence around what is recalled."""
