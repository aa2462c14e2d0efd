"""The papers' tables and figures, run again: `fedkeel reproduce gel/table2`.

papers/       one TOML file per table: tasks, arms, the paper's figures, what it claims, what `small` changes
plan.py       reads and checks such a file
carry_out.py  runs its arms, each in a directory of its own; what is done is not run again
verdict.py    the rule that says whether a claim reproduces, fixed before any result was seen
page.py       the table with the paper's figures beside ours, and the index over all papers
"""

SCALES = ("small", "paper")
