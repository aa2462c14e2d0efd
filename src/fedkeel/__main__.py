"""`python -m fedkeel` is the `fedkeel` command."""

from .cli import main

raise SystemExit(main())
