"""What runs on a node: the one place that speaks with Slurm, standard library only, carried as one file.

    python3 -I -S slurm_node.pyz --home /srv/slurm/NAME VERB [options]      more than words: JSON on standard input

It prints one line of JSON and ends with 0. Where it could not do what was asked it ends with 1 (2: it was asked
wrongly), prints `{"error": {"code", "detail"}, …}`, and says a sentence on standard error. Every verb may be repeated.
Modules import each other relatively: the same files are a package of the adapter and the content of that one file.
"""

VERSION = "1.0.0"
