"""Deployment on real devices with Flower: the app, and a whole deployment on this machine to try it.

app.py      both halves of a Flower app, made of a task and an algorithm
project.py  the small app that `fedkeel deploy init` writes
sites.py    tables of the devices' own: the preparation they share, and a file for each of them
keys.py     certificates and node keys
local.py    SuperLink and SuperNodes on this machine, supervised
"""

from .app import App

__all__ = ["App"]
