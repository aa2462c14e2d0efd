"""A run: its settings, the rounds one after another, its directory."""
