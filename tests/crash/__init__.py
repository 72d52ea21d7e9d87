"""Kill, starve and break the store, and look at what is left."""
