"""How fast the journal is, beside the bare engines, beside itself when small, and beside a peer.

`python -m bench` measures everything and writes `docs/BENCHMARKS.md`. `python -m bench PART ...` prints only these
parts. `--large` takes the large sizes, `--quick` such small ones that its figures mean nothing: it is there to be tested.

A part is a function that takes a `Lab` and yields rows; `parts.py` lists them. A figure is compared only with one that
was taken in the same run, in rounds that alternate, on the same disk.
"""
