"""The laboratory: what is done with runs. The core never imports it; public names reach it when they are used.

study.py         several algorithms on one task with paired seeds, each run in a folder of its own
stats.py         an arm, a gain, and the rule for intervals, for all that follow
compare.py       what finished histories say; sweep/ tries values of an algorithm's keys
reproduce/       the papers' tables and figures, with a verdict
report/          progress, tables and curves in the terminal; one HTML page, also live
diagnose/        why a method wins or fails
trackers.py      rows to tensorboard, mlflow or wandb
"""
