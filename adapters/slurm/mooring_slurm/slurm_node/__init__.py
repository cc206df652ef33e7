"""The program on the node: the only part that talks to Slurm, with the standard library only, shipped as one file.

    python3 -I -S slurm_node.pyz --home /srv/slurm/NAME VERB [options]      some verbs read JSON from standard input

It prints one line of JSON and exits with 0. On failure it exits with 1 (2 for wrong arguments), prints
`{"error": {"code", "detail"}, …}`, and writes a sentence to standard error. Every verb may be repeated. Modules import
each other relatively, because the same files are a package of the adapter and the content of the shipped file.
"""

VERSION = "1.0.0"
