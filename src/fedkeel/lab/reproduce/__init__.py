"""The papers' tables and figures, run again: a plan read from a TOML file, carried out, judged, written as a page.

plan.py         what is run: panels, arms, claims      carry_out.py  tunes and runs, reads what is known
record.py       a finished run as one small file       estimate.py   how long the rest takes here
verdict.py      whether a claim holds                  page.py       one page per study      index.py  all of them
"""

HEADINGS = {
    "paper": "At the paper's setting",
    "near": "Near the paper's setting",
    "stand-in": "On a stand-in",
    "not run": "Not run",
    "ours": "Our own studies",
}
