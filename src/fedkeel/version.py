"""The version, where nothing else has to be imported to read it."""

__version__ = "0.2.0"
