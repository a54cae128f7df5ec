"""The instrument that runs a script and its conversion side by side, and tells whether they make the same training.

`cases` reads the fixtures, `launch` runs a script (one process, or ranks), `hooks` records what happens inside without changing the
script, `trace` reads the record, `compare` judges two of them.
"""
