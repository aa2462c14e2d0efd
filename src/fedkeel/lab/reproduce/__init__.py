"""The papers' tables and figures, run again: a plan read from a TOML file, carried out, judged, written as a page."""

SCALES = ("small", "paper")
