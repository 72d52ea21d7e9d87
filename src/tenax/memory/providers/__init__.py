"""Memory providers: plugins, and the delivery of finished turns to the plugins."""
